//! Is the hold in force? Only the API server can tell: a server-side dry run of a template change, made by us, either
//! comes back held or it does not.

use std::{sync::Arc, time::Duration};

use interlock_core::{
    api::{
        condition::{Condition, Status},
        names,
        policy::HookPolicySpec,
    },
    world::{Deployment, Policy},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Shared, policies::Verdict};
use crate::{
    execute::Failure,
    observe::{
        Key,
        facts::json::{field, strings, yes},
    },
};

/// How often the hold is tried while it is in force.
const EVERY: Duration = Duration::from_mins(10);
/// How often while it is not. A policy takes effect some moments after it was written.
const SOON: Duration = Duration::from_secs(2);
/// After so many tries in a row without success it is tried less often.
const TRIES: u32 = 15;
/// How often then.
const SELDOM: Duration = Duration::from_mins(1);
/// Key and value of the change that is tried.
const PROBE: &str = "interlock.dev/probe";

/// What is remembered of the last try.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    tried: Option<(i64, Instant)>,
    failures: u32,
}

/// Condition `Enforced`, and when to look again.
pub(super) async fn enforced(
    shared: &Shared,
    key: &Key,
    policy: &Policy,
    spec: &HookPolicySpec,
    governed: &[Arc<Deployment>],
    before: Option<&Condition>,
    memory: &mut Memory,
) -> Result<(Verdict, Option<Duration>), Failure> {
    let pause = match memory.failures {
        0 => EVERY,
        1..=TRIES => SOON,
        _ => SELDOM,
    };
    if let Some((generation, at)) = memory.tried
        && generation == policy.generation
        && at.elapsed() < pause
        && let Some(before) = before
    {
        let rest = pause.saturating_sub(at.elapsed());
        return Ok((keep(before), Some(rest)));
    }
    // What is held already stays held by other means, and proves nothing.
    let candidate = governed.iter().filter(|d| !d.held() && !d.deleting).find_map(|d| Some((d, change(spec, d)?)));
    let Some((deployment, patch)) = candidate else {
        let verdict = before.filter(|c| c.status == Status::True).map_or_else(
            || {
                Verdict::new(
                    Status::Unknown,
                    "NotTried",
                    "every Deployment on which the hold could be tried is held or has nothing that triggers",
                )
            },
            keep,
        );
        return Ok((verdict, Some(SELDOM)));
    };
    let target = Key::new(&key.namespace, &deployment.name);
    let answer = shared.executor.dry_run(&target, patch).await;
    memory.tried = Some((policy.generation, Instant::now()));
    let verdict = match answer {
        Ok(object) => judge(shared, policy, deployment, &object).await,
        Err(Failure::Refused { message, .. }) => Verdict::new(
            Status::Unknown,
            "DryRunRefused",
            format!("a dry run on Deployment {} was refused: {message}", deployment.name),
        ),
        Err(failure) => {
            memory.tried = None;
            return Err(failure);
        }
    };
    memory.failures = if verdict.status == Status::True { 0 } else { memory.failures.saturating_add(1) };
    let pause = match memory.failures {
        0 => EVERY,
        1..=TRIES => SOON,
        _ => SELDOM,
    };
    Ok((verdict, Some(pause)))
}

fn keep(before: &Condition) -> Verdict {
    Verdict::new(before.status, &before.reason, before.message.clone())
}

/// A change of the template that counts under this policy and that validation lets pass; `None` if there is none.
fn change(spec: &HookPolicySpec, deployment: &Deployment) -> Option<Value> {
    let template = |template: Value| json!({"spec": {"template": template}});
    let Some(trigger) = &spec.trigger else {
        return Some(template(json!({"metadata": {"annotations": {PROBE: "true"}}})));
    };
    if let Some(key) = trigger.annotations.first() {
        return Some(template(json!({"metadata": {"annotations": {key: "interlock-probe"}}})));
    }
    // A label that the selector wants cannot change.
    if let Some(key) = trigger.labels.iter().find(|key| !deployment.match_labels.contains_key(*key)) {
        return Some(template(json!({"metadata": {"labels": {key: "interlock-probe"}}})));
    }
    let pod = deployment.template.json().get("spec")?;
    ["containers", "initContainers"].into_iter().find_map(|list| {
        let present = pod.get(list)?.as_array()?;
        let name = trigger
            .containers
            .iter()
            .find(|name| present.iter().any(|c| c.get("name").and_then(Value::as_str) == Some(name.as_str())))?;
        Some(template(json!({"spec": {list: [{"name": name, "image": PROBE}]}})))
    })
}

async fn judge(shared: &Shared, policy: &Policy, deployment: &Deployment, object: &Value) -> Verdict {
    let annotations = strings(field(object, "metadata"), "annotations");
    let holder = annotations.get(names::HELD_BY).filter(|_| yes(field(object, "spec"), "paused"));
    match holder {
        Some(holder) if *holder == policy.name => Verdict::new(
            Status::True,
            "DryRunHeld",
            "a dry run of a template change came back held. It was asked of one API server; others follow within moments",
        ),
        Some(holder) => Verdict::new(
            Status::Unknown,
            "HeldByOther",
            format!("a dry run on Deployment {} came back held by {holder}", deployment.name),
        ),
        None => {
            let (reason, message) = shared.executor.why_not_held().await;
            Verdict::new(Status::False, reason, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use interlock_core::api::policy::Trigger;

    use super::*;
    use crate::observe::facts::deployment::deployment;

    fn spec(trigger: Option<Trigger>) -> HookPolicySpec {
        HookPolicySpec { trigger, ..HookPolicySpec::default() }
    }

    #[test]
    fn the_change_that_is_tried_counts_and_is_valid() {
        let web = deployment(
            &json!({"spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {"spec": {"containers": [{"name": "web"}]}}}}),
        );
        let of = |labels: &[&str], annotations: &[&str], containers: &[&str]| {
            let list = |l: &[&str]| l.iter().map(|s| (*s).to_owned()).collect();
            change(
                &spec(Some(Trigger {
                    labels: list(labels),
                    annotations: list(annotations),
                    containers: list(containers),
                })),
                &web,
            )
        };
        assert_eq!(
            change(&spec(None), &web),
            Some(json!({"spec": {"template": {"metadata": {"annotations": {PROBE: "true"}}}}}))
        );
        assert_eq!(of(&["app"], &[], &[]), None);
        assert_eq!(
            of(&["app", "x"], &[], &[]),
            Some(json!({"spec": {"template": {"metadata": {"labels": {"x": "interlock-probe"}}}}}))
        );
        assert_eq!(
            of(&[], &[], &["other", "web"]),
            Some(json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": PROBE}]}}}}))
        );
        assert_eq!(of(&[], &[], &["other"]), None);
    }
}
