//! Which ReplicaSet runs, and what has to be true of the others while a Deployment is held or has no pods.
//!
//! The Deployment controller (Kubernetes 1.36, 1.37) takes the **oldest** ReplicaSet that equals the template for its
//! new one, and scales the **youngest** one when none has pods, paused or not. Both must not start anything by surprise.

use std::collections::BTreeMap;

use super::{Flow, GO, Planner, STOP, State, patches};
use crate::{
    api::{
        names,
        run::{Outcome, Owed, ReplicaSetRef, WayKind},
    },
    effect::{Effect, ReplicaSetPurpose},
    reason::Reason,
    template::Template,
    world::{Pod, ReplicaSet, World},
};

/// Revisions that a run remembers at most. Templates can be large and an object cannot.
pub(super) const MOST_OWED: usize = 10;

/// Has this ReplicaSet pods, or is it about to?
pub(super) fn active(w: &World, set: &ReplicaSet) -> bool {
    set.replicas > 0 || set.status_replicas > 0 || w.pods.iter().any(|p| p.owner == set.uid)
}

/// The pods of a ReplicaSet.
pub(super) fn pods_of<'w>(w: &'w World, set: &ReplicaSet) -> Vec<&'w Pod> {
    let mut pods: Vec<&Pod> = w.pods.iter().filter(|p| p.owner == set.uid).collect();
    pods.sort_by(|a, b| a.name.cmp(&b.name));
    pods
}

/// By age as the Deployment controller sorts: creation times have whole seconds, ties go by name.
fn age(set: &ReplicaSet) -> (crate::time::Time, &str) {
    (set.created.whole_seconds(), &set.name)
}

