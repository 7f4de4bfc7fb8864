//! HookPolicies.

use interlock_core::{api::policy::HookPolicySpec, world::Policy};
use serde::Deserialize as _;
use serde_json::Value;

use crate::action;

use super::json::{cut, field, int_or_zero, text, time};

/// Longest message that is kept of the parser.
const LONGEST: usize = 512;

/// The facts of a HookPolicy. One whose spec cannot be read is a policy still: it holds, and says why it is invalid.
pub fn policy(object: &Value) -> Policy {
    let metadata = field(object, "metadata");
    let spec = object.get("spec").filter(|s| !s.is_null());
    let spec = spec.map_or_else(
        || Ok(HookPolicySpec::default()),
        |s| HookPolicySpec::deserialize(s).map_err(|e| cut(format!("spec: {e}"), LONGEST)),
    );
    Policy {
        name: text(metadata, "name").to_owned(),
        uid: text(metadata, "uid").to_owned(),
        generation: int_or_zero(metadata, "generation"),
        created: time(metadata, "creationTimestamp").unwrap_or_default(),
        problem: spec.as_ref().ok().and_then(|spec| action::problem(&spec.hooks)).map(|why| cut(why, LONGEST)),
        spec,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_does_not_parse_is_a_policy_with_a_reason() {
        let read = policy(&json!({"metadata": {"name": "p"}, "spec": {"hooks": [{"name": "a", "phase": "Never"}]}}));
        assert_eq!(read.name, "p");
        assert!(read.spec.unwrap_err().contains("Never"));
        for odd in [json!({"spec": 1}), json!({"spec": {"unknown\0": 1}}), json!({"spec": {"settleSeconds": 1e30}})] {
            assert!(policy(&odd).spec.is_err(), "{odd}");
        }
        assert!(policy(&json!({"spec": {}})).spec.is_ok());
    }
}
