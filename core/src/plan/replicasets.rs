//! What has to be true of ReplicaSets while a Deployment is held or has no pods.
//!
//! The Deployment controller (Kubernetes 1.36, 1.37) takes the **oldest** ReplicaSet that equals the template for its
//! new one, and scales the **youngest** one when none has pods, paused or not. Both must not start anything by surprise.

use std::collections::BTreeMap;

use super::{
    Flow, GO, Planner, State, patches,
    running::{active, age},
};
use crate::{
    api::{
        names,
        run::{Owed, ReplicaSetRef, WayKind},
    },
    effect::{Effect, ReplicaSetPurpose},
    planted::{Bug, planted},
    reason::Reason,
    template::Template,
    world::{ReplicaSet, Run},
};

/// Revisions that a run remembers at most. Templates can be large and an object cannot.
pub(super) const MOST_OWED: usize = 10;

/// A ReplicaSet's annotations that may be copied to another one.
pub(super) fn own_annotations(set: &ReplicaSet) -> BTreeMap<String, String> {
    set.annotations
        .iter()
        .filter(|(key, _)| {
            !names::is_mark(key) && !key.starts_with(names::DEPLOYMENT_PREFIX) && *key != names::LAST_APPLIED
                || planted(Bug::StaleDesiredReplicas) && *key == names::DESIRED_REPLICAS
        })
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

/// A revision as it is remembered.
pub(super) fn owed(set: &ReplicaSet) -> Owed {
    Owed { template: set.template.clone(), revision: set.revision(), annotations: own_annotations(set) }
}

impl<'w> Planner<'w> {
    /// What a run has to know of a ReplicaSet to make it again.
    pub(super) fn reference(&self, set: &ReplicaSet) -> ReplicaSetRef {
        ReplicaSetRef { name: set.name.clone(), revision: self.revision(set), annotations: own_annotations(set) }
    }

    /// A copy that was made at rest is numbered by the Deployment controller moments later, and not at all if a change is
    /// held before that. What ran last has the Deployment's own number then.
    pub(super) fn revision(&self, set: &ReplicaSet) -> i64 {
        match set.revision() {
            0 if set.copy => self.d.annotations.get(names::REVISION).and_then(|r| r.parse().ok()).unwrap_or(0),
            revision => revision,
        }
    }

    /// The revision of a ReplicaSet that we make for a template: its own, or the next if another template has that by now.
    pub(super) fn free_revision(&self, template: &Template, own: i64) -> i64 {
        let sets = &self.w.replica_sets;
        if sets.iter().all(|s| s.template == *template || s.revision() != own) {
            return own;
        }
        sets.iter().map(ReplicaSet::revision).max().unwrap_or(0).saturating_add(1)
    }

    /// A name for a ReplicaSet of ours. One that was made under this name earlier may show another template by now.
    pub(super) fn free_name(&self, kind: &str, template: &Template, number: i64) -> String {
        let name = |salt: String| patches::set_name(&self.d.name, kind, &format!("{}{salt}", template.hash()), number);
        let taken = |name: &String| self.w.replica_sets.iter().any(|s| s.name == *name);
        let salts = std::iter::once(String::new()).chain((1..100).map(|salt| format!("/{salt}")));
        salts.map(name).find(|name| !taken(name)).unwrap_or_default()
    }

    /// While held: empty ReplicaSets equal to the target go, one that was deleted is made again, one that was woken
    /// goes back to sleep, and with no pods at all the one that ran last is the youngest.
    pub(super) fn replica_sets(&mut self, main: Option<&'w ReplicaSet>) -> Flow {
        self.equal_ones_go(main)?;
        self.deleted_one_returns(main)?;
        match main {
            // One that equals the wanted template is the controller's new one: that is woken first, whatever its age.
            Some(main) if main.template != self.d.template => self.youngest(main),
            Some(_) | None => GO,
        }
    }

    fn equal_ones_go(&mut self, main: Option<&'w ReplicaSet>) -> Flow {
        let native = self.status.way.as_ref().is_some_and(|w| w.kind == WayKind::Native);
        if native && !self.active_sets().is_empty() {
            return GO; // natively the Deployment controller is welcome to use it again
        }
        if planted(Bug::EqualReplicaSetsStay) {
            return GO;
        }
        let Some(run) = self.run else { return GO };
        for set in self.sets() {
            if main.is_some_and(|m| m.name == set.name) || active(self.w, set) || set.template != self.d.template {
                continue;
            }
            let committed = main.is_some_and(|m| m.template == self.d.template);
            if set.copy && committed {
                continue; // younger than the main one, so nobody takes it for the new one
            }
            if (main.is_none() || committed) && run.spec.old_template.is_none() {
                continue; // a birth: this is its own first ReplicaSet
            }
            if self.remember(set) {
                return self.report(State::Held, format!("ReplicaSet {} goes into the run's record", set.name));
            }
            return self.delete_set(set);
        }
        GO
    }

    pub(super) fn delete_set(&mut self, set: &ReplicaSet) -> Flow {
        self.effect(Effect::DeleteReplicaSet {
            name: set.name.clone(),
            uid: set.uid.clone(),
            resource_version: set.resource_version.clone(),
        })
    }

    /// Notes a revision before its ReplicaSet goes. True: it was not noted yet, so that has to be stored first.
    fn remember(&mut self, set: &ReplicaSet) -> bool {
        let Some(run) = self.run else { return false };
        if set.copy || run.spec.owed.iter().chain(&self.status.owed).any(|o| o.template == set.template) {
            return false;
        }
        if self.status.owed.len() >= MOST_OWED {
            return false;
        }
        self.status.owed.push(owed(set));
        true
    }

    /// Nobody can prevent that the main ReplicaSet is deleted while held, nor that the paused controller then wakes
    /// the youngest other one. The way back: the main one again, empty and so the youngest; then the woken one to 0;
    /// the controller itself wakes the main one.
    fn deleted_one_returns(&mut self, main: Option<&'w ReplicaSet>) -> Flow {
        let Some(run) = self.run else { return GO };
        let Some(old) = &run.spec.old_template else { return GO };
        if self.status.commit.is_some() && main.is_none_or(|m| m.template == self.d.template) {
            return GO;
        }
        let woken: Vec<&ReplicaSet> = self
            .active_sets()
            .into_iter()
            .filter(|s| main.is_none_or(|m| m.name != s.name) && s.template != *old && s.template != self.d.template)
            .collect();
        let remade = |main: &ReplicaSet| {
            run.spec
                .replica_set
                .as_ref()
                .is_some_and(|r| r.name != main.name && self.w.replica_sets.iter().all(|s| s.name != r.name))
        };
        if self.d.replicas == 0 {
            return GO; // at 0 it may stay away: the Deployment controller would only clean it up again
        }
        if run.spec.several {
            return GO; // a native roll that got stuck: others had pods by right, and the way is native anyway
        }
        let native = self.status.way.as_ref().is_some_and(|w| w.kind == WayKind::Native);
        if native && self.active_sets().iter().any(|s| s.template == self.d.template) {
            return GO; // a native roll that failed and is frozen: its controller has cleaned up what was empty by then
        }
        match main {
            // At history limit 0 an empty one would be cleaned up, and one with pods would be scaled in proportion with
            // what runs what is wanted already.
            None if self.d.history_limit == 0 && self.active_sets().iter().any(|s| s.template == self.d.template) => GO,
            None => {
                if self.event_once(Reason::ReplicaSetDeleted) {
                    self.event(
                        true,
                        Reason::ReplicaSetDeleted,
                        "the ReplicaSet that runs was deleted while held; it is made again".to_owned(),
                    );
                }
                // Beside another one that may be woken it has to be empty, or both would be scaled in proportion. At
                // history limit 0 an empty one would be cleaned up before it is scaled.
                let alone = self.w.replica_sets.is_empty() || (self.d.history_limit == 0 && woken.is_empty());
                let name = self.free_name("r", old, run.spec.sequence);
                self.remake(run, old, &name, if alone { self.d.replicas } else { 0 })
            }
            // Only in place of one that was deleted: what runs beside an empty one that has always been there was not
            // woken, and must not go down.
            Some(main) if !woken.is_empty() && main.template == *old && remade(main) => {
                let name = self.free_name("r", old, run.spec.sequence);
                let youngest = self.sets().last().copied();
                if let Some(youngest) = youngest.filter(|y| main.replicas == 0 && y.template != *old) {
                    // The one that is woken instead has to be the youngest first.
                    let free = youngest.created.plus_seconds(2);
                    if name > youngest.name || free <= self.now {
                        return self.remake(run, old, &name, 0);
                    }
                    self.wake(free);
                    let what = "the ReplicaSet that ran is made again".to_owned();
                    return self.wait(State::Held, Reason::ReplicaSetDeleted, what, None, "");
                }
                for set in woken.iter().filter(|s| s.replicas > 0) {
                    self.plan.effects.push(Effect::PatchReplicaSet {
                        name: set.name.clone(),
                        patch: patches::scale_to_zero(set.replicas),
                    });
                }
                self.wait(
                    State::Held,
                    Reason::ReplicaSetDeleted,
                    "an older ReplicaSet that was woken goes back to sleep".to_owned(),
                    None,
                    "",
                )
            }
            Some(_) => GO,
        }
    }

    fn remake(&mut self, run: &Run, old: &Template, name: &str, replicas: i64) -> Flow {
        self.need_live()?; // another one that has come meanwhile would be scaled in proportion beside it
        let reference = run.spec.replica_set.as_ref();
        let annotations = reference.map(|r| r.annotations.clone()).unwrap_or_default();
        // While it was gone the Deployment controller may have given its number to another one.
        let revision = reference.map(|r| self.free_revision(old, r.revision));
        let object = patches::replica_set(self.d, name, old, replicas, revision, &annotations, None);
        if self.w.refusals.contains_key(&format!("replicaset/{name}")) {
            let what = "the ReplicaSet that ran cannot be made again".to_owned();
            let how = "see the events of the Deployment";
            return self.wait(State::Held, Reason::ReplicaSetDeleted, what, None, how);
        }
        self.effect(Effect::CreateReplicaSet { purpose: ReplicaSetPurpose::Remake, object })
    }

    fn event_once(&self, reason: Reason) -> bool {
        self.status.waiting_for.as_ref().is_none_or(|w| w.reason != reason.as_str())
    }

    /// With no pods at all, the ReplicaSet that runs (or ran) must be the youngest: a scale-up while paused wakes the
    /// youngest, whatever its template. First an empty copy, then the older equal ones go: at no moment is another
    /// one the youngest.
    pub(super) fn youngest(&mut self, main: &'w ReplicaSet) -> Flow {
        let all = self.sets();
        let equal: Vec<&ReplicaSet> = all.iter().filter(|s| s.template == main.template).copied().collect();
        // Pods that still end do not matter: the controller counts what is asked for.
        let asleep = self.d.replicas == 0 && all.iter().all(|s| s.replicas == 0) && !planted(Bug::YoungestAtZero);
        if !asleep {
            // A copy that is not needed any more.
            let awake = |s: &ReplicaSet| s.replicas > 0;
            let left = equal
                .iter()
                .find(|s| s.copy && !active(self.w, s) && equal.iter().any(|o| o.name != s.name && awake(o)));
            return left.map_or(GO, |set| self.delete_set(set));
        }
        let Some(youngest) = all.iter().max_by_key(|s| age(s)) else { return GO };
        if youngest.template == main.template {
            let spare = |s: &&&ReplicaSet| s.name != youngest.name && (youngest.copy || s.copy) && !active(self.w, s);
            return match equal.iter().find(spare) {
                Some(older) => self.delete_set(older),
                None => GO,
            };
        }
        if self.d.history_limit == 0 {
            return GO; // the Deployment controller deletes the others itself
        }
        let name = self.free_name("z", &main.template, youngest.created.0 / 1000);
        // Creation times have whole seconds, ties go by name. Two seconds, for our clock is not the API server's.
        let free = youngest.created.plus_seconds(2);
        if name <= youngest.name && free > self.now {
            self.wake(free);
            return GO;
        }
        self.copy(main, &name)
    }

    pub(super) fn copy(&mut self, main: &ReplicaSet, name: &str) -> Flow {
        // While held no one counts revisions up, so the copy carries the number; at rest the controller gives it one.
        let revision = if self.d.held() { self.free_revision(&main.template, self.revision(main)) } else { 0 };
        let object = patches::replica_set(
            self.d,
            name,
            &main.template,
            0,
            Some(revision),
            &own_annotations(main),
            Some(names::COPY_LABEL),
        );
        if self.w.refusals.contains_key(&format!("replicaset/{name}")) {
            return GO;
        }
        self.effect(Effect::CreateReplicaSet { purpose: ReplicaSetPurpose::Copy, object })
    }
}
