//! The outcome of a plan as conditions, the status to store, and what is mirrored to the Deployment.

use std::collections::BTreeMap;

use super::{Plan, Planner, State, StatusWrite};
use crate::{
    api::{
        condition::{self, Condition, Status},
        hook::Phase,
        names,
        run::{Ended, HookRunStatus, Outcome, StepOutcome, WayKind},
    },
    effect::{Effect, Mirror},
    pod::clip,
    reason::Reason,
    world::Run,
};

/// Reasons of condition `Updated` (status False) of a run that holds one of its policy's slots.
pub const SLOT_REASONS: [&str; 3] =
    [Reason::Updating.as_str(), Reason::Committing.as_str(), Reason::Completing.as_str()];

/// Types of the conditions of a run.
pub mod conditions {
    /// Is the Deployment held for this run?
    pub const HELD: &str = "Held";
    /// Are the PreUpdate hooks through?
    pub const PRE_HOOKS: &str = "PreHooksSucceeded";
    /// Do all pods run the new template?
    pub const UPDATED: &str = "Updated";
    /// Are the PostUpdate hooks through?
    pub const POST_HOOKS: &str = "PostHooksSucceeded";
    /// Is there something that this way of the update cannot do? Only there if so.
    pub const LIMITED: &str = "Limited";
    /// Did the whole run succeed?
    pub const SUCCEEDED: &str = "Succeeded";
    /// Is it working or waiting? (kstatus)
    pub const RECONCILING: &str = "Reconciling";
    /// Does it stand still? (kstatus)
    pub const STALLED: &str = "Stalled";
}

/// Does a run with these conditions hold a slot of its policy?
pub(super) fn holds_slot(all: &[Condition]) -> bool {
    condition::find(all, conditions::UPDATED)
        .is_some_and(|c| c.status == Status::False && SLOT_REASONS.contains(&c.reason.as_str()))
}

impl<'w> Planner<'w> {
    /// The run has ended.
    pub(super) fn end(&mut self, outcome: Outcome) {
        let unheld = outcome == Outcome::Superseded && !self.d.held();
        self.status.ended = Some(Ended { at: self.now, outcome, unheld });
        self.status.waiting_for = None;
        self.status.progress = None;
        self.cancel_open_hooks(match outcome {
            Outcome::Superseded => StepOutcome::Superseded,
            Outcome::Succeeded | Outcome::Returned | Outcome::Aborted | Outcome::Audited => StepOutcome::Cancelled,
        });
        if outcome != Outcome::Aborted {
            self.status.stall = None;
        }
    }

    /// The status of another run that has ended by what happens to this Deployment.
    pub(super) fn ended_status(&self, run: &'w Run, outcome: Outcome) -> HookRunStatus {
        let mut other = Planner::of(self.w, Some(run), run.status.clone());
        other.end(outcome);
        other.set_conditions(run);
        other.status
    }

    /// Completes the plan: conditions, comparison with what is stored, mirror.
    pub(super) fn finished(mut self) -> Plan {
        self.plan.report.waiting_for = self.status.waiting_for.clone();
        self.plan.report.way = self.status.way.clone();
        self.plan.report.run = self.run.map(|r| r.name.clone());
        if self.plan.look_live {
            let report = std::mem::take(&mut self.plan.report);
            return Plan { look_live: true, report, ..Plan::default() };
        }
        self.tidy_pods();
        self.leave_out_refused();
        if let Some(run) = self.run {
            self.say_limits(run);
            self.set_conditions(run);
            if self.status != run.status {
                let urgent = !only_counters(&run.status, &self.status);
                self.plan.status = Some(StatusWrite {
                    run: run.name.clone(),
                    resource_version: run.resource_version.clone(),
                    status: self.status.clone(),
                    urgent,
                });
            }
        }
        self.mirror();
        self.plan
    }

