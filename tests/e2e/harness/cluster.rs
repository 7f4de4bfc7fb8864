//! The clusters of this test program.

use apiserver::stage::apply;
use devcluster::{Cluster, Component, Options, WatchProxy};
use interlock::install::{self, InstallOptions};
use serde_json::json;
use tokio::sync::OnceCell;

/// The cluster of this test program, with Interlock's definitions, policies and rights, and a user `dev`.
pub async fn cluster() -> &'static Cluster {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let cluster = Cluster::shared().await.expect("a development cluster");
    INSTALLED.get_or_init(|| async { prepare(cluster, &InstallOptions::default()).await }).await;
    cluster
}

/// Installs Interlock and gives the user `dev` rights.
pub async fn prepare(cluster: &Cluster, options: &InstallOptions) {
    let admin = cluster.client().await.unwrap();
    install::install(&admin, options).await.expect("installation");
    for object in [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "e2e-dev"}, "rules": [
            {"apiGroups": ["apps"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
            {"apiGroups": ["interlock.dev"], "resources": ["hookpolicies", "rollingrestarts"], "verbs": ["*"]},
        ]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "e2e-dev"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "e2e-dev"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "dev"}]}),
    ] {
        apply(&admin, &object).await;
    }
}

/// A cluster whose Deployment controller and ReplicaSet controller run apart, each behind a proxy of its own.
pub struct Spoilt {
    pub cluster: Cluster,
    pub deployments: WatchProxy,
    pub replica_sets: WatchProxy,
}

impl Spoilt {
    /// The one of this test program.
    pub async fn shared() -> &'static Self {
        static SPOILT: OnceCell<Spoilt> = OnceCell::const_new();
        SPOILT.get_or_init(Self::start).await
    }

    async fn start() -> Self {
        let options = Options { separate_controllers: true, ..Options::default() };
        let cluster = Cluster::start(options).await.expect("a cluster with separate controllers");
        let deployments = cluster.proxy(Component::DeploymentController).await.unwrap();
        let replica_sets = cluster.proxy(Component::ReplicaSetController).await.unwrap();
        cluster.route(Component::DeploymentController, Some(&deployments.url())).await.unwrap();
        cluster.route(Component::ReplicaSetController, Some(&replica_sets.url())).await.unwrap();
        prepare(&cluster, &InstallOptions::default()).await;
        Self { cluster, deployments, replica_sets }
    }
}
