//! `wait`: returns when Deployments have settled or their updates have failed. Safe right after a change: a change
//! that is governed is held in the very request that makes it, so a Deployment that is not held has either passed or
//! never needed Interlock; and a run counts only if it is the one of the template that is wanted now.

use std::time::Duration;

use interlock_core::{
    api::run::Outcome,
    world::{Deployment, Run},
};

use super::state;
use crate::cli::{
    connect::Connection,
    exit::{Exit, Failure},
    output, read,
    target::Target,
};

#[cfg(test)]
mod tests;

/// How often is looked.
const PERIOD: Duration = Duration::from_secs(1);

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

/// Carries out the verb: all targets must settle; the first that fails ends it.
pub async fn run(connection: &Connection, targets: &[Target], timeout: Duration) -> Result<Exit, Failure> {
    let end = tokio::time::Instant::now() + timeout;
    for target in targets {
        let (mut said, mut doubt) = (String::new(), String::new());
        loop {
            let last = tokio::time::Instant::now() + PERIOD > end;
            let verdict = look(connection, target, end).await?.unwrap_or_else(|| {
                // The time is over in the middle of a look: what was seen last tells more.
                let known = if said.is_empty() { "the API server has not answered" } else { said.as_str() };
                Verdict::NotYet(known.to_owned())
            });
            match verdict {
                Verdict::Settled(how) => {
                    output::print(&format!("{target} {how}\n"));
                    break;
                }
                Verdict::Failed(why) => return Err(Failure::failed(format!("{target} {why}"))),
                Verdict::FailedIfItLasts(why) if last || why == doubt => {
                    return Err(Failure::failed(format!("{target} {why}")));
                }
                Verdict::FailedIfItLasts(why) => doubt = why,
                Verdict::NotYet(what) => {
                    doubt.clear();
                    if last {
                        let message = format!("timed out after {}s: {target}: {what}", timeout.as_secs());
                        return Err(Failure::timed_out(message));
                    }
                    if what != said {
                        eprintln!("Waiting for {target}: {what}");
                        said = what;
                    }
                }
            }
            tokio::time::sleep(PERIOD).await;
        }
    }
    Ok(Exit::Ok)
}

/// One look, or `None` if it was not over in time. Failures that may pass (no connection for a moment, an overloaded
/// server) are only told.
async fn look(connection: &Connection, target: &Target, end: tokio::time::Instant) -> Result<Option<Verdict>, Failure> {
    let read = async {
        let deployment = read::deployment(connection, target).await?;
        let runs = read::runs_of(connection, &deployment).await?;
        // Looked at once more: a change in between would be judged by the runs of the one before.
        let again = read::deployment(connection, target).await?;
        if again.generation != deployment.generation || again.uid != deployment.uid {
            return Ok(Verdict::NotYet("it is being changed".into()));
        }
        Ok(judge(&again, &runs))
    };
    tokio::time::timeout_at(end, read).await.ok().transpose()
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
