//! `patch` hooks that are undone when the update is reverted. What was there before stands in an annotation of what was changed.

use super::{
    Flow, GO, Planner, State,
    steps::{Part, key},
};
use crate::{
    api::run::{Step, StepOutcome},
    effect::{Call, Effect},
    reason::Reason,
    world::Run,
};

/// Seconds after which an undo that failed is tried again.
const AGAIN_SECONDS: i64 = 5;

impl<'w> Planner<'w> {
    /// On a revert, once the pods are back: what patches have replaced comes back.
    pub(super) fn undo_patches(&mut self, run: &'w Run) -> Flow {
        let mut open = Vec::new();
        for at in 0..self.status.steps.len() {
            let Some(step) = self.status.steps.get(at).cloned() else { continue };
            let hook = run.spec.settings.hooks.iter().find(|h| h.name == step.hook && h.phase == step.phase);
            let Some(hook) = hook else { continue };
            let Some(patch) = hook.patch.as_ref().filter(|p| p.undo_on_revert && !step.undone) else { continue };
            // One that has failed or was cancelled may have been carried out; one that was skipped was not. Each attempt left
            // the same annotation.
            let latest = self.latest_of(&step) == Some(at);
            let pod = step.pod_uid.as_ref().map(|uid| self.w.pods.iter().find(|p| p.uid == *uid));
            if !latest || pod == Some(None) || step.outcome == Some(StepOutcome::Skipped) {
                self.undone(at);
                continue;
            }
            open.push(hook.name.clone());
            let key = format!("{}.undo", key(&run.uid, &step));
            let part = Part { phase: step.phase, pod: pod.flatten(), failure: step.failure };
            match self.w.attempts.get(&key) {
                Some(None) => continue,
                Some(Some(result)) if result.outcome == StepOutcome::Succeeded => {
                    open.pop();
                    self.undone(at);
                    continue;
                }
                Some(Some(result)) => {
                    let due = result.at.plus_seconds(AGAIN_SECONDS);
                    if self.now < due {
                        self.wake(due);
                        continue;
                    }
                    self.plan.effects.push(Effect::CancelHooks(vec![key.clone()]));
                }
                None => {}
            }
            let call = self.hook_call(run, hook, part, &step, Call::Undo(patch.clone()));
            let call = crate::effect::HookCall { key, started_at: self.now, ..call };
            self.plan.effects.push(Effect::StartHook(Box::new(call)));
        }
        if open.is_empty() {
            return GO;
        }
        let what = format!("what these hooks have changed is put back: {}", open.join(", "));
        self.wait(State::Updating, Reason::Reverting, what, None, "")
    }

    fn latest_of(&self, step: &Step) -> Option<usize> {
        let whose = |s: &Step| (s.hook.clone(), s.phase, s.pod_uid.clone(), s.failure);
        self.status.steps.iter().rposition(|s| whose(s) == whose(step))
    }

    fn undone(&mut self, at: usize) {
        if let Some(step) = self.status.steps.get_mut(at) {
            step.undone = true;
        }
    }
}