    /// What the API server has refused is not asked again before the object changes or some time has passed: neither it
    /// nor what stands after it, nor a status that speaks as if it were done.
    fn leave_out_refused(&mut self) {
        let refusal = |e: &Effect| e.subject().and_then(|s| self.w.refusals.get_key_value(&s));
        let first = self.plan.effects.iter().enumerate().find_map(|(at, e)| refusal(e).map(|r| (at, r)));
        let Some((at, (subject, message))) = first else { return };
        self.plan.effects.truncate(at);
        self.status = self.run.map(|r| r.status.clone()).unwrap_or_default();
        let what = format!("the API server refuses a write ({subject}): {message}");
        let how = "remove what refuses it; it is tried again every five minutes";
        let state = if self.d.held() { State::Held } else { State::Finishing };
        let _ = self.wait(state, Reason::Refused, what, None, how);
    }

    fn set_conditions(&mut self, run: &Run) {
        let generation = Some(run.generation);
        let now = self.now;
        let entries = self.entries(run);
        self.status.observed_generation = generation;
        for (type_, status, reason, message) in entries {
            condition::set(
                &mut self.status.conditions,
                Condition {
                    type_: type_.to_owned(),
                    status,
                    observed_generation: generation,
                    last_transition_time: now,
                    reason: reason.as_str().to_owned(),
                    message: clip(&message, 1500),
                },
            );
        }
    }

    fn entries(&self, run: &Run) -> Vec<(&'static str, Status, Reason, String)> {
        let s = &self.status;
        let outcome = s.ended.as_ref().map(|e| e.outcome);
        let state = self.plan.report.state;
        let held = self.d.held()
            && s.released_at.is_none()
            && !matches!(
                outcome,
                Some(Outcome::Superseded | Outcome::Returned | Outcome::Succeeded | Outcome::Audited)
            );
        let stalled =
            state == State::Stalled || outcome == Some(Outcome::Aborted) || (s.stall.is_some() && outcome.is_none());
        let waiting = s.waiting_for.as_ref().map(|w| w.what.clone()).unwrap_or_default();
        let mut all = vec![if held {
            (
                conditions::HELD,
                Status::True,
                Reason::Held,
                "nothing of the new template starts before its turn".to_owned(),
            )
        } else {
            (conditions::HELD, Status::False, Reason::Released, String::new())
        }];
        all.push(self.hooks_entry(run, Phase::PreUpdate, conditions::PRE_HOOKS));
        all.push(self.updated_entry(outcome, state));
        all.push(self.hooks_entry(run, Phase::PostUpdate, conditions::POST_HOOKS));
        if let Some((reason, message)) = &self.limited {
            all.push((conditions::LIMITED, Status::True, *reason, message.clone()));
        }
        all.push(match outcome {
            Some(Outcome::Succeeded) => (conditions::SUCCEEDED, Status::True, Reason::Succeeded, String::new()),
            Some(Outcome::Superseded) => (
                conditions::SUCCEEDED,
                Status::False,
                Reason::Superseded,
                "a newer template replaced this update".to_owned(),
            ),
            Some(Outcome::Returned) => (
                conditions::SUCCEEDED,
                Status::False,
                Reason::Returned,
                "the template went back to what runs".to_owned(),
            ),
            Some(Outcome::Aborted) => {
                (conditions::SUCCEEDED, Status::False, Reason::Aborted, "ended by decision".to_owned())
            }
            Some(Outcome::Audited) => {
                (conditions::SUCCEEDED, Status::Unknown, Reason::Audited, "nothing was held".to_owned())
            }
            None => match &s.stall {
                Some(stall) => {
                    (conditions::SUCCEEDED, Status::False, stall_reason(&stall.reason), stall.message.clone())
                }
                None => (conditions::SUCCEEDED, Status::Unknown, Reason::InProgress, String::new()),
            },
        });
        all.push(if outcome.is_none() && !stalled {
            let reason = s.waiting_for.as_ref().map_or(Reason::InProgress, |w| stall_reason(&w.reason));
            // The text of a wait may count pods; it stands in waitingFor and is not written here again and again.
            let message =
                if matches!(reason, Reason::Updating | Reason::Completing) { String::new() } else { waiting.clone() };
            (conditions::RECONCILING, Status::True, reason, message)
        } else {
            (
                conditions::RECONCILING,
                Status::False,
                if stalled { Reason::InProgress } else { Reason::Released },
                String::new(),
            )
        });
        all.push(match (&s.stall, stalled) {
            (Some(stall), true) => (
                conditions::STALLED,
                Status::True,
                stall_reason(&stall.reason),
                format!("{}; {}", stall.message, exits(&stall.reason, &self.d.name)),
            ),
            (None, true) if outcome == Some(Outcome::Aborted) => {
                (conditions::STALLED, Status::True, Reason::Aborted, "a new template or an undo goes on".to_owned())
            }
            (None, true) => (
                conditions::STALLED,
                Status::True,
                s.waiting_for.as_ref().map_or(Reason::InProgress, |w| stall_reason(&w.reason)),
                waiting,
            ),
            (_, false) => (conditions::STALLED, Status::False, Reason::InProgress, String::new()),
        });
        all
    }

