//! The record of attempts: which there are, what they came to, and how it is kept within bounds.

use sha2::{Digest, Sha256};

use super::Planner;
use crate::{
    api::{
        hook::{Hook, HookFailure, Phase},
        run::{HookRunStatus, Step, StepOutcome},
    },
    effect::Effect,
    planted::{Bug, planted},
    reason::Reason,
    time::Time,
    world::{AttemptResult, Pod, Run},
};

/// Steps that a status keeps. What is through makes room first, then failed attempts.
const MOST_STEPS: usize = 200;
/// Of these, so many are for hooks of single pods that are under way.
const MOST_POD_STEPS: usize = 160;
/// Pods that can be marked as through ([`HookRunStatus::pod_hooks_done`]).
pub(super) const MOST_PODS: usize = 10_000;

/// The idempotency key of an attempt.
pub fn key(run_uid: &str, step: &Step) -> String {
    let Step { hook, phase, attempt, pod_uid, failure, .. } = step;
    let phase = phase.as_str();
    match (pod_uid, failure) {
        (Some(pod), _) => format!("{run_uid}.{phase}.{hook}.{pod}.{attempt}"),
        (None, Some(failure)) => format!("{run_uid}.{phase}.{hook}.failure-{failure}.{attempt}"),
        (None, None) => format!("{run_uid}.{phase}.{hook}.{attempt}"),
    }
}

/// How a pod is marked whose hooks are through.
pub fn pod_mark(uid: &str) -> String {
    crate::template::hex(Sha256::digest(uid.as_bytes()).iter().take(6))
}

/// Keys of attempts that have begun and not ended.
pub(super) fn open_keys(run: &Run) -> Vec<String> {
    run.status.steps.iter().filter(|s| s.outcome.is_none()).map(|s| key(&run.uid, s)).collect()
}

/// What an attempt of a hook is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'w> {
    pub phase: Phase,
    /// In a phase of pods: the pod.
    pub pod: Option<&'w Pod>,
    /// In phase OnFailure: which failure.
    pub failure: Option<i64>,
}

impl<'w> Part<'w> {
    pub(super) const fn of_run(phase: Phase) -> Self {
        Self { phase, pod: None, failure: None }
    }

    pub(super) const fn of_pod(phase: Phase, pod: &'w Pod) -> Self {
        Self { phase, pod: Some(pod), failure: None }
    }

    fn has(&self, hook: &str, step: &Step) -> bool {
        step.hook == hook
            && step.phase == self.phase
            && step.pod_uid.as_deref() == self.pod.map(|p| p.uid.as_str())
            && step.failure == self.failure
    }

    /// The latest attempt.
    pub(super) fn last<'s>(&self, status: &'s HookRunStatus, hook: &str) -> Option<&'s Step> {
        status.steps.iter().rev().find(|s| self.has(hook, s))
    }

    /// Is this hook through, by this status?
    pub(super) fn passed(&self, status: &HookRunStatus, hook: &Hook) -> bool {
        self.last(status, &hook.name).is_some_and(|s| passed(hook, s))
    }
}

/// Is the hook through with this as its latest attempt?
pub fn passed(hook: &Hook, last: &Step) -> bool {
    match last.outcome {
        Some(StepOutcome::Succeeded | StepOutcome::Skipped) => true,
        Some(StepOutcome::Failed | StepOutcome::TimedOut) => {
            given_up(hook, last) && (hook.failure == HookFailure::Continue || last.phase == Phase::OnFailure)
        }
        Some(StepOutcome::Cancelled | StepOutcome::Superseded) | None => false,
    }
}

/// Was this failed attempt the last one?
pub(super) fn given_up(hook: &Hook, step: &Step) -> bool {
    matches!(step.outcome, Some(StepOutcome::Failed | StepOutcome::TimedOut))
        && (step.attempt > hook.retries || hook.approval.is_some())
}

/// The hooks of single pods, as a run's settings have them.
#[derive(Clone, Debug, Default)]
pub(super) struct PodHooks<'w> {
    /// Before the update of a pod.
    pub pre: Vec<&'w Hook>,
    /// Gates that have to be back after it.
    pub gates: Vec<&'w Hook>,
    /// After it.
    pub post: Vec<&'w Hook>,
}

