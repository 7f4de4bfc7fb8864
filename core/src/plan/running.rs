//! Which ReplicaSet runs, or ran last. What pods and ReplicaSets show counts; the record of the runs helps where there
//! are none.

use super::Planner;
use crate::{
    api::{
        names,
        run::{Outcome, ReplicaSetRef},
    },
    template::Template,
    world::{Pod, ReplicaSet, World},
};

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
pub(super) fn age(set: &ReplicaSet) -> (crate::time::Time, &str) {
    (set.created.whole_seconds(), &set.name)
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
        let last = self.w.latest_run()?;
        match last.status.ended.as_ref().map(|e| e.outcome) {
            Some(Outcome::Succeeded) => Some((&last.spec.new_template, last.spec.replica_set.as_ref())),
            Some(Outcome::Returned) => last.spec.old_template.as_ref().map(|t| (t, last.spec.replica_set.as_ref())),
            // A run that was stopped half way says what ran before it, unless it has committed or released and that took
            // effect. Where no ReplicaSet is left to tell, it did: by then all pods were on the new template.
            Some(Outcome::Superseded | Outcome::Aborted) | None => {
                let committed = last.status.commit.is_some();
                let begun = committed || last.status.released_at.is_some();
                let new = &last.spec.new_template;
                let old = last.spec.old_template.as_ref();
                let shown = |t: &Template| self.w.replica_sets.iter().any(|s| s.template == *t);
                let acknowledged = last.status.commit.as_ref().is_some_and(|c| c.acknowledged);
                let ran = if acknowledged || (begun && shown(new)) || (committed && !old.is_some_and(shown)) {
                    Some(new)
                } else {
                    old
                };
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
                    && highest.revision() > self.revision(recorded) =>
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
        // After a release others may have had pods by right, and one that the Deployment controller made since then has
        // come up by a release that no run speaks of: with no other one left it is numbered from the start.
        let mixed = self.w.latest_run().is_some_and(|last| {
            let ended = last.status.ended.as_ref();
            last.spec.several
                || ended.is_some_and(|e| e.unheld)
                || (last.status.released_at.is_some() && ended.map(|e| e.outcome) != Some(Outcome::Succeeded))
                || (!set.history && !set.copy && set.created > last.created.whole_seconds())
        });
        self.d.held()
            && !mixed
            && set.template != *template
            && self.revision(set) <= reference.revision
            && self.w.replica_sets.iter().all(|s| s.name != reference.name)
    }
}