    /// What cannot be done is said in a condition, and once in an event.
    fn say_limits(&mut self, run: &Run) {
        let pods: Vec<&str> =
            run.spec.settings.hooks.iter().filter(|h| h.phase.of_pod()).map(|h| h.name.as_str()).collect();
        let native = self.status.way.as_ref().is_some_and(|w| w.kind == WayKind::Native);
        let goes = self.status.released_at.is_some() && self.status.ended.is_none();
        if native && goes && !pods.is_empty() && run.spec.old_template.is_some() {
            let message = format!(
                "the Deployment controller recreates the pods, so hooks of single pods do not run: {}",
                pods.join(", ")
            );
            self.limited = Some((Reason::PodHooksSkipped, message));
        }
        let Some((reason, message)) = self.limited.clone() else { return };
        let said = condition::find(&run.status.conditions, conditions::LIMITED);
        if said.is_none_or(|c| c.reason != reason.as_str()) {
            self.event(true, reason, message);
        } else if let (Some(said), true) = (said, reason == Reason::NoReadinessGate) {
            // The first pods that were seen without are as good as those that come after.
            self.limited = Some((reason, said.message.clone()));
        }
    }

    fn hooks_entry(&self, run: &Run, phase: Phase, type_: &'static str) -> (&'static str, Status, Reason, String) {
        let hooks: Vec<_> = run.spec.settings.hooks.iter().filter(|h| h.phase == phase).collect();
        if hooks.is_empty() || run.spec.old_template.is_none() {
            return (type_, Status::True, Reason::NoHooks, String::new());
        }
        let last = |name: &str| self.status.steps.iter().rev().find(|s| s.hook == name && s.phase == phase);
        let mut begun = false;
        for hook in &hooks {
            let Some(step) = last(&hook.name) else {
                let reason = if begun { Reason::HookRunning } else { Reason::Pending };
                return (type_, Status::Unknown, reason, String::new());
            };
            begun = true;
            match step.outcome {
                Some(StepOutcome::Succeeded | StepOutcome::Skipped) => {}
                None if hook.approval.is_some() => {
                    return (type_, Status::Unknown, Reason::Approval, format!("hook {} waits", hook.name));
                }
                None => return (type_, Status::Unknown, Reason::HookRunning, format!("hook {} runs", hook.name)),
                Some(StepOutcome::Cancelled | StepOutcome::Superseded) => {
                    return (type_, Status::False, Reason::Cancelled, format!("hook {} was cancelled", hook.name));
                }
                Some(StepOutcome::Failed | StepOutcome::TimedOut) => {
                    let last_word = super::steps::given_up(hook, step);
                    if last_word && hook.failure == crate::api::hook::HookFailure::Continue {
                        continue;
                    }
                    let status = if last_word { Status::False } else { Status::Unknown };
                    let reason = if last_word { Reason::HookFailed } else { Reason::HookBackoff };
                    return (type_, status, reason, format!("hook {}: {}", hook.name, step.reason));
                }
            }
        }
        (type_, Status::True, Reason::Succeeded, String::new())
    }