impl<'w> PodHooks<'w> {
    pub(super) fn of(run: Option<&'w Run>) -> Self {
        let Some(run) = run else { return Self::default() };
        let of = |phase| run.spec.settings.hooks.iter().filter(move |h| h.phase == phase);
        Self {
            pre: of(Phase::PrePod).collect(),
            gates: of(Phase::PrePod).filter(|h| h.pod_gate.is_some()).collect(),
            post: of(Phase::PostPod).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pre.is_empty() && self.post.is_empty()
    }

    /// How many steps one pod needs.
    fn steps(&self) -> usize {
        self.pre.len() + self.gates.len() + self.post.len()
    }

    pub(super) fn before(&self, status: &HookRunStatus, pod: &Pod) -> bool {
        self.pre.iter().all(|h| Part::of_pod(Phase::PrePod, pod).passed(status, h))
    }

    pub(super) fn after(&self, status: &HookRunStatus, pod: &Pod) -> bool {
        let part = Part::of_pod(Phase::PostPod, pod);
        self.gates.iter().chain(&self.post).all(|h| part.passed(status, h))
    }

    /// How many pods may be under way at the same time, so that their steps can be kept, and they be marked at the end.
    pub(super) fn most(&self, status: &HookRunStatus) -> usize {
        (MOST_POD_STEPS / self.steps().max(1)).max(1).min(MOST_PODS.saturating_sub(status.pod_hooks_done.len()))
    }
}

impl<'w> Planner<'w> {
    /// Attempts that run are of no use any more.
    pub(super) fn cancel_open_hooks(&mut self, outcome: StepOutcome) {
        self.cancel_steps(outcome, |_| true);
    }

    /// The same for some of them.
    pub(super) fn cancel_steps(&mut self, outcome: StepOutcome, which: impl Fn(&Step) -> bool) {
        let Some(run) = self.run else { return };
        let now = self.now;
        let mut keys = Vec::new();
        for step in self.status.steps.iter_mut().filter(|s| s.outcome.is_none() && which(s)) {
            step.outcome = Some(outcome);
            step.finished_at = Some(now);
            if self.stored.contains(&key(&run.uid, step)) {
                keys.push(key(&run.uid, step));
            }
        }
        if !keys.is_empty() {
            self.plan.effects.push(Effect::CancelHooks(keys));
        }
    }

    /// Records every result that has come in, in the one write of this plan.
    pub(super) fn take_results(&mut self) {
        let Some(run) = self.run else { return };
        if self.w.attempts.is_empty() {
            return;
        }
        let mut told = Vec::new();
        for step in self.status.steps.iter_mut().filter(|s| s.outcome.is_none()) {
            let key = key(&run.uid, step);
            let Some(Some(result)) = self.w.attempts.get(&key) else { continue };
            if planted(Bug::ResultAfterCleanup) {
                self.plan.effects.push(Effect::CancelHooks(vec![key]));
            }
            end(step, result);
            told.push(step.clone());
        }
        for step in told {
            self.tell_reported_only(run, &step);
        }
    }

    /// The failure of a hook that decides nothing is said once.
    fn tell_reported_only(&mut self, run: &Run, step: &Step) {
        let hook = run.spec.settings.hooks.iter().find(|h| h.name == step.hook);
        if let Some(hook) = hook.filter(|h| h.phase == Phase::OnFailure && given_up(h, step)) {
            self.event(true, Reason::HookFailed, format!("OnFailure hook {} failed: {}", hook.name, step.reason));
        }
    }

    /// An attempt that the plan itself judges has ended.
    pub(super) fn end_step(&mut self, hook: &Hook, part: Part<'w>, outcome: StepOutcome, reason: &str) {
        let now = self.now;
        if let Some(step) = self.status.steps.iter_mut().rev().find(|s| part.has(&hook.name, s)) {
            end(step, &AttemptResult { outcome, reason: reason.to_owned(), at: now });
        }
    }

