//! The hold, as the admission policies in deploy/hold.yaml make it. Who holds is decided by the core (tests/agreement.rs
//! drives it and the real policies over the same cases); the marks are written here.

use std::collections::BTreeMap;

use interlock_core::{
    api::{names, policy::HookPolicySpec},
    select::{self, Meta, Side},
    template::Template,
};
use serde_json::{Value, json};

use crate::json::{annotation, at, child, int, text};

struct Parts {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    paused: bool,
    template: Template,
}

impl Parts {
    fn of(object: &Value) -> Self {
        let strings = |pointer: &str| -> BTreeMap<String, String> {
            let map = at(object, pointer).as_object();
            map.into_iter().flatten().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
        };
        Self {
            labels: strings("/metadata/labels"),
            annotations: strings("/metadata/annotations"),
            paused: object["spec"]["paused"] == true,
            template: Template::new(at(object, "/spec/template").clone()),
        }
    }

    fn side(&self) -> Side<'_> {
        let meta = Meta { labels: &self.labels, annotations: &self.annotations };
        Side { meta, paused: self.paused, template: &self.template }
    }
}

/// Holds a Deployment if it is to be held. With no policies given, only what is held already stays held and what carries
/// its own hooks is.
pub fn admit(
    policies: &[(String, HookPolicySpec)],
    namespace: &str,
    old: Option<&Value>,
    new: &mut Value,
    may_release: bool,
) {
    let (old_parts, new_parts) = (old.map(Parts::of), Parts::of(new));
    let released = may_release
        && old.is_some_and(|old| {
            annotation(new, names::RELEASE) == Some(text(old, "/metadata/resourceVersion"))
                && old["spec"]["template"] == new["spec"]["template"]
        });
    let verdict = select::verdict(
        policies.iter().map(|(name, spec)| (name.as_str(), spec)),
        namespace,
        text(new, "/metadata/name"),
        old_parts.as_ref().map(Parts::side),
        new_parts.side(),
        released,
    );
    let Some(by) = verdict else { return };
    let mark = |object: &Value, key: &str| annotation(object, key).map(str::to_owned);
    let held = old.filter(|old| old["spec"]["paused"] == true && annotation(old, names::HELD_BY).is_some());
    let (by, at, resume) = if let Some(old) = held {
        // interlock-sticky: what is held already stays as it is held.
        let was = mark(old, names::RESUME).unwrap_or_else(|| "true".into());
        let at = mark(old, names::HELD_AT).unwrap_or_else(|| "0".into());
        let resume = if !new_parts.paused && was == "false" {
            "true".to_owned()
        } else if annotation(new, names::HELD_AT).unwrap_or_default() == at {
            mark(new, names::RESUME).unwrap_or(was)
        } else {
            was
        };
        (by, at, resume)
    } else {
        let at = old.map_or(0, |old| int(old, "/metadata/generation")).to_string();
        let fresh = mark(new, names::HELD_AT).as_deref() == Some(at.as_str());
        let present = if fresh { mark(new, names::HELD_BY).unwrap_or_default() } else { String::new() };
        // The smallest name of a HookPolicy wins, whoever is asked first; hooks of the Deployment's own come after them.
        let own = |name: &str| name == names::BY_ANNOTATION;
        let first = present.is_empty() || (!own(&by) && (own(&present) || by < present));
        let by = if first { by } else { present };
        let resume = if fresh {
            mark(new, names::RESUME).unwrap_or_else(|| "true".into())
        } else {
            (!new_parts.paused).to_string()
        };
        (by, at, resume)
    };
    let annotations = child(&mut new["metadata"], "annotations");
    for (key, value) in [(names::HELD_BY, by), (names::HELD_AT, at), (names::RESUME, resume)] {
        annotations.insert(key.to_owned(), json!(value));
    }
    new["spec"]["paused"] = json!(true);
}
