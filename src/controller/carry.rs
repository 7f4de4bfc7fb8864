//! Carrying out a plan: writes to pods go on while the next plan is made, everything else in order.

use std::time::Duration;

use interlock_core::{
    api::run::{HookRunStatus, Step, WayKind},
    effect::{DeploymentPurpose, Effect},
    plan::{Plan, Report, State, StatusWrite, release_at},
    time::Time,
    world::{Deployment, World},
};
use tokio::time::Instant;

use super::pass::{Decided, Pass, Round, earlier, latest, unread};
use crate::execute::{Failure, Subject, is_write, pod_of};

/// Statuses in which only counters moved: the first waits so long after the last write, each further one twice as long as the
/// one before, up to the longest. So their number hardly grows with the time that an update takes.
pub(super) const STATUS_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

impl Pass<'_> {
    /// Carries out a plan, or begins to.
    pub(super) async fn carry_out(&mut self, decided: Decided, foreign: Option<Duration>) -> Result<Round, Failure> {
        let Decided { world, plan: Plan { look_live: _, effects, status, wake, report } } = decided;
        self.say(&report);
        let mut wake = earlier(wake.map(|at| until(at, world.now)), foreign);
        let urgent = status.as_ref().is_some_and(|write| write.urgent);
        let flies = !urgent && effects.iter().all(|effect| pod_of(effect).is_some());
        if !self.flight.is_empty() && !flies {
            // What else there is to do rests on what these writes come to.
            self.memory.last = Some(world);
            return self.land().await;
        }
        let status = status.filter(|_| !self.flight.has_status());
        let due = status.filter(|write| match self.status_due(write) {
            Some(pause) => {
                wake = earlier(wake, Some(pause));
                false
            }
            None => true,
        });
        // Without room the first write begins when another one is answered: that time is the API server's.
        if (due.is_some() || effects.iter().any(is_write)) && (!flies || self.flight.has_room()) {
            self.first_write();
        }
        self.since = None;
        let round = if flies && !(effects.is_empty() && self.flight.is_empty()) {
            self.flight.add(effects);
            if let Some(write) = due {
                let before = world.runs.iter().find(|r| r.name == write.run).map(|r| r.status.clone());
                self.status_written(false);
                self.flight.add_status(write, before.unwrap_or_default());
            }
            Round::Rest(wake)
        } else {
            let round = self.perform(&world, effects, due, wake).await?;
            self.answered = Some(Instant::now());
            round
        };
        // At rest a copy is not worth its memory.
        self.memory.last = (world.deployment.held() || latest(&world).is_some()).then_some(world);
        Ok(round)
    }

    /// Carries out everything in order.
    async fn perform(
        &mut self,
        world: &World,
        mut effects: Vec<Effect>,
        status: Option<StatusWrite>,
        wake: Option<Duration>,
    ) -> Result<Round, Failure> {
        let subject = Subject::new(self.key.clone(), world.deployment.uid.clone());
        for effect in &mut effects {
            if !self.freshen(world, effect).await? {
                return Ok(Round::Wrote);
            }
        }
        let ended: Vec<(String, HookRunStatus)> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::RecordStatus { run, status, .. } => Some((run.clone(), HookRunStatus::clone(status))),
                _ => None,
            })
            .collect();
        let mut wrote = self.shared.executor.perform(&subject, effects).await?;
        let before = |run: &str| world.runs.iter().find(|r| r.name == run).map(|r| &r.status);
        for (run, status) in &ended {
            self.count(before(run), status);
        }
        if let Some(write) = status {
            let (run, status, urgent) = (write.run.clone(), write.status.clone(), write.urgent);
            self.shared.executor.status(&subject, write).await?;
            self.status_written(urgent);
            self.count(before(&run), &status);
            wrote = true;
        }
        Ok(if wrote { Round::Wrote } else { Round::Rest(wake) })
    }

    /// The Deployment controller writes its status whenever pods change, so that the version which a release names may be
    /// old by now although nothing else has changed: then it takes the newest. False: something else has changed.
    async fn freshen(&mut self, world: &World, effect: &mut Effect) -> Result<bool, Failure> {
        let Effect::PatchDeployment { purpose: DeploymentPurpose::Release, patch } = effect else { return Ok(true) };
        let (client, planned) = (&self.shared.client, &world.deployment);
        let Some(now) = self.shared.observe.deployment_live(client, self.key).await.map_err(unread)? else {
            return Ok(false);
        };
        let version = now.resource_version.clone();
        let same =
            Deployment { resource_version: planned.resource_version.clone(), status: planned.status.clone(), ..now };
        if same != *planned {
            return Ok(false);
        }
        release_at(patch, &version);
        Ok(true)
    }

    /// Counts how long it took from what came to what is written now. What came while a write was under way that everything
    /// has to wait for counts from its answer: until then the time is the API server's.
    fn first_write(&self) {
        if let Some(since) = self.since {
            let since = since.max(self.flight.open()).max(self.answered.unwrap_or(since));
            self.shared.metrics.first_write(since.elapsed());
        }
    }

    /// How long a status has to wait in which only counters moved; `None`: it is due.
    fn status_due(&self, write: &StatusWrite) -> Option<Duration> {
        let (at, pause) = self.memory.status_written?;
        let since = at.elapsed();
        (!write.urgent && since < pause).then(|| pause.saturating_sub(since))
    }

    fn status_written(&mut self, urgent: bool) {
        let (first, longest) = STATUS_EVERY;
        let pause = match self.memory.status_written {
            Some((_, pause)) if !urgent => (pause * 2).min(longest),
            Some(_) | None => first,
        };
        self.memory.status_written = Some((Instant::now(), pause));
    }

    fn say(&mut self, report: &Report) {
        // A pass that only carries on with a step has nothing new to say.
        if report.message.is_empty() {
            return;
        }
        let said = (report.state, report.message.clone());
        if self.memory.report.as_ref() == Some(&said) {
            return;
        }
        if report.state != State::AtRest || self.memory.report.is_some() {
            tracing::info!(deployment = %self.key, state = ?report.state, run = report.run, "{}", report.message);
        }
        self.memory.report = Some(said);
    }

    /// What a stored status tells that the one before did not.
    pub(super) fn count(&self, before: Option<&HookRunStatus>, status: &HookRunStatus) {
        let Some(before) = before else { return };
        let metrics = &self.shared.metrics;
        if let (None, Some(ended)) = (&before.ended, &status.ended) {
            metrics.run_ended(ended.outcome);
        }
        let whose = |s: &Step| (s.hook.clone(), s.phase, s.pod_uid.clone(), s.failure, s.attempt);
        let done =
            |steps: &[Step], step: &Step| steps.iter().any(|s| s.finished_at.is_some() && whose(s) == whose(step));
        for step in status.steps.iter().filter(|s| !done(&before.steps, s)) {
            if let (Some(_), Some(outcome)) = (step.finished_at, step.outcome) {
                metrics.hook_attempt(step.phase, outcome);
            }
        }
        if status.way.as_ref().is_some_and(|way| way.kind == WayKind::InPlace) {
            let updated = |s: &HookRunStatus| s.pods.as_ref().map_or(0, |p| p.updated);
            metrics.pods_updated(u64::try_from(updated(status) - updated(before)).unwrap_or(0));
        }
    }
}

/// From `now` to `at`; at once if that has passed.
fn until(at: Time, now: Time) -> Duration {
    Duration::from_millis(u64::try_from(at.millis_since(now)).unwrap_or(0))
}
