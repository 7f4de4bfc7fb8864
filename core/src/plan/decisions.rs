//! What people decided: each decision is used once, in the status write that shows it. One that has no effect says so.

use super::{
    Planner,
    steps::{Part, given_up, key, passed},
};
use crate::{
    api::{
        hook::{Hook, HookFailure, Phase},
        run::{Action, Decision, Outcome, Step, StepOutcome},
    },
    effect::Effect,
    reason::Reason,
    world::Run,
};

/// Why a decision has no effect.
type Refused = Result<(), String>;

impl<'w> Planner<'w> {
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
            let result = match decision.action {
                Action::Approve => self.approve(run, decision),
                Action::Skip => self.skip(run, decision),
                Action::Retry | Action::Resume => self.go_on(run, decision),
                Action::Abort => {
                    self.end(Outcome::Aborted);
                    self.event(
                        true,
                        Reason::Aborted,
                        format!("{} ended the update; it stays as it is until the template changes", decision.by),
                    );
                    Ok(())
                }
            };
            if let Err(why) = result {
                let Decision { action, by, id, .. } = decision;
                self.event(true, Reason::DecisionRefused, format!("{action:?} by {by} ({id}) has no effect: {why}"));
            }
        }
    }

    /// A stall ends. A hook that failed gets one more attempt; pods get their time anew.
    fn go_on(&mut self, run: &'w Run, decision: &Decision) -> Refused {
        let Some(stall) = &self.status.stall else { return Err("the update does not stand still".to_owned()) };
        let failed = stall.reason == Reason::HookFailed.as_str();
        let named = decision.target.as_deref().and_then(|t| t.strip_prefix("hook/"));
        if decision.pod.is_some() || decision.attempt.is_some() || named.is_some() {
            self.right_attempt(run, decision, named)?;
        }
        let mut again = 0;
        if failed {
            let steps: Vec<(&'w Hook, Step)> = self.latest(run, named, decision.pod.as_deref());
            for (hook, step) in steps {
                if given_up(hook, &step) && hook.failure == HookFailure::Abort && step.failure.is_none() {
                    again += 1;
                    let part = self.part(&step);
                    self.intend(hook, part, step.attempt.saturating_add(1));
                }
            }
            if again == 0 && named.is_some() {
                return Err("that hook has not failed".to_owned());
            }
        }
        self.status.stall = None;
        self.status.resumed_at = Some(self.now);
        self.status.progress = None;
        Ok(())
    }

    fn skip(&mut self, run: &'w Run, decision: &Decision) -> Refused {
        let target = match decision.target.as_deref() {
            Some(target) => target.to_owned(),
            // Without a target: what it waits for now.
            None => match (self.current_hook(run), self.standstill()) {
                (Some(hook), _) => format!("hook/{hook}"),
                (None, Some("Budget" | "BudgetImpossible")) => "gate/budget".to_owned(),
                (None, Some("Predecessor" | "OrderCycle" | "GateTimeout")) => "gate/order".to_owned(),
                (None, _) => return Err("it waits for nothing that can be skipped".to_owned()),
            },
        };
        match target.as_str() {
            "gate/order" => {
                self.status.order_passed = true;
                self.status.stall = self.status.stall.take().filter(|s| s.reason != Reason::GateTimeout.as_str());
            }
            "gate/budget" => {
                self.status.budget_skipped = true;
                self.status.stall = self.status.stall.take().filter(|s| s.reason != Reason::BudgetImpossible.as_str());
            }
            other => {
                let name = other.strip_prefix("hook/").ok_or_else(|| format!("{other} is unknown"))?;
                return self.skip_hook(run, decision, name);
            }
        }
        Ok(())
    }

    /// Why it does not go on.
    fn standstill(&self) -> Option<&str> {
        let waiting = self.status.waiting_for.as_ref().map(|w| w.reason.as_str());
        self.status.stall.as_ref().map(|s| s.reason.as_str()).or(waiting)
    }

    /// A hook counts as done because somebody said so.
    fn skip_hook(&mut self, run: &'w Run, decision: &Decision, name: &str) -> Refused {
        let hook = hook(run, name)?;
        self.right_attempt(run, decision, Some(name))?;
        let steps = self.latest(run, Some(name), decision.pod.as_deref());
        let due: Vec<&(&Hook, Step)> = steps.iter().filter(|(h, s)| !passed(h, s)).collect();
        if due.is_empty() {
            if hook.phase.of_pod() && decision.target.is_some() {
                return self.known_pod(decision); // for the pods whose turn comes
            }
            if !steps.is_empty() || hook.phase.of_pod() || hook.phase == Phase::OnFailure {
                return Err(format!("hook {name} is through, or its turn has not come"));
            }
            self.note(hook, Part::of_run(hook.phase), 1, StepOutcome::Skipped, "Skipped");
        }
        for (hook, step) in due {
            let part = self.part(step);
            if step.outcome.is_none() {
                self.end_step(hook, part, StepOutcome::Skipped, "Skipped");
                self.plan.effects.push(Effect::CancelHooks(vec![key(&run.uid, step)]));
            } else {
                self.note(hook, part, step.attempt, StepOutcome::Skipped, "Skipped");
            }
        }
        self.status.stall = self.status.stall.take().filter(|s| s.reason != Reason::HookFailed.as_str());
        Ok(())
    }

    fn approve(&mut self, run: &'w Run, decision: &Decision) -> Refused {
        let named = decision.target.as_deref().map(|t| t.strip_prefix("hook/").unwrap_or(t));
        if let Some(name) = named {
            let hook = hook(run, name)?;
            if hook.approval.is_none() {
                return Err(format!("hook {name} is no approval"));
            }
        }
        self.right_attempt(run, decision, named)?;
        let open: Vec<(&Hook, Step)> = self
            .latest(run, named, decision.pod.as_deref())
            .into_iter()
            .filter(|(hook, step)| hook.approval.is_some() && step.outcome.is_none())
            .collect();
        if open.is_empty() {
            let of_pod = named.and_then(|name| hook(run, name).ok()).is_some_and(|h| h.phase.of_pod());
            return if of_pod {
                self.known_pod(decision)
            } else {
                Err("nothing waits for this approval now".to_owned())
            };
        }
        for (hook, step) in open {
            let part = self.part(&step);
            self.end_step(hook, part, StepOutcome::Succeeded, "Approved");
        }
        // What is limited has not waited while it waited for a person.
        self.status.resumed_at = Some(self.now);
        Ok(())
    }

    fn known_pod(&self, decision: &Decision) -> Refused {
        match &decision.pod {
            Some(name) if self.w.pods.iter().all(|p| p.name != *name) => Err(format!("there is no pod {name}")),
            Some(_) | None => Ok(()),
        }
    }

    /// A decision that names an attempt is about that one alone.
    fn right_attempt(&self, run: &'w Run, decision: &Decision, name: Option<&str>) -> Refused {
        let steps = self.latest(run, name, decision.pod.as_deref());
        let Some(attempt) = decision.attempt else { return Ok(()) };
        if steps.iter().any(|(hook, s)| s.attempt == attempt && !passed(hook, s)) {
            return Ok(());
        }
        Err(match steps.iter().map(|(_, s)| s.attempt).max() {
            Some(now) if now > attempt => format!("attempt {attempt} is over, the latest is {now}"),
            Some(now) if now == attempt => format!("attempt {attempt} is over"),
            Some(_) | None => format!("attempt {attempt} has not begun"),
        })
    }

    /// The latest attempts of hooks, by pod and failure.
    fn latest(&self, run: &'w Run, name: Option<&str>, pod: Option<&str>) -> Vec<(&'w Hook, Step)> {
        let mut seen = std::collections::BTreeSet::new();
        let mut all: Vec<(&'w Hook, Step)> = Vec::new();
        for step in self.status.steps.iter().rev() {
            let right = name.is_none_or(|n| n == step.hook) && pod.is_none_or(|p| step.pod.as_deref() == Some(p));
            let hook = run.spec.settings.hooks.iter().find(|h| h.name == step.hook);
            // What was begun for a pod that is gone is cancelled when that is seen.
            let here = step.pod_uid.as_ref().is_none_or(|uid| self.w.pods.iter().any(|p| p.uid == *uid));
            if let Some(hook) = hook.filter(|_| right && here)
                && seen.insert((&step.hook, step.phase, &step.pod_uid, step.failure))
            {
                all.push((hook, step.clone()));
            }
        }
        all
    }

    fn part(&self, step: &Step) -> Part<'w> {
        let pod = step.pod_uid.as_ref().and_then(|uid| self.w.pods.iter().find(|p| p.uid == *uid));
        Part { phase: step.phase, pod, failure: step.failure }
    }

    /// The hook that runs or has failed now.
    fn current_hook(&self, run: &'w Run) -> Option<String> {
        let latest = self.latest(run, None, None);
        latest.into_iter().find(|(hook, s)| !passed(hook, s) && s.failure.is_none()).map(|(_, s)| s.hook)
    }
}

fn hook<'w>(run: &'w Run, name: &str) -> Result<&'w Hook, String> {
    run.spec.settings.hooks.iter().find(|h| h.name == name).ok_or_else(|| format!("there is no hook {name}"))
}
