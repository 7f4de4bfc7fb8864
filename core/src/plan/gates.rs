//! What has to be before an update may begin: the user's pause, the order, a free slot, and a limit on being held.

use super::{Flow, GO, Planner, STOP, State};
use crate::{
    api::{
        names,
        policy::{Failure, OldPods, OnDelete, OnGateTimeout},
        reference::Reference,
        run::{Stall, StepOutcome, WayKind},
    },
    order::{self, Terms},
    pod::clip,
    reason::Reason,
    world::Policy,
};

impl Planner<'_> {
    /// Stops at a stall until a decision or a new template ends it.
    pub(super) fn stalled(&mut self) -> Flow {
        match &self.status.stall {
            None => GO,
            Some(stall) => {
                let message = format!("{}: {}", stall.reason, stall.message);
                self.status.waiting_for = None;
                self.on_failure();
                self.report(State::Stalled, message)
            }
        }
    }

    /// The run stands still from here on.
    pub(super) fn stall(&mut self, reason: Reason, message: String) -> Flow {
        let Some(run) = self.run else { return STOP };
        let message = clip(message, 1500);
        let in_place = self.status.way.as_ref().is_some_and(|w| w.kind == WayKind::InPlace);
        let reverting = run.spec.settings.update.failure == Failure::Revert
            && in_place
            && self.status.commit.is_none()
            && self.d.held();
        self.status.stall =
            Some(Stall { since: self.now, reason: reason.as_str().to_owned(), message: message.clone(), reverting });
        self.status.failures = self.status.failures.saturating_add(1);
        if reverting {
            // Pods that are put back run no hooks.
            self.cancel_steps(StepOutcome::Cancelled, |s| s.phase.of_pod());
        }
        self.event(true, reason, format!("{message}; see: kubectl interlock explain deploy/{}", self.d.name));
        self.stalled()
    }

    /// The user's own pause, and the emergency stop: nothing is done while it lasts, and no clock runs.
    pub(super) fn user_pause(&mut self) -> Flow {
        if !self.d.user_paused() {
            let paused = self.status.waiting_for.as_ref().filter(|w| w.reason == Reason::UserPaused.as_str());
            if let Some(since) = paused.map(|w| w.since) {
                self.clocks_stood(since);
            }
            return GO;
        }
        self.status.progress = None;
        let how =
            format!("kubectl rollout resume deploy/{}, or annotate it with interlock.dev/resume=true", self.d.name);
        self.wait(State::UserPaused, Reason::UserPaused, "the Deployment is paused by its user".to_owned(), None, &how)
    }

    /// Held for longer than the policy allows.
    pub(super) fn hold_limit(&mut self) -> Flow {
        let Some(run) = self.run else { return GO };
        let limit = run.spec.settings.max_hold_seconds;
        let person = self.status.waiting_for.as_ref().is_some_and(|w| w.reason == Reason::Approval.as_str());
        if limit <= 0 || self.status.way.is_some() || person {
            return GO;
        }
        let until = self.status.resumed_at.unwrap_or(run.created).plus_seconds(limit);
        if until > self.now {
            self.wake(until);
            return GO;
        }
        self.stall(Reason::HoldTooLong, format!("held for more than {limit} seconds (maxHoldSeconds)"))
    }

    /// The policy that made the run, if it still exists.
    pub(super) fn own_policy(&self) -> Option<&Policy> {
        let reference = self.run?.spec.policy.as_ref()?;
        self.w.policies.iter().find(|p| p.uid == reference.uid)
    }

    /// The policy was deleted and says that what it holds is released.
    pub(super) fn orphan_released(&self) -> bool {
        self.run.is_some_and(|run| {
            run.spec.policy.is_some() && run.spec.settings.on_delete == OnDelete::Release && self.own_policy().is_none()
        })
    }

    /// Predecessors that have not settled, each with the reason.
    fn unsettled(&mut self) -> Vec<String> {
        let Some(run) = self.run else { return Vec::new() };
        let settings = &run.spec.settings;
        let terms = Terms {
            settle_seconds: settings.settle_seconds,
            release: settings.same_release.as_ref().and_then(|key| Terms::release_of(&self.d.template, key)),
            old_pods_gone: settings.old_pods == OldPods::Wait,
        };
        let mut waits = Vec::new();
        let named: Vec<&String> = settings.after.iter().filter(|text| self.still_named(text)).collect();
        for text in named {
            let reference: Reference = match text.parse() {
                Ok(reference) => reference,
                Err(why) => {
                    waits.push(why);
                    continue;
                }
            };
            let predecessor = self.w.components.get(&reference).and_then(Option::as_ref);
            if let Err(unsettled) = order::met(predecessor, &terms, self.now) {
                if let Some(wake) = unsettled.wake {
                    self.wake(wake);
                }
                waits.push(format!("{reference} {}", unsettled.why));
            }
        }
        if !waits.is_empty() && !self.w.cycle.is_empty() {
            waits.push(format!("{} wait for each other", self.w.cycle.join(" -> ")));
        }
        waits
    }

    /// Is this still to be waited for? What was taken out of the order and of the annotation since the run began is not: that is
    /// how a circle or a name that never comes is put right. An annotation that is gone altogether says nothing, since an undo
    /// drops it; neither does a policy that is gone.
    fn still_named(&self, text: &str) -> bool {
        let Some(run) = self.run else { return true };
        let named = |after: &[String]| {
            after.iter().any(|other| other.parse::<Reference>().map_or(other == text, |r| r.to_string() == text))
        };
        let of_policy = self.own_policy().map(|policy| {
            // One that cannot be read lets nothing go.
            policy.spec.as_ref().map_or(true, |spec| {
                spec.order.iter().any(|component| component.name == self.d.name && named(&component.after))
            })
        });
        let of_annotation = self.d.own_after.as_deref().map(named);
        match (of_policy, of_annotation) {
            (Some(policy), Some(annotation)) => policy || annotation,
            (Some(policy), None) => policy || run.spec.settings.restore.contains_key(names::AFTER),
            (None, Some(annotation)) => annotation || run.spec.policy.is_some(),
            (None, None) => true,
        }
    }

    /// A run that stalled because its predecessors were late goes on when they have settled after all: nothing was touched.
    pub(super) fn late_predecessors(&mut self) {
        let late = self.status.stall.as_ref().is_some_and(|s| s.reason == Reason::GateTimeout.as_str());
        if late && self.unsettled().is_empty() {
            self.status.stall = None;
            self.status.order_passed = true;
            self.status.resumed_at = Some(self.now);
        }
    }

    /// Every predecessor has settled. Once passed it is not asked again in this run.
    pub(super) fn order_gate(&mut self) -> Flow {
        let Some(run) = self.run else { return GO };
        if self.status.order_passed {
            return GO;
        }
        let waits = self.unsettled();
        if waits.is_empty() {
            self.status.order_passed = true;
            return GO;
        }
        let what = format!("waiting for predecessors: {}", waits.join("; "));
        let limit = run.spec.settings.gate_timeout_seconds;
        let until = (limit > 0).then(|| self.waiting_since(Reason::Predecessor).plus_seconds(limit));
        if until.is_some_and(|until| until <= self.now) {
            let message = format!("{what}; that took longer than {limit} seconds (gateTimeoutSeconds)");
            match run.spec.settings.on_gate_timeout {
                OnGateTimeout::Stall => return self.stall(Reason::GateTimeout, message),
                OnGateTimeout::Proceed => {
                    self.event(true, Reason::GateTimeout, format!("{message}; going on without them (onGateTimeout)"));
                    self.status.order_passed = true;
                    return GO;
                }
            }
        }
        if let Some(until) = until {
            self.wake(until);
        }
        let how = format!("start without it: kubectl interlock skip deploy/{} --gate order", self.d.name);
        self.wait(State::Gate, Reason::Predecessor, what, until, &how)
    }

    /// One of the policy's slots. An update that is under way keeps its own.
    pub(super) fn slot(&mut self) -> Flow {
        let Some(run) = self.run else { return GO };
        let Some(policy) = &run.spec.policy else { return GO };
        let busy = self.w.busy.get(&policy.name).copied().unwrap_or(0);
        let most = run.spec.settings.max_concurrent_updates.max(1);
        if busy < most || self.holds_slot() {
            return GO;
        }
        let what = format!(
            "{busy} other updates of HookPolicy {} are in progress, {most} are allowed at the same time",
            policy.name
        );
        self.wait(State::Gate, Reason::Slot, what, None, "raise spec.maxConcurrentUpdates of the policy, or wait")
    }

    fn holds_slot(&self) -> bool {
        self.run.is_some_and(|run| super::status::holds_slot(&run.status.conditions))
    }
}
