//! The `waitFor` hook: an object of the same namespace reaches a state.
//!
//! It is watched by its name, so that no other object of its kind is seen. One that is not there is waited for. All parts
//! that are given must hold of the same state. Reasons: `Reached`, `InvalidHook`, `Timeout`.

use interlock_core::api::hook::{WaitForCondition, WaitForHook, WaitForLabel};
use kube::core::DynamicObject;
use serde_json::Value;

use super::{Attempt, End, INVALID_HOOK, cel::Expression, cluster::Seen};

/// Carries out one attempt.
pub(super) async fn attempt(attempt: &Attempt<'_>, hook: &WaitForHook) -> End {
    let Ok(expression) = hook.expression.as_deref().map(Expression::parse).transpose() else {
        return End::failed(INVALID_HOOK);
    };
    if expression.is_none() && hook.condition.is_none() && hook.label.is_none() {
        return End::failed(INVALID_HOOK);
    }
    let api = attempt.cluster.api(&attempt.call.namespace, hook.kind.resource());
    let mut follow = attempt.cluster.follow(&api, &hook.name);
    loop {
        let Seen::There(object) = follow.next().await else { continue };
        let plain = hook.condition.as_ref().is_none_or(|wanted| condition(&object, wanted))
            && hook.label.as_ref().is_none_or(|wanted| label(&object, wanted));
        let holds = plain
            && match &expression {
                None => true,
                Some(expression) => expression.holds(vec![("object", whole(&object))]).await == Some(true),
            };
        if holds {
            return End::succeeded("Reached");
        }
    }
}

/// The condition has that status, and speaks of the object as it is now.
fn condition(object: &DynamicObject, wanted: &WaitForCondition) -> bool {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let found = conditions.into_iter().flatten().find(|c| c.get("type").is_some_and(|t| *t == wanted.type_));
    let Some(found) = found else { return false };
    let observed = [found.get("observedGeneration"), object.data.pointer("/status/observedGeneration")];
    let generation = object.metadata.generation;
    let stale = observed.into_iter().flatten().filter_map(Value::as_i64).any(|o| generation.is_some_and(|g| o < g));
    !stale && found.get("status").is_some_and(|status| status == wanted.status.as_str())
}

fn label(object: &DynamicObject, wanted: &WaitForLabel) -> bool {
    let found = object.metadata.labels.as_ref().and_then(|labels| labels.get(&wanted.key));
    found.is_some_and(|value| wanted.value.as_ref().is_none_or(|wanted| wanted == value))
}

/// The object as an expression sees it: without the record of who wrote which field.
fn whole(object: &DynamicObject) -> Value {
    let mut whole = serde_json::to_value(object).unwrap_or_default();
    if let Some(metadata) = whole.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    whole
}

#[cfg(test)]
mod tests;
