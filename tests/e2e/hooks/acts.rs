//! How each kind of hook is made to succeed, to fail, to hang, and to go on.

use std::time::Duration;

use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use super::table::{Case, Kind};
use crate::harness::{
    Env, Moment,
    gate::{Gate, Stopped},
    objects,
};

/// Name of the hook.
pub const HOOK: &str = "h";
/// A label that other software keeps on a pod that serves.
const SERVING: &str = "example.com/serving";

/// The hook of a cell.
pub fn hook(kind: Kind, case: Case, url: &str) -> Value {
    let timeout = match (kind, case) {
        // Long enough for a node to say that it cannot pull.
        (Kind::PrePull, Case::Timeout) => 15,
        (_, Case::Timeout) => 4,
        // Where only time makes an attempt fail.
        (Kind::Poll | Kind::PrePull | Kind::WaitFor | Kind::Patch | Kind::PatchPod | Kind::PodGate, Case::Retry) => 4,
        _ => 120,
    };
    let mut hook = json!({
        "name": HOOK, "phase": "PreUpdate", "timeoutSeconds": timeout, "backoffSeconds": 0,
        "retries": if case == Case::Retry { 20 } else { 0 },
    });
    match kind {
        Kind::Http => hook["http"] = json!({"url": format!("{url}/h")}),
        Kind::Poll => {
            let until = json!({"status": ["200"], "intervalSeconds": 1});
            hook["http"] = json!({"url": format!("{url}/h"), "repeatUntil": until});
        }
        Kind::Job => {
            let fate = match case {
                Case::Success => json!({}),
                Case::Failure => json!({"sim/job": "fail"}),
                _ => json!({"sim/job-delay": "600s"}),
            };
            hook["job"] = json!({
                "serviceAccountName": "default", "ttlSecondsAfterResult": 600,
                "template": {
                    "metadata": {"annotations": fate},
                    "spec": {"containers": [{"name": "c", "image": "r.test/tool:v1"}]},
                },
            });
        }
        Kind::PrePull => hook["prePull"] = json!({}),
        Kind::Wait => hook["wait"] = json!({"seconds": if case == Case::Success { 1 } else { 3 }}),
        Kind::WaitFor => {
            hook["waitFor"] =
                json!({"kind": "ConfigMap", "name": "awaited", "label": {"key": "state", "value": "done"}});
        }
        Kind::Patch | Kind::PatchPod => {
            // What the Deployment selects its pods by is not for hooks.
            let label = if case == Case::Failure { "app" } else { "hooked" };
            hook["patch"] = json!({"labels": {label: "yes"}, "annotations": {"note": "x"}});
            if kind == Kind::PatchPod {
                hook["phase"] = json!("PrePod");
                hook["patch"]["target"] = json!("Pod");
            }
        }
        Kind::PodGate => {
            hook["phase"] = json!("PrePod");
            hook["podGate"] = json!({"labels": {SERVING: "yes"}});
        }
        Kind::Approval => {
            let seconds = if matches!(case, Case::Timeout | Case::Retry) { 3 } else { 600 };
            hook["approval"] = json!({"timeoutSeconds": seconds});
        }
    }
    hook
}

/// The Deployment of a cell.
pub fn deployment(kind: Kind) -> Value {
    let mut deployment = objects::deployment("web", 1);
    if kind == Kind::PodGate {
        deployment["spec"]["template"]["metadata"]["labels"][SERVING] = json!("yes");
    }
    deployment
}

/// The version that the update goes to.
pub fn version(kind: Kind, case: Case) -> &'static str {
    match (kind, case) {
        (Kind::PrePull, Case::Failure | Case::Timeout) => "bad-pull1",
        _ => "v2",
    }
}

/// One hook, as the world outside sees it.
pub struct Act {
    kind: Kind,
    case: Case,
    stops: Option<UnboundedReceiver<Stopped>>,
    stop: Option<Stopped>,
}

