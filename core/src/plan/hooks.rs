//! What becomes of a hook next: intent recorded, act, result recorded.

use serde_json::json;

use super::{
    Flow, GO, Planner, State,
    steps::{Part, given_up, key},
};
use crate::{
    api::{
        hook::{Hook, HookFailure, Kind, OnTimeout, Phase, PodGateHook, WaitForHook},
        run::{Action, ObjectRef, Step, StepOutcome},
    },
    effect::{Call, Effect, HookCall},
    reason::Reason,
    time::Time,
    world::{Pod, Run},
};

/// No backoff is longer.
const LONGEST_BACKOFF_SECONDS: i64 = 300;

/// Where a hook stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is through.
    Through,
    /// It is waited for.
    Waits(Wait),
    /// It has failed for good, and its update with it.
    Failed(String),
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub reason: Reason,
    pub what: String,
    pub until: Option<Time>,
    pub how: String,
}

/// Does any of what the gate names keep the pod?
fn any_present(gate: &PodGateHook, pod: &Pod) -> bool {
    gate.labels.iter().any(|(k, v)| pod.labels.get(k) == Some(v))
        || gate.finalizers.iter().any(|f| pod.finalizers.contains(f))
}

fn all_present(gate: &PodGateHook, pod: &Pod) -> bool {
    gate.labels.iter().all(|(k, v)| pod.labels.get(k) == Some(v))
        && gate.finalizers.iter().all(|f| pod.finalizers.contains(f))
}

impl<'w> Planner<'w> {
    /// Goes on when every hook of the phase has succeeded, was skipped, or failed and may.
    pub(super) fn hooks(&mut self, phase: Phase, state: State) -> Flow {
        let Some(run) = self.run else { return GO };
        let part = Part::of_run(phase);
        for hook in run.spec.settings.hooks.iter().filter(|h| h.phase == phase) {
            match self.hook(run, hook, part) {
                Standing::Through => {}
                Standing::Failed(what) => return self.stall(Reason::HookFailed, what),
                Standing::Waits(Wait { reason, what, until, how }) => {
                    return self.wait(state, reason, what, until, &how);
                }
            }
        }
        let of_phase = |steps: &[Step]| -> Vec<Step> { steps.iter().filter(|s| s.phase == phase).cloned().collect() };
        if phase == Phase::PreUpdate && of_phase(&self.status.steps) != of_phase(&run.status.steps) {
            // Effects come before the status: what follows may only start on results that are stored, or a crash in
            // between would call a hook again for an update that has begun.
            return self.report(state, "the results of the hooks are stored".to_owned());
        }
        GO
    }

    /// Tells the world of a failure, once; decides nothing.
    pub(super) fn on_failure(&mut self) {
        let Some(run) = self.run else { return };
        let now = self.status.stall.as_ref().map(|_| self.status.failures);
        for hook in run.spec.settings.hooks.iter().filter(|h| h.phase == Phase::OnFailure) {
            let open = self.status.steps.iter().filter(|s| s.phase == hook.phase && s.hook == hook.name);
            let mut failures: Vec<Option<i64>> = open.filter(|s| s.outcome.is_none()).map(|s| s.failure).collect();
            failures.extend(now.map(Some));
            failures.sort_unstable();
            failures.dedup();
            for failure in failures {
                let part = Part { phase: hook.phase, pod: None, failure };
                if let Standing::Waits(Wait { reason: Reason::HookBackoff, until: Some(until), .. }) =
                    self.hook(run, hook, part)
                {
                    self.wake(until);
                }
            }
        }
    }

    /// Brings one hook as far as it goes now.
    pub(super) fn hook(&mut self, run: &'w Run, hook: &'w Hook, part: Part<'w>) -> Standing {
        let Some(step) = part.last(&self.status, &hook.name).cloned() else {
            return match self.decided_before(run, hook, part) {
                Some(Action::Approve) => {
                    self.note(hook, part, 1, StepOutcome::Succeeded, "Approved");
                    Standing::Through
                }
                Some(_) => {
                    self.note(hook, part, 1, StepOutcome::Skipped, "Skipped");
                    Standing::Through
                }
                None => self.begin_attempt(hook, part, 1),
            };
        };
        match step.outcome {
            Some(StepOutcome::Succeeded | StepOutcome::Skipped) => Standing::Through,
            None => self.open(run, hook, part, &step),
            Some(StepOutcome::Cancelled | StepOutcome::Superseded) => {
                self.begin_attempt(hook, part, step.attempt.saturating_add(1))
            }
            Some(StepOutcome::Failed | StepOutcome::TimedOut) => self.failed(run, hook, part, &step),
        }
    }

    fn begin_attempt(&mut self, hook: &Hook, part: Part<'w>, attempt: i64) -> Standing {
        self.intend(hook, part, attempt);
        Standing::Waits(self.running(hook, part, attempt, self.now))
    }