/// A ReplicaSet's annotations that may be copied to another one.
pub(super) fn own_annotations(set: &ReplicaSet) -> BTreeMap<String, String> {
    set.annotations
        .iter()
        .filter(|(key, _)| {
            !names::is_mark(key) && !key.starts_with(names::DEPLOYMENT_PREFIX) && *key != names::LAST_APPLIED
        })
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

/// What a run has to know of a ReplicaSet to make it again.
pub(super) fn reference(set: &ReplicaSet) -> ReplicaSetRef {
    ReplicaSetRef { name: set.name.clone(), revision: set.revision(), annotations: own_annotations(set) }
}

/// A revision as it is remembered.
pub(super) fn owed(set: &ReplicaSet) -> Owed {
    Owed { template: set.template.clone(), revision: set.revision(), annotations: own_annotations(set) }
}

impl<'w> Planner<'w> {
    /// All ReplicaSets, the oldest first.
    pub(super) fn sets(&self) -> Vec<&'w ReplicaSet> {
        let mut all: Vec<&ReplicaSet> = self.w.replica_sets.iter().collect();
        all.sort_by_key(|s| age(s));
        all
    }

    /// The ReplicaSets with pods, the oldest first.
    pub(super) fn active_sets(&self) -> Vec<&'w ReplicaSet> {
        self.sets().into_iter().filter(|r| active(self.w, r)).collect()
    }

    /// What ran last, as far as it is on record: the template and the ReplicaSet of the run, or of the run before.
    pub(super) fn on_record(&self) -> Option<(&'w Template, Option<&'w ReplicaSetRef>)> {
        if let Some(run) = self.run {
            return run.spec.old_template.as_ref().map(|t| (t, run.spec.replica_set.as_ref()));
        }
        let last = self.w.runs.iter().max_by_key(|r| r.spec.sequence)?;
        match last.status.ended.as_ref().map(|e| e.outcome) {
            Some(Outcome::Succeeded) => Some((&last.spec.new_template, last.spec.replica_set.as_ref())),
            Some(Outcome::Returned) => last.spec.old_template.as_ref().map(|t| (t, last.spec.replica_set.as_ref())),
            // A run that was stopped half way says what ran before it, unless it has committed or released and that took
            // effect. Where no ReplicaSet is left to tell, it did: by then all pods were on the new template.
            Some(Outcome::Superseded | Outcome::Aborted) | None => {
                let begun = last.status.commit.is_some() || last.status.released_at.is_some();
                let new = &last.spec.new_template;
                let old = last.spec.old_template.as_ref();
                let shown = |t: &Template| self.w.replica_sets.iter().any(|s| s.template == *t);
                let acknowledged = last.status.commit.as_ref().is_some_and(|c| c.acknowledged);
                let ran =
                    if begun && (acknowledged || shown(new) || !old.is_some_and(shown)) { Some(new) } else { old };
                ran.map(|t| (t, last.spec.replica_set.as_ref()))
            }
            Some(Outcome::Audited) => None,
        }
    }

    /// The ReplicaSet whose pods are to be updated: what runs, or what ran last.
    pub(super) fn main_set(&self) -> Option<&'w ReplicaSet> {
        let all = &self.w.replica_sets;
        let active = self.active_sets();
        let record = self.on_record();
        let named = record.and_then(|(_, r)| r).and_then(|r| all.iter().find(|s| s.name == r.name));
        if let Some(run) = self.run {
            if let Some(named) = named.filter(|n| active.is_empty() || active.iter().any(|a| a.name == n.name)) {
                return Some(named);
            }
            let old = run.spec.old_template.as_ref();
            let new = self.status.commit.as_ref().map(|_| &run.spec.new_template);
            // Once committed it is the one that the controller takes for its new one, the oldest; what shows the old
            // template is then its history.
            let by_template = |sets: &[&'w ReplicaSet]| {
                let committed = sets.iter().filter(|s| new == Some(&s.template)).min_by_key(|s| age(s));
                committed.or_else(|| sets.iter().filter(|s| old == Some(&s.template)).max_by_key(|s| age(s))).copied()
            };
            if let Some(set) = by_template(&active) {
                return Some(set);
            }
            if run.spec.old_template.is_some() {
                // A woken one is not what ran. An empty one of the right template is.
                return by_template(&all.iter().collect::<Vec<_>>());
            }
        }
        match active.as_slice() {
            [] => {
                let recorded = record
                    .and_then(|(template, _)| all.iter().filter(|s| s.template == *template).max_by_key(|s| age(s)))
                    .or(named);
                self.ran_last(recorded, record.is_some())
            }
            [only] if self.was_woken(only) => None,
            [only] => Some(only),
            [..] => active.iter().max_by_key(|s| (s.replicas > 0, s.revision(), age(s))).copied(),
        }
    }

    /// Without pods and without a run: the ReplicaSet of the record, unless one with a higher number tells of an update
    /// that went by unrecorded.
    fn ran_last(&self, recorded: Option<&'w ReplicaSet>, on_record: bool) -> Option<&'w ReplicaSet> {
        // One that equals what is wanted is numbered up by the controller for that alone: the number does not say that
        // it ran. Neither does that of one which we have made and the controller has never scaled.
        let wanted = |s: &ReplicaSet| self.d.held() && s.template == self.d.template;
        let ours = |s: &ReplicaSet| (s.history || s.copy) && !s.annotations.contains_key(names::DESIRED_REPLICAS);
        let highest = self.sets().into_iter().max_by_key(|s| (!wanted(s), s.revision(), age(s)));
        match (recorded, highest) {
            (Some(recorded), Some(highest))
                if !wanted(highest)
                    && !ours(highest)
                    && highest.template != recorded.template
                    && highest.revision() > recorded.revision() =>
            {
                Some(highest)
            }
            (Some(recorded), _) => Some(recorded),
            // Where nothing is known, hooks that were not needed are the lesser evil.
            (None, highest) => highest.filter(|s| !on_record || !wanted(s)),
        }
    }

    /// Without a run: is this one, the only one with pods, an older release that came up because the one that ran
    /// was deleted? The run before knows which revision its ReplicaSet had at least.
    fn was_woken(&self, set: &ReplicaSet) -> bool {
        let Some((template, Some(reference))) = self.on_record() else { return false };
        self.d.held()
            && set.template != *template
            && set.revision() <= reference.revision
            && self.w.replica_sets.iter().all(|s| s.name != reference.name)
    }

    /// A name for a ReplicaSet of ours. One that was made under this name earlier may show another template by now.
    fn free_name(&self, kind: &str, template: &Template, number: i64) -> String {
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

    fn delete_set(&mut self, set: &ReplicaSet) -> Flow {
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
        match main {
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
                let replicas = if alone { self.d.replicas } else { 0 };
                let name = self.free_name("r", old, run.spec.sequence);
                let reference = run.spec.replica_set.as_ref();
                let object = patches::replica_set(
                    self.d,
                    &name,
                    old,
                    replicas,
                    reference.map(|r| r.revision),
                    &reference.map(|r| r.annotations.clone()).unwrap_or_default(),
                    None,
                );
                if self.w.refusals.contains_key(&format!("replicaset/{name}")) {
                    return self.wait(
                        State::Held,
                        Reason::ReplicaSetDeleted,
                        "the ReplicaSet that ran cannot be made again".to_owned(),
                        None,
                        "see the events of the Deployment",
                    );
                }
                self.effect(Effect::CreateReplicaSet { purpose: ReplicaSetPurpose::Remake, object })
            }
            // Only in place of one that was deleted: what runs beside an empty one that has always been there was not
            // woken, and must not go down.
            Some(main) if !woken.is_empty() && main.template == *old && remade(main) => {
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
        let asleep = self.d.replicas == 0 && all.iter().all(|s| s.replicas == 0);
        if !asleep {
            // A copy that is not needed any more.
            let left = equal
                .iter()
                .find(|s| s.copy && !active(self.w, s) && equal.iter().any(|o| o.name != s.name && active(self.w, o)));
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

    fn copy(&mut self, main: &ReplicaSet, name: &str) -> Flow {
        // While held no one counts revisions up, so the copy carries the number; at rest the controller gives it one.
        let revision = if self.d.held() { main.revision() } else { 0 };
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

    /// Revisions that were deleted or rewritten on the way go back into the history, empty. Best effort: a quota or
    /// the Deployment's own limit may refuse them.
    pub(super) fn history(&mut self) -> Flow {
        let Some(run) = self.run else { return GO };
        if self.status.commit.as_ref().is_some_and(|c| c.history) {
            return GO;
        }
        let mut due: Vec<Owed> = run.spec.owed.iter().chain(&self.status.owed).cloned().collect();
        if self.status.commit.is_some()
            && let (Some(template), Some(set)) = (&run.spec.old_template, &run.spec.replica_set)
        {
            due.push(Owed { template: template.clone(), revision: set.revision, annotations: set.annotations.clone() });
        }
        let limit = usize::try_from(self.d.history_limit).unwrap_or(0);
        let others: Vec<&ReplicaSet> = self.w.replica_sets.iter().filter(|s| s.template != self.d.template).collect();
        due.retain(|o| o.template != self.d.template && others.iter().all(|s| s.template != o.template));
        due.sort_by(|a, b| a.revision.cmp(&b.revision).then_with(|| a.template.cmp(&b.template)));
        due.dedup_by(|a, b| a.template == b.template);
        // Only what the Deployment's limit will let live: it deletes the lowest revisions.
        let room = limit.saturating_sub(others.len().min(limit));
        let keep = due.len().min(
            room.max(usize::from(limit > 0 && others.iter().all(|s| due.iter().all(|o| o.revision > s.revision())))),
        );
        let skip = due.len() - keep;
        for owed in due.into_iter().skip(skip) {
            let name = self.free_name("h", &owed.template, owed.revision);
            if self.w.refusals.contains_key(&format!("replicaset/{name}")) {
                continue;
            }
            let taken = others.iter().any(|s| s.revision() == owed.revision);
            let highest = self.w.replica_sets.iter().map(ReplicaSet::revision).max().unwrap_or(0);
            let revision = if taken { highest.saturating_add(1) } else { owed.revision };
            let object = patches::replica_set(
                self.d,
                &name,
                &owed.template,
                0,
                Some(revision),
                &owed.annotations,
                Some(names::HISTORY_LABEL),
            );
            self.plan.effects.push(Effect::CreateReplicaSet { purpose: ReplicaSetPurpose::History, object });
            if let Some(main) = self.equal_set().filter(|_| self.d.replicas == 0 && self.active_sets().is_empty()) {
                // It would be the youngest, and woken by the next scale-up that comes with another template.
                let name = self.free_name("z", &main.template, owed.revision);
                return self.copy(main, &name);
            }
            return STOP;
        }
        if let Some(commit) = &mut self.status.commit {
            commit.history = true;
        }
        GO
    }
}
