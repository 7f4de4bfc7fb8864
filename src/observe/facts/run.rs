//! HookRuns.

use interlock_core::{
    api::{
        condition::{self, Status},
        run::{HookRunSpec, HookRunStatus, Outcome},
    },
    plan::SLOT_REASONS,
    world::{Run, RunState},
};
use serde::Deserialize as _;
use serde_json::Value;

use super::json::{field, int_or_zero, text, time};

/// The facts of a HookRun, or why its spec cannot be read. A status that cannot be read counts as absent: it is
/// computed anew.
pub fn run(object: &Value) -> Result<Run, String> {
    let metadata = field(object, "metadata");
    Ok(Run {
        name: text(metadata, "name").to_owned(),
        uid: text(metadata, "uid").to_owned(),
        resource_version: text(metadata, "resourceVersion").to_owned(),
        generation: int_or_zero(metadata, "generation"),
        created: time(metadata, "creationTimestamp").unwrap_or_default(),
        spec: HookRunSpec::deserialize(field(object, "spec")).map_err(|e| format!("spec: {e}"))?,
        status: HookRunStatus::deserialize(field(object, "status")).unwrap_or_default(),
    })
}

/// Does this run hold an update slot of its policy?
pub fn holds_slot(run: &Run) -> bool {
    run.status.ended.is_none()
        && condition::find(&run.status.conditions, "Updated")
            .is_some_and(|c| c.status == Status::False && SLOT_REASONS.contains(&c.reason.as_str()))
}

/// Its state in one word.
pub fn state(run: &Run) -> RunState {
    match &run.status.ended {
        Some(ended) => match ended.outcome {
            Outcome::Aborted => RunState::Failed,
            Outcome::Succeeded | Outcome::Superseded | Outcome::Returned | Outcome::Audited => RunState::Over,
        },
        None if run.status.stall.is_some() => RunState::Failed,
        None => RunState::InProgress,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec() -> Value {
        json!({
            "deployment": {"name": "web", "uid": "u"}, "sequence": 1, "target": "t", "newTemplate": {"spec": {}},
            "settings": {"settleSeconds": 0, "maxConcurrentUpdates": 1, "maxHoldSeconds": 0, "onDelete": "Hold", "historyLimit": 1},
        })
    }

    #[test]
    fn a_status_that_cannot_be_read_is_computed_anew() {
        let read = run(&json!({"metadata": {"name": "r"}, "spec": spec(), "status": {"steps": 1}})).unwrap();
        assert_eq!(read.status, HookRunStatus::default());
    }

    #[test]
    fn a_spec_that_cannot_be_read_says_so() {
        for odd in [json!(null), json!({"spec": {"deployment": 1}}), json!({"spec": []})] {
            assert!(run(&odd).unwrap_err().starts_with("spec:"));
        }
    }

    #[test]
    fn slots_are_held_while_updating() {
        let with = |reason: &str, status: &str| {
            let conditions = json!([{"type": "Updated", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
            holds_slot(&run(&json!({"spec": spec(), "status": {"conditions": conditions}})).unwrap())
        };
        assert!(with("Updating", "False") && with("Committing", "False"));
        assert!(!with("Updating", "True") && !with("Stalled", "False"));
    }
}
