//! RollingRestarts.

use interlock_core::{
    api::restart::{RollingRestartSpec, RollingRestartStatus},
    restart::Restart,
};
use serde::Deserialize as _;
use serde_json::Value;

use super::json::{cut, field, int_or_zero, text, time};

/// Longest message that is kept of the parser.
const LONGEST: usize = 512;

/// The facts of a RollingRestart. One whose spec cannot be read says why it is not carried out. A status that cannot be read
/// counts as absent, and then nothing is known of what was restarted: marks in the templates tell.
pub fn restart(object: &Value) -> Restart {
    let metadata = field(object, "metadata");
    let spec = RollingRestartSpec::deserialize(object.get("spec").unwrap_or(&Value::Object(serde_json::Map::new())));
    Restart {
        namespace: text(metadata, "namespace").to_owned(),
        name: text(metadata, "name").to_owned(),
        uid: text(metadata, "uid").to_owned(),
        resource_version: text(metadata, "resourceVersion").to_owned(),
        generation: int_or_zero(metadata, "generation"),
        created: time(metadata, "creationTimestamp").unwrap_or_default(),
        spec: spec.map_err(|error| cut(format!("spec: {error}"), LONGEST)),
        status: RollingRestartStatus::deserialize(field(object, "status")).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_does_not_parse_is_a_request_with_a_reason() {
        for odd in [json!({"spec": 1}), json!({"spec": {"unknown": 1}}), json!({"spec": {"maxConcurrent": {}}})] {
            assert!(restart(&odd).spec.unwrap_err().starts_with("spec:"), "{odd}");
        }
        let read = restart(&json!({"metadata": {"name": "r"}, "status": {"targets": 1}}));
        assert_eq!((read.spec.unwrap().max_concurrent, read.status), (1, RollingRestartStatus::default()));
    }
}
