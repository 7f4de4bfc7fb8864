//! One namespace of a cluster, in this process or real, as its people see it: what they write, what they read, and what
//! they wait for.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};

use crate::{Gate, Picture, objects};

pub const HELD_BY: &str = "interlock.dev/held-by";

/// So many times slower than a quiet machine one with other work may be. A limit ends a hang, it measures nothing.
pub const SLOW: u32 = 5;

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

/// A namespace, and who works in it.
#[derive(Clone)]
pub struct Stage {
    pub namespace: String,
    pub admin: Client,
    /// A user who may change Deployments, ReplicaSets, pods and HookPolicies.
    pub dev: Client,
    /// Sees the controller's writes.
    pub gate: Gate,
}

impl Stage {
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
        self.holds(&name, true).await;
    }

    /// Deletes a policy and waits until the API server does not hold by it any more.
    pub async fn policy_gone(&self, name: &str) {
        self.policies().delete(name, &DeleteParams::default()).await.unwrap();
        self.holds(name, false).await;
    }

    /// Waits until a policy is in force, or is not any more. There is no condition to watch without a controller: a
    /// Deployment that names the policy tells by dry runs.
    async fn holds(&self, policy: &str, yes: bool) {
        let mut probe = objects::deployment("probe", 0);
        probe["metadata"]["annotations"] = json!({"interlock.dev/policy": policy});
        probe["metadata"]["labels"] = json!({});
        let api = self.deployments();
        api.create(&PostParams::default(), &serde_json::from_value(probe).unwrap()).await.unwrap();
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };
        self.until("what the API server does with the policy", 10, || async {
            let answer = api.patch("probe", &dry, &Patch::Strategic(objects::set_image("probe"))).await.unwrap();
            answer.annotations().contains_key(HELD_BY) == yes
        })
        .await;
        api.delete("probe", &DeleteParams::background()).await.unwrap();
        self.until("the probe is gone", 10, || async { api.get_opt("probe").await.unwrap().is_none() }).await;
    }

    /// What `kubectl rollout undo` writes: the template of the revision before, and that ReplicaSet's annotations in place
    /// of the Deployment's (polymorphichelpers/rollback.go). kubectl itself would refuse while the Deployment is paused.
    pub async fn undo(&self, name: &str) {
        let mut sets = self.sets(name).await;
        sets.pop();
        let Some(before) = sets.pop() else { return };
        let kept = |key: &str| {
            key.starts_with("deployment.kubernetes.io/") || key.starts_with("kubectl.kubernetes.io/last-applied")
        };
        let of = |object: &Value, keep: bool| -> serde_json::Map<String, Value> {
            let all = object["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
            all.into_iter().filter(|(key, _)| kept(key) == keep).collect()
        };
        let mut annotations = of(&self.get(name).await, true);
        annotations.extend(of(&before, false));
        let mut template = before["spec"]["template"].clone();
        if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
            labels.remove("pod-template-hash");
        }
        let patch: json_patch::Patch = serde_json::from_value(json!([
            {"op": "replace", "path": "/spec/template", "value": template},
            {"op": "replace", "path": "/metadata/annotations", "value": annotations},
        ]))
        .unwrap();
        let _ = self.deployments().patch(name, &PatchParams::default(), &Patch::<Deployment>::Json(patch)).await;
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
        self.try_decide(name, action, target).await.unwrap();
    }

    /// The same where there may be no run.
    pub async fn try_decide(&self, name: &str, action: &str, target: Option<&str>) -> kube::Result<()> {
        let run = self.run(name).await;
        let mut decisions = run["spec"]["decisions"].as_array().cloned().unwrap_or_default();
        let mut decision = json!({"id": format!("d{}", decisions.len()), "action": action, "by": "admin"});
        if let Some(target) = target {
            decision["target"] = json!(target);
        }
        decisions.push(decision);
        let patch = json!({"spec": {"decisions": decisions}});
        let name = run["metadata"]["name"].as_str().unwrap_or("none");
        self.runs_api().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
    }

    /// Waits for a state; on failure says what everything looks like.
    pub async fn until<F, R>(&self, what: &str, seconds: u64, test: F)
    where
        F: Fn() -> R,
        R: Future<Output = bool>,
    {
        let end = tokio::time::Instant::now() + Duration::from_secs(seconds) * SLOW;
        while !test().await {
            if tokio::time::Instant::now() > end {
                let picture = self.picture().await;
                panic!("{}: not within {SLOW} x {seconds} s: {what}\n{picture}", self.namespace);
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
        self.look(name).await.complete()
    }

    /// Everything that belongs to a Deployment.
    pub async fn look(&self, name: &str) -> Picture {
        let deployment = self.get(name).await;
        let sets = self.sets(name).await;
        let pods = self.pods(name).await;
        Picture::new(deployment, sets, pods, self.runs(name).await)
    }

    /// Waits until the latest run has ended with this outcome and the Deployment is complete.
    pub async fn ended(&self, name: &str, outcome: &str) {
        self.until(&format!("the run of {name} ended {outcome}"), 60, || async {
            self.run(name).await["status"]["ended"]["outcome"] == outcome
        })
        .await;
    }

    /// The end that every update has to have.
    pub async fn all_well(&self, name: &str) {
        self.until(&format!("{name} is well"), 60, || async { self.why_not_well(name).await.is_none() }).await;
    }

    pub async fn why_not_well(&self, name: &str) -> Option<String> {
        self.look(name).await.unwell()
    }

    /// Everything of the namespace in a few lines.
    pub async fn picture(&self) -> String {
        let mut text = String::new();
        let list = self.deployments().list(&ListParams::default()).await.unwrap();
        for d in list.items.iter().map(|d| serde_json::to_value(d).unwrap()) {
            let name = d["metadata"]["name"].as_str().unwrap();
            text += &format!(
                "deployment {name} gen {} {:?} paused {} replicas {} annotations {} status {}\n",
                d["metadata"]["generation"],
                containers(&d["spec"]["template"]["spec"]),
                d["spec"]["paused"],
                d["spec"]["replicas"],
                d["metadata"]["annotations"],
                short(&d["status"])
            );
            for s in self.sets(name).await {
                text += &format!(
                    "  replicaset {} r{} {:?} replicas {} status {} annotations {}\n",
                    s["metadata"]["name"],
                    revision(&s),
                    containers(&s["spec"]["template"]["spec"]),
                    s["spec"]["replicas"],
                    s["status"],
                    s["metadata"]["annotations"]
                );
            }
            for p in self.pods(name).await {
                text += &format!(
                    "  pod {} {:?} {} {}\n",
                    p["metadata"]["name"],
                    containers(&p["spec"]),
                    p["metadata"]["annotations"]["interlock.dev/update"],
                    p["status"]["containerStatuses"][0]["state"]
                );
            }
            for r in self.runs(name).await {
                let mut status = r["status"].clone();
                status["owed"] = json!(status["owed"].as_array().map(Vec::len));
                let conditions: Vec<String> = status["conditions"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|c| format!("{}={}/{}", c["type"], c["status"], c["reason"]))
                    .collect();
                status["conditions"] = json!(conditions.join(" "));
                text += &format!("  run {} #{} {status}\n", r["metadata"]["name"], r["spec"]["sequence"]);
            }
        }
        text += &format!(
            "  last writes: {:?}\n",
            self.gate.writes().iter().rev().take(12).map(|w| w.what.clone()).collect::<Vec<_>>()
        );
        text
    }
}

fn short(status: &Value) -> Value {
    let mut status = status.clone();
    status["conditions"] = json!(
        status["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|c| format!("{}={} {}", c["type"], c["status"], c["reason"]))
            .collect::<Vec<_>>()
    );
    status
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