    /// The intent is stored before anything happens: a crash after the act still knows the key.
    pub(super) fn intend(&mut self, hook: &Hook, part: Part<'w>, attempt: i64) {
        let step = Step {
            hook: hook.name.clone(),
            phase: part.phase,
            pod: part.pod.map(|p| p.name.clone()),
            pod_uid: part.pod.map(|p| p.uid.clone()),
            failure: part.failure,
            attempt,
            started_at: self.now,
            finished_at: None,
            outcome: None,
            reason: String::new(),
            undone: false,
        };
        // Of the hooks of single pods only the latest attempt is kept.
        let before = part.pod.and_then(|_| self.status.steps.iter().position(|s| part.has(&hook.name, s)));
        if let Some(before) = before {
            self.status.steps.remove(before);
        }
        self.make_room();
        self.status.steps.push(step);
    }

    /// A step that nobody carried out.
    pub(super) fn note(&mut self, hook: &Hook, part: Part<'w>, attempt: i64, outcome: StepOutcome, reason: &str) {
        self.intend(hook, part, attempt);
        self.end_step(hook, part, outcome, reason);
    }

    fn make_room(&mut self) {
        if self.status.steps.len() < MOST_STEPS {
            return;
        }
        let Some(run) = self.run else { return };
        // Pods whose hooks are all through, by what is stored, are marked and their steps go; those of pods that are gone go.
        let hooks = PodHooks::of(Some(run));
        let mut uids: Vec<String> = self.status.steps.iter().filter_map(|s| s.pod_uid.clone()).collect();
        uids.sort();
        uids.dedup();
        for uid in uids {
            let through = match self.w.pods.iter().find(|p| p.uid == uid) {
                Some(pod) => hooks.before(&run.status, pod) && hooks.after(&run.status, pod),
                None => self.status.steps.iter().all(|s| s.pod_uid.as_ref() != Some(&uid) || s.outcome.is_some()),
            };
            if !through {
                continue;
            }
            let present = self.w.pods.iter().any(|p| p.uid == uid);
            if present && !self.mark(&uid) {
                continue;
            }
            self.status.steps.retain(|s| s.pod_uid.as_ref() != Some(&uid));
        }
        if self.status.steps.len() < MOST_STEPS {
            return;
        }
        let failed = |s: &Step| matches!(s.outcome, Some(StepOutcome::Failed | StepOutcome::TimedOut));
        if let Some(old) = self.status.steps.iter().position(|s| failed(s) && s.pod_uid.is_none()) {
            self.status.steps.remove(old);
        }
    }

    /// Marks a pod as through. False: there is no room for it.
    fn mark(&mut self, uid: &str) -> bool {
        if self.status.pod_hooks_done.len() >= MOST_PODS {
            let present: std::collections::BTreeSet<String> = self.w.pods.iter().map(|p| pod_mark(&p.uid)).collect();
            self.status.pod_hooks_done.retain(|mark| present.contains(mark));
        }
        if self.status.pod_hooks_done.len() >= MOST_PODS {
            return false;
        }
        let mark = pod_mark(uid);
        if !self.status.pod_hooks_done.contains(&mark) {
            self.status.pod_hooks_done.push(mark);
        }
        true
    }

    /// The user's pause has lasted until now: what only waits for time or for a person has not waited meanwhile.
    pub(super) fn clocks_stood(&mut self, since: Time) {
        let Some(run) = self.run else { return };
        let millis = self.now.millis_since(since).max(0);
        let waits = |s: &Step| {
            run.spec.settings.hooks.iter().any(|h| h.name == s.hook && (h.wait.is_some() || h.approval.is_some()))
        };
        for step in self.status.steps.iter_mut().filter(|s| s.outcome.is_none() && waits(s)) {
            step.started_at = step.started_at.plus_millis(millis);
        }
    }
}

fn end(step: &mut Step, result: &AttemptResult) {
    step.outcome = Some(result.outcome);
    step.finished_at = Some(result.at);
    step.reason.clone_from(&result.reason);
}
