//! Reading single values out of JSON whose types nobody vouches for.

use std::collections::BTreeMap;

use interlock_core::{api::names, time::Time};
use serde_json::Value;

/// The field, if the value is an object and has it; else null.
pub fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

/// A string field; empty if it is absent or no string.
pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    field(value, name).as_str().unwrap_or_default()
}

/// An integer field, cut to what fits; `None` if it is absent or no number.
#[allow(clippy::cast_possible_truncation, reason = "a float is cut to the range of i64, and NaN is no JSON")]
pub fn int(value: &Value, name: &str) -> Option<i64> {
    let number = field(value, name);
    number.as_i64().or_else(|| number.as_u64().map(|_| i64::MAX)).or_else(|| number.as_f64().map(|f| f as i64))
}

/// An integer field, 0 if it is absent.
pub fn int_or_zero(value: &Value, name: &str) -> i64 {
    int(value, name).unwrap_or(0)
}

/// A boolean field; false if it is absent.
pub fn yes(value: &Value, name: &str) -> bool {
    field(value, name).as_bool().unwrap_or(false)
}

/// A list field; empty if it is absent.
pub fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    field(value, name).as_array().map_or(&[], Vec::as_slice)
}

/// A point in time; `None` if it is absent or does not parse.
pub fn time(value: &Value, name: &str) -> Option<Time> {
    text(value, name).parse().ok()
}

/// A map of strings; entries of other types are left out.
pub fn strings(value: &Value, name: &str) -> BTreeMap<String, String> {
    let Some(map) = field(value, name).as_object() else { return BTreeMap::new() };
    map.iter().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
}

/// Annotations without kubectl's copy of what was applied, which can be as large as the object.
pub fn annotations(metadata: &Value) -> BTreeMap<String, String> {
    let mut annotations = strings(metadata, "annotations");
    annotations.remove(names::LAST_APPLIED);
    annotations
}

/// The condition of this type in `status.conditions`.
pub fn condition<'a>(status: &'a Value, type_: &str) -> Option<&'a Value> {
    list(status, "conditions").iter().find(|c| text(c, "type") == type_)
}

/// Is the condition of this type True?
pub fn condition_true(status: &Value, type_: &str) -> bool {
    condition(status, type_).is_some_and(|c| text(c, "status") == "True")
}

/// Message of condition `ReplicaFailure`, while it is True.
pub fn replica_failure(status: &Value) -> Option<String> {
    condition(status, "ReplicaFailure").filter(|c| text(c, "status") == "True").map(|c| text(c, "message").to_owned())
}

/// UID of the controlling owner of this kind; empty if there is none.
pub fn controller<'a>(metadata: &'a Value, kind: &str) -> &'a str {
    list(metadata, "ownerReferences")
        .iter()
        .find(|o| yes(o, "controller") && text(o, "kind") == kind)
        .map_or("", |o| text(o, "uid"))
}

/// Kind in lower case and name of the controlling owner, such as `statefulset/etcd`; empty if there is none.
pub fn controller_name(metadata: &Value) -> String {
    let owner = list(metadata, "ownerReferences").iter().find(|o| yes(o, "controller"));
    owner.map(|o| format!("{}/{}", text(o, "kind").to_ascii_lowercase(), text(o, "name"))).unwrap_or_default()
}

/// At most `max` bytes of a text, cut between characters.
pub fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = (0..=max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
