//! Hooks of one phase, one after the other: intent recorded, act, result recorded.

use serde_json::json;

use super::{Flow, GO, Planner, State};
use crate::{
    api::{
        policy::{Hook, HookFailure, Phase},
        run::{Step, StepOutcome},
    },
    effect::{Effect, HookCall},
    planted::{Bug, planted},
    reason::Reason,
    time::Time,
    world::{AttemptResult, Run},
};

/// Steps that a status keeps; older failed attempts go first.
const MOST_STEPS: usize = 200;
/// No backoff is longer.
const LONGEST_BACKOFF_SECONDS: i64 = 300;

/// The idempotency key of an attempt.
pub fn key(run_uid: &str, phase: Phase, hook: &str, attempt: i64) -> String {
    format!("{run_uid}.{}.{hook}.{attempt}", phase.as_str())
}

/// Keys of attempts that have begun and not ended.
pub(super) fn open_keys(run: &Run) -> Vec<String> {
    run.status
        .steps
        .iter()
        .filter(|s| s.outcome.is_none())
        .map(|s| key(&run.uid, s.phase, &s.hook, s.attempt))
        .collect()
}

impl Planner<'_> {
    /// Attempts that run are of no use any more.
    pub(super) fn cancel_open_hooks(&mut self) {
        let Some(run) = self.run else { return };
        let keys = open_keys(run);
        if !keys.is_empty() {
            self.plan.effects.push(Effect::CancelHooks(keys));
        }
        for step in self.status.steps.iter_mut().filter(|s| s.outcome.is_none()) {
            step.outcome = Some(StepOutcome::Cancelled);
            step.finished_at = Some(self.now);
        }
    }

    /// Goes on when every hook of the phase has succeeded, was skipped, or failed and may.
    pub(super) fn hooks(&mut self, phase: Phase, state: State) -> Flow {
        let Some(run) = self.run else { return GO };
        for hook in run.spec.settings.hooks.iter().filter(|h| h.phase == phase) {
            self.hook(run, hook, state)?;
        }
        if phase == Phase::PreUpdate && self.status.steps != run.status.steps {
            // Effects come before the status: what follows may only start on results that are stored, or a crash in
            // between would call a hook again for an update that has begun.
            return self.report(state, "the results of the hooks are stored".to_owned());
        }
        GO
    }

    fn hook(&mut self, run: &Run, hook: &Hook, state: State) -> Flow {
        let last = self.status.steps.iter().rev().find(|s| s.hook == hook.name && s.phase == hook.phase).cloned();
        let Some(step) = last else { return self.intend(hook, 1, state) };
        match step.outcome {
            Some(StepOutcome::Succeeded | StepOutcome::Skipped) => GO,
            None => self.running(run, hook, &step, state),
            Some(StepOutcome::Failed | StepOutcome::TimedOut | StepOutcome::Cancelled) => {
                self.failed(run, hook, &step, state)
            }
        }
    }

    /// The intent is stored before anything happens: a crash after the act still knows the key.
    fn intend(&mut self, hook: &Hook, attempt: i64, state: State) -> Flow {
        if self.status.steps.len() >= MOST_STEPS
            && let Some(old) = self
                .status
                .steps
                .iter()
                .position(|s| matches!(s.outcome, Some(StepOutcome::Failed | StepOutcome::TimedOut)))
        {
            self.status.steps.remove(old);
        }
        self.status.steps.push(Step {
            hook: hook.name.clone(),
            phase: hook.phase,
            attempt,
            started_at: self.now,
            finished_at: None,
            outcome: None,
            reason: String::new(),
        });
        self.running_message(hook, attempt, self.now, state)
    }

    fn how_to_skip(&self, hook: &Hook) -> String {
        format!("skip it with: kubectl interlock skip deploy/{} --hook {}", self.d.name, hook.name)
    }

    fn running_message(&mut self, hook: &Hook, attempt: i64, started: Time, state: State) -> Flow {
        let until = hook.wait.as_ref().map_or(hook.timeout_seconds, |w| w.seconds);
        let what = format!(
            "{} hook {}, attempt {attempt} of {}",
            hook.phase.as_str(),
            hook.name,
            hook.retries.saturating_add(1)
        );
        let how = self.how_to_skip(hook);
        // Only a pause ends by the clock of the plan; a request is bounded where it runs.
        self.wait(state, Reason::HookRunning, what, Some(started.plus_seconds(until)), &how)
    }

    fn running(&mut self, run: &Run, hook: &Hook, step: &Step, state: State) -> Flow {
        let stored =
            run.status.steps.iter().any(|s| s.hook == step.hook && s.phase == step.phase && s.attempt == step.attempt);
        if let Some(wait) = &hook.wait {
            if stored && self.now >= step.started_at.plus_seconds(wait.seconds) {
                let result =
                    AttemptResult { outcome: StepOutcome::Succeeded, reason: "Waited".to_owned(), at: self.now };
                return self.record(hook, step.attempt, &result, state);
            }
            return self.running_message(hook, step.attempt, step.started_at, state);
        }
        let key = key(&run.uid, hook.phase, &hook.name, step.attempt);
        match (self.w.attempts.get(&key), &hook.http) {
            (Some(Some(result)), _) => {
                let result = result.clone();
                if planted(Bug::ResultAfterCleanup) {
                    self.plan.effects.push(Effect::CancelHooks(vec![key]));
                }
                self.record(hook, step.attempt, &result, state)
            }
            (None, Some(http)) if stored => {
                self.plan.effects.push(Effect::StartHook(HookCall {
                    key,
                    hook: hook.name.clone(),
                    phase: hook.phase,
                    attempt: step.attempt,
                    url: http.url.clone(),
                    timeout_seconds: hook.timeout_seconds,
                    body: self.facts(run, hook, step.attempt),
                }));
                self.running_message(hook, step.attempt, step.started_at, state)
            }
            (None | Some(None), _) => self.running_message(hook, step.attempt, step.started_at, state),
        }
    }

    /// What a receiver is told.
    fn facts(&self, run: &Run, hook: &Hook, attempt: i64) -> serde_json::Value {
        let images = |t: &crate::template::Template| {
            crate::classify::containers(t)
                .into_iter()
                .map(|(name, c)| (name, serde_json::Value::String(c.image)))
                .collect::<serde_json::Map<_, _>>()
        };
        json!({
            "apiVersion": "interlock.dev/v1alpha1",
            "kind": "HookCall",
            "namespace": self.d.namespace,
            "deployment": self.d.name,
            "run": run.name,
            "runUID": run.uid,
            "hook": hook.name,
            "phase": hook.phase.as_str(),
            "attempt": attempt,
            "images": images(&run.spec.new_template),
            "previousImages": run.spec.old_template.as_ref().map(images),
        })
    }

    /// The result is stored, and with it the intent of what comes next, in one write.
    fn record(&mut self, hook: &Hook, attempt: i64, result: &AttemptResult, state: State) -> Flow {
        if let Some(step) = self
            .status
            .steps
            .iter_mut()
            .rev()
            .find(|s| s.hook == hook.name && s.phase == hook.phase && s.attempt == attempt)
        {
            step.outcome = Some(result.outcome);
            step.finished_at = Some(result.at);
            step.reason.clone_from(&result.reason);
        }
        if result.outcome == StepOutcome::Succeeded {
            return GO;
        }
        self.status.waiting_for = None;
        let what = format!("{} hook {} failed: {}", hook.phase.as_str(), hook.name, result.reason);
        self.report(state, what)
    }

    fn failed(&mut self, run: &Run, hook: &Hook, step: &Step, state: State) -> Flow {
        if step.attempt > hook.retries {
            return match hook.failure {
                HookFailure::Continue => GO,
                HookFailure::Abort => {
                    let what = format!(
                        "{} hook {} failed {} times, last: {}",
                        hook.phase.as_str(),
                        hook.name,
                        step.attempt,
                        step.reason
                    );
                    self.stall(Reason::HookFailed, what)
                }
            };
        }
        let due = step.finished_at.unwrap_or(step.started_at).plus_millis(backoff_millis(hook, step.attempt, &run.uid));
        if self.now >= due {
            return self.intend(hook, step.attempt.saturating_add(1), state);
        }
        let what = format!(
            "next attempt of {} hook {} (attempt {} failed: {})",
            hook.phase.as_str(),
            hook.name,
            step.attempt,
            step.reason
        );
        let how = self.how_to_skip(hook);
        self.wait(state, Reason::HookBackoff, what, Some(due), &how)
    }

    /// One more attempt of the hook that failed last, by decision.
    pub(super) fn retry_failed_hook(&mut self) {
        let Some(run) = self.run else { return };
        let failed = self
            .status
            .steps
            .iter()
            .rev()
            .find(|s| matches!(s.outcome, Some(StepOutcome::Failed | StepOutcome::TimedOut)))
            .cloned();
        if let Some(step) = failed
            && let Some(hook) = run.spec.settings.hooks.iter().find(|h| h.name == step.hook && h.phase == step.phase)
        {
            let _ = self.intend(hook, step.attempt.saturating_add(1), State::Held);
        }
    }

    /// A hook counts as done because somebody said so.
    pub(super) fn record_skip(&mut self, name: &str) {
        let Some(run) = self.run else { return };
        let Some(hook) = run.spec.settings.hooks.iter().find(|h| h.name == name) else { return };
        let open = self.status.steps.iter_mut().rev().find(|s| s.hook == name && s.phase == hook.phase);
        match open {
            Some(step) if step.outcome.is_none() => {
                step.outcome = Some(StepOutcome::Skipped);
                step.finished_at = Some(self.now);
                let attempt = step.attempt;
                self.plan.effects.push(Effect::CancelHooks(vec![key(&run.uid, hook.phase, name, attempt)]));
            }
            last => {
                let attempt = last.map_or(1, |s| s.attempt);
                self.status.steps.push(Step {
                    hook: name.to_owned(),
                    phase: hook.phase,
                    attempt,
                    started_at: self.now,
                    finished_at: Some(self.now),
                    outcome: Some(StepOutcome::Skipped),
                    reason: "Skipped".to_owned(),
                });
            }
        }
        self.status.stall = self.status.stall.take().filter(|s| s.reason != Reason::HookFailed.as_str());
    }
}

/// Doubling, capped, with jitter that is a function of run and attempt: the plan stays a function of the world.
fn backoff_millis(hook: &Hook, attempt: i64, run_uid: &str) -> i64 {
    let doubling = 1_i64 << attempt.saturating_sub(1).clamp(0, 16);
    let seconds = hook.backoff_seconds.saturating_mul(doubling).min(LONGEST_BACKOFF_SECONDS);
    let millis = seconds.saturating_mul(1000);
    let seed = run_uid.bytes().fold(attempt.unsigned_abs(), |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    let jitter = i64::try_from(seed % 200).unwrap_or(0); // thousandths, up to a fifth
    millis.saturating_add(millis.saturating_mul(jitter) / 1000)
}
