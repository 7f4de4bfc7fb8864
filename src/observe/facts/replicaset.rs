//! ReplicaSets.

use interlock_core::{api::names, template::Template, world::ReplicaSet};
use serde_json::Value;

use super::{
    annotations::{own_after, own_hooks},
    json::{annotations, field, int, int_or_zero, replica_failure, strings, text, time},
};

/// The facts of a ReplicaSet.
pub fn replica_set(object: &Value) -> ReplicaSet {
    let metadata = field(object, "metadata");
    let spec = field(object, "spec");
    let status = field(object, "status");
    let labels = strings(metadata, "labels");
    let annotations = annotations(metadata);
    ReplicaSet {
        name: text(metadata, "name").to_owned(),
        uid: text(metadata, "uid").to_owned(),
        resource_version: text(metadata, "resourceVersion").to_owned(),
        generation: int_or_zero(metadata, "generation"),
        created: time(metadata, "creationTimestamp").unwrap_or_default(),
        hash_label: labels.get(names::POD_TEMPLATE_HASH).cloned().unwrap_or_default(),
        history: labels.contains_key(names::HISTORY_LABEL),
        copy: labels.contains_key(names::COPY_LABEL),
        own_hooks: own_hooks(&annotations),
        own_after: own_after(&annotations),
        annotations,
        replicas: int(spec, "replicas").unwrap_or(1),
        template: Template::new(field(spec, "template").clone()),
        observed_generation: int_or_zero(status, "observedGeneration"),
        status_replicas: int_or_zero(status, "replicas"),
        available: int_or_zero(status, "availableReplicas"),
        failure: replica_failure(status),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ours_are_told_by_label_not_by_annotation() {
        let read = replica_set(&json!({"metadata": {
            "labels": {names::HISTORY_LABEL: "true", names::POD_TEMPLATE_HASH: "abc"}, "annotations": {names::COPY_LABEL: "true"}}}));
        assert!(read.history && !read.copy);
        assert_eq!(read.hash_label, "abc");
    }

    #[test]
    fn odd_content_counts_as_absent() {
        for odd in
            [json!(null), json!([1]), json!({"metadata": [], "spec": {"template": 7, "replicas": "3"}, "status": 1})]
        {
            assert_eq!(replica_set(&odd).replicas, 1);
        }
    }
}