    fn updated_entry(&self, outcome: Option<Outcome>, state: State) -> (&'static str, Status, Reason, String) {
        let no = |reason: Reason, message: String| (conditions::UPDATED, Status::False, reason, message);
        let way = self.status.way.as_ref();
        let because = way.map(|w| w.because.join("; ")).unwrap_or_default();
        match (outcome, state) {
            (Some(Outcome::Succeeded), _) | (None, State::PostHooks) => {
                let message = match way.map(|w| w.kind) {
                    Some(WayKind::InPlace) => "in place".to_owned(),
                    Some(WayKind::Native) => format!("by the Deployment controller: {because}"),
                    None => String::new(),
                };
                (conditions::UPDATED, Status::True, Reason::Succeeded, message)
            }
            (Some(Outcome::Superseded), _) => no(Reason::Superseded, String::new()),
            (Some(Outcome::Returned), _) => no(Reason::Returned, String::new()),
            (Some(Outcome::Aborted), _) => no(Reason::Aborted, String::new()),
            (Some(Outcome::Audited), _) => (conditions::UPDATED, Status::Unknown, Reason::Audited, because),
            (None, State::Stalled)
                if self.status.released_at.is_some()
                    && self.status.stall.as_ref().is_some_and(|s| s.reason == Reason::HookFailed.as_str())
                    && !self.d.held() =>
            {
                (conditions::UPDATED, Status::True, Reason::Succeeded, String::new())
            }
            (None, State::Updating) => match self.status.waiting_for.as_ref().map(|w| stall_reason(&w.reason)) {
                Some(
                    reason @ (Reason::Partitioned
                    | Reason::Budget
                    | Reason::QuotaExceeded
                    | Reason::BudgetImpossible
                    | Reason::Approval),
                ) => no(reason, String::new()),
                _ => no(Reason::Updating, String::new()),
            },
            (None, State::Committing) => no(Reason::Committing, String::new()),
            (None, State::Releasing | State::Finishing) => no(Reason::Completing, because),
            (None, State::Stalled) => no(
                self.status.stall.as_ref().map_or(Reason::BarrierTimeout, |s| stall_reason(&s.reason)),
                String::new(),
            ),
            (None, State::AtRest | State::Held | State::UserPaused | State::Gate | State::PreHooks | State::Ended) => {
                no(Reason::Pending, String::new())
            }
        }
    }

