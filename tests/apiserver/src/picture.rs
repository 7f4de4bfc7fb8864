//! One Deployment with everything that belongs to it at one moment: whether all is well, and what of it has to be the same
//! however it came about.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{
    Observer, Store,
    calls::Call,
    json::{at, int, list, text},
    stage::{HELD_BY, containers, revision},
};

/// A Deployment, its ReplicaSets by revision, its pods, its runs by number. What is being deleted is left out.
#[derive(Clone, Debug)]
pub struct Picture {
    pub deployment: Value,
    pub sets: Vec<Value>,
    pub pods: Vec<Value>,
    pub runs: Vec<Value>,
}

impl Picture {
    pub fn new(deployment: Value, mut sets: Vec<Value>, mut pods: Vec<Value>, mut runs: Vec<Value>) -> Self {
        let name = text(&deployment, "/metadata/name").to_owned();
        let stays = |o: &Value| at(o, "/metadata/deletionTimestamp").is_null();
        sets.retain(stays);
        sets.sort_by_key(revision);
        pods.retain(stays);
        runs.retain(|r| text(r, "/spec/deployment/name") == name);
        runs.sort_by_key(|r| int(r, "/spec/sequence"));
        Self { deployment, sets, pods, runs }
    }

    /// From a store in this process. `None`: there is no such Deployment.
    pub fn of_store(store: &Store, namespace: &str, name: &str) -> Option<Self> {
        let deployment = Value::clone(&*store.get("deployments", namespace, name)?);
        let all = |plural: &str| -> Vec<Value> {
            store.list(plural, Some(namespace)).0.iter().map(|o| Value::clone(o)).collect()
        };
        let of_app = |plural: &str| -> Vec<Value> {
            let mut objects = all(plural);
            objects.retain(|o| text(o, "/metadata/labels/app") == name);
            objects
        };
        Some(Self::new(deployment, of_app("replicasets"), of_app("pods"), all("hookruns")))
    }

    /// The Deployment controller calls it complete, and nothing is held. Its status is of before for a moment when a ReplicaSet
    /// was deleted: what the ReplicaSets say themselves has to agree.
    pub fn complete(&self) -> bool {
        let d = &self.deployment;
        let want = int(d, "/spec/replicas");
        let available: i64 = self.sets.iter().map(|s| int(s, "/status/availableReplicas")).sum();
        int(d, "/status/observedGeneration") >= int(d, "/metadata/generation")
            && ["updatedReplicas", "replicas", "availableReplicas"]
                .iter()
                .all(|f| int(d, &format!("/status/{f}")) == want)
            && available == want
            && d["metadata"]["annotations"][HELD_BY].is_null()
    }

    pub fn available(&self) -> i64 {
        int(&self.deployment, "/status/availableReplicas")
    }

    pub fn held(&self) -> bool {
        self.deployment["spec"]["paused"] == true && !self.deployment["metadata"]["annotations"][HELD_BY].is_null()
    }

    /// The latest run.
    pub fn run(&self) -> &Value {
        self.runs.last().unwrap_or(&Value::Null)
    }

    /// What is wrong with the end that every update has to have: complete, all pods by the Deployment's template, one
    /// ReplicaSet with pods and none beside it that equals the template, no run open.
    pub fn unwell(&self) -> Option<String> {
        if !self.complete() {
            return Some("not complete".into());
        }
        let template = containers(&self.deployment["spec"]["template"]["spec"]);
        if let Some(pod) = self.pods.iter().find(|p| containers(&p["spec"]) != template) {
            return Some(format!("pod {} runs {:?}", pod["metadata"]["name"], containers(&pod["spec"])));
        }
        let active =
            self.sets.iter().filter(|s| int(s, "/spec/replicas") != 0 || int(s, "/status/replicas") != 0).count();
        if active > 1 {
            return Some(format!("{active} ReplicaSets with pods"));
        }
        let equal = self.sets.iter().filter(|s| containers(&s["spec"]["template"]["spec"]) == template).count();
        if equal != 1 {
            return Some(format!("{equal} ReplicaSets equal the template"));
        }
        let open = self.runs.iter().filter(|r| r["status"]["ended"].is_null()).count();
        (open > 0).then(|| format!("{open} runs are open"))
    }

