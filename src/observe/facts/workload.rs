//! StatefulSets, DaemonSets and Jobs, as far as others wait for them.

use std::collections::BTreeMap;

use interlock_core::{
    time::Time,
    world::{DaemonSet, Job, Standing, StatefulSet},
};
use serde_json::Value;

use super::json::{condition, cut, field, int, int_or_zero, strings, text, time, yes};

/// Longest message of a condition that is kept.
const LONGEST: usize = 300;

/// A workload that others wait for.
#[derive(Clone, Debug)]
pub struct Workload {
    /// How it stands, but for what its pods tell.
    pub standing: Standing,
    /// Labels of its template.
    pub labels: BTreeMap<String, String>,
    /// `spec.selector.matchLabels`.
    pub selector: BTreeMap<String, String>,
}

impl Workload {
    fn new(object: &Value, standing: Standing) -> Self {
        let spec = field(object, "spec");
        Self {
            standing,
            labels: strings(field(field(spec, "template"), "metadata"), "labels"),
            selector: strings(field(spec, "selector"), "matchLabels"),
        }
    }

    /// The same, where this is when the readiness of one of its pods last flipped.
    pub fn with_change(&self, at: Option<Time>) -> Standing {
        let mut standing = self.standing.clone();
        match &mut standing {
            Standing::StatefulSet(set) => set.changed = at,
            Standing::DaemonSet(set) => set.changed = at,
            Standing::Deployment(_) | Standing::Job(_) | Standing::Pods(_) | Standing::Unread => {}
        }
        standing
    }
}

fn deleting(object: &Value) -> bool {
    !field(field(object, "metadata"), "deletionTimestamp").is_null()
}

/// A StatefulSet.
pub fn stateful_set(object: &Value) -> Workload {
    let (spec, status) = (field(object, "spec"), field(object, "status"));
    let strategy = field(spec, "updateStrategy");
    let standing = StatefulSet {
        deleting: deleting(object),
        generation: int_or_zero(field(object, "metadata"), "generation"),
        observed_generation: int_or_zero(status, "observedGeneration"),
        replicas: int(spec, "replicas").unwrap_or(1),
        on_delete: text(strategy, "type") == "OnDelete",
        partition: int_or_zero(field(strategy, "rollingUpdate"), "partition"),
        min_ready_seconds: int_or_zero(spec, "minReadySeconds"),
        ready: int_or_zero(status, "readyReplicas"),
        available: int_or_zero(status, "availableReplicas"),
        updated: int_or_zero(status, "updatedReplicas"),
        current_revision: text(status, "currentRevision").to_owned(),
        update_revision: text(status, "updateRevision").to_owned(),
        changed: None,
    };
    Workload::new(object, Standing::StatefulSet(standing))
}

/// A DaemonSet.
pub fn daemon_set(object: &Value) -> Workload {
    let (spec, status) = (field(object, "spec"), field(object, "status"));
    let standing = DaemonSet {
        deleting: deleting(object),
        generation: int_or_zero(field(object, "metadata"), "generation"),
        observed_generation: int_or_zero(status, "observedGeneration"),
        on_delete: text(field(spec, "updateStrategy"), "type") == "OnDelete",
        desired: int_or_zero(status, "desiredNumberScheduled"),
        updated: int_or_zero(status, "updatedNumberScheduled"),
        available: int_or_zero(status, "numberAvailable"),
        changed: None,
    };
    Workload::new(object, Standing::DaemonSet(standing))
}

/// A Job.
pub fn job(object: &Value) -> Workload {
    let (spec, status) = (field(object, "spec"), field(object, "status"));
    let is_true = |type_| condition(status, type_).filter(|c| text(c, "status") == "True");
    let complete = is_true("Complete");
    let standing = Job {
        deleting: deleting(object),
        suspended: yes(spec, "suspend"),
        complete: complete.is_some(),
        failed: is_true("Failed").map(|c| cut(format!("{}: {}", text(c, "reason"), text(c, "message")), LONGEST)),
        succeeded: int_or_zero(status, "succeeded"),
        completions: int(spec, "completions").unwrap_or(1),
        changed: complete.and_then(|c| time(c, "lastTransitionTime")),
    };
    Workload::new(object, Standing::Job(standing))
}

#[cfg(test)]
mod tests {
    use interlock_core::order;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_is_read_as_its_controller_writes_it() {
        let set = json!({
            "metadata": {"generation": 2}, "spec": {"replicas": 2, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}},
            "selector": {"matchLabels": {"app": "x"}}, "template": {"metadata": {"labels": {"app": "x", "v": "1"}}}},
            "status": {"observedGeneration": 2, "readyReplicas": 2, "availableReplicas": 2, "updatedReplicas": 1, "currentRevision": "a", "updateRevision": "b"},
        });
        let read = stateful_set(&set);
        let Standing::StatefulSet(fact) = &read.standing else { panic!() };
        assert_eq!((order::stateful_set(fact), fact.partition), (Ok(()), 1));
        assert_eq!((read.labels["v"].as_str(), read.selector.len()), ("1", 1));
        let set = json!({
            "metadata": {"generation": 1}, "spec": {"updateStrategy": {"type": "OnDelete"}},
            "status": {"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 0, "numberAvailable": 2},
        });
        let Standing::DaemonSet(fact) = daemon_set(&set).standing else { panic!() };
        assert_eq!((order::daemon_set(&fact), fact.on_delete), (Ok(()), true));
        let done = |type_: &str| {
            let condition = json!([{"type": type_, "status": "True", "reason": "Why", "message": "so", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
            let Standing::Job(fact) = job(&json!({"status": {"conditions": condition}})).standing else { panic!() };
            fact
        };
        assert_eq!((order::job(&done("Complete")), done("Complete").changed.is_some()), (Ok(()), true));
        assert_eq!(order::job(&done("Failed")), Err("has failed: Why: so".into()));
    }

    #[test]
    fn odd_content_counts_as_absent() {
        for odd in [json!(null), json!([]), json!({"spec": 1, "status": [], "metadata": "x"})] {
            let Standing::StatefulSet(set) = stateful_set(&odd).standing else { panic!() };
            order::stateful_set(&set).unwrap_err();
            let Standing::DaemonSet(set) = daemon_set(&odd).standing else { panic!() };
            order::daemon_set(&set).unwrap_err();
            let Standing::Job(run) = job(&odd).standing else { panic!() };
            order::job(&run).unwrap_err();
        }
    }
}
