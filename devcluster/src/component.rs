//! The processes of a cluster and their command lines.

use std::fmt::{self, Display, Formatter};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::Options;
use crate::binaries::Binary;

/// A process of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The key-value store.
    Etcd,
    /// The API server.
    ApiServer,
    /// The controllers of Kubernetes itself.
    ControllerManager,
    /// The Deployment controller, with [`Options::separate_controllers`].
    DeploymentController,
    /// The ReplicaSet controller, with [`Options::separate_controllers`].
    ReplicaSetController,
    /// The scheduler.
    Scheduler,
    /// The simulator of nodes and pods.
    Kwok,
    /// The real node with all its containers; killing it is a power cut of that node.
    RealNode,
}

impl Component {
    pub(crate) const ALL: [Self; 8] = [
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::DeploymentController,
        Self::ReplicaSetController,
        Self::Scheduler,
        Self::Kwok,
        Self::RealNode,
    ];

    /// Whether it runs only with [`Options::separate_controllers`].
    pub(crate) fn is_separate(self) -> bool {
        self.controller().is_some()
    }

    /// What Kubernetes calls the controller that runs as this component.
    fn controller(self) -> Option<&'static str> {
        match self {
            Self::DeploymentController => Some("deployment-controller"),
            Self::ReplicaSetController => Some("replicaset-controller"),
            _ => None,
        }
    }

    pub(crate) fn binary(self) -> Binary {
        match self {
            Self::Etcd => Binary::Etcd,
            Self::ApiServer => Binary::KubeApiserver,
            Self::ControllerManager | Self::DeploymentController | Self::ReplicaSetController => {
                Binary::KubeControllerManager
            }
            Self::Scheduler => Binary::KubeScheduler,
            Self::Kwok => Binary::Kwok,
            Self::RealNode => Binary::Kubelet,
        }
    }

    /// The user and group of the component's client certificate; `None` for those that are no
    /// clients of the API server.
    pub(crate) fn identity(self) -> Option<(&'static str, &'static [&'static str])> {
        match self {
            Self::Etcd | Self::ApiServer => None,
            Self::ControllerManager | Self::DeploymentController | Self::ReplicaSetController => {
                Some(("system:kube-controller-manager", &[]))
            }
            Self::Scheduler => Some(("system:kube-scheduler", &[])),
            // It writes status of nodes and pods of any node, which no role of Kubernetes itself
            // allows.
            Self::Kwok => Some(("kwok", &["system:masters"])),
            Self::RealNode => Some(("system:node:real-0", &["system:nodes"])),
        }
    }
}

impl Display for Component {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.controller().unwrap_or_else(|| self.binary().name()))
    }
}

/// Where the files of one cluster are.
#[derive(Clone, Debug)]
pub(crate) struct Layout(PathBuf);

impl Layout {
    pub(crate) fn new(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    pub(crate) fn log(&self, component: Component) -> PathBuf {
        self.logs().join(format!("{component}.log"))
    }

    pub(crate) fn audit_log(&self) -> PathBuf {
        self.logs().join("audit.log")
    }

    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    pub(crate) fn kubeconfig(&self, component: Component) -> PathBuf {
        self.0.join(format!("{component}.kubeconfig"))
    }
}

/// A port on 127.0.0.1 that is free now. Another process may take it before ours does; the start is
/// tried again then.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    Ok(listener.and_then(|listener| listener.local_addr()).context("no free port on 127.0.0.1")?.port())
}

/// The sockets of etcd, in the cluster's folder, where every component runs: a name without a
/// folder cannot become longer than the 107 bytes that a socket's name may have. Sockets and not
/// ports, because nobody else can open them, and because an API server that finds another cluster's
/// etcd behind a port would take it for its own.
pub(crate) const ETCD_SOCKET: &str = "etcd.sock";
const ETCD_PEER_SOCKET: &str = "etcd-peer.sock";

