//! A namespace of its own on the shared cluster, with a user, an observer, a hook receiver and a controller.

use std::{collections::BTreeSet, time::Duration};

use devcluster::{Cluster, WatchProxy};
use interlock::{
    action::{
        Actions,
        http::{Allow, HttpClient},
    },
    controller::{self, Clock},
    lease::Fence,
    observe::{self, Scope},
    publish::metrics::Metrics,
    serve::Health,
};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{Namespace, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{
    Gate,
    cluster::{apply, cluster},
    objects,
    observer::Observer,
    receiver::Receiver,
};

pub const HELD_BY: &str = "interlock.dev/held-by";

pub struct Env {
    pub cluster: &'static Cluster,
    pub namespace: String,
    pub admin: Client,
    /// A user who may change Deployments, ReplicaSets, pods and HookPolicies.
    pub dev: Client,
    pub observer: Observer,
    pub receiver: Receiver,
    pub gate: Gate,
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
        Self {
            cluster,
            namespace,
            admin,
            dev,
            observer,
            receiver,
            gate: Gate::default(),
            proxy: None,
            controller: None,
        }
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
        let client = kube::client::ClientBuilder::try_from(config).unwrap().with_layer(&self.gate).build();
        let options = controller::Options {
            scope: Scope { namespace: Some(self.namespace.clone()), ..Scope::default() },
            clock: Clock::System,
            instance: "e2e".to_owned(),
            hooks: Actions::http(HttpClient::new(Allow { loopback: true }).unwrap()),
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

    pub fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.dev.clone(), &self.namespace)
    }

    pub fn replica_sets(&self) -> Api<ReplicaSet> {
        Api::namespaced(self.dev.clone(), &self.namespace)
    }

    pub fn pods_api(&self) -> Api<Pod> {
        Api::namespaced(self.dev.clone(), &self.namespace)
    }

    pub fn resource(&self, kind: &str, plural: &str) -> Api<DynamicObject> {
        let mut resource =
            kube::core::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("interlock.dev", "v1alpha1", kind));
        plural.clone_into(&mut resource.plural);
        Api::namespaced_with(self.admin.clone(), &self.namespace, &resource)
    }

    pub fn policies(&self) -> Api<DynamicObject> {
        self.resource("HookPolicy", "hookpolicies")
    }

    pub fn runs_api(&self) -> Api<DynamicObject> {
        self.resource("HookRun", "hookruns")
    }

    /// Applies an object in this namespace as the administrator.
    pub async fn apply(&self, mut object: Value) {
        object["metadata"]["namespace"] = json!(self.namespace);
        apply(&self.admin, &object).await;
    }

    /// Applies a policy and waits until the API server holds by it.
    pub async fn policy(&self, policy: Value) {
        let name = policy["metadata"]["name"].as_str().unwrap().to_owned();
        self.apply(policy).await;
        // There is no condition to watch without a controller: a Deployment that names the policy tells by dry runs.
        let mut probe = objects::deployment("probe", 0);
        probe["metadata"]["annotations"] = json!({"interlock.dev/policy": name});
        probe["metadata"]["labels"] = json!({});
        let api = self.deployments();
        api.create(&PostParams::default(), &serde_json::from_value(probe).unwrap()).await.unwrap();
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };
        self.until("the policy is in force", 10, || async {
            let answer = api.patch("probe", &dry, &Patch::Strategic(objects::set_image("probe"))).await.unwrap();
            answer.annotations().contains_key(HELD_BY)
        })
        .await;
        api.delete("probe", &kube::api::DeleteParams::background()).await.unwrap();
        self.until("the probe is gone", 10, || async { api.get_opt("probe").await.unwrap().is_none() }).await;
    }

    /// A quota of the namespace, once it counts.
    pub async fn quota(&self, resource: &str, hard: &str) {
        self.apply(json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {resource: hard}}}))
            .await;
        let quotas: Api<k8s_openapi::api::core::v1::ResourceQuota> =
            Api::namespaced(self.admin.clone(), &self.namespace);
        self.until("the quota counts", 20, || async {
            quotas.get("q").await.unwrap().status.and_then(|s| s.used).is_some_and(|used| used.contains_key(resource))
        })
        .await;
    }

    /// A change that goes the native way to an image that cannot be pulled; waits until it is frozen.
    pub async fn frozen_native_roll(&self, name: &str) {
        let mut bad = objects::set_env("e1");
        bad["spec"]["template"]["spec"]["containers"][0]["image"] = json!(objects::image("bad-pull1"));
        self.patch(name, bad).await;
        self.until("the native roll got stuck and is frozen", 60, || async {
            self.held(name).await && self.run(name).await["status"]["stall"]["reason"] == "PodFailing"
        })
        .await;
    }

    /// Creates a Deployment as the user and waits until it is complete.
    pub async fn create(&self, deployment: Value) {
        let name = deployment["metadata"]["name"].as_str().unwrap().to_owned();
        self.deployments().create(&PostParams::default(), &serde_json::from_value(deployment).unwrap()).await.unwrap();
        self.complete(&name).await;
    }

    pub async fn get(&self, name: &str) -> Value {
        serde_json::to_value(self.deployments().get(name).await.unwrap()).unwrap()
    }

    /// A change by the user, as a strategic merge patch.
    pub async fn patch(&self, name: &str, patch: Value) {
        self.deployments().patch(name, &PatchParams::default(), &Patch::Strategic(&patch)).await.unwrap();
    }

    pub async fn scale(&self, name: &str, replicas: i64) {
        self.patch(name, json!({"spec": {"replicas": replicas}})).await;
    }

    pub async fn sets(&self, name: &str) -> Vec<Value> {
        let list = self.replica_sets().list(&ListParams::default().labels(&format!("app={name}"))).await.unwrap();
        let mut sets: Vec<Value> = list.items.into_iter().map(|s| serde_json::to_value(s).unwrap()).collect();
        sets.retain(|s| s["metadata"]["deletionTimestamp"].is_null());
        sets.sort_by_key(revision);
        sets
    }

    pub async fn pods(&self, name: &str) -> Vec<Value> {
        let list = self.pods_api().list(&ListParams::default().labels(&format!("app={name}"))).await.unwrap();
        let mut pods: Vec<Value> = list.items.into_iter().map(|p| serde_json::to_value(p).unwrap()).collect();
        pods.retain(|p| p["metadata"]["deletionTimestamp"].is_null());
        pods
    }

    pub async fn uids(&self, name: &str) -> BTreeSet<String> {
        self.pods(name).await.iter().map(|p| p["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
    }

    pub async fn runs(&self, name: &str) -> Vec<Value> {
        let list = self.runs_api().list(&ListParams::default()).await.unwrap();
        let mut runs: Vec<Value> = list.items.into_iter().map(|r| serde_json::to_value(r).unwrap()).collect();
        runs.retain(|r| r["spec"]["deployment"]["name"] == name);
        runs.sort_by_key(|r| r["spec"]["sequence"].as_i64());
        runs
    }

    /// The latest run.
    pub async fn run(&self, name: &str) -> Value {
        self.runs(name).await.pop().unwrap_or_default()
    }

    /// Appends a decision to the latest run, as the administrator.
    pub async fn decide(&self, name: &str, action: &str, target: Option<&str>) {
        let run = self.run(name).await;
        let mut decisions = run["spec"]["decisions"].as_array().cloned().unwrap_or_default();
        let mut decision = json!({"id": format!("d{}", decisions.len()), "action": action, "by": "admin"});
        if let Some(target) = target {
            decision["target"] = json!(target);
        }
        decisions.push(decision);
        let patch = json!({"spec": {"decisions": decisions}});
        let name = run["metadata"]["name"].as_str().unwrap();
        self.runs_api().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    /// Waits for a state; on failure says what everything looks like.
    pub async fn until<F, R>(&self, what: &str, seconds: u64, test: F)
    where
        F: Fn() -> R,
        R: Future<Output = bool>,
    {
        let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
        while !test().await {
            if tokio::time::Instant::now() > end {
                let picture = self.picture().await;
                panic!("{}: not within {seconds} s: {what}\n{picture}", self.namespace);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Held by a fresh mark.
    pub async fn held(&self, name: &str) -> bool {
        let d = self.get(name).await;
        d["spec"]["paused"] == true && !d["metadata"]["annotations"][HELD_BY].is_null()
    }

    /// Waits until the Deployment controller calls it complete and nothing is held.
    pub async fn complete(&self, name: &str) {
        self.until(&format!("{name} is complete"), 40, || async { self.is_complete(name).await }).await;
    }

    pub async fn is_complete(&self, name: &str) -> bool {
        let d = self.get(name).await;
        let (s, want) = (&d["status"], d["spec"]["replicas"].as_i64().unwrap_or(1));
        let n = |f: &str| s[f].as_i64().unwrap_or(0);
        n("observedGeneration") >= d["metadata"]["generation"].as_i64().unwrap()
            && n("updatedReplicas") == want
            && n("replicas") == want
            && n("availableReplicas") == want
            && d["metadata"]["annotations"][HELD_BY].is_null()
    }

    /// Waits until the latest run has ended with this outcome and the Deployment is complete.
    pub async fn ended(&self, name: &str, outcome: &str) {
        self.until(&format!("the run of {name} ended {outcome}"), 60, || async {
            self.run(name).await["status"]["ended"]["outcome"] == outcome
        })
        .await;
    }

    /// The end that every update has to have: complete, all pods by the Deployment's template, one ReplicaSet with
    /// pods and none beside it that equals the template, no run open.
    pub async fn all_well(&self, name: &str) {
        self.until(&format!("{name} is well"), 60, || async { self.why_not_well(name).await.is_none() }).await;
    }

    pub async fn why_not_well(&self, name: &str) -> Option<String> {
        let d = self.get(name).await;
        if !self.is_complete(name).await {
            return Some("not complete".into());
        }
        let template = containers(&d["spec"]["template"]["spec"]);
        let pods = self.pods(name).await;
        if let Some(pod) = pods.iter().find(|p| containers(&p["spec"]) != template) {
            return Some(format!("pod {} runs {:?}", pod["metadata"]["name"], containers(&pod["spec"])));
        }
        let sets = self.sets(name).await;
        let active = sets
            .iter()
            .filter(|s| s["spec"]["replicas"] != 0 || s["status"]["replicas"].as_i64().unwrap_or(0) != 0)
            .count();
        if active > 1 {
            return Some(format!("{active} ReplicaSets with pods"));
        }
        let equal = sets.iter().filter(|s| containers(&s["spec"]["template"]["spec"]) == template).count();
        if equal != 1 {
            return Some(format!("{equal} ReplicaSets equal the template"));
        }
        let open = self.runs(name).await.iter().filter(|r| r["status"]["ended"].is_null()).count();
        (open > 0).then(|| format!("{open} runs are open"))
    }

    /// No image but those given was seen in a pod of the app before a PreUpdate hook was called for it.
    pub fn assert_hooks_first(&self, app: &str, from_the_start: &[&str]) {
        let calls = self.receiver.calls();
        for image in self.observer.images(app) {
            if from_the_start.iter().any(|v| objects::image(v) == image) {
                continue;
            }
            let seen = self.observer.first_seen(app, &image).unwrap();
            let called =
                calls.iter().filter(|c| c.path == "/before" && c.images().contains(&image)).map(|c| c.at).min();
            assert!(
                called.is_some_and(|at| at <= seen.at) && self.observer.hooks_recorded_before(&seen),
                "{}: {image} was seen in a pod before its hook; called {called:?}, seen {seen:?}",
                self.namespace
            );
        }
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

/// Name, image and environment of each container.
pub fn containers(spec: &Value) -> Vec<(String, String, String)> {
    spec["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| {
            (
                c["name"].as_str().unwrap_or_default().to_owned(),
                c["image"].as_str().unwrap_or_default().to_owned(),
                if c["env"].is_null() { String::new() } else { c["env"].to_string() },
            )
        })
        .collect()
}

pub fn revision(set: &Value) -> i64 {
    set["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
        .as_str()
        .and_then(|r| r.parse().ok())
        .unwrap_or(0)
}

/// Unique in this process, and unlike those of other processes.
fn suffix() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{:x}{}", std::process::id() % 0xfff, NEXT.fetch_add(1, Ordering::Relaxed))
}
