//! After the release: the Deployment controller's end, the last live look at the pods, PostUpdate hooks.

use super::{Flow, GO, Planner, STOP, State, patches, pods::Purpose, running::pods_of};
use crate::{
    api::{
        hook::Phase,
        names,
        policy::Update,
        run::{Outcome, PodCounts, StepOutcome, Way, WayKind},
    },
    effect::{DeploymentPurpose, Effect},
    planted::{Bug, planted},
    pod::{Stage, stage},
    reason::Reason,
    world::{ReplicaSet, Run},
};

/// Why it goes the native way when the hold was not ended by us.
const BY_OTHERS: &str = "somebody else ended the hold";

impl<'w> Planner<'w> {
    pub(super) fn finish(&mut self) -> Flow {
        let Some(run) = self.run else { return GO };
        if run.spec.settings.audit {
            return self.audited();
        }
        self.take_results();
        if self.status.released_at.is_none() {
            self.status.released_at = Some(self.now);
            self.status.waiting_for = None;
            // Whoever ended the hold of a run that stood still has decided that it goes on.
            let stalled = self.status.stall.take().is_some();
            if stalled
                || self.status.way.as_ref().is_none_or(|w| w.kind == WayKind::InPlace && !self.went_in_place(run))
            {
                self.status.way = Some(Way { kind: WayKind::Native, because: vec![BY_OTHERS.to_owned()] });
                self.cancel_open_hooks(StepOutcome::Cancelled);
                self.event(
                    true,
                    Reason::ReleasedByOther,
                    "the hold was ended by somebody else before its hooks were through".to_owned(),
                );
            }
        }
        self.decisions();
        self.on_failure();
        if self.status.ended.is_some() {
            if !self.complete() {
                // In the same pass: once the end is stored, nothing here looks at this run again.
                self.push_freeze(run);
            }
            return self.report(State::Ended, "the update was ended by decision".to_owned());
        }
        let update = run.spec.settings.update.clone();
        // A ReplicaSet controller that has not seen the commit still makes pods by the old template. It has when the hold
        // was ended by us; somebody else does not wait for the barrier.
        let behind = self.equal_set().is_some_and(|s| s.observed_generation < s.generation);
        if !self.complete() || behind && !planted(Bug::BarrierReplicaSetController) {
            return self.completing(&update);
        }
        if self.status.stall.as_ref().is_some_and(|s| s.reason != Reason::HookFailed.as_str()) {
            self.status.stall = None; // what was awaited has come true by itself
        }
        if let Some(set) = self.equal_set().filter(|_| !planted(Bug::LastLiveList)) {
            self.need_live()?;
            if self.touched_and_wrong(&self.d.template, set, &update) || self.untouched_and_wrong(set) {
                self.pods(&self.d.template.clone(), set, &update, Purpose::Repair)?;
            }
        }
        self.history()?;
        if let Some(set) = self.equal_set() {
            self.youngest(set)?; // at 0 replicas the history is younger than what runs
        }
        self.status.progress = None;
        self.status.pods = Some(PodCounts {
            desired: self.d.replicas,
            updated: self.d.status.updated,
            in_flight: 0,
            available: self.d.status.available,
            failing: Vec::new(),
        });
        self.stalled()?;
        if run.spec.old_template.is_some() {
            self.hooks(Phase::PostUpdate, State::PostHooks)?;
        }
        self.end(Outcome::Succeeded);
        let images: Vec<String> =
            crate::classify::containers(&self.d.template).into_values().map(|c| c.image).collect();
        self.event(
            false,
            Reason::Succeeded,
            format!("the update to {} succeeded (run {})", images.join(", "), run.name),
        );
        self.report(State::Ended, "the update succeeded".to_owned())
    }

    /// Does the ReplicaSet that counts now come from our commit, or did the Deployment controller make one of its own?
    fn went_in_place(&self, run: &Run) -> bool {
        let ours = |set: &ReplicaSet| {
            run.spec.replica_set.as_ref().is_some_and(|r| r.name == set.name)
                || pods_of(self.w, set).iter().any(|p| p.baseline.as_ref().is_some_and(|b| b.target == run.spec.target))
        };
        self.status.commit.is_some() && self.equal_set().is_some_and(ours)
    }

    /// kubectl's completion test (Kubernetes, `kubectl rollout status`).
    fn complete(&self) -> bool {
        let s = &self.d.status;
        s.observed_generation >= self.d.generation
            && s.updated == self.d.replicas
            && s.replicas == s.updated
            && s.available == s.updated
    }