/// The command line of a component, without the program.
pub(crate) fn args(component: Component, layout: &Layout, port: u16, options: &Options) -> Vec<String> {
    let file = |name: &str| layout.file(name).display().to_string();
    let kubeconfig = layout.kubeconfig(component).display().to_string();
    let mut args = match component {
        Component::Etcd => {
            let client = format!("unix://{ETCD_SOCKET}");
            let peer = format!("unix://{ETCD_PEER_SOCKET}");
            vec![
                "--name=devcluster".to_owned(),
                format!("--data-dir={}", file("etcd")),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=devcluster={peer}"),
                // A cluster that a crash of the machine may destroy, for writes that do not wait
                // for the disk.
                "--unsafe-no-fsync".to_owned(),
                "--log-level=warn".to_owned(),
            ]
        }
        Component::ApiServer => {
            let mut args = vec![
                format!("--etcd-servers=unix://{ETCD_SOCKET}"),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={port}"),
                format!("--tls-cert-file={}", file("apiserver.crt")),
                format!("--tls-private-key-file={}", file("apiserver.key")),
                format!("--client-ca-file={}", file("ca.crt")),
                format!("--service-account-key-file={}", file("service-accounts.pub")),
                format!("--service-account-signing-key-file={}", file("service-accounts.key")),
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
                "--authorization-mode=Node,RBAC".to_owned(),
                "--allow-privileged=true".to_owned(),
                // There is no service network that an endpoint of the API server would be reached
                // through.
                "--endpoint-reconciler-type=none".to_owned(),
                "--service-cluster-ip-range=10.0.0.0/16".to_owned(),
            ];
            if options.real_node {
                args.extend([
                    "--enable-admission-plugins=NodeRestriction".to_owned(),
                    // The node's name is known to nobody.
                    "--kubelet-preferred-address-types=InternalIP".to_owned(),
                    format!("--kubelet-client-certificate={}", file("kubelet-client.crt")),
                    format!("--kubelet-client-key={}", file("kubelet-client.key")),
                ]);
            }
            if options.audit {
                args.extend([
                    format!("--audit-policy-file={}", file("audit-policy.yaml")),
                    format!("--audit-log-path={}", layout.audit_log().display()),
                    // Never rotated (megabytes): positions in the log stay valid for the life of
                    // the cluster.
                    "--audit-log-maxsize=1000000".to_owned(),
                ]);
            }
            args
        }
        Component::ControllerManager | Component::DeploymentController | Component::ReplicaSetController => {
            let mut args = vec![
                format!("--kubeconfig={kubeconfig}"),
                format!("--service-account-private-key-file={}", file("service-accounts.key")),
                format!("--root-ca-file={}", file("ca.crt")),
                "--use-service-account-credentials=true".to_owned(),
                "--leader-elect=false".to_owned(),
                // Nobody reads its metrics; without a port there is no port that could be taken.
                "--secure-port=0".to_owned(),
                "--kube-api-qps=500".to_owned(),
                "--kube-api-burst=1000".to_owned(),
            ];
            match component.controller() {
                Some(name) => args.push(format!("--controllers={name}")),
                None if options.separate_controllers => {
                    args.push("--controllers=*,-deployment-controller,-replicaset-controller".to_owned());
                }
                None => {}
            }
            args
        }
        Component::Scheduler => vec![
            format!("--kubeconfig={kubeconfig}"),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
        ],
        Component::Kwok => vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--config={}", file("kwok-stages.yaml")),
            "-v".to_owned(),
            "WARN".to_owned(),
            // A real node is none of its business.
            "--manage-all-nodes=false".to_owned(),
            "--manage-nodes-with-label-selector=type=kwok".to_owned(),
            "--cidr=10.64.0.0/12".to_owned(),
            "--node-ip=127.0.0.1".to_owned(),
            "--node-lease-duration-seconds=40".to_owned(),
        ],
        // Its command is made where its files are made.
        Component::RealNode => Vec::new(),
    };
    // Last, because the last of two equal flags counts.
    args.extend_from_slice(match component {
        Component::ApiServer => &options.apiserver_args,
        Component::ControllerManager | Component::DeploymentController | Component::ReplicaSetController => {
            &options.controller_manager_args
        }
        Component::Scheduler => &options.scheduler_args,
        Component::Etcd | Component::Kwok | Component::RealNode => &[],
    });
    args
}
