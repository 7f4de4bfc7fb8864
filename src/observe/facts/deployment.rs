//! Deployments.

use interlock_core::{
    api::{condition::Status, policy::IntOrPercent},
    template::Template,
    world::{Deployment, DeploymentStatus, MirroredCondition},
};
use serde_json::Value;

use super::{
    annotations::{own_after, own_hooks},
    json::{annotations, cut, field, int, int_or_zero, list, replica_failure, strings, text, time, yes},
};

/// Prefix of the condition types that are ours.
const OURS: &str = "interlock.dev/";

/// The facts of a Deployment.
pub fn deployment(object: &Value) -> Deployment {
    let metadata = field(object, "metadata");
    let spec = field(object, "spec");
    let strategy = field(spec, "strategy");
    let annotations = annotations(metadata);
    Deployment {
        namespace: text(metadata, "namespace").to_owned(),
        name: text(metadata, "name").to_owned(),
        uid: text(metadata, "uid").to_owned(),
        resource_version: text(metadata, "resourceVersion").to_owned(),
        generation: int_or_zero(metadata, "generation"),
        created: time(metadata, "creationTimestamp").unwrap_or_default(),
        deleting: !field(metadata, "deletionTimestamp").is_null(),
        labels: strings(metadata, "labels"),
        own_hooks: own_hooks(&annotations),
        own_after: own_after(&annotations),
        annotations,
        replicas: int(spec, "replicas").unwrap_or(1),
        paused: yes(spec, "paused"),
        template: Template::new(field(spec, "template").clone()),
        match_labels: strings(field(spec, "selector"), "matchLabels"),
        min_ready_seconds: int_or_zero(spec, "minReadySeconds"),
        history_limit: int(spec, "revisionHistoryLimit").unwrap_or(10),
        recreate: text(strategy, "type") == "Recreate",
        max_unavailable: int_or_percent(field(field(strategy, "rollingUpdate"), "maxUnavailable")),
        max_surge: int_or_percent(field(field(strategy, "rollingUpdate"), "maxSurge")),
        status: status(field(object, "status")),
    }
}

fn int_or_percent(value: &Value) -> Option<IntOrPercent> {
    value
        .as_i64()
        .map(IntOrPercent::Int)
        .or_else(|| value.as_str().map(|t| IntOrPercent::Percent(cut(t.to_owned(), 16))))
}

fn status(status: &Value) -> DeploymentStatus {
    DeploymentStatus {
        observed_generation: int_or_zero(status, "observedGeneration"),
        replicas: int_or_zero(status, "replicas"),
        updated: int_or_zero(status, "updatedReplicas"),
        available: int_or_zero(status, "availableReplicas"),
        terminating: int_or_zero(status, "terminatingReplicas"),
        replica_failure: replica_failure(status),
        conditions: list(status, "conditions")
            .iter()
            .filter(|c| text(c, "type").starts_with(OURS))
            .map(|c| {
                let mirrored = MirroredCondition {
                    status: match text(c, "status") {
                        "True" => Status::True,
                        "False" => Status::False,
                        _ => Status::Unknown,
                    },
                    reason: text(c, "reason").to_owned(),
                    message: text(c, "message").to_owned(),
                };
                (text(c, "type").to_owned(), mirrored)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_fields_take_the_defaults_of_the_api() {
        let read = deployment(&json!({"metadata": {"name": "a"}}));
        assert_eq!((read.replicas, read.history_limit, read.paused, read.deleting), (1, 10, false, false));
        assert_eq!(read.own_hooks, None);
    }

    #[test]
    fn odd_content_counts_as_absent() {
        for odd in [json!(null), json!([]), json!("x\0"), json!(-1), json!({"metadata": 1, "spec": [], "status": "x"})]
        {
            let read = deployment(&odd);
            assert_eq!(read.replicas, 1);
        }
        let read = deployment(&json!({
            "metadata": {"annotations": {"a": 1, "b": "c", "kubectl.kubernetes.io/last-applied-configuration": "x"}, "generation": 1e300},
            "spec": {"replicas": u64::MAX, "strategy": {"rollingUpdate": {"maxUnavailable": {}}}},
            "status": {"conditions": [1, {"type": "interlock.dev/Held", "status": 7}]},
        }));
        assert_eq!((read.generation, read.replicas, read.max_unavailable), (i64::MAX, i64::MAX, None));
        assert_eq!(read.annotations.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(read.status.conditions["interlock.dev/Held"].status, Status::Unknown);
    }
}