impl Act {
    /// Everything is ready for the update.
    pub async fn prepare(env: &Env, kind: Kind, case: Case) -> Self {
        let hangs = !matches!(case, Case::Success | Case::Failure);
        let trap = |gate: &Gate, moment, what: &str| Some(gate.stop_at(moment, what, 1));
        let mut stops = None;
        match kind {
            Kind::Http if case == Case::Failure => env.receiver.answer([500]),
            Kind::Http if case == Case::Retry => env.receiver.answer([503, 503]),
            Kind::Poll if case == Case::Success => env.receiver.answer([503, 503]),
            // More than one attempt has time for.
            Kind::Poll if case == Case::Retry => env.receiver.answer([503; 8]),
            Kind::Poll if case == Case::Timeout => env.receiver.answer([503; 100]),
            Kind::Http | Kind::Poll if hangs => env.receiver.close(),
            Kind::WaitFor if case == Case::Success => awaited(env).await,
            Kind::PrePull if case == Case::Retry => env.quota("pods", "1").await,
            Kind::PrePull if matches!(case, Case::Killed | Case::Edited | Case::Superseded) => {
                stops = trap(&env.gate, Moment::After, "POST pods");
            }
            // Made and not known to be made; in the other cases not made at all.
            Kind::Patch if case == Case::Killed => stops = trap(&env.gate, Moment::After, "PATCH deployments"),
            Kind::Patch if hangs => stops = trap(&env.gate, Moment::Before, "PATCH deployments"),
            Kind::PatchPod if case == Case::Killed => stops = trap(&env.gate, Moment::After, "PATCH pods"),
            Kind::PatchPod if hangs => stops = trap(&env.gate, Moment::Before, "PATCH pods"),
            _ => {}
        }
        Self { kind, case, stops, stop: None }
    }

    /// Waits until the attempt is under way.
    pub async fn middle(&mut self, env: &Env) {
        match self.kind {
            Kind::Http | Kind::Poll => env.receiver.arrived(1).await,
            Kind::Job => drop(job_pod(env).await),
            Kind::PodGate => {
                env.until("the pod is asked for", 30, || async { asked(env, "PreparingUpdate").await }).await
            }
            _ => {}
        }
        if let Some(stops) = &mut self.stops {
            self.stop = tokio::time::timeout(Duration::from_secs(150), stops.recv()).await.expect("it is stopped");
        }
        env.until("the intent is stored", 30, || async {
            let run = env.run("web").await;
            run["status"]["steps"][0]["startedAt"].is_string() && run["status"]["steps"][0]["outcome"].is_null()
        })
        .await;
    }

