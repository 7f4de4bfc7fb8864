//! Commit, both halves of the barrier, history, release.

use std::collections::BTreeMap;

use super::{Flow, GO, Planner, State, patches, pods::Purpose};
use crate::{
    api::{
        names,
        run::{Commit, WayKind},
    },
    effect::{DeploymentPurpose, Effect},
    planted::{Bug, planted},
    reason::Reason,
    world::ReplicaSet,
};

/// The Deployment controller acknowledges within 76 ms when it is well; a minute means that it is not.
const BARRIER_TIMEOUT_SECONDS: i64 = 60;

impl<'w> Planner<'w> {
    /// The ReplicaSet's template becomes the wanted one. Intent first: a crash after the write must not forget it.
    pub(super) fn commit(&mut self, main: &'w ReplicaSet) -> Flow {
        if main.template == self.d.template {
            return GO;
        }
        if self.status.commit.is_some() {
            // The Deployment controller would count it up only once it has seen another one with its number.
            let highest = self.w.replica_sets.iter().map(|s| self.revision(s)).max().unwrap_or(0);
            self.plan.effects.push(Effect::PatchReplicaSet {
                name: main.name.clone(),
                patch: patches::commit(main, &self.d.template, highest.saturating_add(1)),
            });
        } else {
            self.status.commit = Some(Commit { intended_at: self.now, acknowledged: false, history: false });
        }
        let what = format!("ReplicaSet {} takes the new template", main.name);
        self.wait(State::Committing, Reason::Committing, what, None, "")
    }

    /// Both halves: the ReplicaSet controller works by the new template, and the Deployment controller has taken this
    /// ReplicaSet for its new one: it copies the Deployment's annotations there, and so the mark that the commit
    /// removed comes back. Released earlier, a controller whose cache lags makes a surplus ReplicaSet.
    pub(super) fn barrier(&mut self, main: &'w ReplicaSet) -> Flow {
        let seen = main.observed_generation >= main.generation || planted(Bug::BarrierReplicaSetController);
        let mut marks = [names::HELD_BY, names::HELD_AT].into_iter();
        let acknowledged = marks.all(|m| main.annotations.get(m) == self.d.annotations.get(m))
            || planted(Bug::BarrierDeploymentController);
        let current = self.d.status.observed_generation >= self.d.generation;
        if seen && acknowledged && current {
            return GO;
        }
        let who = if seen { "Deployment controller" } else { "ReplicaSet controller" };
        // Counted from when this wait began, not from the commit: pods that are repaired afterwards may take their time.
        let waiting = |reason: Reason| self.status.waiting_for.as_ref().filter(|w| w.reason == reason.as_str());
        let since = waiting(Reason::Barrier).map_or(self.now, |w| w.since);
        let until = since.plus_seconds(BARRIER_TIMEOUT_SECONDS);
        if until > self.now && waiting(Reason::BarrierTimeout).is_none() {
            let what = format!("the {who} has not acknowledged the new template of ReplicaSet {}", main.name);
            let _ = self.wait(State::Committing, Reason::Barrier, what, None, "");
            self.wake(until);
            return super::STOP;
        }
        // Not a stall that somebody has to end: it goes on by itself when the acknowledgement comes.
        let what = format!(
            "the {who} has not acknowledged the new template of ReplicaSet {} for {BARRIER_TIMEOUT_SECONDS} seconds",
            main.name
        );
        self.wait(
            State::Stalled,
            Reason::BarrierTimeout,
            what,
            None,
            "see whether kube-controller-manager is running; the update goes on by itself when it answers",
        )
    }

    /// Pods that were made between our last look and the commit came up by the old template.
    pub(super) fn after_barrier(&mut self, main: &'w ReplicaSet) -> Flow {
        self.need_live()?;
        let Some(run) = self.run else { return GO };
        let update = run.spec.settings.update.clone();
        self.pods(&self.d.template.clone(), main, &update, Purpose::Update)?;
        if let Some(commit) = &mut self.status.commit {
            commit.acknowledged = true;
        }
        GO
    }

    /// The hold ends, if nothing was written since the facts of this plan.
    pub(super) fn release(&mut self, message: &str) -> Flow {
        self.need_live()?;
        let restore = self.run.map(|r| r.spec.settings.restore.clone()).unwrap_or_default();
        let patch = patches::release(self.d, &restore);
        self.plan.effects.push(Effect::PatchDeployment { purpose: DeploymentPurpose::Release, patch });
        if self.run.is_some() {
            self.status.released_at = Some(self.now);
            self.status.waiting_for = None;
            self.status.progress = None;
        }
        self.tell_restored(&restore);
        self.report(State::Releasing, message.to_owned())
    }

    /// Annotations of ours that a held write dropped come back with the release.
    pub(super) fn tell_restored(&mut self, restore: &BTreeMap<String, String>) {
        let lost: Vec<&str> =
            restore.keys().filter(|k| !self.d.annotations.contains_key(*k)).map(String::as_str).collect();
        if !lost.is_empty() {
            self.event(true, Reason::AnnotationsRestored, format!("an undo had dropped {}; put back", lost.join(", ")));
        }
    }

    /// Let the Deployment controller do it.
    pub(super) fn release_natively(&mut self) -> Flow {
        let because = self
            .status
            .way
            .as_ref()
            .filter(|w| w.kind == WayKind::Native)
            .map(|w| w.because.join("; "))
            .unwrap_or_default();
        self.release(&format!("released to the Deployment controller: {because}"))
    }
}
