//! The JSON of what is written. Every patch tests what it replaces.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{
    api::names,
    planted::{Bug, planted},
    pod::Difference,
    template::Template,
    time::Time,
    world::{Baseline, Deployment, Pod, ReplicaSet, Resources, Was},
};

/// A key as a JSON pointer segment (RFC 6901).
fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Names of made objects: the Deployment's, cut, and a hash of all of it, at most 63 characters so that it also fits
/// a label.
pub(super) fn set_name(deployment: &str, kind: &str, hash: &str, number: i64) -> String {
    let mut digest = Sha256::new();
    for part in [deployment, kind, hash, &number.to_string()] {
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    let tail = crate::template::hex(digest.finalize().iter().take(4));
    let head: String = deployment.chars().take(45).collect();
    format!("{}-{kind}{tail}", head.trim_end_matches(['-', '.']))
}

/// Name of a run: the Deployment's, cut, and a hash of UID, target and sequence.
pub(super) fn run_name(deployment: &str, uid: &str, target: &str, sequence: i64) -> String {
    set_name(deployment, "", &format!("{uid}/{target}"), sequence)
}

/// One write per pod: images by name, listed metadata, and the baseline by which its end is told, with `test` on what
/// is there.
pub(crate) fn pod(
    pod: &Pod,
    difference: &Difference,
    hash: &str,
    now: Time,
    quiet: bool,
    state: Option<&str>,
) -> Value {
    let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": pod.uid})];
    let mut was = BTreeMap::new();
    for (index, image) in &difference.images {
        let Some(container) = pod.containers.get(*index) else { continue };
        let at = format!("/spec/{}/{}", if container.init { "initContainers" } else { "containers" }, container.index);
        operations.push(json!({"op": "test", "path": format!("{at}/name"), "value": container.name}));
        operations.push(json!({"op": "test", "path": format!("{at}/image"), "value": container.image}));
        operations.push(json!({"op": "replace", "path": format!("{at}/image"), "value": image}));
        let status = container.status.clone().unwrap_or_default();
        was.insert(
            container.name.clone(),
            Box::new(Was {
                spec: container.image.clone(),
                id: status.id,
                image: status.image,
                image_id: status.image_id,
                restarts: status.restarts,
            }),
        );
    }
    if !difference.images.is_empty() {
        operations.push(json!({"op": "test", "path": "/metadata/generation", "value": pod.generation}));
    }
    let tries = pod.baseline.as_ref().filter(|b| b.target == hash).map_or(0, |b| b.tries).saturating_add(1);
    let baseline = match &pod.baseline {
        // Nothing restarts by this write: what an earlier one has begun is still told by its own record.
        Some(earlier) if was.is_empty() => Baseline { target: hash.to_owned(), tries, ..earlier.clone() },
        earlier => {
            // A container that an earlier write is still to replace is still awaited.
            for (name, before) in earlier.iter().flat_map(|b| &b.was) {
                if crate::pod::awaits(pod, name, now) {
                    was.entry(name.clone()).or_insert_with(|| before.clone());
                }
            }
            Baseline { target: hash.to_owned(), generation: pod.generation, at: now, tries, quiet, was }
        }
    };
    let record = serde_json::to_string(&baseline).unwrap_or_default();
    if !pod.has_annotations {
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    metadata(&mut operations, "labels", &difference.labels, &pod.labels);
    metadata(&mut operations, "annotations", &difference.annotations, &pod.annotations);
    if let Some(state) = state {
        show(&mut operations, pod, Some(state));
    }
    operations.push(
        json!({"op": "add", "path": format!("/metadata/annotations/{}", escape(names::UPDATE)), "value": record}),
    );
    if planted(Bug::PodPrecondition) {
        operations.retain(|o| o["op"] != "test");
    }
    Value::Array(operations)
}

/// What the pod says of its update, for whoever its `podGate` waits for.
pub(super) fn pod_state(pod: &Pod, state: Option<&str>) -> Value {
    let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": pod.uid})];
    if !pod.has_annotations {
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    show(&mut operations, pod, state);
    Value::Array(operations)
}

fn show(operations: &mut Vec<Value>, pod: &Pod, state: Option<&str>) {
    let change = BTreeMap::from([(names::POD_STATE.to_owned(), state.map(ToOwned::to_owned))]);
    metadata(operations, "annotations", &change, &pod.annotations);
}

fn metadata(
    operations: &mut Vec<Value>,
    kind: &str,
    changes: &BTreeMap<String, Option<String>>,
    have: &BTreeMap<String, String>,
) {
    for (key, value) in changes {
        let path = format!("/metadata/{kind}/{}", escape(key));
        if let Some(present) = have.get(key) {
            operations.push(json!({"op": "test", "path": path, "value": present}));
        }
        match value {
            Some(value) => operations.push(json!({"op": "add", "path": path, "value": value})),
            None => operations.push(json!({"op": "remove", "path": path})),
        }
    }
}

/// cpu and memory of containers, for the `resize` subresource.
pub(super) fn resize(pod: &Pod, difference: &Difference) -> Value {
    let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": pod.uid})];
    for (index, want) in &difference.resources {
        let Some(container) = pod.containers.get(*index) else { continue };
        let at = format!("/spec/{}/{}", if container.init { "initContainers" } else { "containers" }, container.index);
        operations.push(json!({"op": "test", "path": format!("{at}/name"), "value": container.name}));
        let Resources { requests, limits } = &container.resources;
        for (kind, have, want) in [("requests", requests, &want.requests), ("limits", limits, &want.limits)] {
            if have.is_empty() && !want.is_empty() {
                operations.push(json!({"op": "add", "path": format!("{at}/resources/{kind}"), "value": want}));
                continue;
            }
            for (name, value) in want.iter().filter(|(name, value)| have.get(*name) != Some(value)) {
                let path = format!("{at}/resources/{kind}/{name}");
                if let Some(present) = have.get(name) {
                    operations.push(json!({"op": "test", "path": path, "value": present}));
                }
                operations.push(json!({"op": "add", "path": path, "value": value}));
            }
        }
    }
    Value::Array(operations)
}

/// The commit: the ReplicaSet's template, with `test` on the old one, its next revision, and our marks removed, so that
/// their return is the Deployment controller's acknowledgement. It may have copied them there since we looked, and then
/// they would acknowledge what it has not seen: so they go whether we saw them or not.
///
/// The number it had belongs to the old template, whatever happens next: two ReplicaSets must never share one.
pub(super) fn commit(set: &ReplicaSet, new: &Template, revision: i64) -> Value {
    let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": set.uid})];
    // Part by part: older servers also serve a null creationTimestamp inside the template.
    let old = set.template.with_hash_label(&set.hash_label);
    for part in ["/spec", "/metadata/labels", "/metadata/annotations"] {
        if let Some(value) = old.pointer(part) {
            operations.push(json!({"op": "test", "path": format!("/spec/template{part}"), "value": value}));
        }
    }
    operations.push(json!({"op": "replace", "path": "/spec/template", "value": new.with_hash_label(&set.hash_label)}));
    if let Some(present) = set.annotations.get(names::REVISION) {
        let path = format!("/metadata/annotations/{}", escape(names::REVISION));
        operations.push(json!({"op": "test", "path": path, "value": present}));
        operations.push(json!({"op": "replace", "path": path, "value": revision.to_string()}));
    }
    // So do its earlier numbers.
    for key in names::MARKS.iter().chain([&names::REVISION_HISTORY]) {
        let path = format!("/metadata/annotations/{}", escape(key));
        if !set.annotations.is_empty() {
            operations.push(json!({"op": "add", "path": path, "value": ""}));
            operations.push(json!({"op": "remove", "path": path}));
        }
    }
    Value::Array(operations)
}

/// A woken ReplicaSet goes back to sleep.
pub(super) fn scale_to_zero(replicas: i64) -> Value {
    json!([
        {"op": "test", "path": "/spec/replicas", "value": replicas},
        {"op": "replace", "path": "/spec/replicas", "value": 0},
    ])
}

/// What the Deployment controller notes when it scales, where it had nothing to scale.
pub(super) fn desired_replicas(set: &ReplicaSet, replicas: i64) -> Value {
    let path = format!("/metadata/annotations/{}", escape(names::DESIRED_REPLICAS));
    json!([
        {"op": "test", "path": "/metadata/uid", "value": set.uid},
        {"op": "test", "path": "/spec/replicas", "value": replicas},
        {"op": "test", "path": path, "value": set.annotations.get(names::DESIRED_REPLICAS)},
        {"op": "replace", "path": path, "value": replicas.to_string()},
    ])
}

/// A ReplicaSet of the Deployment. Never with `desired-replicas` or `max-replicas`: a stale value wedges the
/// Deployment for ever, since its controller then only ever scales.
pub(super) fn replica_set(
    d: &Deployment,
    name: &str,
    template: &Template,
    replicas: i64,
    revision: Option<i64>,
    annotations: &BTreeMap<String, String>,
    label: Option<&str>,
) -> Value {
    let hash = name.rsplit('-').next().unwrap_or(name);
    let spec_template = template.with_hash_label(hash);
    let mut labels: Map<String, Value> =
        spec_template.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    if let Some(label) = label {
        labels.insert(label.to_owned(), Value::String("true".into()));
    }
    let mut annotations: Map<String, Value> =
        annotations.iter().map(|(k, v)| (k.clone(), Value::String(v.clone()))).collect();
    if let Some(revision) = revision {
        annotations.insert(names::REVISION.to_owned(), Value::String(revision.to_string()));
    }
    let mut selector = d.match_labels.clone();
    selector.insert(names::POD_TEMPLATE_HASH.to_owned(), hash.to_owned());
    json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": name,
            "namespace": d.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": d.name, "uid": d.uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": d.min_ready_seconds,
            "selector": {"matchLabels": selector},
            "template": spec_template,
        },
    })
}