    /// Makes it fail, where nothing that was prepared does.
    pub async fn fail(&self, env: &Env) {
        match self.kind {
            Kind::PrePull => {
                env.until("a pod that pulls", 30, || async { pull_pods(env).await.len() == 1 }).await;
                // A status that the simulated kubelet never writes; it may write its own over it.
                env.until("it has failed", 30, || async {
                    for pod in pull_pods(env).await {
                        let state = json!({"waiting": {"reason": "InvalidImageName", "message": "no such name"}});
                        let status = json!({"status": {"containerStatuses": [{"name": "image-0", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]}});
                        write_status(env, &pod, &status).await;
                    }
                    env.run("web").await["status"]["steps"][0]["outcome"].is_string()
                })
                .await;
            }
            Kind::Approval => {
                env.until("the approval is waited for", 30, || async { waits_for(env, "Approval").await }).await;
                env.decide("web", "Abort", None).await;
            }
            _ => {}
        }
    }

    /// Lets the first attempt fail, then no other.
    pub async fn fail_once(&self, env: &Env) {
        if matches!(self.kind, Kind::Http | Kind::Poll) {
            return; // as prepared
        }
        if self.kind == Kind::Job {
            let pod = job_pod(env).await;
            write_status(env, &pod, &json!({"status": {"phase": "Failed"}})).await;
        }
        env.until("an attempt has failed", 60, || async {
            let step = env.run("web").await["status"]["steps"][0].clone();
            step["outcome"].is_string() || step["attempt"].as_i64() > Some(1)
        })
        .await;
        if self.kind == Kind::PrePull {
            let quotas: Api<k8s_openapi::api::core::v1::ResourceQuota> =
                Api::namespaced(env.admin.clone(), &env.namespace);
            quotas.delete("q", &DeleteParams::default()).await.unwrap();
        }
    }

    /// What was stopped on the way to the API server goes on, if there is still somebody whom it belongs to.
    pub fn release(&mut self) {
        self.stop = None;
        self.stops = None;
    }

    /// Makes whatever hangs succeed.
    pub async fn let_go(&mut self, env: &Env) {
        self.release();
        match self.kind {
            Kind::Http | Kind::Poll => env.receiver.open(),
            Kind::Job if self.case != Case::Success => {
                let pod = job_pod(env).await;
                write_status(env, &pod, &json!({"status": {"phase": "Succeeded"}})).await;
            }
            Kind::WaitFor => awaited(env).await,
            _ => {}
        }
    }

    /// What people and other software do all the time, once they may.
    pub async fn people(&self, env: &Env) {
        loop {
            match self.kind {
                Kind::PodGate => serve(env).await,
                Kind::Approval => decide(env).await,
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Labels are taken away and given back as the pods ask for it.
pub async fn serve(env: &Env) {
    for pod in env.pods("web").await {
        let (name, annotations) = (pod["metadata"]["name"].as_str().unwrap(), &pod["metadata"]["annotations"]);
        let serving = match annotations["interlock.dev/state"].as_str() {
            Some("PreparingUpdate") => Value::Null,
            Some("Updated") => json!("yes"),
            _ => continue,
        };
        let patch = json!({"metadata": {"labels": {SERVING: serving}}});
        let _ = env.pods_api().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    }
}

/// Whatever waits for an approval gets it, and what nobody approved in time is asked for again.
pub async fn decide(env: &Env) {
    let run = env.run("web").await;
    let decisions = run["spec"]["decisions"].as_array().map_or(0, Vec::len);
    if decisions > run["status"]["decisionsUsed"].as_array().map_or(0, Vec::len) {
        return; // one at a time
    }
    if run["status"]["waitingFor"]["reason"] == "Approval" {
        let _ = env.try_decide("web", "Approve", Some(&format!("hook/{HOOK}"))).await;
    } else if run["status"]["stall"]["reason"] == "HookFailed" {
        let _ = env.try_decide("web", "Retry", None).await;
    }
}

async fn waits_for(env: &Env, reason: &str) -> bool {
    env.run("web").await["status"]["waitingFor"]["reason"] == reason
}

async fn asked(env: &Env, state: &str) -> bool {
    env.pods("web").await.iter().any(|pod| pod["metadata"]["annotations"]["interlock.dev/state"] == state)
}

pub async fn awaited(env: &Env) {
    env.apply(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "awaited", "labels": {"state": "done"}}}),
    )
    .await;
}

async fn pods_of(env: &Env, owner: &str) -> Vec<Value> {
    let pods = env.pods_api().list(&ListParams::default()).await.unwrap();
    let mut pods: Vec<Value> = pods.items.iter().map(|pod| serde_json::to_value(pod).unwrap()).collect();
    pods.retain(|pod| pod["metadata"]["ownerReferences"][0]["kind"] == owner);
    pods
}

/// Pods of `prePull` hooks.
pub async fn pull_pods(env: &Env) -> Vec<Value> {
    pods_of(env, "HookRun").await
}

pub async fn jobs(env: &Env) -> Vec<Value> {
    let mut resource = kube::core::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("batch", "v1", "Job"));
    resource.plural = "jobs".to_owned();
    let api: Api<DynamicObject> = Api::namespaced_with(env.admin.clone(), &env.namespace, &resource);
    let list = api.list(&ListParams::default()).await.unwrap();
    list.items.iter().map(|job| serde_json::to_value(job).unwrap()).collect()
}

/// The one pod of a Job that runs, of the latest run.
async fn job_pod(env: &Env) -> Value {
    let running = || async {
        let run = env.run("web").await["metadata"]["uid"].clone();
        let jobs: Vec<Value> =
            jobs(env).await.into_iter().filter(|j| j["metadata"]["ownerReferences"][0]["uid"] == run).collect();
        let mut pods = pods_of(env, "Job").await;
        pods.retain(|pod| {
            let owner = &pod["metadata"]["ownerReferences"][0]["uid"];
            pod["status"]["phase"] == "Running" && jobs.iter().any(|job| job["metadata"]["uid"] == *owner)
        });
        pods
    };
    env.until("a Job runs", 60, || async { running().await.len() == 1 }).await;
    running().await.remove(0)
}

async fn write_status(env: &Env, pod: &Value, status: &Value) {
    let name = pod["metadata"]["name"].as_str().unwrap();
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(env.admin.clone(), &env.namespace);
    // Gone, or written to in the same moment: whoever waits for it tries again.
    if let Err(error) = pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await {
        assert!(matches!(&error, kube::Error::Api(e) if e.code == 404 || e.code == 409), "{error}");
    }
}
