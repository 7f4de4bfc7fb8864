//! Which way a change of the pod template can go: compared field by field on raw JSON, so that a field which this
//! program does not know counts as a change like any other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::{api::names, template::Template, world::Resources};

/// What one changed field asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Image of a container or restartable init container.
    Image,
    /// Label or annotation that may change in place.
    Metadata,
    /// cpu or memory.
    Resize,
    /// Needs new pods.
    Recreate,
}

/// One changed field.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Change {
    /// Where, such as `spec.containers[app].image`.
    pub path: String,
    /// What it asks for.
    pub class: Class,
    /// Why it needs new pods, and what would keep them. Empty for what goes in place.
    pub why: String,
}

/// The container facts of a template that matter in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Is it a restartable init container?
    pub init: bool,
    /// Image.
    pub image: String,
    /// cpu and memory.
    pub resources: Resources,
}

/// The containers and restartable init containers of a template, by name.
pub fn containers(template: &Template) -> BTreeMap<String, Wanted> {
    let mut all = BTreeMap::new();
    for (list, init) in [("containers", false), ("initContainers", true)] {
        for container in items(template.json(), list) {
            if init && !restartable(container) {
                continue;
            }
            if let Some(name) = text(container, "name") {
                let image = text(container, "image").unwrap_or_default().to_owned();
                all.insert(name.to_owned(), Wanted { init, image, resources: resources(container.get("resources")) });
            }
        }
    }
    all
}

/// Labels and annotations of a template: (labels, annotations).
pub fn metadata(template: &Template) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let map = |kind: &str| {
        template
            .json()
            .get("metadata")
            .and_then(|m| m.get(kind))
            .and_then(Value::as_object)
            .map(|m| m.iter().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect())
            .unwrap_or_default()
    };
    (map("labels"), map("annotations"))
}

/// cpu and memory of a `resources` object.
pub fn resources(value: Option<&Value>) -> Resources {
    let part = |kind: &str| {
        value
            .and_then(|r| r.get(kind))
            .and_then(Value::as_object)
            .map(|m| {
                m.iter()
                    .filter(|(name, _)| is_resizable(name))
                    .map(|(name, v)| (name.clone(), v.as_str().map_or_else(|| v.to_string(), str::to_owned)))
                    .collect()
            })
            .unwrap_or_default()
    };
    Resources { requests: part("requests"), limits: part("limits") }
}

/// Does a pattern list (`key` or `prefix*`) name this key? The marks of restarts it never does: a restart in place is none.
pub fn listed(patterns: &[String], key: &str) -> bool {
    if matches!(key, names::RESTART | names::KUBECTL_RESTART) {
        return false;
    }
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => pattern == key,
    })
}

/// Every changed field with its class. Empty: the templates are equal.
pub fn classify(old: &Template, new: &Template, in_place_metadata: &[String]) -> Vec<Change> {
    let mut fields = Vec::new();
    diff(&mut Vec::new(), old.json(), new.json(), &mut fields);
    let restarting = restarting(&fields);
    let same_qos = qos(old) == qos(new);
    fields.into_iter().map(|field| class_of(&field, new, in_place_metadata, &restarting, same_qos)).collect()
}

/// One differing field: its path in parts (list items by name), and whether it is new or gone.
struct Field {
    path: Vec<String>,
    removed: bool,
}

impl Field {
    fn show(&self) -> String {
        let mut text = String::new();
        for part in &self.path {
            if !text.is_empty() && !part.starts_with('[') {
                text.push('.');
            }
            text.push_str(part);
        }
        text
    }

    fn parts(&self) -> Vec<&str> {
        self.path.iter().map(String::as_str).collect()
    }
}

fn diff(path: &mut Vec<String>, old: &Value, new: &Value, out: &mut Vec<Field>) {
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                path.push(key.clone());
                match (a.get(key), b.get(key)) {
                    (Some(x), Some(y)) => diff(path, x, y, out),
                    // An absent map and an empty one are the same to the API server.
                    (None, Some(added)) => diff(path, &hollow(added), added, out),
                    (Some(gone), None) => diff(path, gone, &hollow(gone), out),
                    (None, None) => {}
                }
                path.pop();
            }
        }
        (Value::Array(a), Value::Array(b)) if is_container_list(path) && names(a) == names(b) => {
            for (x, y) in a.iter().zip(b) {
                path.push(format!("[{}]", text(x, "name").unwrap_or_default()));
                diff(path, x, y, out);
                path.pop();
            }
        }
        (a, b) if a == b => {}
        (_, b) => out.push(Field { path: path.clone(), removed: b.is_null() }),
    }
}

fn hollow(other: &Value) -> Value {
    if other.is_object() { Value::Object(Map::new()) } else { Value::Null }
}

fn is_container_list(path: &[String]) -> bool {
    matches!(path, [spec, list] if spec == "spec" && (list == "containers" || list == "initContainers"))
}