    /// Our conditions in the Deployment's status; only where they say something new.
    fn mirror(&mut self) {
        let d = self.d;
        let ended_release = self.plan.effects.iter().any(|e| matches!(e, Effect::PatchDeployment { .. }));
        let mut want: BTreeMap<&'static str, (Status, Reason, String)> = BTreeMap::new();
        let word = format!("see: kubectl interlock explain deploy/{}", d.name);
        if let Some(message) = self.missed.take() {
            want.insert(names::CONDITION_HELD, (Status::False, Reason::MissedHold, message));
        } else if d.held() && !ended_release {
            let entry = match (&self.status.stall, self.run, self.status.waiting_for.as_ref()) {
                (Some(stall), _, _) => {
                    (Status::True, stall_reason(&stall.reason), format!("{}; {word}", stall.message))
                }
                (None, None, Some(w)) => (Status::True, stall_reason(&w.reason), w.what.clone()),
                (None, Some(_), Some(w))
                    if matches!(stall_reason(&w.reason), Reason::Predecessor | Reason::UserPaused) =>
                {
                    (Status::True, stall_reason(&w.reason), word)
                }
                (None, _, _) => (Status::True, Reason::Held, word),
            };
            want.insert(names::CONDITION_HELD, entry);
        } else if !d.held() && d.status.conditions.get(names::CONDITION_HELD).is_some_and(|c| c.status == Status::True)
        {
            want.insert(names::CONDITION_HELD, (Status::False, Reason::Released, String::new()));
        }
        if let Some(run) = self.run {
            let entry = match self.status.ended.as_ref().map(|e| e.outcome) {
                Some(Outcome::Succeeded) => Some((Status::True, Reason::Succeeded, format!("run {}", run.name))),
                Some(Outcome::Aborted) => Some((Status::False, Reason::Aborted, format!("run {}", run.name))),
                Some(Outcome::Returned | Outcome::Superseded | Outcome::Audited) => None,
                None => Some(match &self.status.stall {
                    Some(stall) => {
                        (Status::False, stall_reason(&stall.reason), format!("run {}: {}", run.name, stall.message))
                    }
                    None => (Status::Unknown, Reason::InProgress, format!("run {}", run.name)),
                }),
            };
            if let Some(entry) = entry {
                want.insert(names::CONDITION_SUCCEEDED, entry);
            }
        } else if !d.held()
            && let Some(last) = self.w.latest_run()
            && let Some(shown) = d.status.conditions.get(names::CONDITION_SUCCEEDED)
        {
            let entry = match last.status.ended.as_ref().map(|e| e.outcome) {
                Some(Outcome::Returned)
                    if shown.status == Status::Unknown
                        || shown.reason != Reason::Returned.as_str() && shown.status == Status::False =>
                {
                    let message = format!("run {}: the template went back to what runs", last.name);
                    Some((Status::True, Reason::Returned, message))
                }
                // The one write without a precondition on what it replaces: an earlier one may arrive last.
                Some(Outcome::Succeeded) if shown.status != Status::True => {
                    Some((Status::True, Reason::Succeeded, format!("run {}", last.name)))
                }
                _ => None,
            };
            if let Some(entry) = entry {
                want.insert(names::CONDITION_SUCCEEDED, entry);
            }
        }
        let changed: BTreeMap<String, Mirror> = want
            .into_iter()
            .map(|(type_, (status, reason, message))| (type_, status, reason, clip(&message, 1000)))
            .filter(|(type_, status, reason, message)| {
                d.status
                    .conditions
                    .get(*type_)
                    .is_none_or(|c| c.status != *status || c.reason != reason.as_str() || c.message != *message)
            })
            .map(|(type_, status, reason, message)| {
                let since = self.now.whole_seconds();
                (type_.to_owned(), Mirror { status, reason: reason.as_str().to_owned(), message, since })
            })
            .collect();
        if !changed.is_empty() {
            self.plan.effects.push(Effect::MirrorConditions { conditions: changed });
        }
    }
}

/// The reason that a stored word stands for.
fn stall_reason(word: &str) -> Reason {
    Reason::parse(word).unwrap_or(Reason::InProgress)
}

/// Every stall can be left; how depends on what it is.
fn exits(reason: &str, deployment: &str) -> String {
    let more = match Reason::parse(reason) {
        Some(Reason::HookFailed) => "retry|skip|abort|undo",
        Some(Reason::TooManyPods) => "abort|undo (or take the hooks of single pods out of the policy)",
        Some(Reason::BudgetImpossible) => "retry|skip --gate budget|abort|undo",
        Some(Reason::NotInPlace) => "abort|undo (or allow it in the policy's update.strategy, then retry)",
        _ => "retry|abort|undo",
    };
    format!("exits: a new template, kubectl interlock {more} deploy/{deployment}")
}

/// Did only numbers and texts about pods move?
fn only_counters(old: &HookRunStatus, new: &HookRunStatus) -> bool {
    let mut same = new.clone();
    same.pods.clone_from(&old.pods);
    same.progress.clone_from(&old.progress);
    if let (Some(a), Some(b)) = (&mut same.waiting_for, &old.waiting_for)
        && a.reason == b.reason
    {
        a.clone_from(b);
    }
    same == *old
}
