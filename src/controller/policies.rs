//! The status of a HookPolicy.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use interlock_core::{
    api::{
        condition::{self, Condition, Status},
        policy::{Enforcement, HookPolicySpec, HookPolicyStatus},
    },
    select::{Meta, governor, selects},
    time::Time,
    validate,
    world::{Deployment, Policy},
};
use tokio::time::Instant;

use super::{Error, Shared, probe, queue::Outcome};
use crate::{
    execute::Failure,
    observe::{Key, facts::json::cut},
};

/// So many names a status lists.
const MOST_TARGETS: usize = 50;
/// Longest message of a condition that is kept, in bytes.
const LONGEST: usize = 1024;
/// Computing a selection takes at most one part in so many of the time, whatever happens in the namespace.
const SHARE: u32 = 20;
/// And is put off by this at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What is remembered of each policy.
#[derive(Default)]
pub(super) struct Memories(Mutex<HashMap<Key, Memory>>);

#[derive(Clone, Default)]
struct Memory {
    /// When the selection was last computed, and how long that took.
    computed: Option<(Instant, Duration)>,
    probe: probe::Memory,
}

/// A condition without times.
pub(super) struct Verdict {
    /// Status.
    pub status: Status,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
}

impl Verdict {
    /// A verdict.
    pub(super) fn new(status: Status, reason: &str, message: impl Into<String>) -> Self {
        Self { status, reason: reason.to_owned(), message: cut(message.into(), LONGEST) }
    }
}

pub(super) async fn pass(shared: &Shared, key: &Key) -> Result<Outcome, Error> {
    let Some(stored) = shared.observe.policy(key) else {
        shared.policies.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        return Ok(Outcome::Done(None));
    };
    let mut memory =
        shared.policies.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned().unwrap_or_default();
    if let Some((at, took)) = memory.computed {
        let rest = took.saturating_mul(SHARE).min(LONGEST_PAUSE).saturating_sub(at.elapsed());
        if !rest.is_zero() {
            return Ok(Outcome::Done(Some(rest)));
        }
    }
    let result = compute(shared, key, &stored.fact, &stored.status, &mut memory).await;
    shared.policies.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), memory);
    match result {
        Ok(wake) => Ok(Outcome::Done(wake)),
        Err(Failure::Fenced) => Err(Error::Fenced),
        Err(Failure::Transient { what, message, retry_after }) => {
            tracing::warn!(policy = %key, what, message, "the status of a policy could not be settled; trying again");
            Ok(Outcome::Failed { retry_after })
        }
        Err(failure @ (Failure::Lost { .. } | Failure::Refused { .. })) => {
            tracing::warn!(policy = %key, %failure, "the status of a policy could not be settled; trying again");
            Ok(Outcome::Failed { retry_after: None })
        }
    }
}

async fn compute(
    shared: &Shared,
    key: &Key,
    policy: &Policy,
    stored: &HookPolicyStatus,
    memory: &mut Memory,
) -> Result<Option<Duration>, Failure> {
    let start = Instant::now();
    let deployments = shared.observe.deployments(&key.namespace);
    let selection = match &policy.spec {
        Ok(spec) => selection(shared, key, policy, spec, &deployments),
        Err(_) => Selection::default(),
    };
    let ready = ready(policy, &selection);
    memory.computed = Some((Instant::now(), start.elapsed()));
    let (enforced, wake) = enforced(shared, key, policy, &selection, stored, memory).await?;
    let progressing = progressing(shared, key, policy);
    let now = shared.clock.now();
    let mut status = stored.clone();
    status.observed_generation = Some(policy.generation);
    status.selected = i64::try_from(selection.selected.len()).unwrap_or(i64::MAX);
    status.targets = selection.selected.iter().map(|d| d.name.clone()).take(MOST_TARGETS).collect();
    status.conditions.retain(|c| TYPES.contains(&c.type_.as_str()));
    for (type_, verdict) in TYPES.into_iter().zip([ready, enforced, progressing]) {
        set(&mut status.conditions, type_, verdict, policy.generation, now);
    }
    if status != *stored {
        shared.executor.policy_status(key, &status).await?;
    }
    Ok(wake)
}

/// Types of a policy's conditions.
const TYPES: [&str; 3] = ["Ready", "Enforced", "Progressing"];

fn set(conditions: &mut Vec<Condition>, type_: &str, verdict: Verdict, generation: i64, now: Time) {
    let Verdict { status, reason, message } = verdict;
    let condition = Condition {
        type_: type_.to_owned(),
        status,
        observed_generation: Some(generation),
        last_transition_time: now,
        reason,
        message,
    };
    condition::set(conditions, condition);
}

/// What a policy selects.
#[derive(Default)]
struct Selection {
    /// All Deployments that it selects, by name.
    selected: Vec<Arc<Deployment>>,
    /// Those of them that no other policy governs.
    governed: Vec<Arc<Deployment>>,
    /// A Deployment that others select too, those others, and the one that counts.
    conflict: Option<(String, Vec<String>, String)>,
}

