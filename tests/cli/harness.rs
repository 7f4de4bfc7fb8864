//! Binaries, a namespace, and polling.

use std::{path::PathBuf, process::Stdio, time::Duration};

use devcluster::Cluster;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Namespace};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};
use tokio::{process::Command, sync::OnceCell, time::Instant};

use super::controller::Controller;

pub(crate) const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-interlock");
pub(crate) const INTERLOCK: &str = env!("CARGO_BIN_EXE_interlock");

/// What a process printed and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a binary to its end.
pub(crate) async fn ended(binary: &str, args: &[&str]) -> Ended {
    let output = Command::new(binary).args(args).stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    Ended {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The cluster of this program, with Interlock installed by its own command.
pub(crate) async fn cluster() -> &'static Cluster {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let cluster = Cluster::shared().await.expect("a development cluster");
    INSTALLED
        .get_or_init(|| async {
            let kubeconfig = cluster.kubeconfig_path().to_str().unwrap();
            let install = ended(INTERLOCK, &["install", "--kubeconfig", kubeconfig]).await;
            assert_eq!(install.code, Some(0), "{install:?}");
            assert!(install.out.contains("created"), "{install:?}");
        })
        .await;
    cluster
}

/// A namespace of its own.
pub(crate) struct Env {
    pub(crate) cluster: &'static Cluster,
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Env {
    pub(crate) async fn new(name: &str) -> Self {
        let cluster = cluster().await;
        let client = cluster.client().await.unwrap();
        let namespace = format!("{name}-{}", interlock::cli::random_id().split_at(6).0);
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        Self { cluster, client, namespace }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.cluster.kubeconfig_path().to_owned()
    }

    /// A controller of this namespace, as the service account.
    pub(crate) async fn controller(&self, election: &[&str]) -> Controller {
        let kubeconfig = self.cluster.service_account_kubeconfig("interlock-system", "interlock").await.unwrap();
        Controller::start(&kubeconfig, &self.namespace, election).await
    }

    /// `kubectl interlock ARGS` as the administrator.
    pub(crate) async fn plugin(&self, args: &[&str]) -> Ended {
        let kubeconfig = self.kubeconfig();
        let fixed = ["--kubeconfig", kubeconfig.to_str().unwrap(), "-n", &self.namespace];
        ended(PLUGIN, &[args, &fixed].concat()).await
    }

    pub(crate) fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn create(&self, name: &str, replicas: i64) {
        let object = deployment(name, replicas);
        self.deployments().create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        self.until("it is complete", 60, || async {
            let d = self.get(name).await;
            d["status"]["availableReplicas"] == json!(replicas) && d["status"]["updatedReplicas"] == json!(replicas)
        })
        .await;
    }

    pub(crate) async fn get(&self, name: &str) -> Value {
        serde_json::to_value(self.deployments().get(name).await.unwrap()).unwrap()
    }

    pub(crate) async fn set_image(&self, name: &str, image: &str, dry_run: bool) -> Value {
        let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
        let params = PatchParams { dry_run, ..PatchParams::default() };
        let answer = self.deployments().patch(name, &params, &Patch::Strategic(&patch)).await.unwrap();
        serde_json::to_value(answer).unwrap()
    }

    /// Applies a HookPolicy for the Deployment `name`, and waits until it is in force.
    pub(crate) async fn policy(&self, name: &str, hooks: Value) {
        let object = json!({
            "apiVersion": "interlock.dev/v1alpha1", "kind": "HookPolicy",
            "metadata": {"name": "gate", "namespace": self.namespace},
            "spec": {"selector": {"fieldSelector": format!("metadata.name={name}")}, "settleSeconds": 0, "hooks": hooks},
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk("interlock.dev", "v1alpha1", "HookPolicy"));
        "hookpolicies".clone_into(&mut resource.plural);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        api.create(&PostParams::default(), &object).await.unwrap();
        self.until("the policy is in force", 30, || async {
            held(&self.set_image(name, "r.test/img:probe", true).await)
        })
        .await;
    }

    /// Polls until it is so.
    pub(crate) async fn until<F: Future<Output = bool>>(&self, what: &str, seconds: u64, so: impl Fn() -> F) {
        until(what, seconds, so).await;
    }
}

pub(crate) async fn until<F: Future<Output = bool>>(what: &str, seconds: u64, so: impl Fn() -> F) {
    // A limit ends a hang, it measures nothing: a machine with other work is several times slower.
    let end = Instant::now() + Duration::from_secs(seconds) * 5;
    while !so().await {
        assert!(Instant::now() < end, "not within {seconds} s: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn held(deployment: &Value) -> bool {
    deployment["metadata"]["annotations"]["interlock.dev/held-by"].is_string()
        && deployment["spec"]["paused"] == json!(true)
}

pub(crate) fn image(deployment: &Value) -> &str {
    deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap()
}

pub(crate) fn deployment(name: &str, replicas: i64) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "r.test/img:v1"}]},
            },
        },
    })
}
