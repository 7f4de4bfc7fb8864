//! A namespace of its own on a real control plane with Interlock installed and no controller running: whatever holds
//! here, the API server holds.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use devcluster::Cluster;
use interlock::install::{InstallOptions, install};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Namespace};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use interlock::api::HookPolicy;

/// How long anything here may take before it counts as failed.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// User with rights on workloads and policies, but not the right `release`.
pub(crate) const DEV: &str = "dev";
/// The controller's own identity.
pub(crate) const CONTROLLER: &str = "system:serviceaccount:interlock-system:interlock";

/// A fresh namespace and who works in it.
pub(crate) struct Place {
    pub(crate) cluster: &'static Cluster,
    pub(crate) namespace: String,
    /// Administrator.
    pub(crate) admin: Client,
    /// [`DEV`].
    pub(crate) dev: Client,
    /// [`CONTROLLER`].
    pub(crate) controller: Client,
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

impl Place {
    /// A new namespace.
    pub(crate) async fn new() -> Self {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        let cluster = Cluster::shared().await.unwrap();
        let admin = cluster.client().await.unwrap();
        INSTALLED.get_or_init(|| prepare(admin.clone())).await;
        let namespace = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        create_namespace(&admin, &namespace).await;
        Self {
            cluster,
            namespace,
            admin,
            dev: cluster.client_as(DEV, &[]).await.unwrap(),
            controller: cluster.client_as(CONTROLLER, &["system:serviceaccounts"]).await.unwrap(),
        }
    }

    pub(crate) fn policies(&self, client: &Client) -> Api<HookPolicy> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    pub(crate) fn deployments(&self, client: &Client) -> Api<Deployment> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    /// Creates a policy and waits until it is in force.
    pub(crate) async fn policy(&self, name: &str, spec: Value) {
        self.try_policy(&self.admin, name, spec).await.unwrap();
        self.in_force().await;
    }

    /// Creates a policy from raw JSON, as this user.
    pub(crate) async fn try_policy(&self, client: &Client, name: &str, spec: Value) -> kube::Result<()> {
        let body = json!({
            "apiVersion": "interlock.dev/v1alpha1", "kind": "HookPolicy", "metadata": {"name": name}, "spec": spec,
        });
        let path = format!("/apis/interlock.dev/v1alpha1/namespaces/{}/hookpolicies", self.namespace);
        self.raw(client, "POST", &format!("{path}?fieldValidation=Strict"), "application/json", &body).await.map(drop)
    }

    pub(crate) async fn delete_policy(&self, name: &str) {
        self.policies(&self.admin).delete(name, &DeleteParams::default()).await.unwrap();
        self.in_force().await;
    }

    /// Waits until every policy written so far is seen by the hold. The API server learns of policies in the order of
    /// their writes, so it is enough to write one more, elsewhere, and to see it hold.
    pub(crate) async fn in_force(&self) {
        in_force(&self.admin).await;
    }

    /// Creates a Deployment `name` as the developer.
    pub(crate) async fn create(&self, name: &str) -> Deployment {
        self.create_from(deployment(name)).await
    }

    pub(crate) async fn create_from(&self, object: Value) -> Deployment {
        let object = serde_json::from_value(object).unwrap();
        self.deployments(&self.dev).create(&PostParams::default(), &object).await.unwrap()
    }

    /// A JSON merge patch as the developer.
    pub(crate) async fn patch(&self, name: &str, patch: Value) -> Deployment {
        self.try_patch(&self.dev, name, patch).await.unwrap()
    }

    pub(crate) async fn try_patch(&self, client: &Client, name: &str, patch: Value) -> kube::Result<Deployment> {
        self.deployments(client).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
    }

    pub(crate) async fn get(&self, name: &str) -> Deployment {
        self.deployments(&self.admin).get(name).await.unwrap()
    }

    /// A new image: a template change.
    pub(crate) async fn set_image(&self, name: &str, image: &str) -> Deployment {
        self.patch(name, image_patch(image)).await
    }

    /// A Deployment that a policy holds in an update.
    pub(crate) async fn held(&self, name: &str) -> Deployment {
        self.policy("hooks", json!({"selector": {"fieldSelector": format!("metadata.name={name}")}})).await;
        self.create(name).await;
        let deployment = self.set_image(name, "app:2").await;
        assert_eq!(held_by(&deployment), Some("hooks"));
        deployment
    }

