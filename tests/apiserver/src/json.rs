//! Reading JSON without ceremony: what is absent or of another type is empty.

use serde_json::{Map, Value};

static NULL: Value = Value::Null;

pub fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&NULL)
}

pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    at(value, pointer).as_str().unwrap_or_default()
}

pub fn int(value: &Value, pointer: &str) -> i64 {
    at(value, pointer).as_i64().unwrap_or_default()
}

pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    at(value, pointer).as_array().map_or(&[], Vec::as_slice)
}

pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    at(object, "/metadata/annotations").get(key)?.as_str()
}

/// The object at this key, made if it is not there.
pub fn child<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let child = &mut value[key];
    if !child.is_object() {
        *child = Value::Object(Map::new());
    }
    child.as_object_mut().unwrap()
}

pub fn default(value: &mut Value, key: &str, or: impl Into<Value>) {
    if value[key].is_null() {
        value[key] = or.into();
    }
}

pub fn drop_key(value: &mut Value, key: &str) {
    if let Some(map) = value.as_object_mut() {
        map.remove(key);
    }
}

/// UID of the controller of this kind that an object belongs to.
pub fn controller<'a>(object: &'a Value, kind: &str) -> &'a str {
    let owners = list(object, "/metadata/ownerReferences");
    owners.iter().find(|o| o["kind"] == kind && o["controller"] == true).map_or("", |o| text(o, "/uid"))
}

/// Templates are compared without the label that the Deployment controller adds.
pub fn same_template(a: &Value, b: &Value) -> bool {
    const HASH: &str = interlock_core::api::names::POD_TEMPLATE_HASH;
    let labels = |t: &'_ Value| -> Vec<(String, Value)> {
        let map = at(t, "/metadata/labels").as_object();
        map.into_iter().flatten().filter(|(k, _)| *k != HASH).map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    a["spec"] == b["spec"] && at(a, "/metadata/annotations") == at(b, "/metadata/annotations") && labels(a) == labels(b)
}
