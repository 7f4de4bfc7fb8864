//! A Deployment `web` of three replicas and its runs, for tests.

use interlock_core::{
    template::Template,
    time::Time,
    world::{Deployment, ReplicaSet, Run},
};
use serde_json::{Value, json};

use crate::observe::facts;

/// 2026-01-01T00:10:00Z.
pub(crate) fn now() -> Time {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

/// A template with this image.
pub(crate) fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": image}]}})
}

/// The Deployment with this image wanted, rolled out and not held.
pub(crate) fn deployment(image: &str) -> Value {
    json!({
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "d", "generation": 2, "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"deployment.kubernetes.io/revision": "2"},
        },
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template(image)},
        "status": {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3, "readyReplicas": 3},
    })
}

/// The same, held.
pub(crate) fn held(image: &str) -> Value {
    let mut value = deployment(image);
    value["spec"]["paused"] = json!(true);
    value["metadata"]["annotations"] =
        json!({"interlock.dev/held-by": "order", "interlock.dev/held-at": "1", "interlock.dev/resume": "true"});
    value["status"]["updatedReplicas"] = json!(0);
    value
}

/// The facts of a Deployment.
pub(crate) fn fact(value: &Value) -> Deployment {
    facts::deployment::deployment(value)
}

/// A run towards this image, with two hooks.
pub(crate) fn run(sequence: i64, image: &str, status: &Value) -> Run {
    let hook = |name: &str, phase: &str| json!({"name": name, "phase": phase, "http": {"url": "http://smoke/"}});
    facts::run::run(&json!({
        "metadata": {
            "name": format!("web-{sequence}"), "namespace": "shop", "uid": format!("r{sequence}"), "resourceVersion": "9",
            "generation": 1, "creationTimestamp": "2026-01-01T00:05:00Z",
        },
        "spec": {
            "deployment": {"name": "web", "uid": "d"}, "sequence": sequence,
            "policy": {"name": "order", "uid": "p", "generation": 1},
            "target": Template::new(template(image)).hash(), "newTemplate": template(image), "oldTemplate": template("web:0"),
            "replicaSet": {"name": "web-abc", "revision": 1, "annotations": {"kubernetes.io/change-cause": "first"}},
            "settings": {
                "settleSeconds": 2, "maxConcurrentUpdates": 1, "maxHoldSeconds": 0, "onDelete": "Hold", "historyLimit": 10,
                "hooks": [hook("smoke", "PreUpdate"), hook("report", "PostUpdate")],
            },
        },
        "status": status,
    }))
    .unwrap()
}

/// Status of a run that has ended.
pub(crate) fn ended(outcome: &str) -> Value {
    json!({"ended": {"at": "2026-01-01T00:06:00Z", "outcome": outcome}})
}

/// Status of a run that waits.
pub(crate) fn waits(reason: &str, what: &str) -> Value {
    json!({
        "waitingFor": {"reason": reason, "what": what, "since": "2026-01-01T00:09:30Z", "until": "2026-01-01T00:11:00Z", "how": "do something"},
        "way": {"kind": "InPlace"},
        "pods": {"desired": 3, "updated": 1, "inFlight": 1, "available": 2},
    })
}

/// Status of a run that is stalled.
pub(crate) fn stalled(reason: &str) -> Value {
    json!({
        "stall": {"since": "2026-01-01T00:08:00Z", "reason": reason, "message": "hook smoke failed: Http500"},
        "steps": [
            {"hook": "smoke", "phase": "PreUpdate", "attempt": 1, "startedAt": "2026-01-01T00:07:00Z", "finishedAt": "2026-01-01T00:07:03Z",
             "outcome": "Failed", "reason": "Http500"},
            {"hook": "smoke", "phase": "PreUpdate", "attempt": 2, "startedAt": "2026-01-01T00:07:05Z", "finishedAt": "2026-01-01T00:08:05Z",
             "outcome": "TimedOut", "reason": "Timeout"},
        ],
    })
}

/// A ReplicaSet.
pub(crate) fn replica_set(revision: i64, image: &str, replicas: i64) -> ReplicaSet {
    facts::replicaset::replica_set(&json!({
        "metadata": {
            "name": format!("web-{revision}"), "uid": format!("s{revision}"), "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"deployment.kubernetes.io/revision": revision.to_string(), "kubernetes.io/change-cause": format!("cause {revision}")},
        },
        "spec": {"replicas": replicas, "template": template(image)},
    }))
}
