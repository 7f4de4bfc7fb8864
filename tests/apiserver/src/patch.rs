//! The patch formats.

use json_patch::{AddOperation, PatchOperation, ReplaceOperation};
use serde_json::{Map, Value};

use crate::{kinds::Kind, refusal::Refusal};

/// How lists of objects are merged: by this field. Lists that are not named are replaced.
const MERGE_KEYS: [(&str, &str); 8] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("conditions", "type"),
    ("env", "name"),
    ("volumes", "name"),
    ("ports", "containerPort"),
    ("ownerReferences", "uid"),
    ("volumeMounts", "mountPath"),
];

/// Applies a patch of this content type.
pub fn apply(kind: &Kind, content_type: &str, object: &Value, patch: Value) -> Result<Value, Refusal> {
    let mut object = object.clone();
    match content_type {
        "application/json-patch+json" => {
            let patch: json_patch::Patch = serde_json::from_value(patch)
                .map_err(|e| Refusal::bad_request(format!("error decoding patch: {e}")))?;
            for operation in patch.0 {
                let operation = lenient(&object, operation);
                json_patch::patch(&mut object, &[operation]).map_err(|_| Refusal::patch_rejected())?;
            }
        }
        "application/merge-patch+json" => json_patch::merge(&mut object, &patch),
        "application/strategic-merge-patch+json" if kind.custom() => {
            return Err(Refusal::media_type(
                "accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            ));
        }
        // A server-side apply that is forced, without the memory of who owned what: nothing goes that is not named.
        "application/strategic-merge-patch+json" | "application/apply-patch+yaml" => strategic(&mut object, patch),
        other => return Err(Refusal::media_type(other)),
    }
    Ok(object)
}

/// The real one lets a `replace` add a key that is not there.
fn lenient(object: &Value, operation: PatchOperation) -> PatchOperation {
    match operation {
        PatchOperation::Replace(ReplaceOperation { path, value }) if object.pointer(path.as_str()).is_none() => {
            PatchOperation::Add(AddOperation { path, value })
        }
        other => other,
    }
}

fn strategic(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, value) in patch {
        if value.is_null() {
            crate::json::drop_key(target, &key);
            continue;
        }
        let by = MERGE_KEYS.iter().find(|(list, _)| *list == key).map(|(_, by)| *by);
        match (by, &mut target[&key], value) {
            (Some(by), Value::Array(present), Value::Array(new)) => merge_list(present, new, by),
            (_, slot, value) => strategic(slot, value),
        }
    }
}

fn merge_list(present: &mut Vec<Value>, new: Vec<Value>, by: &str) {
    for mut element in new {
        let at = present.iter().position(|p| p[by] == element[by]);
        if element["$patch"] == "delete" {
            if let Some(at) = at {
                present.remove(at);
            }
            continue;
        }
        crate::json::drop_key(&mut element, "$patch");
        match at {
            Some(at) => strategic(&mut present[at], element),
            None => present.push(element),
        }
    }
}
