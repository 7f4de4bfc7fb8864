//! Reading only a part of a JSON document.
//!
//! The controller needs some twenty fields of a pod of several kilobytes. What is not named in a [`Shape`] is skipped
//! by the parser and never allocated; what is named but is of another type counts as absent, so no content makes
//! reading fail.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

/// Which part of a document is kept.
#[derive(Debug)]
pub enum Shape {
    /// All of it.
    All,
    /// Of an object these fields.
    Fields(&'static [(&'static str, Shape)]),
    /// Of a list each element, in this shape.
    Each(&'static Shape),
}

/// `metadata` of every kind.
const METADATA: Shape = Shape::Fields(&[
    ("name", Shape::All),
    ("namespace", Shape::All),
    ("uid", Shape::All),
    ("resourceVersion", Shape::All),
    ("generation", Shape::All),
    ("creationTimestamp", Shape::All),
    ("deletionTimestamp", Shape::All),
    ("labels", Shape::All),
    ("annotations", Shape::All),
    ("finalizers", Shape::All),
    (
        "ownerReferences",
        Shape::Each(&Shape::Fields(&[
            ("kind", Shape::All),
            ("name", Shape::All),
            ("uid", Shape::All),
            ("controller", Shape::All),
        ])),
    ),
]);

/// Only who it is and which version.
pub(super) const VERSION: Shape = Shape::Fields(&[(
    "metadata",
    Shape::Fields(&[
        ("name", Shape::All),
        ("namespace", Shape::All),
        ("uid", Shape::All),
        ("resourceVersion", Shape::All),
    ]),
)]);

/// A custom resource, or a workload whose template must be kept whole.
pub(super) const WHOLE: Shape = Shape::Fields(&[("metadata", METADATA), ("spec", Shape::All), ("status", Shape::All)]);

const CONTAINERS: Shape = Shape::Each(&Shape::Fields(&[
    ("name", Shape::All),
    ("image", Shape::All),
    ("resources", Shape::All),
    ("restartPolicy", Shape::All),
]));

const STATUSES: Shape = Shape::Each(&Shape::Fields(&[
    ("name", Shape::All),
    ("image", Shape::All),
    ("imageID", Shape::All),
    ("containerID", Shape::All),
    ("ready", Shape::All),
    ("restartCount", Shape::All),
    ("state", Shape::All),
    ("lastState", Shape::All),
    ("resources", Shape::All),
]));

/// A workload that others only wait for.
pub(super) const WORKLOAD: Shape = Shape::Fields(&[
    ("metadata", METADATA),
    (
        "spec",
        Shape::Fields(&[
            ("replicas", Shape::All),
            ("updateStrategy", Shape::All),
            ("minReadySeconds", Shape::All),
            ("selector", Shape::All),
            ("completions", Shape::All),
            ("suspend", Shape::All),
            ("template", Shape::Fields(&[("metadata", Shape::Fields(&[("labels", Shape::All)]))])),
        ]),
    ),
    ("status", Shape::All),
]);

/// A pod.
pub(super) const POD: Shape = Shape::Fields(&[
    ("metadata", METADATA),
    (
        "spec",
        Shape::Fields(&[
            ("nodeName", Shape::All),
            ("readinessGates", Shape::All),
            ("containers", CONTAINERS),
            ("initContainers", CONTAINERS),
        ]),
    ),
    (
        "status",
        Shape::Fields(&[
            ("phase", Shape::All),
            ("podIP", Shape::All),
            ("observedGeneration", Shape::All),
            ("conditions", Shape::All),
            ("containerStatuses", STATUSES),
            ("initContainerStatuses", STATUSES),
        ]),
    ),
]);

impl<'de> DeserializeSeed<'de> for &Shape {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Shape::All => Value::deserialize(deserializer),
            Shape::Fields(_) | Shape::Each(_) => deserializer.deserialize_any(Part(self)),
        }
    }
}

struct Part<'a>(&'a Shape);

impl<'de> Visitor<'de> for Part<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_str<E>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let Shape::Each(shape) = self.0 else {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Value::Null);
        };
        let mut list = Vec::new();
        while let Some(element) = seq.next_element_seed(*shape)? {
            list.push(element);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let Shape::Fields(fields) = self.0 else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Value::Null);
        };
        let mut object = Map::new();
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match fields.iter().find(|(name, _)| *name == key) {
                Some((_, shape)) => {
                    let value = map.next_value_seed(shape)?;
                    object.insert(key.into_owned(), value);
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Value {
        (&POD).deserialize(&mut serde_json::Deserializer::from_str(text)).unwrap()
    }

    #[test]
    fn only_what_is_named_is_kept() {
        let pod = json!({
            "metadata": {"name": "a", "managedFields": [{"x": 1}]},
            "spec": {"containers": [{"name": "c", "image": "i", "command": ["x"], "env": []}], "volumes": []},
            "status": {"qosClass": "Burstable", "phase": "Running"},
        });
        assert_eq!(
            read(&pod.to_string()),
            json!({
                "metadata": {"name": "a"},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
                "status": {"phase": "Running"},
            })
        );
    }

    #[test]
    fn other_types_count_as_absent() {
        for odd in ["1", "-1", "1.5", "true", "null", "\"x\"", "[[]]", "{\"a\": {}}"] {
            let text = format!(
                r#"{{"metadata": {odd}, "spec": {{"containers": {odd}, "initContainers": [{odd}]}}, "status": {odd}}}"#
            );
            let value = read(&text);
            assert!(value.pointer("/metadata/name").is_none(), "{odd}");
        }
        assert_eq!(read("[1, {}]"), Value::Null);
    }
}