    /// The ReplicaSet that the Deployment controller takes for its new one: the oldest that equals the template.
    pub(super) fn equal_set(&self) -> Option<&'w ReplicaSet> {
        self.w
            .replica_sets
            .iter()
            .filter(|s| s.template == self.d.template)
            .min_by_key(|s| (!super::running::active(self.w, s), s.created.whole_seconds(), &s.name))
    }

    /// A pod that shows an image of an older template of ours although its ReplicaSet shows the new one: made between
    /// the last look and the commit.
    fn untouched_and_wrong(&self, set: &'w ReplicaSet) -> bool {
        let Some(old) = self.run.and_then(|r| r.spec.old_template.as_ref()) else { return false };
        if self.status.commit.is_none() {
            return false;
        }
        let old = crate::classify::containers(old);
        let new = crate::classify::containers(&self.d.template);
        pods_of(self.w, set).into_iter().filter(|p| p.baseline.is_none()).any(|p| {
            p.containers.iter().any(|c| {
                new.get(&c.name).is_some_and(|n| n.image != c.image)
                    && old.get(&c.name).is_some_and(|o| o.image == c.image)
            })
        })
    }

    fn completing(&mut self, update: &Update) -> Flow {
        if self.d.paused {
            self.status.progress = None;
            return self.wait(
                State::UserPaused,
                Reason::UserPaused,
                "the Deployment is paused by its user".to_owned(),
                None,
                &format!("kubectl rollout resume deploy/{}", self.d.name),
            );
        }
        if self.status.stall.is_some() {
            return self.freeze();
        }
        if let Some(set) = self.wedged() {
            self.plan.effects.push(Effect::PatchReplicaSet {
                name: set.name.clone(),
                patch: patches::desired_replicas(set, self.d.replicas),
            });
        }
        let set = self.equal_set();
        let pods = set.map(|s| pods_of(self.w, s)).unwrap_or_default();
        let available = set.map_or(0, |s| s.available);
        self.advance(available);
        self.status.pods = Some(PodCounts {
            desired: self.d.replicas,
            updated: available,
            in_flight: self.d.status.replicas.saturating_sub(available).max(0),
            available: self.d.status.available,
            failing: Vec::new(),
        });
        for pod in pods {
            match self.judged(stage(pod, false, self.d.min_ready_seconds, &update.tolerance, self.now)) {
                Stage::Moving { failing: Some(why), .. } => {
                    let _ = self.stall(Reason::PodFailing, format!("pod {}: {why}", pod.name));
                    return self.freeze();
                }
                Stage::Moving { wake: Some(wake), .. } => self.wake(wake),
                Stage::Moving { .. } | Stage::Old { .. } | Stage::Done => {}
            }
        }
        let what = format!("{available} of {} pods of the new template are available", self.d.replicas);
        let reason = match &self.d.status.replica_failure {
            Some(message) if message.contains("quota") => Reason::QuotaExceeded,
            Some(_) | None => Reason::DeadlineExceeded,
        };
        if self.deadline(update, true, reason, &what).is_break() {
            return self.freeze();
        }
        let until = self.deadline_at(update, true);
        self.wait(State::Finishing, Reason::Completing, what, until, "")
    }

    /// The ReplicaSet by which the Deployment controller would only ever scale, and never roll: the only one with replicas has as
    /// many as are wanted, but says by its annotation that another number was wanted when they were given to it. The controller
    /// takes this for a change of scale, finds nothing to scale, and leaves it as it is, for ever (Kubernetes 1.37,
    /// `isScalingEvent` and `scale` in `pkg/controller/deployment`).
    fn wedged(&self) -> Option<&'w ReplicaSet> {
        let scaled: Vec<&'w ReplicaSet> = self.sets().into_iter().filter(|s| s.replicas > 0).collect();
        let [only] = scaled.as_slice() else { return None };
        let number = only.annotations.get(names::DESIRED_REPLICAS)?.parse::<i64>().ok()?;
        let seen = self.d.status.observed_generation >= self.d.generation;
        let stuck = only.template != self.d.template && only.replicas == self.d.replicas && number != self.d.replicas;
        (seen && stuck && !planted(Bug::StaleDesiredReplicas)).then_some(*only)
    }

    /// A native roll stops: paused, as a hold. The stall is stored first, so that the pause is explained whatever
    /// happens in between.
    fn freeze(&mut self) -> Flow {
        let Some(run) = self.run else { return STOP };
        // Where the policy is gone and says that nothing is to stay held, or somebody has ended the hold against us, the
        // standstill is only reported.
        let by_others = self.status.way.as_ref().is_some_and(|w| w.because.iter().any(|b| b == BY_OTHERS));
        if run.status.stall.is_some() && !self.orphan_released() && !by_others {
            self.push_freeze(run);
        }
        let message = self.status.stall.as_ref().map(|s| format!("{}: {}", s.reason, s.message)).unwrap_or_default();
        self.status.waiting_for = None;
        self.on_failure();
        self.report(State::Stalled, message)
    }

    fn push_freeze(&mut self, run: &Run) {
        let by = run.spec.policy.as_ref().map_or(names::BY_ANNOTATION, |p| p.name.as_str());
        self.plan
            .effects
            .push(Effect::PatchDeployment { purpose: DeploymentPurpose::Freeze, patch: patches::freeze(self.d, by) });
    }
}
