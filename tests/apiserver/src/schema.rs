//! The structural schemas of Interlock's own kinds, read from the generated definitions: unknown fields go, defaults come,
//! and what is of the wrong type or too long is refused. Their CEL rules are not evaluated.

use std::sync::OnceLock;

use serde_json::Value;

use crate::{
    json::{at, list},
    kinds::Kind,
    refusal::Refusal,
};

pub struct Schema(Value);

/// The schema of a kind of `interlock.dev`.
pub fn of(kind: &Kind) -> &'static Schema {
    static POLICIES: OnceLock<Schema> = OnceLock::new();
    static RUNS: OnceLock<Schema> = OnceLock::new();
    static RESTARTS: OnceLock<Schema> = OnceLock::new();
    match kind.plural {
        "hookpolicies" => POLICIES.get_or_init(|| Schema::read(include_str!("../../../crds/hookpolicies.yaml"))),
        "rollingrestarts" => RESTARTS.get_or_init(|| Schema::read(include_str!("../../../crds/rollingrestarts.yaml"))),
        _ => RUNS.get_or_init(|| Schema::read(include_str!("../../../crds/hookruns.yaml"))),
    }
}

impl Schema {
    fn read(text: &str) -> Self {
        let definition: Value = serde_saphyr::from_str(text).expect("a generated definition");
        Self(at(&definition, "/spec/versions/0/schema/openAPIV3Schema").clone())
    }

    /// Prunes and defaults everything but metadata.
    pub fn shape(&self, object: &mut Value) {
        for part in ["spec", "status"] {
            if let (Some(value), Some(schema)) = (object.get_mut(part), self.0["properties"].get(part)) {
                shape(value, schema);
            }
        }
    }

    pub fn check(&self, kind: &Kind, name: &str, object: &Value) -> Result<(), Refusal> {
        for part in ["spec", "status"] {
            if let (Some(value), Some(schema)) = (object.get(part), self.0["properties"].get(part)) {
                check(value, schema, part)
                    .map_err(|(field, cause, why)| Refusal::invalid(kind, name, &field, cause, &why))?;
            }
        }
        Ok(())
    }
}

fn shape(value: &mut Value, schema: &Value) {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    match value {
        Value::Object(map) => {
            if let Some(properties) = schema["properties"].as_object() {
                map.retain(|key, _| properties.contains_key(key));
                for (key, property) in properties {
                    if let (false, Some(default)) = (map.contains_key(key), property.get("default")) {
                        map.insert(key.clone(), default.clone());
                    }
                    if let Some(value) = map.get_mut(key) {
                        shape(value, property);
                    }
                }
            } else if let Some(each) = schema.get("additionalProperties").filter(|s| s.is_object()) {
                map.values_mut().for_each(|value| shape(value, each));
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(|element| shape(element, &schema["items"])),
        _ => {}
    }
}

type Fault = (String, &'static str, String);

fn check(value: &Value, schema: &Value, path: &str) -> Result<(), Fault> {
    let fault = |cause: &'static str, why: String| Err((path.to_owned(), cause, why));
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        _ => true,
    };
    if !fits {
        return fault("FieldValueTypeInvalid", format!("Invalid value: must be of type {}", schema["type"]));
    }
    let allowed = list(schema, "/enum");
    if !allowed.is_empty() && !allowed.contains(value) {
        return fault("FieldValueNotSupported", format!("Unsupported value: {value}"));
    }
    let most = |key: &str, have: usize| schema[key].as_u64().is_some_and(|most| have as u64 > most);
    match value {
        Value::String(text) if most("maxLength", text.chars().count()) => {
            fault("FieldValueTooLong", "Too long".to_owned())
        }
        Value::Array(elements) => {
            if most("maxItems", elements.len()) {
                return fault("FieldValueTooMany", "Too many".to_owned());
            }
            elements.iter().enumerate().try_for_each(|(i, e)| check(e, &schema["items"], &format!("{path}[{i}]")))
        }
        Value::Object(map) => {
            if let Some(missing) =
                list(schema, "/required").iter().filter_map(Value::as_str).find(|k| !map.contains_key(*k))
            {
                return Err((format!("{path}.{missing}"), "FieldValueRequired", "Required value".to_owned()));
            }
            map.iter().try_for_each(|(key, value)| match schema["properties"].get(key) {
                Some(property) => check(value, property, &format!("{path}.{key}")),
                None => Ok(()),
            })
        }
        _ => Ok(()),
    }
}
