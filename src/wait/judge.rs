//! How a Deployment stands, by itself and by its runs.

use interlock_core::{
    api::run::Outcome,
    world::{Deployment, Run},
};

use crate::cli::{output, verbs::state};

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Settled.
    Settled(String),
    /// It will not settle by itself.
    Failed(String),
    /// The same, by a condition that may be older than the last change: it counts when it is still there later.
    FailedIfItLasts(String),
    /// Not yet.
    NotYet(String),
}

/// The rule.
pub fn judge(deployment: &Deployment, runs: &[Run]) -> Verdict {
    if deployment.deleting {
        return Verdict::Failed("is being deleted".into());
    }
    let latest = state::latest(runs);
    let current = state::current(deployment, runs);
    let held = deployment.held();
    if let Some(run) = current {
        match run.status.ended.as_ref().map(|ended| ended.outcome) {
            Some(Outcome::Aborted) if held => {
                return Verdict::Failed(format!("stays held: run {} was aborted", run.name));
            }
            // A held one is at the beginning of its next update: the controller has not made its run yet.
            Some(
                Outcome::Succeeded | Outcome::Superseded | Outcome::Returned | Outcome::Audited | Outcome::Aborted,
            ) => {}
            // A stall that somebody has just ended shows until the controller has taken the decision up.
            None if run.spec.decisions.iter().any(|d| !run.status.decisions_used.contains(&d.id)) => {
                return Verdict::NotYet("a decision has not been taken up yet".into());
            }
            None => {
                return match &run.status.stall {
                    Some(stall) => Verdict::Failed(format!("is stalled, {}: {}", stall.reason, stall.message)),
                    None if deployment.user_paused() => Verdict::NotYet("it is paused by its user".into()),
                    None => Verdict::NotYet(match &run.status.waiting_for {
                        Some(waiting) => format!("{} ({})", waiting.what, waiting.reason),
                        None => format!("run {} is in progress", run.name),
                    }),
                };
            }
        }
    } else if let Some(run) = latest.filter(|run| run.status.ended.is_none()) {
        return Verdict::NotYet(format!("the template has changed; run {} has yet to end for it", run.name));
    }
    if held && let Some((reason, message)) = state::invalid(deployment) {
        let why = format!("stays held, {reason}: {message}");
        return if state::own_invalid(deployment).is_some() {
            Verdict::Failed(why)
        } else {
            Verdict::FailedIfItLasts(why)
        };
    }
    if held {
        return Verdict::NotYet("held; the controller has not taken it up yet".into());
    }
    if deployment.paused {
        return Verdict::NotYet("it is paused by its user".into());
    }
    if let Err(why) = state::rollout(deployment) {
        return Verdict::NotYet(why);
    }
    Verdict::Settled(match current.and_then(|run| run.status.ended.as_ref()) {
        Some(ended) => format!("settled ({})", output::word(&ended.outcome)),
        None => "settled".into(),
    })
}
