//! What a held Deployment goes through.

use super::{Flow, GO, Planner, State, governance, history, patches, pods::Purpose, replicasets, running};
use crate::{
    api::{
        hook::Phase,
        names,
        policy::{Enforcement, IntOrPercent, Strategy, Update},
        run::{HookRunSpec, ObjectRef, Outcome, Owed, StepOutcome, Way, WayKind},
    },
    classify::{self, Class},
    effect::Effect,
    pod::clip,
    reason::Reason,
    select,
    world::ReplicaSet,
};

/// What a stall adds once its pods are back.
const PUT_BACK: &str = "; changed pods were put back to the template that ran";

impl<'w> Planner<'w> {
    pub(super) fn held(&mut self) -> Flow {
        let main = self.main_set();
        if let Some(what_runs) = self.back_to_what_runs(main) {
            return self.return_to(what_runs);
        }
        if self.run.is_none() {
            return self.begin(main);
        }
        if self.status.stall.is_some() {
            self.status.released_at = None; // a native roll that was frozen is held again
        }
        self.take_results();
        self.decisions();
        if self.status.ended.is_some() {
            return self.report(
                State::Ended,
                "the update was ended by decision; it stays held until the template changes".to_owned(),
            );
        }
        if self.orphan_released() {
            let because = "the policy was deleted, and its onDelete is Release";
            self.cancel_open_hooks(StepOutcome::Cancelled);
            // Once committed, the end of the hold waits for the barrier whatever its reason.
            if let Some(main) = main.filter(|m| self.status.commit.is_some() && m.template == self.d.template) {
                self.barrier(main)?;
                return self.release(because);
            }
            self.native_because(because);
            return self.release_natively();
        }
        self.replica_sets(main)?;
        self.user_pause()?;
        self.late_predecessors();
        self.on_failure();
        self.stalled_or_reverting(main)?;
        self.hold_limit()?;
        self.order_gate()?;
        if self.run.is_some_and(|r| r.spec.old_template.is_none()) && main.is_none() && !self.ran_once() {
            self.native_because("nothing runs yet");
            self.slot()?;
            return self.release_natively();
        }
        self.hooks(Phase::PreUpdate, State::PreHooks)?;
        let Some(main) = self.in_place(main) else {
            if self.strategy() == Strategy::InPlaceOnly
                && self.run.is_some_and(|r| r.spec.old_template.is_some())
                // With the ReplicaSet and its pods gone there is nothing to keep.
                && self.main_set().is_some()
            {
                let because = self.status.way.as_ref().map(|w| w.because.join("; ")).unwrap_or_default();
                return self.stall(Reason::NotInPlace, format!("the policy allows only updates in place: {because}"));
            }
            self.slot()?;
            return self.release_natively();
        };
        self.slot()?;
        let update = self.run.map(|r| r.spec.settings.update.clone()).unwrap_or_default();
        if main.template != self.d.template {
            self.pods(&self.d.template.clone(), main, &update, Purpose::Update)?;
            self.partitioned(&self.d.template.clone(), main, &update)?;
        }
        self.commit(main)?;
        self.barrier(main)?;
        self.after_barrier(main)?;
        self.history()?;
        self.release("updated in place")
    }