/// The end of the hold: the one write that admission lets through, and only if nothing was written in between.
pub(super) fn release(d: &Deployment, restore: &BTreeMap<String, String>) -> Value {
    let mut annotations: Map<String, Value> = restore
        .iter()
        .filter(|(k, _)| !d.annotations.contains_key(*k))
        .map(|(k, v)| (k.clone(), Value::String(v.clone())))
        .collect();
    for mark in [names::HELD_BY, names::HELD_AT, names::RESUME] {
        annotations.insert(mark.to_owned(), Value::Null);
    }
    annotations.insert(names::RELEASE.to_owned(), Value::String(d.resource_version.clone()));
    let paused = if d.user_paused() { Value::Bool(true) } else { Value::Null };
    json!({
        "metadata": {"resourceVersion": d.resource_version, "annotations": annotations},
        "spec": {"paused": paused},
    })
}

/// The same release for another version of the Deployment, of which the caller knows that only its status differs.
pub fn release_at(patch: &mut Value, resource_version: &str) {
    for path in [format!("/metadata/annotations/{}", escape(names::RELEASE)), "/metadata/resourceVersion".to_owned()] {
        if let Some(version) = patch.pointer_mut(&path) {
            *version = Value::String(resource_version.to_owned());
        }
    }
}

/// A native roll that failed is paused, as a hold, so that a new template or a decision finds it.
pub(super) fn freeze(d: &Deployment, by: &str) -> Value {
    json!({
        "metadata": {"resourceVersion": d.resource_version, "annotations": {
            names::HELD_BY: by, names::HELD_AT: d.generation.to_string(), names::RESUME: "true",
        }},
        "spec": {"paused": true},
    })
}

/// Marks on a Deployment that is not held are copies.
pub(super) fn clear_marks(d: &Deployment) -> Value {
    let annotations: Map<String, Value> = [names::HELD_BY, names::HELD_AT, names::RESUME]
        .into_iter()
        .filter(|m| d.annotations.contains_key(*m))
        .map(|m| (m.to_owned(), Value::Null))
        .collect();
    json!({"metadata": {"resourceVersion": d.resource_version, "annotations": annotations}})
}