    /// A decision about this hook of every pod, or of this pod, that was made before its turn came.
    fn decided_before(&self, run: &Run, hook: &Hook, part: Part<'w>) -> Option<Action> {
        let pod = part.pod?;
        let target = format!("hook/{}", hook.name);
        let of_it = |action| action == Action::Skip || action == Action::Approve && hook.approval.is_some();
        let mut made = run.spec.decisions.iter().filter(|d| {
            self.status.decisions_used.contains(&d.id)
                && d.target.as_ref() == Some(&target)
                && d.attempt.is_none()
                && d.pod.as_ref().is_none_or(|name| *name == pod.name)
                && of_it(d.action)
        });
        made.next().map(|d| d.action)
    }

    fn command(&self, verb: &str, hook: &Hook, part: Part<'w>) -> String {
        let pod = part.pod.map(|p| format!(" --pod {}", p.name)).unwrap_or_default();
        format!("kubectl interlock {verb} deploy/{} --hook {}{pod}", self.d.name, hook.name)
    }

    fn running(&self, hook: &Hook, part: Part<'w>, attempt: i64, started: Time) -> Wait {
        let of = format!("{} hook {}{}", part.phase.as_str(), hook.name, of_pod(part));
        let skip = format!("skip it with: {}", self.command("skip", hook, part));
        if let Some(approval) = &hook.approval {
            return Wait {
                reason: Reason::Approval,
                what: format!("{of} waits for an approval"),
                until: Some(started.plus_seconds(approval.timeout_seconds)),
                how: format!("approve it with: {}; or {skip}", self.command("approve", hook, part)),
            };
        }
        let seconds = hook.wait.as_ref().map_or(hook.timeout_seconds, |w| w.seconds);
        let counted = format!("{of}, attempt {attempt} of {}", hook.retries.saturating_add(1));
        let what = match hook.kind() {
            Some(Kind::PodGate(gate)) => {
                let all: Vec<&str> = gate.labels.keys().chain(&gate.finalizers).map(String::as_str).collect();
                let until = if part.phase == Phase::PrePod { "has none of" } else { "has all of" };
                format!("{of}: waits until the pod {until} {}", all.join(", "))
            }
            Some(Kind::WaitFor(wait)) => format!("{counted}: waits for {}", awaited(wait)),
            _ => counted,
        };
        // What runs elsewhere is bounded there.
        Wait { reason: Reason::HookRunning, what, until: Some(started.plus_seconds(seconds)), how: skip }
    }

    /// An attempt that has no result yet.
    fn open(&mut self, run: &'w Run, hook: &'w Hook, part: Part<'w>, step: &Step) -> Standing {
        let key = key(&run.uid, step);
        let waits = Standing::Waits(self.running(hook, part, step.attempt, step.started_at));
        if !self.stored.contains(&key) {
            return waits;
        }
        let by = |seconds: i64| self.now >= step.started_at.plus_seconds(seconds);
        let end = match hook.kind() {
            Some(Kind::Wait(wait)) => by(wait.seconds).then_some((StepOutcome::Succeeded, "Waited")),
            Some(Kind::Approval(approval)) => by(approval.timeout_seconds).then_some(match approval.on_timeout {
                OnTimeout::Fail => (StepOutcome::TimedOut, "NotApproved"),
                OnTimeout::Approve => (StepOutcome::Succeeded, "ApprovedByTimeout"),
            }),
            Some(Kind::PodGate(gate)) => {
                let open = part.pod.is_some_and(|pod| match part.phase {
                    Phase::PrePod => !any_present(gate, pod),
                    _ => all_present(gate, pod),
                });
                let in_time = by(hook.timeout_seconds).then_some((StepOutcome::TimedOut, "PodGateClosed"));
                if open { Some((StepOutcome::Succeeded, "PodGateOpen")) } else { in_time }
            }
            Some(_) | None => {
                let starts = |e: &Effect| matches!(e, Effect::StartHook(call) if call.key == key);
                if !self.w.attempts.contains_key(&key)
                    && !self.plan.effects.iter().any(starts)
                    && let Some(call) = self.call(run, hook)
                {
                    let call = self.hook_call(run, hook, part, step, call);
                    self.plan.effects.push(Effect::StartHook(Box::new(call)));
                }
                None
            }
        };
        match end {
            Some((outcome, reason)) => {
                self.end_step(hook, part, outcome, reason);
                self.hook(run, hook, part)
            }
            None => waits,
        }
    }

    fn failed(&mut self, run: &'w Run, hook: &'w Hook, part: Part<'w>, step: &Step) -> Standing {
        let of = format!("{} hook {}{}", part.phase.as_str(), hook.name, of_pod(part));
        if given_up(hook, step) {
            if hook.failure == HookFailure::Continue || part.phase == Phase::OnFailure {
                return Standing::Through;
            }
            return Standing::Failed(format!("{of} failed {} times, last: {}", step.attempt, step.reason));
        }
        let due = step.finished_at.unwrap_or(step.started_at).plus_millis(backoff_millis(hook, step.attempt, &run.uid));
        if self.now >= due {
            return self.begin_attempt(hook, part, step.attempt.saturating_add(1));
        }
        Standing::Waits(Wait {
            reason: Reason::HookBackoff,
            what: format!("next attempt of {of} (attempt {} failed: {})", step.attempt, step.reason),
            until: Some(due),
            how: format!("skip it with: {}", self.command("skip", hook, part)),
        })
    }

