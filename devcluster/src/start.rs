//! Starting the processes of a cluster in the right order.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use http::Request;
use kube::Client;
use tokio::time::{Instant, sleep};

use crate::audit;
use crate::binaries::{Binaries, Binary};
use crate::certs::{self, Authority};
use crate::cluster::{Cluster, Kind, Owned};
use crate::component::{Component, ETCD_SOCKET, Layout, args, free_port};
use crate::datadir::DataDir;
use crate::kubeconfig;
use crate::nodes;
use crate::options::Options;
use crate::process::{Process, tail};
use crate::real_node::{RealNode, can_run_real_node};

/// KWOK's configuration: what nodes and pods do. Its header is the manual.
const STAGES: &str = include_str!("../kwok/stages.yaml");

/// Far longer than a start takes, for machines that are busy with other things.
const TIMEOUT: Duration = Duration::from_mins(2);

/// How often the start is tried when another process has taken the port in between.
const ATTEMPTS: usize = 5;

pub(crate) async fn start(options: Options) -> Result<Cluster> {
    let mut wanted = Binary::DEFAULT.to_vec();
    wanted.retain(|binary| options.kwok || *binary != Binary::Kwok);
    if options.real_node {
        tokio::task::spawn_blocking(can_run_real_node).await?.context("this machine cannot run a real node")?;
        wanted.extend(Binary::REAL_NODE);
    }
    let binaries = tokio::task::spawn_blocking(move || Binaries::ensure(&wanted)).await??;
    for attempt in 1.. {
        let mut owned = prepare(options.clone(), binaries.clone())?;
        match bring_up(&owned).await {
            Ok(()) => {
                return Ok(Cluster { kubeconfig: owned.layout.admin_kubeconfig(), kind: Kind::Owned(Box::new(owned)) });
            }
            Err(_) if attempt < ATTEMPTS && port_taken(&owned.layout) => {
                tracing::debug!(attempt, "the port was taken by another process, trying another");
            }
            Err(error) => {
                owned.processes().clear();
                owned.dir.keep();
                let logs = owned.layout.logs();
                return Err(error.context(format!("the cluster did not start; its logs are in {}", logs.display())));
            }
        }
    }
    unreachable!("the last attempt returns")
}

/// Whether the API server could not start because its port was in use.
fn port_taken(layout: &Layout) -> bool {
    fs::read_to_string(layout.log(Component::ApiServer)).is_ok_and(|log| log.contains("address already in use"))
}

