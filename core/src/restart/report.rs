//! The status of a request: conditions, counts and what is waited for.

use super::{Planner, Reason, RestartPlan};
use crate::{
    api::{
        condition::{self, Condition, Status},
        restart::{RestartWait, TargetState},
    },
    pod::clip,
};

/// Types of its conditions, in their order.
const RECONCILING: &str = "Reconciling";
const STALLED: &str = "Stalled";
const SUCCEEDED: &str = "Succeeded";

impl Planner<'_> {
    /// It cannot be carried out as it stands.
    pub(super) fn invalid(&mut self, why: &str) {
        self.status.waiting_for = None;
        let why = format!("{why}; delete the request and make a new one");
        self.conditions(
            (Status::False, Reason::Invalid, &why),
            (Status::True, Reason::Invalid, &why),
            (Status::False, Reason::Invalid, &why),
        );
        if self.status.conditions != self.w.restart.status.conditions {
            self.tell(true, Reason::Invalid, why);
        }
    }

    /// The status as this plan leaves it, if that is news.
    pub(super) fn finish(mut self) -> RestartPlan {
        if condition::find(&self.status.conditions, STALLED).is_none_or(|c| c.reason != Reason::Invalid.as_str()) {
            self.summary();
        }
        let targets = &self.status.targets;
        self.status.finished = i64::try_from(targets.iter().filter(|t| t.state.over()).count()).unwrap_or(i64::MAX);
        self.status.total = i64::try_from(targets.len()).unwrap_or(i64::MAX);
        if self.status != self.w.restart.status {
            self.plan.status = Some(self.status);
        }
        self.plan
    }

    fn summary(&mut self) {
        let targets = self.status.targets.clone();
        let names = |state: TargetState| {
            targets.iter().filter(|t| t.state == state).map(|t| t.name.as_str()).take(5).collect::<Vec<_>>().join(", ")
        };
        let over = targets.iter().filter(|t| t.state.over()).count();
        let counted = format!("{over} of {} Deployments are over", targets.len());
        let failed = targets.iter().find(|t| t.state == TargetState::Failed).filter(|_| self.status.ended_at.is_none());
        let waits = self.waits.take().filter(|_| self.status.ended_at.is_none() && failed.is_none());
        self.status.waiting_for = waits.as_ref().map(|(reason, what)| {
            let before = self.status.waiting_for.as_ref().filter(|w| w.reason == reason.as_str());
            let since = before.map_or(self.now, |w| w.since);
            RestartWait { reason: reason.as_str().to_owned(), what: clip(what.as_str(), 900), since }
        });
        let dry = self.w.restart.spec.as_ref().is_ok_and(|s| s.dry_run);
        if self.status.ended_at.is_some() {
            let (status, reason, message) = match (self.status.aborted, dry) {
                (true, _) => (Status::False, Reason::Aborted, format!("somebody ended it; {counted}")),
                (false, true) => {
                    (Status::True, Reason::DryRun, "nothing was changed; targets says what would happen".to_owned())
                }
                (false, false) => (Status::True, Reason::Succeeded, counted),
            };
            return self.conditions(
                (Status::False, reason, &message),
                (Status::False, reason, &message),
                (status, reason, &message),
            );
        }
        if let Some(failed) = failed {
            let message =
                format!("Deployment {} failed: {}: {}. {}", failed.name, failed.reason, failed.message, self.exits());
            let (first, second) = (
                (Status::False, Reason::RestartFailed, message.as_str()),
                (Status::True, Reason::RestartFailed, message.as_str()),
            );
            return self.conditions(first, second, (Status::Unknown, Reason::RestartFailed, &message));
        }
        let now = names(TargetState::Restarting);
        let message = match &waits {
            _ if !now.is_empty() => format!("{counted}; under way: {now}"),
            Some((_, what)) => format!("{counted}; {what}"),
            None => counted,
        };
        let reason = waits.map_or(Reason::InProgress, |(reason, _)| reason);
        self.conditions(
            (Status::True, reason, &message),
            (Status::False, reason, &message),
            (Status::Unknown, reason, &message),
        );
    }

    fn conditions(
        &mut self,
        reconciling: (Status, Reason, &str),
        stalled: (Status, Reason, &str),
        succeeded: (Status, Reason, &str),
    ) {
        let generation = self.w.restart.generation;
        self.status.observed_generation = Some(generation);
        for (type_, (status, reason, message)) in
            [(RECONCILING, reconciling), (STALLED, stalled), (SUCCEEDED, succeeded)]
        {
            let condition = Condition {
                type_: type_.to_owned(),
                status,
                observed_generation: Some(generation),
                last_transition_time: self.now,
                reason: reason.as_str().to_owned(),
                message: clip(message, 1500),
            };
            condition::set(&mut self.status.conditions, condition);
        }
    }
}