fn names(list: &[Value]) -> Option<Vec<&str>> {
    let names: Option<Vec<&str>> = list.iter().map(|c| text(c, "name")).collect();
    names.filter(|n| n.iter().collect::<BTreeSet<_>>().len() == n.len())
}

/// Names (in brackets) of containers whose image changes: they restart.
fn restarting(fields: &[Field]) -> BTreeSet<String> {
    fields
        .iter()
        .filter_map(|f| match f.parts().as_slice() {
            ["spec", "containers" | "initContainers", name, "image"] => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

fn class_of(
    field: &Field,
    new: &Template,
    patterns: &[String],
    restarting: &BTreeSet<String>,
    same_qos: bool,
) -> Change {
    let recreate = |why: &str| (Class::Recreate, why.to_owned());
    let parts = field.parts();
    let (class, why) = match parts.as_slice() {
        ["spec", "containers", _, "image"] if !field.removed => (Class::Image, String::new()),
        ["spec", "initContainers", name, "image"] if !field.removed => {
            if items(new.json(), "initContainers").any(|c| bracket(c) == *name && restartable(c)) {
                (Class::Image, String::new())
            } else {
                recreate(
                    "an init container that has finished is never run again in a running pod; make it a restartable one (restartPolicy: Always) to keep the pods",
                )
            }
        }
        ["spec", "containers" | "initContainers", name, "resources", "requests" | "limits", resource]
            if is_resizable(resource) =>
        {
            let init = parts.get(1) == Some(&"initContainers");
            if init && !items(new.json(), "initContainers").any(|c| bracket(c) == *name && restartable(c)) {
                recreate("an init container that has finished is never run again in a running pod")
            } else if field.removed {
                recreate("a running container cannot lose a request or limit; set another value to keep the pods")
            } else if !same_qos {
                recreate(
                    "the pod's quality-of-service class would change, which a running pod cannot; keep the relation of requests and limits to keep the pods",
                )
            } else {
                (Class::Resize, String::new())
            }
        }
        ["metadata", kind @ ("labels" | "annotations"), key] => {
            if !listed(patterns, key) {
                recreate(
                    "changing template metadata usually asks for new pods; list the key in update.inPlaceMetadata to keep them",
                )
            } else if let Some(reader) = reader(new, kind, key, restarting) {
                recreate(&format!(
                    "container {reader} reads it as environment and does not restart with this change; change its image too, or read it from the downward API volume, to keep the pods"
                ))
            } else {
                (Class::Metadata, String::new())
            }
        }
        ["spec", "containers" | "initContainers", _, "imagePullPolicy"] => recreate(
            "a running pod cannot change it; `kubectl replace` flips the default when a tag leaves :latest, so state imagePullPolicy in the manifest (or use apply) to keep the pods",
        ),
        ["spec", "containers" | "initContainers"] => {
            recreate("containers cannot be added to, taken from or reordered in a running pod")
        }
        _ => recreate(
            "this field of a running pod cannot be changed; only images, cpu and memory, and listed metadata can",
        ),
    };
    Change { path: field.show(), class, why }
}

/// A container that reads this label or annotation as environment and does not restart.
fn reader(template: &Template, kind: &str, key: &str, restarting: &BTreeSet<String>) -> Option<String> {
    let wanted = [format!("metadata.{kind}['{key}']"), format!("metadata.{kind}[\"{key}\"]")];
    ["containers", "initContainers"].into_iter().flat_map(|list| items(template.json(), list)).find_map(|container| {
        let name = text(container, "name")?;
        let reads = container.get("env").and_then(Value::as_array).into_iter().flatten().any(|env| {
            env.pointer("/valueFrom/fieldRef/fieldPath")
                .and_then(Value::as_str)
                .is_some_and(|p| wanted.iter().any(|w| w == p))
        });
        (reads && !restarting.contains(&format!("[{name}]"))).then(|| name.to_owned())
    })
}

fn is_resizable(resource: &str) -> bool {
    resource == "cpu" || resource == "memory"
}

fn items<'a>(template: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    template.get("spec").and_then(|s| s.get(list)).and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn bracket(container: &Value) -> String {
    format!("[{}]", text(container, "name").unwrap_or_default())
}

fn restartable(container: &Value) -> bool {
    text(container, "restartPolicy") == Some("Always")
}

/// The quality-of-service class by the API server's rule (Kubernetes, "Pod Quality of Service Classes"): cpu and
/// memory of all containers and init containers.
fn qos(template: &Template) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    for container in items(template.json(), "containers").chain(items(template.json(), "initContainers")) {
        let r = resources(container.get("resources"));
        any |= !r.requests.is_empty() || !r.limits.is_empty();
        // A request that is absent equals the limit.
        guaranteed &= ["cpu", "memory"].iter().all(|name| {
            r.limits.get(*name).is_some_and(|limit| r.requests.get(*name).is_none_or(|request| request == limit))
        });
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