/// Chooses a port and writes all files.
fn prepare(options: Options, binaries: Binaries) -> Result<Owned> {
    let dir = DataDir::new(options.dir.as_deref())?;
    let layout = Layout::new(dir.path());
    let port = free_port()?;
    let authority = Authority::new()?;
    // A folder of the caller may hold the data of an earlier run, signed by another authority.
    for old in ["etcd", "logs", "containerd", "kubelet", "addresses"].map(|name| layout.file(name)) {
        if old.exists() {
            fs::remove_dir_all(&old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    fs::create_dir_all(layout.logs())?;
    let serving = authority.server(&[
        "127.0.0.1",
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "10.0.0.1",
    ])?;
    let kubelet_client = authority.client("kube-apiserver-kubelet-client", &[])?;
    let (account_key, account_pub) = certs::service_account_keys()?;
    for (name, text) in [
        ("ca.crt", authority.pem().as_str()),
        ("apiserver.crt", &serving.cert),
        ("apiserver.key", &serving.key),
        ("kubelet-client.crt", &kubelet_client.cert),
        ("kubelet-client.key", &kubelet_client.key),
        ("service-accounts.key", &account_key),
        ("service-accounts.pub", &account_pub),
        ("audit-policy.yaml", audit::POLICY),
        ("kwok-stages.yaml", STAGES),
    ] {
        kubeconfig::write_private(&layout.file(name), text)?;
    }
    let real_node = if options.real_node { Some(RealNode::new(dir.path(), &binaries)?) } else { None };
    let owned = Owned {
        processes: Mutex::new(BTreeMap::new()),
        routes: Mutex::new(BTreeMap::new()),
        layout,
        port,
        options,
        binaries,
        authority,
        real_node,
        dir,
    };
    let admin = owned.authority.client("admin", &["system:masters"])?;
    kubeconfig::write(&owned.layout.admin_kubeconfig(), &owned.server(), &owned.authority.pem(), &admin)?;
    for component in Component::ALL {
        write_kubeconfig(&owned, component)?;
    }
    Ok(owned)
}

/// Writes the kubeconfig that a client component runs with; nothing for the other components.
pub(crate) fn write_kubeconfig(owned: &Owned, component: Component) -> Result<()> {
    let Some((user, groups)) = component.identity() else { return Ok(()) };
    let identity = owned.authority.client(user, groups)?;
    let server = owned.routes().get(&component).cloned().unwrap_or_else(|| owned.server());
    let path = owned.layout.kubeconfig(component);
    kubeconfig::write(&path, &server, &owned.authority.pem(), &identity)
}

async fn bring_up(owned: &Owned) -> Result<()> {
    spawn(owned, Component::Etcd)?;
    ready(owned, Component::Etcd).await?;
    spawn(owned, Component::ApiServer)?;
    ready(owned, Component::ApiServer).await?;
    spawn(owned, Component::ControllerManager)?;
    if owned.options.separate_controllers {
        spawn(owned, Component::DeploymentController)?;
        spawn(owned, Component::ReplicaSetController)?;
    }
    spawn(owned, Component::Scheduler)?;
    let client = probe(owned).await?;
    nodes::create(&client, owned.options.nodes).await?;
    if owned.real_node.is_some() {
        spawn(owned, Component::RealNode)?;
    }
    if owned.options.kwok {
        spawn(owned, Component::Kwok)?;
        let count = owned.options.nodes;
        until(owned, &Component::ALL, "nodes to be ready", || nodes::ready(&client, "kwok", count)).await?;
    }
    if owned.real_node.is_some() {
        ready(owned, Component::RealNode).await?;
    }
    until(owned, &Component::ALL, "the default service account", || nodes::default_account(&client)).await
}

/// Kills a component if it runs, and starts it.
pub(crate) async fn restart(cluster: &Cluster, owned: &Owned, component: Component) -> Result<()> {
    if owned.processes().contains_key(&component) {
        cluster.kill(component)?;
    }
    if component == Component::Kwok {
        if !owned.options.kwok {
            bail!("the cluster was started without KWOK");
        }
        nodes::delete_leases(&probe(owned).await?).await?;
    }
    if component.is_separate() && !owned.options.separate_controllers {
        bail!("{component} is part of the controller manager in this cluster");
    }
    if component == Component::RealNode && owned.real_node.is_none() {
        bail!("the cluster was started without a real node");
    }
    spawn(owned, component)?;
    ready(owned, component).await?;
    if component == Component::Etcd && owned.processes().contains_key(&Component::ApiServer) {
        ready(owned, Component::ApiServer).await?;
    }
    Ok(())
}

fn spawn(owned: &Owned, component: Component) -> Result<()> {
    if component == Component::Etcd {
        // That of a killed etcd is still there, and its being there is what is waited for.
        let _ = fs::remove_file(owned.layout.file(ETCD_SOCKET));
    }
    let (program, args) = match (&owned.real_node, component) {
        (Some(node), Component::RealNode) => node.command(&owned.layout.kubeconfig(component)),
        _ => (
            owned.binaries.path(component.binary())?.to_owned(),
            args(component, &owned.layout, owned.port, &owned.options),
        ),
    };
    let process = Process::spawn(&program, &args, owned.dir.path(), &owned.layout.log(component))?;
    tracing::debug!(%component, pid = process.pid(), "started");
    owned.processes().insert(component, process);
    Ok(())
}

/// Waits until a component does its work; the controller manager and the scheduler show no sign of
/// that.
async fn ready(owned: &Owned, component: Component) -> Result<()> {
    match component {
        Component::Etcd => {
            // Seen, not connected to: its whole path may be too long for the name of a socket.
            let socket = owned.layout.file(ETCD_SOCKET);
            until(owned, &[component], "etcd to listen", || async { Ok(socket.exists()) }).await
        }
        Component::ApiServer => {
            let client = probe(owned).await?;
            until(owned, &[component], "the API server to be ready", || async {
                let request = Request::get("/readyz").body(Vec::new())?;
                Ok(client.request_text(request).await? == "ok")
            })
            .await
        }
        Component::ControllerManager
        | Component::DeploymentController
        | Component::ReplicaSetController
        | Component::Scheduler => Ok(()),
        Component::Kwok => {
            let client = probe(owned).await?;
            until(owned, &[component], "KWOK to take over the nodes", || nodes::leased(&client)).await
        }
        Component::RealNode => {
            let client = probe(owned).await?;
            until(owned, &[component], "the real node to be ready", || nodes::ready(&client, "real", 1)).await
        }
    }
}

/// A client for waiting: it reports errors at once instead of trying again.
async fn probe(owned: &Owned) -> Result<Client> {
    let mut config = kubeconfig::config(&owned.layout.admin_kubeconfig()).await?;
    config.default_retry = false;
    kubeconfig::client(config, "devcluster")
}

/// Waits until `done` says so, as long as the `needed` components run. Errors of `done` count as
/// "not yet", and the last one is reported when time is up.
async fn until<F>(owned: &Owned, needed: &[Component], what: &str, mut done: impl FnMut() -> F) -> Result<()>
where
    F: Future<Output = Result<bool>>,
{
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let error = match done().await {
            Ok(true) => return Ok(()),
            Ok(false) => None,
            Err(error) => Some(error),
        };
        if let Some(failure) = failure(owned, needed) {
            return Err(failure.context(format!("while waiting for {what}")));
        }
        if Instant::now() >= deadline {
            let last = error.map(|error| format!("; last error: {error:#}")).unwrap_or_default();
            bail!("waited {} min for {what}{last}{}", TIMEOUT.as_secs() / 60, all_logs(owned));
        }
        sleep(Duration::from_millis(25)).await;
    }
}

/// One of these components that has ended, with the end of its log. Others may have: a test may
/// have broken them on purpose.
fn failure(owned: &Owned, needed: &[Component]) -> Option<Error> {
    let (component, status) = owned
        .processes()
        .iter_mut()
        .filter(|(component, _)| needed.contains(component))
        .find_map(|(component, process)| process.exited().map(|status| (*component, status)))?;
    let log: PathBuf = owned.layout.log(component);
    Some(anyhow!("{component} has ended ({status}); the end of {}:\n{}", log.display(), tail(&log, 20)))
}

fn all_logs(owned: &Owned) -> String {
    let mut text = String::new();
    for component in owned.processes().keys() {
        let end = tail(&owned.layout.log(*component), 8);
        // Writing to a string cannot fail.
        let _ = write!(text, "\n--- the end of the log of {component}:\n{end}");
    }
    text
}
