//! What people decide about a request.

use super::{Planner, Reason};
use crate::api::restart::{RestartAction, RestartDecision, RollingRestartSpec, TargetState};

impl<'w> Planner<'w> {
    /// What people have decided since.
    pub(super) fn decide(&mut self, spec: &'w RollingRestartSpec) {
        for decision in &spec.decisions {
            if self.status.decisions_used.contains(&decision.id) {
                continue;
            }
            self.status.decisions_used.push(decision.id.clone());
            let RestartDecision { action, target, by, reason, .. } = decision;
            let about = target.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
            let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            if self.take(*action, target.as_deref()) {
                self.tell(false, Reason::Resumed, format!("{action:?}{about} by {by}{why}"));
            } else {
                let message = format!(
                    "{action:?}{about} by {by} has no effect: nothing of that name has failed or is still to come"
                );
                self.tell(true, Reason::DecisionRefused, message);
            }
            if self.status.ended_at.is_some() {
                return;
            }
        }
    }

    fn take(&mut self, action: RestartAction, target: Option<&str>) -> bool {
        let now = self.now;
        if action == RestartAction::Abort {
            self.status.ended_at = Some(now);
            self.status.aborted = true;
            return true;
        }
        let mut any = false;
        for t in &mut self.status.targets {
            let named = target == Some(t.name.as_str());
            let failed = t.state == TargetState::Failed && (named || target.is_none());
            match action {
                RestartAction::Resume if failed => {
                    t.state = if t.started_at.is_some() { TargetState::Restarting } else { TargetState::Pending };
                    (t.best, t.best_at, t.finished_at) = (None, None, None);
                    t.reason.clear();
                    t.message.clear();
                }
                RestartAction::Skip if failed || named && !t.state.over() => {
                    t.state = TargetState::Skipped;
                    t.finished_at = Some(now);
                    Reason::Decision.as_str().clone_into(&mut t.reason);
                    "somebody decided so".clone_into(&mut t.message);
                }
                RestartAction::Resume | RestartAction::Skip | RestartAction::Abort => continue,
            }
            any = true;
        }
        any
    }
}
