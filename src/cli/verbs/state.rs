//! The state of one Deployment in a few words, from what is stored.

use interlock_core::{
    api::{
        condition::Status,
        names,
        policy::Strategy,
        reference::Reference,
        run::{Outcome, Way, WayKind},
    },
    reason::Reason,
    select,
    time::Time,
    world::{Deployment, Policy, Run},
};

use crate::cli::output::word;

/// The latest run, if any.
pub fn latest(runs: &[Run]) -> Option<&Run> {
    runs.iter().max_by_key(|run| (run.spec.sequence, &run.name))
}

/// The run of the update towards the Deployment's present template, ended or not. None while the controller has not
/// taken up a change yet.
pub fn current<'a>(deployment: &Deployment, runs: &'a [Run]) -> Option<&'a Run> {
    latest(runs).filter(|run| run.spec.target == deployment.template.hash())
}

/// Is the Deployment's own rollout complete, by the rule of `kubectl rollout status`? If not, what is missing.
pub fn rollout(deployment: &Deployment) -> Result<(), String> {
    let s = &deployment.status;
    let wanted = deployment.replicas;
    if s.observed_generation < deployment.generation {
        return Err("the Deployment controller has not seen the last change yet".into());
    }
    if s.updated < wanted {
        return Err(format!("{} of {wanted} pods are updated", s.updated));
    }
    if s.replicas > s.updated {
        return Err(format!("{} old pods are still there", s.replicas - s.updated));
    }
    if s.available < s.updated {
        return Err(format!("{} of {} updated pods are available", s.available, s.updated));
    }
    Ok(())
}

/// State of a Deployment in one word, since when, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The word: an outcome, a reason to wait, or a state.
    pub word: String,
    /// Since when, where that is known.
    pub since: Option<Time>,
    /// What it waits for, or what is wrong. May be empty.
    pub message: String,
}

/// The state as stored.
pub fn of(deployment: &Deployment, runs: &[Run]) -> State {
    let state = |word: &str, since, message: String| State { word: word.to_owned(), since, message };
    let run = current(deployment, runs);
    let open = run.filter(|run| run.status.ended.is_none() || (deployment.held() && aborted(run)));
    if let Some(run) = open {
        let status = &run.status;
        if let Some(ended) = &status.ended {
            let message = "stays held until the template changes, or: kubectl interlock undo".to_owned();
            return state(&word(&ended.outcome), Some(ended.at), message);
        }
        if let Some(stall) = &status.stall {
            return state(&format!("Stalled/{}", stall.reason), Some(stall.since), stall.message.clone());
        }
        if deployment.user_paused() {
            return state("UserPaused", None, "paused by its user".into());
        }
        if let Some(waiting) = &status.waiting_for {
            return state(&waiting.reason, Some(waiting.since), waiting.what.clone());
        }
        return state("InProgress", Some(run.created), String::new());
    }
    if deployment.held() {
        if let Some((reason, message)) = invalid(deployment) {
            return state(&reason, None, message);
        }
        return state("Held", None, "the controller has not taken it up yet".into());
    }
    if deployment.paused {
        return state("Paused", None, "paused by its user, not held by interlock".into());
    }
    match (rollout(deployment), run.and_then(|run| run.status.ended.as_ref())) {
        (Err(why), _) => state("Rolling", None, why),
        (Ok(()), Some(ended)) => state(&word(&ended.outcome), Some(ended.at), String::new()),
        (Ok(()), None) => state("AtRest", None, String::new()),
    }
}

/// The state as far as the Deployment alone tells it, for those who may not read runs. Its conditions carry no generation:
/// right after a change they may speak of the update before.
pub fn of_conditions(deployment: &Deployment) -> State {
    let condition = |type_| deployment.status.conditions.get(type_);
    if deployment.held() {
        return match condition(names::CONDITION_HELD).filter(|c| c.status == Status::True) {
            Some(held) => State { word: held.reason.clone(), since: None, message: held.message.clone() },
            None => of(deployment, &[]),
        };
    }
    let state = of(deployment, &[]);
    match condition(names::CONDITION_SUCCEEDED) {
        Some(last) if state.word == "AtRest" && last.status != Status::Unknown => {
            State { word: last.reason.clone(), message: last.message.clone(), ..state }
        }
        Some(_) | None => state,
    }
}

/// Why a held Deployment has no run and gets none: reason and message. Its own annotation tells at once; the condition
/// that the controller wrote carries no generation and may speak of what has just been corrected.
pub fn invalid(deployment: &Deployment) -> Option<(String, String)> {
    if let Some(why) = own_invalid(deployment) {
        return Some((Reason::AnnotationInvalid.as_str().to_owned(), why));
    }
    let held = deployment.status.conditions.get(names::CONDITION_HELD).filter(|c| c.status == Status::True)?;
    let invalid = matches!(
        Reason::parse(&held.reason),
        Some(Reason::AnnotationInvalid | Reason::PolicyInvalid | Reason::OrderCycle)
    );
    invalid.then(|| (held.reason.clone(), held.message.clone()))
}

/// What is wrong with the Deployment's own annotation, as it stands now.
pub fn own_invalid(deployment: &Deployment) -> Option<String> {
    if let Some(Err(why)) = &deployment.own_hooks {
        return Some(format!("annotation {}: {why}", names::HOOKS));
    }
    let why = deployment.own_after.iter().flatten().find_map(|text| text.parse::<Reference>().err())?;
    Some(format!("annotation {}: {why}", names::AFTER))
}

/// The way of a run, for people.
pub fn way(run: &Run, way: Option<&Way>) -> Option<String> {
    let kind = way?.kind;
    let settings = &run.spec.settings;
    Some(if run.spec.old_template.is_none() {
        "first start".to_owned()
    } else if settings.audit {
        format!("would be {}", word(&kind))
    } else if kind == WayKind::Native
        && settings.update.strategy == Strategy::InPlaceOnly
        && run.status.released_at.is_none()
    {
        "needs new pods".to_owned()
    } else {
        word(&kind)
    })
}

/// Was the run ended by a person?
pub fn aborted(run: &Run) -> bool {
    run.status.ended.as_ref().is_some_and(|ended| ended.outcome == Outcome::Aborted)
}

/// Who governs the Deployment, from its mark, the policies that select it, or its own annotations; and the policies that
/// select it too and do not count.
pub fn governed_by<'a>(
    deployment: &'a Deployment,
    policies: impl IntoIterator<Item = &'a Policy>,
) -> (Option<&'a str>, Vec<&'a str>) {
    let meta = select::Meta { labels: &deployment.labels, annotations: &deployment.annotations };
    let readable = policies.into_iter().filter_map(|p| Some((p.name.as_str(), p.spec.as_ref().ok()?)));
    let select::Governor { policy, others } = select::governor(readable, &deployment.namespace, &deployment.name, meta);
    let mark = deployment.annotation(names::HELD_BY).filter(|_| deployment.held());
    let own = [names::HOOKS, names::AFTER].iter().any(|key| deployment.annotations.contains_key(*key));
    let by = mark.or(policy).or(own.then_some(names::BY_ANNOTATION));
    let others = policy.into_iter().chain(others).filter(|name| Some(*name) != by).collect();
    (by, others)
}