    /// The ReplicaSet that already runs what is wanted, if there is one: the one with pods, or any with available
    /// pods when there are several (a native roll that failed).
    fn back_to_what_runs(&self, main: Option<&'w ReplicaSet>) -> Option<&'w ReplicaSet> {
        // After our own commit the ReplicaSet equals the template too; that is the way forward, not back.
        if self.status.commit.is_some() {
            return None;
        }
        if self.run.is_some_and(|r| r.spec.old_template.is_none()) {
            return None;
        }
        // An update that was released (and has not failed since) runs already, if the template went away and came back.
        let released = self.status.released_at.is_some() && self.status.stall.is_none() && self.status.ended.is_none();
        let anew = self.run.is_none() || released;
        let active = self.active_sets();
        match active.as_slice() {
            // Of several equal ones the Deployment controller takes the oldest.
            [] => main.filter(|m| m.template == self.d.template && self.run.is_none()).and_then(|_| self.equal_set()),
            [only] => Some(*only)
                .filter(|s| s.template == self.d.template && (anew || main.is_some_and(|m| m.name == s.name))),
            // Not for the very roll that got stuck and was frozen.
            several => several.iter().copied().find(|s| anew && s.template == self.d.template && s.available > 0),
        }
    }

    /// Nothing is to be updated: no hooks, no gates. Pods that we have changed on the way go back first.
    fn return_to(&mut self, set: &'w ReplicaSet) -> Flow {
        if self.d.user_paused() && !self.touched_and_wrong(&self.d.template, set, &Update::default()) {
            return self.finish_return();
        }
        self.user_pause()?;
        let update = self.update_settings(set);
        // The Deployment controller takes the oldest equal one: an empty one before this would recreate everything.
        let older = self.sets().into_iter().find(|s| s.template == set.template);
        if let Some(older) = older.filter(|o| o.name != set.name && !running::active(self.w, o)) {
            return self.delete_set(older);
        }
        if self.active_sets().len() <= 1 {
            self.pods_of_this_target(set, &update)?;
            self.barrier(set)?;
            self.need_live()?;
            self.pods_of_this_target(set, &update)?;
        }
        self.finish_return()
    }

    fn pods_of_this_target(&mut self, set: &'w ReplicaSet, update: &Update) -> Flow {
        if self.touched_and_wrong(&self.d.template, set, update) {
            return self.pods(&self.d.template.clone(), set, update, Purpose::Repair);
        }
        GO
    }

    fn finish_return(&mut self) -> Flow {
        if self.run.is_some() && self.status.released_at.is_none() {
            self.end(Outcome::Returned);
        }
        self.need_live()?;
        let restore = self.governor(self.main_set()).ok().flatten().map(|g| g.settings.restore).unwrap_or_default();
        self.plan.effects.push(Effect::PatchDeployment {
            purpose: crate::effect::DeploymentPurpose::Release,
            patch: patches::release(self.d, &restore),
        });
        self.tell_restored(&restore);
        self.event(false, Reason::Returned, "the template is what runs: nothing to update, the hold ends".to_owned());
        self.report(State::Releasing, "the template is what runs: the hold ends".to_owned())
    }

    /// Has something run that nothing tells of any more? At 0 replicas and with `revisionHistoryLimit: 0` the Deployment
    /// controller may delete the last ReplicaSet before a run records it; its number stays on the Deployment.
    fn ran_once(&self) -> bool {
        self.d.annotations.contains_key(names::REVISION)
    }

    /// The update settings that apply without a run: of the governing policy, else of the last run.
    pub(super) fn update_settings(&mut self, main: &'w ReplicaSet) -> Update {
        if let Some(run) = self.run {
            return run.spec.settings.update.clone();
        }
        match self.governor(Some(main)) {
            Ok(Some(governor)) if governor.policy.is_some() || governor.name == names::BY_ANNOTATION => {
                governor.settings.update
            }
            // Also where the policy whose mark is there was deleted.
            Ok(_) | Err(_) => self.w.latest_run().map(|r| r.spec.settings.update.clone()).unwrap_or_default(),
        }
    }

    /// Held, and no run yet: make one, or say why not.
    fn begin(&mut self, main: Option<&'w ReplicaSet>) -> Flow {
        let governor = match self.governor(main) {
            Ok(Some(governor)) => governor,
            Ok(None) => return self.release("nothing governs this hold"),
            Err(invalid) => {
                let told = self.d.status.conditions.get(names::CONDITION_HELD);
                if told.is_none_or(|c| c.reason != invalid.reason.as_str() || c.message != invalid.message) {
                    self.event(true, invalid.reason, invalid.message.clone());
                }
                return self.wait(State::Held, invalid.reason, invalid.message, None, "correct what is named");
            }
        };
        let old = main.map(|m| &m.template).or_else(|| self.on_record().map(|(t, _)| t));
        if let (Some(policy), Some(old)) = (governor.policy, old)
            && let Ok(spec) = &policy.spec
            && !self.d.user_paused()
            && (spec.enforcement != Enforcement::Hold || !select::triggers(spec, old, &self.d.template))
            && self.d.own_hooks.is_none()
            && self.d.own_after.is_none()
        {
            self.event(
                false,
                Reason::NotTriggered,
                format!("HookPolicy {} does not ask for this change to be held", policy.name),
            );
            return self.release("the change does not count under the policy");
        }
        let reference = main.map(|set| self.reference(set)).or_else(|| self.on_record().and_then(|(_, r)| r.cloned()));
        let last = self.w.latest_run();
        let sequence = last.map_or(0, |r| r.spec.sequence).saturating_add(1);
        let mut settings = governor.settings;
        settings.audit = false;
        let spec = HookRunSpec {
            deployment: ObjectRef { name: self.d.name.clone(), uid: self.d.uid.clone() },
            policy: governor.policy.map(governance::reference),
            sequence,
            target: self.d.template.hash().to_owned(),
            new_template: self.d.template.clone(),
            old_template: old.cloned(),
            replica_set: reference,
            several: self.active_sets().len() > 1,
            owed: self.inherited(),
            settings,
            decisions: Vec::new(),
        };
        let name = patches::run_name(&self.d.name, &self.d.uid, &spec.target, sequence);
        self.plan.effects.push(Effect::CreateRun { name: name.clone(), spec: Box::new(spec) });
        self.report(State::Held, format!("held by {}; run {name} begins", governor.name))
    }

    /// Revisions that the runs before this one still owe to the history.
    fn inherited(&self) -> Vec<Owed> {
        let Some(last) = self.w.latest_run() else { return Vec::new() };
        if last.status.commit.as_ref().is_some_and(|c| c.history) {
            return Vec::new();
        }
        let mut owed = history::owed_by(&last.spec, &last.status);
        owed.retain(|o| o.template != self.d.template);
        owed.sort_by_key(|o| std::cmp::Reverse(o.revision));
        owed.truncate(replicasets::MOST_OWED);
        owed
    }

    /// At a stall: stop, or put pods back first where the policy says so.
    fn stalled_or_reverting(&mut self, main: Option<&'w ReplicaSet>) -> Flow {
        let Some(stall) = self.status.stall.clone() else { return GO };
        if let Some(main) =
            main.filter(|m| stall.reverting && m.template != self.d.template && self.status.commit.is_none())
        {
            let update = self.run.map(|r| r.spec.settings.update.clone()).unwrap_or_default();
            if self.touched_and_wrong(&main.template, main, &update) || self.any_moving(main, &update) {
                self.pods(&main.template.clone(), main, &update, Purpose::Repair)?;
            }
            if let Some(run) = self.run {
                self.undo_patches(run)?;
            }
            self.status.waiting_for = None;
            self.status.pods = None;
            if let Some(stall) = self.status.stall.as_mut().filter(|s| !s.message.ends_with(PUT_BACK)) {
                stall.message.push_str(PUT_BACK);
            }
            return self.stalled();
        }
        self.stalled()
    }

    fn any_moving(&self, main: &'w ReplicaSet, update: &Update) -> bool {
        running::pods_of(self.w, main).into_iter().any(|p| {
            p.baseline.is_some()
                && crate::pod::stage(p, false, self.d.min_ready_seconds, &update.tolerance, self.now)
                    != crate::pod::Stage::Done
        })
    }

    /// The policy as it is now counts, if it is still there: allowing what stalls the run is a way out of it.
    fn strategy(&self) -> Strategy {
        let now = self.own_policy().and_then(|p| p.spec.as_ref().ok()).map(|s| s.update.strategy);
        now.or_else(|| self.run.map(|r| r.spec.settings.update.strategy)).unwrap_or_default()
    }

    /// Decides the way and records it. `Some`: in place, on this ReplicaSet.
    fn in_place(&mut self, main: Option<&'w ReplicaSet>) -> Option<&'w ReplicaSet> {
        let run = self.run?;
        if let (Some(main), true) = (main, self.status.commit.is_some())
            && self.active_sets().iter().all(|s| s.name == main.name)
        {
            return Some(main); // beyond the point of choice
        }
        let mut because = Vec::new();
        let update = &run.spec.settings.update;
        let strategy = self.strategy();
        match main {
            None if self.d.replicas > 0 || run.spec.old_template.is_none() || self.status.commit.is_some() => {
                because.push("the ReplicaSet that ran is gone".to_owned());
            }
            None => because.push("the ReplicaSet that ran is gone, and no pods are wanted".to_owned()),
            Some(main) => {
                if self.active_sets().iter().any(|s| s.name != main.name) {
                    because.push("two ReplicaSets have pods".to_owned());
                }
                for change in classify::classify(&main.template, &self.d.template, &update.in_place_metadata) {
                    if change.class == Class::Recreate {
                        because.push(format!("{}: {}", change.path, change.why));
                    }
                }
            }
        }
        if self.d.replicas > 10_000 && run.spec.settings.hooks.iter().any(|h| h.phase.of_pod()) {
            because.push("hooks of single pods are recorded for at most 10000 pods".to_owned());
        }
        if strategy == Strategy::Native {
            because.push("the policy's update.strategy is Native".to_owned());
        }
        if update.max_unavailable.is_none() {
            if self.d.recreate {
                because.push(
                    "the Deployment's strategy is Recreate; set update.maxUnavailable in the policy to go in place"
                        .to_owned(),
                );
            }
            if matches!(&self.d.max_unavailable, Some(IntOrPercent::Int(0)))
                || self.d.max_unavailable == Some(IntOrPercent::Percent("0%".to_owned()))
            {
                because.push(
                    "the Deployment's maxUnavailable is 0; set update.maxUnavailable in the policy to go in place"
                        .to_owned(),
                );
            }
        }
        because.truncate(16);
        let because: Vec<String> = because.into_iter().map(|b| clip(&b, 500)).collect();
        let kind = if because.is_empty() { WayKind::InPlace } else { WayKind::Native };
        self.status.way = Some(Way { kind, because });
        main.filter(|_| kind == WayKind::InPlace)
    }

    fn native_because(&mut self, why: &str) {
        self.status.way = Some(Way { kind: WayKind::Native, because: vec![why.to_owned()] });
    }
}
