//! The `patch` hook: labels and annotations of the Deployment or of the pod.
//!
//! Level-based: what is there already is not written. The write carries the object's UID and version. Never changed:
//! keys of `interlock.dev` and of the Deployment controller, and labels that the Deployment selects its pods by.
//!
//! **Undo.** With `undoOnRevert` the same write keeps what was there before in annotation `interlock.dev/undo` of the object,
//! by run and hook, so that no crash can come between. [`undo`] puts it back and drops the entry. Entries of earlier runs
//! are dropped by the next patch.
//!
//! Reasons: `Patched`, `Undone`, `KeyRefused`, `SelectorLabel`, `ObjectGone` (deleted, or another one of the same name),
//! `PatchRefused`, `InvalidHook`, `Timeout`.

use std::collections::{BTreeMap, BTreeSet};

use interlock_core::api::{
    hook::{PatchHook, PatchTarget},
    names::{DEPLOYMENT_PREFIX, GROUP, POD_TEMPLATE_HASH, UNDO},
    run::ObjectRef,
};
use kube::{Api, core::DynamicObject};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    Attempt, End, INVALID_HOOK,
    cluster::{DEPLOYMENTS, PODS, Pause, Trouble},
};

/// What stood there before, by key; `None`: nothing.
type Before = BTreeMap<String, Option<String>>;

/// Annotation [`UNDO`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Undo {
    /// UID of the run.
    run: String,
    /// By hook.
    hooks: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: Before,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: Before,
}

/// Carries out one attempt.
pub(super) async fn attempt(attempt: &Attempt<'_>, hook: &PatchHook) -> End {
    if keys(hook).any(|key| !may_change(key)) {
        return End::failed("KeyRefused");
    }
    let selected = match selector(attempt).await {
        Ok(selected) => selected,
        Err(end) => return end,
    };
    // A key to take away is one of a label, too.
    if hook.labels.keys().chain(&hook.remove).any(|key| selected.contains(key)) {
        return End::failed("SelectorLabel");
    }
    write(attempt, hook, "Patched", |object| Some(wanted(attempt, hook, object))).await
}

/// Puts back what the patch of the same hook and run replaced.
pub(super) async fn undo(attempt: &Attempt<'_>, hook: &PatchHook) -> End {
    let end = write(attempt, hook, "Undone", |object| {
        let mut undo = stored(object, attempt)?;
        let Entry { labels, annotations } = undo.hooks.remove(&attempt.call.hook)?;
        let mut annotations = changes(annotations);
        annotations.insert(UNDO.to_owned(), text(&undo));
        Some((changes(labels), annotations))
    })
    .await;
    // What is gone has nothing to be put back.
    if end.reason == "ObjectGone" { End::succeeded("Undone") } else { end }
}

/// Labels and annotations to be merged; null takes a key away.
type Changes = (Map<String, Value>, Map<String, Value>);

async fn write(
    attempt: &Attempt<'_>,
    hook: &PatchHook,
    done: &'static str,
    plan: impl Fn(&DynamicObject) -> Option<Changes>,
) -> End {
    let Some((api, target)) = target(attempt, hook.target) else { return End::failed(INVALID_HOOK) };
    let mut pause = Pause::default();
    loop {
        match attempt.cluster.get(&api, &target.name).await {
            Ok(object) if object.metadata.uid.as_ref() == Some(&target.uid) => {
                let Some((labels, annotations)) = plan(&object).filter(|changes| differs(&object, changes)) else {
                    return End::succeeded(done);
                };
                let patch = json!({"metadata": {
                    "uid": target.uid,
                    "resourceVersion": object.metadata.resource_version,
                    "labels": labels,
                    "annotations": annotations,
                }});
                match attempt.cluster.merge(&api, &target.name, &patch).await {
                    Ok(()) => return End::succeeded(done),
                    Err(Trouble::Refused) => return End::failed("PatchRefused"),
                    // Read again: somebody else wrote, or it is written already.
                    Err(_) => {}
                }
            }
            Ok(_) | Err(Trouble::Missing) => return End::failed("ObjectGone"),
            Err(Trouble::Refused) => return End::failed("PatchRefused"),
            Err(_) => {}
        }
        pause.take().await;
    }
}

fn target<'a>(attempt: &'a Attempt<'_>, target: PatchTarget) -> Option<(Api<DynamicObject>, &'a ObjectRef)> {
    let call = attempt.call;
    Some(match target {
        PatchTarget::Deployment => (attempt.cluster.api(&call.namespace, DEPLOYMENTS), &call.deployment),
        PatchTarget::Pod => (attempt.cluster.api(&call.namespace, PODS), call.pod.as_ref()?),
    })
}