    /// What the controller does for an attempt; `None` where the plan itself decides.
    fn call(&self, run: &Run, hook: &Hook) -> Option<Call> {
        Some(match hook.kind()? {
            Kind::Http(http) => Call::Http(http.clone()),
            Kind::Job(job) => Call::Job(job.clone()),
            Kind::PrePull(hook) => {
                let images =
                    crate::classify::containers(&run.spec.new_template).into_values().map(|c| c.image).collect();
                let secrets = run.spec.new_template.json().pointer("/spec/imagePullSecrets");
                let secrets = secrets.and_then(serde_json::Value::as_array).into_iter().flatten();
                let name = |s: &serde_json::Value| s.get("name")?.as_str().map(ToOwned::to_owned);
                Call::PrePull {
                    hook: hook.clone(),
                    images,
                    pull_secrets: secrets.filter_map(name).collect(),
                    match_labels: self.d.match_labels.clone(),
                }
            }
            Kind::WaitFor(hook) => Call::WaitFor(hook.clone()),
            Kind::Patch(hook) => Call::Patch(hook.clone()),
            Kind::Wait(_) | Kind::PodGate(_) | Kind::Approval(_) => return None,
        })
    }

    pub(super) fn hook_call(&self, run: &Run, hook: &Hook, part: Part<'w>, step: &Step, call: Call) -> HookCall {
        HookCall {
            key: key(&run.uid, step),
            hook: hook.name.clone(),
            phase: part.phase,
            namespace: self.d.namespace.clone(),
            deployment: ObjectRef { name: self.d.name.clone(), uid: self.d.uid.clone() },
            attempt: step.attempt,
            run: ObjectRef { name: run.name.clone(), uid: run.uid.clone() },
            pod: part.pod.map(|p| ObjectRef { name: p.name.clone(), uid: p.uid.clone() }),
            call,
            timeout_seconds: hook.timeout_seconds,
            started_at: step.started_at,
            facts: self.facts(run, hook, part, step.attempt),
        }
    }

    /// What a receiver is told.
    fn facts(&self, run: &Run, hook: &Hook, part: Part<'w>, attempt: i64) -> serde_json::Value {
        let images = |t: &crate::template::Template| {
            crate::classify::containers(t)
                .into_iter()
                .map(|(name, c)| (name, serde_json::Value::String(c.image)))
                .collect::<serde_json::Map<_, _>>()
        };
        let mut facts = json!({
            "apiVersion": "interlock.dev/v1alpha1",
            "kind": "HookCall",
            "namespace": self.d.namespace,
            "deployment": self.d.name,
            "run": run.name,
            "runUID": run.uid,
            "hook": hook.name,
            "phase": part.phase.as_str(),
            "attempt": attempt,
            "images": images(&run.spec.new_template),
            "previousImages": run.spec.old_template.as_ref().map(images),
        });
        let mut add = |key: &str, value: serde_json::Value| {
            if let Some(facts) = facts.as_object_mut() {
                facts.insert(key.to_owned(), value);
            }
        };
        if let Some(pod) = part.pod {
            add("pod", json!({"name": pod.name, "uid": pod.uid, "node": pod.node, "ip": pod.ip}));
        }
        if let (Some(number), Some(stall)) = (part.failure, &self.status.stall) {
            add("failure", json!({"number": number, "reason": stall.reason, "message": stall.message}));
        }
        facts
    }
}

/// The facts of a call in this phase, by their paths; those of containers stand for all of them.
pub fn fact_names(phase: Phase) -> Vec<&'static str> {
    let mut names = vec![
        "apiVersion",
        "kind",
        "namespace",
        "deployment",
        "run",
        "runUID",
        "hook",
        "phase",
        "attempt",
        "images",
        "previousImages",
    ];
    if phase.of_pod() {
        names.extend(["pod", "pod.name", "pod.uid", "pod.node", "pod.ip"]);
    }
    if phase == Phase::OnFailure {
        names.extend(["failure", "failure.number", "failure.reason", "failure.message"]);
    }
    names
}

/// `Job nightly: condition Complete`.
fn awaited(hook: &WaitForHook) -> String {
    let condition = hook.condition.as_ref().map(|c| format!("condition {} {:?}", c.type_, c.status));
    let label = hook.label.as_ref().map(|l| match &l.value {
        Some(value) => format!("label {}={value}", l.key),
        None => format!("label {}", l.key),
    });
    let expression = hook.expression.clone();
    let parts: Vec<String> = [condition, label, expression].into_iter().flatten().collect();
    format!("{} {}: {}", hook.kind.resource().2, hook.name, parts.join(" and "))
}

fn of_pod(part: Part<'_>) -> String {
    part.pod.map(|p| format!(" of pod {}", p.name)).unwrap_or_default()
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
