//! A pod template as raw JSON. Typed structs would drop fields that a newer server knows, and a dropped field is a
//! change that nobody sees.

use std::{cmp::Ordering, hash, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::api::names::POD_TEMPLATE_HASH;

/// A pod template without what only distinguishes ReplicaSets (`pod-template-hash`), and its hash. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Template(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    json: Value,
    hash: String,
}

impl Template {
    /// Takes a template as the API serves it. Anything but an object counts as an empty template.
    pub fn new(mut json: Value) -> Self {
        if !json.is_object() {
            json = Value::Object(serde_json::Map::new());
        }
        if let Some(metadata) = json.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("creationTimestamp");
            let empty = metadata.get_mut("labels").and_then(Value::as_object_mut).is_some_and(|labels| {
                labels.remove(POD_TEMPLATE_HASH);
                labels.is_empty()
            });
            if empty {
                metadata.remove("labels");
            }
        }
        // serde_json keeps object keys sorted, so equal templates have equal text.
        let digest = Sha256::digest(json.to_string());
        let hash = hex(digest.iter().take(5));
        Self(Arc::new(Inner { json, hash }))
    }

    /// The template, normalised.
    pub fn json(&self) -> &Value {
        &self.0.json
    }

    /// Ten hexadecimal digits that stand for the template.
    pub fn hash(&self) -> &str {
        &self.0.hash
    }

    /// The template as a ReplicaSet with this `pod-template-hash` label carries it.
    pub fn with_hash_label(&self, hash: &str) -> Value {
        let mut json = self.0.json.clone();
        if let Some(template) = json.as_object_mut() {
            let metadata = template.entry("metadata").or_insert_with(|| Value::Object(serde_json::Map::new()));
            if let Some(metadata) = metadata.as_object_mut() {
                let labels = metadata.entry("labels").or_insert_with(|| Value::Object(serde_json::Map::new()));
                if let Some(labels) = labels.as_object_mut() {
                    labels.insert(POD_TEMPLATE_HASH.into(), Value::String(hash.into()));
                }
            }
        }
        json
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex<'a>(bytes: impl Iterator<Item = &'a u8>) -> String {
    bytes.fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.0.hash == other.0.hash && self.0.json == other.0.json)
    }
}

impl Eq for Template {}

impl hash::Hash for Template {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.0.hash.hash(state);
    }
}

impl PartialOrd for Template {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Template {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.hash.cmp(&other.0.hash)
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.json.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Value::deserialize(deserializer)?;
        if json.is_object() { Ok(Self::new(json)) } else { Err(D::Error::custom("a pod template must be an object")) }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Template {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Template".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
    }
    fn inline_schema() -> bool {
        true
    }
}