fn keys(hook: &PatchHook) -> impl Iterator<Item = &String> {
    hook.labels.keys().chain(hook.annotations.keys()).chain(&hook.remove)
}

pub(super) fn may_change(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domain != GROUP
        && domain.strip_suffix(GROUP).is_none_or(|rest| !rest.ends_with('.'))
        && !key.starts_with(DEPLOYMENT_PREFIX)
}

/// Keys of the labels that the Deployment and its ReplicaSets select pods by.
async fn selector(attempt: &Attempt<'_>) -> Result<BTreeSet<String>, End> {
    let call = attempt.call;
    let api = attempt.cluster.api(&call.namespace, DEPLOYMENTS);
    let mut pause = Pause::default();
    loop {
        match attempt.cluster.get(&api, &call.deployment.name).await {
            Ok(deployment) if deployment.metadata.uid.as_ref() == Some(&call.deployment.uid) => {
                let labels = deployment.data.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
                let expressions = deployment.data.pointer("/spec/selector/matchExpressions").and_then(Value::as_array);
                let expressions = expressions.into_iter().flatten().filter_map(|e| e.get("key")?.as_str());
                let mut keys: BTreeSet<String> = expressions.map(ToOwned::to_owned).collect();
                keys.extend(labels.into_iter().flat_map(Map::keys).cloned());
                keys.insert(POD_TEMPLATE_HASH.to_owned());
                return Ok(keys);
            }
            Ok(_) | Err(Trouble::Missing) => return Err(End::failed("ObjectGone")),
            Err(Trouble::Refused) => return Err(End::failed("PatchRefused")),
            Err(_) => pause.take().await,
        }
    }
}

fn wanted(attempt: &Attempt<'_>, hook: &PatchHook, object: &DynamicObject) -> Changes {
    let set = |map: &BTreeMap<String, String>| -> Map<String, Value> {
        let removed = hook.remove.iter().map(|key| (key.clone(), Value::Null));
        removed.chain(map.iter().map(|(key, value)| (key.clone(), json!(value)))).collect()
    };
    let (labels, mut annotations) = (set(&hook.labels), set(&hook.annotations));
    let stored_now = object.metadata.annotations.as_ref().and_then(|all| all.get(UNDO));
    if hook.undo_on_revert {
        let mut undo = stored(object, attempt).unwrap_or_default();
        undo.run.clone_from(&attempt.call.run.uid);
        // What the first attempt found is what was there before.
        undo.hooks.entry(attempt.call.hook.clone()).or_insert_with(|| Entry {
            labels: before(&labels, object.metadata.labels.as_ref()),
            annotations: before(&annotations, object.metadata.annotations.as_ref()),
        });
        annotations.insert(UNDO.to_owned(), text(&undo));
    } else if stored_now.is_some() && stored(object, attempt).is_none() {
        annotations.insert(UNDO.to_owned(), Value::Null);
    }
    (labels, annotations)
}

/// What this run has stored.
fn stored(object: &DynamicObject, attempt: &Attempt<'_>) -> Option<Undo> {
    let text = object.metadata.annotations.as_ref()?.get(UNDO)?;
    serde_json::from_str(text).ok().filter(|undo: &Undo| undo.run == attempt.call.run.uid)
}

/// As the annotation carries it; nothing if there is nothing left.
fn text(undo: &Undo) -> Value {
    if undo.hooks.is_empty() { Value::Null } else { json!(serde_json::to_string(undo).unwrap_or_default()) }
}

fn before(changes: &Map<String, Value>, now: Option<&BTreeMap<String, String>>) -> Before {
    changes.keys().map(|key| (key.clone(), now.and_then(|now| now.get(key)).cloned())).collect()
}

fn changes(before: Before) -> Map<String, Value> {
    before.into_iter().map(|(key, value)| (key, json!(value))).collect()
}

fn differs(object: &DynamicObject, (labels, annotations): &Changes) -> bool {
    let one = |changes: &Map<String, Value>, now: Option<&BTreeMap<String, String>>| {
        changes.iter().any(|(key, value)| now.and_then(|now| now.get(key)).map(String::as_str) != value.as_str())
    };
    one(labels, object.metadata.labels.as_ref()) || one(annotations, object.metadata.annotations.as_ref())
}

#[cfg(test)]
mod tests;