    /// A request of which also the headers matter.
    pub(crate) async fn raw(
        &self,
        client: &Client,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> kube::Result<(Vec<String>, Value)> {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .body(serde_json::to_vec(body).unwrap().into())
            .unwrap();
        let response = client.send(request).await?;
        let status = response.status();
        let warnings = response.headers().get_all("warning").iter();
        let warnings = warnings.map(|value| value.to_str().unwrap().to_owned()).collect();
        let body = response.into_body().collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status.is_success() {
            Ok((warnings, body))
        } else {
            Err(kube::Error::Api(Box::new(serde_json::from_value(body).unwrap())))
        }
    }

    /// Runs kubectl as the developer and returns its output and its warnings.
    pub(crate) async fn kubectl(&self, args: &[&str], input: Option<&Value>) -> (String, String) {
        self.kubectl_as(Some(DEV), args, input).await.unwrap()
    }

    /// The same as another user, or as the administrator. The error is all that kubectl said.
    pub(crate) async fn kubectl_as(
        &self,
        user: Option<&str>,
        args: &[&str],
        input: Option<&Value>,
    ) -> Result<(String, String), String> {
        use tokio::io::AsyncWriteExt as _;
        let kubectl = self.cluster.bin(devcluster::Binary::Kubectl).unwrap();
        let mut command = tokio::process::Command::new(kubectl);
        command.arg("--kubeconfig").arg(self.cluster.kubeconfig_path()).args(["-n", &self.namespace]).args(args);
        if let Some(user) = user {
            command.args(["--as", user]);
        }
        command.stdin(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        if let Some(input) = input {
            stdin.write_all(input.to_string().as_bytes()).await.unwrap();
        }
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        if output.status.success() { Ok((out, err)) } else { Err(format!("kubectl {args:?}: {out}{err}")) }
    }
}

async fn prepare(admin: Client) {
    install(&admin, &InstallOptions::default()).await.unwrap();
    apply(
        &admin,
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/dev",
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "dev"},
            "rules": [
                {"apiGroups": ["apps"], "resources": ["*"], "verbs": ["*"]},
                {"apiGroups": ["interlock.dev"], "resources": ["hookpolicies"], "verbs": ["*"]},
                {"apiGroups": ["interlock.dev"], "resources": ["hookruns", "hookruns/status"],
                 "verbs": ["get", "list", "create", "update", "patch"]},
            ],
        }),
    )
    .await;
    apply(
        &admin,
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/dev",
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "dev"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "dev"},
            "subjects": [{"kind": "User", "name": DEV, "apiGroup": "rbac.authorization.k8s.io"}],
        }),
    )
    .await;
}

async fn apply(client: &Client, path: &str, object: Value) {
    let request = http::Request::builder()
        .method("PATCH")
        .uri(format!("{path}?fieldManager=tests&force=true"))
        .header("content-type", "application/apply-patch+yaml")
        .body(object.to_string().into_bytes())
        .unwrap();
    client.request::<Value>(request).await.unwrap();
}

async fn create_namespace(client: &Client, name: &str) {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
}

/// See [`Place::in_force`].
pub(crate) async fn in_force(admin: &Client) {
    static SENTINEL: OnceCell<()> = OnceCell::const_new();
    const NAMESPACE: &str = "sentinel";
    SENTINEL.get_or_init(|| create_namespace(admin, NAMESPACE)).await;
    let name = format!("s{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let spec = serde_json::from_value(json!({"order": [{"name": name, "after": ["nothing"]}]})).unwrap();
    let policies: Api<HookPolicy> = Api::namespaced(admin.clone(), NAMESPACE);
    policies.create(&PostParams::default(), &HookPolicy::new(&name, spec)).await.unwrap();
    let probe = serde_json::from_value(deployment(&name)).unwrap();
    let deployments: Api<Deployment> = Api::namespaced(admin.clone(), NAMESPACE);
    let params = PostParams { dry_run: true, field_manager: None };
    until("the policies are in force", async || held_by(&deployments.create(&params, &probe).await.unwrap()).map(drop))
        .await;
    policies.delete(&name, &DeleteParams::default()).await.unwrap();
}

/// Looks again until there is an answer.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = look().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < end, "not after {} s: {what}", PATIENCE.as_secs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A Deployment of one replica.
pub(crate) fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name, "tier": "web"}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "app", "image": "app:1"}, {"name": "side", "image": "side:1"}]},
            },
        },
    })
}

/// Changes the image of the first container. A merge patch replaces the list.
pub(crate) fn image_patch(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {
        "containers": [{"name": "app", "image": image}, {"name": "side", "image": "side:1"}],
    }}}})
}

pub(crate) fn annotation<'a>(deployment: &'a Deployment, key: &str) -> Option<&'a str> {
    deployment.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn paused(deployment: &Deployment) -> bool {
    deployment.spec.paused.unwrap_or_default()
}

/// Who holds it. A mark without a pause, or a pause by us without a mark, would be a fault of its own.
pub(crate) fn held_by(deployment: &Deployment) -> Option<&str> {
    let by = annotation(deployment, "interlock.dev/held-by").filter(|_| paused(deployment));
    if by.is_some() {
        assert!(annotation(deployment, "interlock.dev/held-at").is_some());
        assert!(annotation(deployment, "interlock.dev/resume").is_some());
    }
    by
}

/// What the API server said when it refused.
pub(crate) fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
        other => panic!("a refusal was expected: {other:?}"),
    }
}
