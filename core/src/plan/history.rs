//! Old revisions as empty ReplicaSets, so that `kubectl rollout history` and `undo` work after an update in place.

use super::{Flow, GO, Planner, STOP, patches};
use crate::{
    api::{
        names,
        run::{HookRunSpec, HookRunStatus, Owed},
    },
    effect::{Effect, ReplicaSetPurpose},
    world::ReplicaSet,
};

/// What a run owes to the history: what it has inherited and deleted, and what its commit has rewritten.
pub(super) fn owed_by(spec: &HookRunSpec, status: &HookRunStatus) -> Vec<Owed> {
    let mut owed: Vec<Owed> = spec.owed.iter().chain(&status.owed).cloned().collect();
    if status.commit.is_some()
        && let (Some(template), Some(set)) = (&spec.old_template, &spec.replica_set)
    {
        owed.push(Owed { template: template.clone(), revision: set.revision, annotations: set.annotations.clone() });
    }
    owed
}

impl Planner<'_> {
    /// Revisions that were deleted or rewritten on the way go back into the history, empty. Best effort: a quota or
    /// the Deployment's own limit may refuse them.
    pub(super) fn history(&mut self) -> Flow {
        let Some(run) = self.run else { return GO };
        if self.status.commit.as_ref().is_some_and(|c| c.history) {
            return GO;
        }
        let mut due = owed_by(&run.spec, &self.status);
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
            let revision = self.free_revision(&owed.template, owed.revision);
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
