//! A namespace of its own on the shared cluster, with a user, an observer, a hook receiver and a controller.

use std::ops::Deref;

use apiserver::{Gate, Observer, Stage, objects};
use devcluster::{Cluster, WatchProxy};
use interlock::{
    action::{
        Runners,
        http::{ApiServer, HttpClient, Rules},
    },
    controller::{self, Clock},
    lease::Fence,
    observe::{self, Scope},
    publish::metrics::Metrics,
    serve::Health,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::PostParams};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{cluster::cluster, receiver::Receiver};

pub struct Env {
    pub cluster: &'static Cluster,
    pub stage: Stage,
    pub observer: Observer,
    pub receiver: Receiver,
    /// Stands before the controller's watches, if the test wants that.
    proxy: Option<WatchProxy>,
    controller: Option<(JoinHandle<()>, CancellationToken)>,
}

impl Env {
    /// A fresh namespace; no policy and no controller yet.
    pub async fn new(name: &str) -> Self {
        Self::on(cluster().await, name).await
    }

    /// The same on another cluster, which is prepared.
    pub async fn on(cluster: &'static Cluster, name: &str) -> Self {
        let admin = cluster.client().await.unwrap();
        let namespace = format!("{}-{}", name.replace('_', "-"), suffix());
        let spaces: Api<Namespace> = Api::all(admin.clone());
        spaces
            .create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap())
            .await
            .unwrap();
        let dev = cluster.client_as("dev", &["system:authenticated"]).await.unwrap();
        let observer = Observer::start(admin.clone(), &namespace).await;
        let receiver = Receiver::start().await;
        let stage = Stage { namespace, admin, dev, gate: Gate::default() };
        Self { cluster, stage, observer, receiver, proxy: None, controller: None }
    }

    /// A namespace with the usual policy, in force, and a running controller.
    pub async fn with_policy(name: &str) -> Self {
        Self::new(name).await.governed().await
    }

    /// The controller will reach the API server through a proxy.
    pub async fn behind_proxy(mut self) -> Self {
        self.proxy = Some(WatchProxy::start(self.cluster.config().await.unwrap()).await.unwrap());
        self
    }

    /// The proxy of [`Self::behind_proxy`].
    pub fn proxy(&self) -> &WatchProxy {
        self.proxy.as_ref().expect("this test has a proxy")
    }

    /// With the usual policy, in force, and a running controller.
    pub async fn governed(mut self) -> Self {
        self.policy(objects::policy("p", &self.receiver.url)).await;
        self.start().await;
        self
    }

    /// Starts the controller of this namespace, as its service account.
    pub async fn start(&mut self) {
        let path = self.cluster.service_account_kubeconfig("interlock-system", "interlock").await.unwrap();
        let kubeconfig = kube::config::Kubeconfig::read_from(path).unwrap();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
            .await
            .unwrap();
        if let Some(proxy) = &self.proxy {
            config.cluster_url = proxy.url().parse().unwrap();
        }
        let mut config = observe::client_config(config);
        config.headers.push((http::header::USER_AGENT, format!("interlock/e2e-{}", self.namespace).parse().unwrap()));
        let api_server = ApiServer::of(&config.cluster_url);
        let client = kube::client::ClientBuilder::try_from(config).unwrap().with_layer(&self.gate).build();
        let rules = Rules { loopback: true, ..Rules::default() };
        let http = HttpClient::new(rules, Some("interlock-system"), api_server);
        let hooks = Runners::new(client.clone(), std::sync::Arc::new(|| true), Clock::System, http).runner();
        let options = controller::Options {
            scope: Scope { namespace: Some(self.namespace.clone()), ..Scope::default() },
            clock: Clock::System,
            instance: "e2e".to_owned(),
            hooks,
            metrics: Metrics::default(),
            health: Health::new(Fence::always()),
        };
        let stop = CancellationToken::new();
        let token = stop.clone();
        let namespace = self.namespace.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = controller::run(client, options, Fence::always(), token).await {
                eprintln!("{namespace}: the controller ended: {error}");
            }
        });
        self.controller = Some((task, stop));
    }

    /// Kills the controller where it stands.
    pub async fn kill(&mut self) {
        if let Some((task, _)) = self.controller.take() {
            task.abort();
            let _ = task.await;
        }
    }

    /// No image but those given was seen in a pod of the app before a PreUpdate hook was called for it.
    pub fn assert_hooks_first(&self, app: &str, from_the_start: &[&str]) {
        if let Some(fault) = apiserver::calls::unhooked(&self.observer, &self.receiver.calls(), app, from_the_start) {
            panic!("{}: {fault}", self.namespace);
        }
    }
}

impl Deref for Env {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        if let Some((task, stop)) = self.controller.take() {
            stop.cancel();
            task.abort();
        }
    }
}

/// Unique in this process, and unlike those of other processes.
fn suffix() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{:x}{}", std::process::id() % 0xfff, NEXT.fetch_add(1, Ordering::Relaxed))
}
