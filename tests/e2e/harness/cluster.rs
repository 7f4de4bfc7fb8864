//! The clusters of this test program.

use devcluster::{Cluster, Component, Options, WatchProxy};
use interlock::install::{self, InstallOptions};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// The cluster of this test program, with Interlock's definitions, policies and rights, and a user `dev`.
pub async fn cluster() -> &'static Cluster {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let cluster = Cluster::shared().await.expect("a development cluster");
    INSTALLED.get_or_init(|| prepare(cluster)).await;
    cluster
}

/// Installs Interlock and gives the user `dev` rights.
pub async fn prepare(cluster: &Cluster) {
    let admin = cluster.client().await.unwrap();
    install::install(&admin, &InstallOptions::default()).await.expect("installation");
    for object in [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "e2e-dev"}, "rules": [
            {"apiGroups": ["apps"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
            {"apiGroups": ["interlock.dev"], "resources": ["hookpolicies"], "verbs": ["*"]},
        ]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "e2e-dev"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "e2e-dev"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "dev"}]}),
    ] {
        apply(&admin, &object).await;
    }
}

/// Server-side apply of any object.
pub async fn apply(client: &Client, object: &Value) {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let types = object.types.clone().unwrap();
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", types.api_version.as_str()));
    let gvk = kube::core::GroupVersionKind::gvk(group, version, &types.kind);
    let resource = kube::core::ApiResource::from_gvk(&gvk);
    let api: Api<DynamicObject> = match object.namespace() {
        Some(ns) => Api::namespaced_with(client.clone(), &ns, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    api.patch(&object.name_any(), &PatchParams::apply("e2e").force(), &Patch::Apply(&object)).await.unwrap();
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
        prepare(&cluster).await;
        Self { cluster, deployments, replica_sets }
    }
}