    /// What has to be the same for the same story, whatever went wrong on the way and wherever it was told: no names, no
    /// times, no versions.
    pub fn ending(&self, observer: &Observer, app: &str, mark: usize, calls: &[Call]) -> Value {
        let d = &self.deployment;
        let sets: Vec<Value> = self
            .sets
            .iter()
            .map(|s| {
                json!({
                    "template": containers(&s["spec"]["template"]["spec"]),
                    "replicas": s["spec"]["replicas"],
                    "available": int(s, "/status/availableReplicas"),
                    "annotations": annotations(s),
                    "history": !s["metadata"]["labels"]["interlock.dev/history"].is_null(),
                    "copy": !s["metadata"]["labels"]["interlock.dev/copy"].is_null(),
                })
            })
            .collect();
        let mut pods: Vec<Value> = self.pods.iter().map(|p| json!([containers(&p["spec"]), ready(p)])).collect();
        pods.sort_by_key(Value::to_string);
        let runs: Vec<Value> = self
            .runs
            .iter()
            .map(|r| {
                let steps: Vec<Value> = list(r, "/status/steps")
                    .iter()
                    .map(|s| json!([s["hook"], s["phase"], s["attempt"], s["outcome"], s["reason"]]))
                    .collect();
                json!({
                    "sequence": r["spec"]["sequence"],
                    "outcome": r["status"]["ended"]["outcome"],
                    // One that was replaced may or may not have come so far.
                    "way": if r["status"]["ended"]["outcome"] == "Superseded" { &Value::Null } else { &r["status"]["way"]["kind"] },
                    "steps": steps,
                    "conditions": conditions(&r["status"]),
                    "stall": r["status"]["stall"]["reason"],
                    "waiting": r["status"]["waitingFor"]["reason"],
                })
            })
            .collect();
        let mut keys: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for call in calls {
            keys.entry(format!("{} {:?}", call.path, call.images())).or_default().insert(&call.key);
        }
        let keys: BTreeMap<String, usize> = keys.into_iter().map(|(k, v)| (k, v.len())).collect();
        let (pods_born, pods_gone) = observer.born_and_gone(app, mark);
        json!({
            "deployment": {
                "template": containers(&d["spec"]["template"]["spec"]),
                "replicas": d["spec"]["replicas"],
                "paused": d["spec"]["paused"] == true,
                "annotations": annotations(d),
                "conditions": conditions(&d["status"]),
                "updated": int(d, "/status/updatedReplicas"),
                "available": int(d, "/status/availableReplicas"),
            },
            "sets": sets,
            "pods": pods,
            "runs": runs,
            "hook keys": keys,
            "pods born and gone": [pods_born.len(), pods_gone.len()],
            "ReplicaSets born and gone": observer.sets_born_and_gone(app, mark),
        })
    }
}

fn ready(pod: &Value) -> bool {
    list(pod, "/status/conditions").iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Annotations without the values that name a version or a generation.
fn annotations(object: &Value) -> BTreeMap<&str, &str> {
    let all = at(object, "/metadata/annotations").as_object();
    all.into_iter()
        .flatten()
        .filter(|(key, _)| *key != "kubectl.kubernetes.io/last-applied-configuration")
        .map(|(key, value)| {
            let numbered = ["interlock.dev/held-at", "interlock.dev/release"].contains(&key.as_str());
            (key.as_str(), if numbered { "*" } else { value.as_str().unwrap_or_default() })
        })
        .collect()
}

/// Conditions of ours.
fn conditions(status: &Value) -> Vec<String> {
    let all = list(status, "/conditions").iter();
    let mut all: Vec<String> = all
        .filter(|c| !["Available", "Progressing", "ReplicaFailure"].contains(&text(c, "/type")))
        .map(|c| format!("{}={}/{}", text(c, "/type"), text(c, "/status"), text(c, "/reason")))
        .collect();
    all.sort();
    all
}
