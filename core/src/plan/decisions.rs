//! What people decided: each decision is used once, in the status write that shows it.

use super::Planner;
use crate::{
    api::run::{Action, Decision, Outcome, StepOutcome},
    reason::Reason,
};

impl Planner<'_> {
    /// Takes up decisions that have not been used.
    pub(super) fn decisions(&mut self) {
        let Some(run) = self.run else { return };
        if run.status.ended.is_some() {
            return;
        }
        for decision in &run.spec.decisions {
            if self.status.decisions_used.contains(&decision.id) {
                continue;
            }
            self.status.decisions_used.push(decision.id.clone());
            match decision.action {
                Action::Approve => {}
                Action::Skip => self.skip(decision),
                Action::Retry | Action::Resume => self.go_on(),
                Action::Abort => {
                    self.end(Outcome::Aborted);
                    self.event(
                        true,
                        Reason::Aborted,
                        format!("{} ended the update; it stays as it is until the template changes", decision.by),
                    );
                }
            }
        }
    }

    /// A stall ends. A hook that failed gets one more attempt; pods get their time anew.
    fn go_on(&mut self) {
        let Some(stall) = self.status.stall.take() else { return };
        self.status.resumed_at = Some(self.now);
        self.status.progress = None;
        if stall.reason == Reason::HookFailed.as_str() {
            self.retry_failed_hook();
        }
    }

    fn skip(&mut self, decision: &Decision) {
        let target = match decision.target.as_deref() {
            Some(target) => target.to_owned(),
            // Without a target: what it waits for now.
            None => match (self.current_hook(), self.status.waiting_for.as_ref().map(|w| w.reason.as_str())) {
                (Some(hook), _) => format!("hook/{hook}"),
                (None, Some("Budget" | "BudgetImpossible")) => "gate/budget".to_owned(),
                (None, Some("Predecessor" | "OrderCycle")) => "gate/order".to_owned(),
                (None, _) => return,
            },
        };
        match target.as_str() {
            "gate/order" => self.status.order_passed = true,
            "gate/budget" => {
                self.status.budget_skipped = true;
                self.status.stall = self.status.stall.take().filter(|s| s.reason != Reason::BudgetImpossible.as_str());
            }
            other => {
                if let Some(hook) = other.strip_prefix("hook/") {
                    let hook = hook.to_owned();
                    self.record_skip(&hook);
                }
            }
        }
    }

    /// The hook that runs or has failed now.
    fn current_hook(&self) -> Option<String> {
        self.status
            .steps
            .iter()
            .rev()
            .find(|s| {
                !matches!(s.outcome, Some(StepOutcome::Succeeded | StepOutcome::Skipped | StepOutcome::Cancelled))
            })
            .map(|s| s.hook.clone())
    }
}