fn meta(deployment: &Deployment) -> Meta<'_> {
    Meta { labels: &deployment.labels, annotations: &deployment.annotations }
}

fn selection(
    shared: &Shared,
    key: &Key,
    policy: &Policy,
    spec: &HookPolicySpec,
    deployments: &[Arc<Deployment>],
) -> Selection {
    let policies = shared.observe.policies(&key.namespace);
    let readable = || policies.iter().filter_map(|p| Some((p.fact.name.as_str(), p.fact.spec.as_ref().ok()?)));
    let mut selection = Selection::default();
    for deployment in deployments {
        if !selects(&policy.name, spec, &key.namespace, &deployment.name, None, meta(deployment)) {
            continue;
        }
        selection.selected.push(Arc::clone(deployment));
        let governor = governor(readable(), &key.namespace, &deployment.name, meta(deployment));
        if governor.policy == Some(policy.name.as_str()) {
            selection.governed.push(Arc::clone(deployment));
        }
        let involved: BTreeSet<&str> = governor.policy.into_iter().chain(governor.others).collect();
        if involved.len() > 1 && involved.contains(policy.name.as_str()) && selection.conflict.is_none() {
            let others = involved.iter().filter(|name| **name != policy.name).map(|name| (*name).to_owned()).collect();
            let winner = governor.policy.unwrap_or_default().to_owned();
            selection.conflict = Some((deployment.name.clone(), others, winner));
        }
    }
    selection
}

fn ready(policy: &Policy, selection: &Selection) -> Verdict {
    let spec = match &policy.spec {
        Ok(spec) => spec,
        Err(why) => {
            let message = format!("{why}; correct the policy. What it holds stays held meanwhile");
            return Verdict::new(Status::False, "PolicyInvalid", message);
        }
    };
    let problems = validate::policy(spec);
    if let Some(first) = problems.first() {
        let messages: Vec<&str> = problems.iter().map(|p| p.message.as_str()).collect();
        return Verdict::new(Status::False, first.reason.as_str(), messages.join("; "));
    }
    if let Some(problem) = &policy.problem {
        return Verdict::new(Status::False, validate::Reason::InvalidHook.as_str(), problem.clone());
    }
    if let Some((deployment, others, winner)) = &selection.conflict {
        let message = format!(
            "Deployment {deployment} is also selected by HookPolicy {}; {winner} counts, the smallest name. Let only one select it",
            others.join(", ")
        );
        return Verdict::new(Status::False, "Conflict", message);
    }
    Verdict::new(Status::True, "Valid", "the policy is valid")
}

async fn enforced(
    shared: &Shared,
    key: &Key,
    policy: &Policy,
    selection: &Selection,
    stored: &HookPolicyStatus,
    memory: &mut Memory,
) -> Result<(Verdict, Option<Duration>), Failure> {
    let Ok(spec) = &policy.spec else {
        memory.probe = probe::Memory::default();
        let message = "what the policy selects is not known, since it cannot be read";
        return Ok((Verdict::new(Status::Unknown, "PolicyInvalid", message), None));
    };
    let idle = match spec.enforcement {
        Enforcement::Audit => Some((Status::False, "Audit", "the policy only audits: nothing is held")),
        Enforcement::Off => Some((Status::False, "Off", "the policy is off: nothing is held")),
        Enforcement::Hold if selection.selected.is_empty() => {
            Some((Status::Unknown, "NothingSelected", "no Deployment is selected, so the hold cannot be tried"))
        }
        Enforcement::Hold if selection.governed.is_empty() => {
            Some((Status::Unknown, "Conflict", "other policies govern every Deployment that is selected"))
        }
        Enforcement::Hold => None,
    };
    if let Some((status, reason, message)) = idle {
        memory.probe = probe::Memory::default();
        return Ok((Verdict::new(status, reason, message), None));
    }
    let before = condition::find(&stored.conditions, "Enforced");
    probe::enforced(shared, key, policy, spec, &selection.governed, before, &mut memory.probe).await
}

fn progressing(shared: &Shared, key: &Key, policy: &Policy) -> Verdict {
    let runs = shared.observe.runs(&key.namespace);
    let of_policy = |uid: Option<&str>| uid == Some(policy.uid.as_str());
    let open: BTreeSet<&str> = runs
        .iter()
        .filter(|r| r.status.ended.is_none() && of_policy(r.spec.policy.as_ref().map(|p| p.uid.as_str())))
        .map(|r| r.spec.deployment.name.as_str())
        .collect();
    if open.is_empty() {
        return Verdict::new(Status::False, "AtRest", "no update is in progress");
    }
    let names: Vec<&str> = open.iter().copied().take(10).collect();
    let more = if open.len() > names.len() { format!(" and {} more", open.len() - names.len()) } else { String::new() };
    Verdict::new(Status::True, "InProgress", format!("updates in progress: {}{more}", names.join(", ")))
}
