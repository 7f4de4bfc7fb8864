//! The next Deployment of a request: is it time, and is it fit?

use super::{Planner, Reason, Subject, order, skip, window};
use crate::{
    api::{
        policy::DisruptionBudgets,
        restart::{RollingRestartSpec, Target, TargetState},
    },
    time::Time,
};

impl<'w> Planner<'w> {
    /// Starts as many as may be under way, if it is time.
    pub(super) fn start(&mut self, spec: &'w RollingRestartSpec) {
        let in_state = |p: &Self, state| p.status.targets.iter().filter(|t| t.state == state).count();
        if in_state(self, TargetState::Failed) > 0 {
            return;
        }
        let most = usize::try_from(spec.max_concurrent.max(1)).unwrap_or(1);
        let before = order::before(self.w.deployments.values(), &self.w.policies);
        for index in 0..self.status.targets.len() {
            let Some(target) = self.status.targets.get(index).filter(|t| t.state == TargetState::Pending) else {
                continue;
            };
            if in_state(self, TargetState::Restarting) >= most {
                return;
            }
            let waits = |t: &Target| !t.state.over() && before.get(&target.name).is_some_and(|b| b.contains(&t.name));
            if self.status.targets.iter().any(waits) {
                continue;
            }
            let name = target.name.clone();
            let Some(subject) = self.subject(index) else {
                self.over(
                    index,
                    TargetState::Skipped,
                    Reason::Gone,
                    format!("Deployment {name} was deleted or made anew"),
                );
                continue;
            };
            if let Some((reason, message)) = skip::why(spec, &self.w.restart, subject) {
                self.over(index, TargetState::Skipped, reason, message);
                continue;
            }
            if !self.time_for_another(spec) || !self.fit(spec, index, subject) {
                return;
            }
            if let Some(target) = self.status.targets.get_mut(index) {
                target.state = TargetState::Restarting;
                target.started_at = Some(self.now);
                (target.best, target.best_at) = (None, None);
            }
            self.tell(false, Reason::Restarting, format!("Deployment {name}"));
        }
    }

    /// Neither the pause between two of them nor the window is in the way.
    fn time_for_another(&mut self, spec: &RollingRestartSpec) -> bool {
        let done = self.status.targets.iter().filter(|t| t.state == TargetState::Done);
        if let Some(last) = done.filter_map(|t| t.finished_at).max() {
            let next = last.plus_seconds(spec.pause_seconds);
            if next > self.now {
                self.wake(next);
                self.wait(Reason::Pause, format!("the next one is started at {}", next.whole_seconds()));
                return false;
            }
        }
        let Some(window) = &spec.window else { return true };
        match window::opens(window, self.now) {
            Ok(at) if at <= self.now => true,
            Ok(at) => {
                self.wake(at);
                self.wait(Reason::Window, format!("the maintenance window opens at {at}"));
                false
            }
            Err(why) => {
                self.wait(Reason::Window, why);
                false
            }
        }
    }

    /// A Deployment is only touched when it is settled, and its budgets allow what its strategy takes down.
    fn fit(&mut self, spec: &'w RollingRestartSpec, index: usize, subject: &'w Subject) -> bool {
        let name = &subject.deployment.name;
        let since = match self.status.targets.get_mut(index) {
            Some(target) => *target.best_at.get_or_insert(self.now),
            None => return false,
        };
        if let Err(unsettled) = crate::order::settled(Some(&subject.component), spec.settle_seconds, self.now) {
            if let Some(why) = self.broken(subject) {
                self.failed(index, Reason::NotSettled, format!("it was not settled before its restart: {why}"));
                return false;
            }
            if let Some(wake) = unsettled.wake {
                self.wake(wake);
            }
            let what = format!("{name} is not settled, so it is not restarted yet: it {}", unsettled.why);
            self.wait_until_deadline(spec, index, since, Reason::NotSettled, what);
            return false;
        }
        let takes = if spec.sidecars.is_empty() { skip::unavailable(&subject.deployment) } else { 1 };
        if spec.disruption_budgets == DisruptionBudgets::Respect
            && takes > 0
            && let Some(budget) = subject.budgets.iter().find(|b| !b.current || b.allowed < takes)
        {
            let what = format!(
                "PodDisruptionBudget {} allows {} pods of {name} to be down, its restart takes {takes}",
                budget.name, budget.allowed
            );
            self.wait_until_deadline(spec, index, since, Reason::Budget, what);
            return false;
        }
        true
    }

    fn wait_until_deadline(
        &mut self,
        spec: &RollingRestartSpec,
        index: usize,
        since: Time,
        reason: Reason,
        what: String,
    ) {
        let until = since.plus_seconds(spec.progress_deadline_seconds);
        if until <= self.now {
            self.failed(index, reason, format!("for {} seconds: {what}", spec.progress_deadline_seconds));
        } else {
            self.wake(until);
            self.wait(reason, what);
        }
    }
}
