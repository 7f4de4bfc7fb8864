//! One pass over one Deployment: gather, plan, carry out, until there is nothing more to do now.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use interlock_core::{
    api::run::{HookRunStatus, Step, WayKind},
    effect::Effect,
    plan::{Plan, Report, State, StatusWrite, plan},
    time::Time,
    world::{Run, World},
};
use tokio::{sync::OwnedMutexGuard, time::Instant};

use super::{Error, Shared, queue::Outcome};
use crate::{
    execute::{Failure, Subject},
    observe::{Key, facts::run::holds_slot},
};

/// So many plans one pass carries out before others get their turn.
const LOOPS: usize = 50;
/// So many passes in a row may use all of [`LOOPS`]; then something does not converge, and it is slowed down.
const LONG_PASSES: u32 = 3;
/// A write that lost its precondition so often in a row in one pass is left for later.
const LOST: u32 = 5;
/// Statuses in which only counters moved are written at most this often per run.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// A refusal is believed for so long, or until the Deployment changes.
const REFUSED: Duration = Duration::from_mins(5);
/// Deployments outside of a narrowed watch are read this often while somebody waits for them.
const FOREIGN_EVERY: Duration = Duration::from_secs(5);

/// What is remembered of a Deployment between passes. Losing it costs a write or a read, nothing else.
#[derive(Default)]
pub(super) struct Memory {
    status_written: Option<Instant>,
    foreign_read: Option<Instant>,
    refusals: BTreeMap<String, Refusal>,
    long_passes: u32,
    report: Option<(State, String)>,
}

struct Refusal {
    message: String,
    generation: i64,
    at: Instant,
}

/// One lock per policy: between the plan that takes an update slot and the status that says so, nobody else of the
/// same policy plans.
#[derive(Default)]
pub(super) struct Slots(Mutex<HashMap<(Arc<str>, String), Lock>>);

type Lock = Arc<tokio::sync::Mutex<()>>;

impl Slots {
    async fn lock(&self, namespace: &Arc<str>, policy: String) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(all.entry((Arc::clone(namespace), policy)).or_default())
        };
        lock.lock_owned().await
    }
}

/// The policy whose slots this Deployment may want to take next.
fn wants_slot(world: &World) -> Option<String> {
    let run = latest(world)?;
    let policy = run.spec.policy.as_ref()?;
    (world.deployment.held() && !holds_slot(run)).then(|| policy.name.clone())
}

fn latest(world: &World) -> Option<&Run> {
    world.runs.iter().filter(|r| r.status.ended.is_none()).max_by_key(|r| r.spec.sequence)
}

/// What one round of a pass led to.
enum Round {
    /// Something was written: plan again.
    Wrote,
    /// Nothing more to do now. Again at this time at the latest.
    Rest(Option<Duration>),
    /// There is no such Deployment.
    Gone,
}

pub(super) async fn pass(shared: &Shared, key: &Key) -> Result<Outcome, Error> {
    let mut memory = shared.remember(key);
    let outcome = Pass { shared, key, memory: &mut memory, lost: 0 }.run().await;
    if !matches!(outcome, Ok(None)) {
        shared.keep(key, memory);
    }
    match outcome {
        Ok(outcome) => Ok(outcome.unwrap_or(Outcome::Done(None))),
        Err(Failure::Fenced) => Err(Error::Fenced),
        Err(failure) => {
            shared.metrics.pass_error();
            tracing::warn!(deployment = %key, %failure, "pass failed; trying again later");
            let retry_after = match failure {
                Failure::Transient { retry_after, .. } => retry_after,
                Failure::Lost { .. } | Failure::Refused { .. } | Failure::Fenced => None,
            };
            Ok(Outcome::Failed { retry_after })
        }
    }
}

struct Pass<'a> {
    shared: &'a Shared,
    key: &'a Key,
    memory: &'a mut Memory,
    lost: u32,
}

impl Pass<'_> {
    /// `None`: there is no such Deployment, and nothing to remember of it.
    async fn run(&mut self) -> Result<Option<Outcome>, Failure> {
        for _ in 0..LOOPS {
            match self.round().await {
                Ok(Round::Wrote) => self.lost = 0,
                Ok(Round::Rest(wake)) => {
                    self.memory.long_passes = 0;
                    return Ok(Some(Outcome::Done(wake)));
                }
                Ok(Round::Gone) => {
                    self.shared.actions.forget(self.key);
                    return Ok(None);
                }
                Err(Failure::Lost { what, message }) if self.lost < LOST => {
                    self.lost += 1;
                    tracing::debug!(deployment = %self.key, what, message, "lost a race; planning again");
                }
                Err(Failure::Refused { what, message }) if self.newly_refused(&what, &message) => {
                    tracing::warn!(deployment = %self.key, what, message, "the API server refused a write");
                }
                Err(failure) => return Err(failure),
            }
        }
        self.memory.long_passes += 1;
        if self.memory.long_passes < LONG_PASSES {
            return Ok(Some(Outcome::Again));
        }
        tracing::error!(deployment = %self.key, "plans do not come to an end; slowing down. This is a bug, please report it");
        Ok(Some(Outcome::Failed { retry_after: None }))
    }

    async fn round(&mut self) -> Result<Round, Failure> {
        let Some(mut world) = self.world() else { return Ok(Round::Gone) };
        // Held until the status of this round is stored.
        let mut _slot = None;
        if let Some(policy) = wants_slot(&world) {
            _slot = Some(self.shared.slots.lock(&self.key.namespace, policy).await);
            match self.world() {
                Some(again) => world = again,
                None => return Ok(Round::Gone),
            }
        }
        let foreign = self.read_foreign(&mut world).await?;
        let mut decided = if self.lost > 1 {
            // Twice in a row: what we believe is older than what is there.
            let Some(decided) = self.decide_live().await? else { return Ok(Round::Gone) };
            decided
        } else {
            let plan = self.plan(&world);
            Decided { world, plan }
        };
        if decided.plan.look_live {
            let Some(live) = self.decide_live().await? else { return Ok(Round::Gone) };
            decided = live;
        }
        let wrote = self.carry_out(decided).await?;
        Ok(match wrote {
            Round::Rest(wake) => Round::Rest(earlier(wake, foreign)),
            other @ (Round::Wrote | Round::Gone) => other,
        })
    }

    async fn decide_live(&mut self) -> Result<Option<Decided>, Failure> {
        let now = self.shared.clock.now();
        let world = self.shared.observe.world_live(&self.shared.client, self.key, now).await.map_err(|error| {
            Failure::Transient { what: "live read".to_owned(), message: error.to_string(), retry_after: None }
        })?;
        let Some(mut world) = world else { return Ok(None) };
        self.complete(&mut world);
        let mut plan = self.plan(&world);
        if plan.look_live {
            tracing::error!(deployment = %self.key, "a plan from live facts asks for live facts; this is a bug");
            plan = Plan { report: plan.report, wake: plan.wake, ..Plan::default() };
        }
        Ok(Some(Decided { world, plan }))
    }

    fn world(&mut self) -> Option<World> {
        let mut world = self.shared.observe.world(self.key, self.shared.clock.now())?;
        self.complete(&mut world);
        Some(world)
    }

    /// Adds what only this process knows.
    fn complete(&mut self, world: &mut World) {
        world.attempts = self.shared.actions.results(self.key);
        if !world.attempts.is_empty() && latest(world).is_none() {
            self.shared.actions.forget(self.key);
            world.attempts.clear();
        }
        let generation = world.deployment.generation;
        self.memory.refusals.retain(|_, r| r.generation == generation && r.at.elapsed() < REFUSED);
        world.refusals = self.memory.refusals.iter().map(|(what, r)| (what.clone(), r.message.clone())).collect();
    }

    fn newly_refused(&mut self, what: &str, message: &str) -> bool {
        let generation = self.shared.observe.generation(self.key).unwrap_or_default();
        let refusal = Refusal { message: message.to_owned(), generation, at: Instant::now() };
        self.memory.refusals.insert(what.to_owned(), refusal).is_none_or(|old| old.generation != generation)
    }

    /// Predecessors that a narrowed watch does not show. Returns when to read them again.
    async fn read_foreign(&mut self, world: &mut World) -> Result<Option<Duration>, Failure> {
        let passed = latest(world).is_some_and(|r| r.status.order_passed);
        if !self.shared.scope.narrowed() || !world.deployment.held() || passed || world.components.is_empty() {
            return Ok(None);
        }
        if self.memory.foreign_read.is_none_or(|at| at.elapsed() >= FOREIGN_EVERY) {
            let keys: Vec<Key> = world.components.keys().map(|name| Key::new(&self.key.namespace, name)).collect();
            self.shared.observe.read_foreign(&self.shared.client, &keys).await.map_err(|error| Failure::Transient {
                what: "live read".to_owned(),
                message: error.to_string(),
                retry_after: None,
            })?;
            self.memory.foreign_read = Some(Instant::now());
            if let Some(again) = self.world() {
                *world = again;
            }
        }
        Ok(Some(FOREIGN_EVERY))
    }

    fn plan(&self, world: &World) -> Plan {
        let start = Instant::now().into_std();
        let plan = plan(world);
        self.shared.metrics.planned(start.elapsed());
        plan
    }

    async fn carry_out(&mut self, decided: Decided) -> Result<Round, Failure> {
        let Decided { world, plan: Plan { look_live: _, effects, status, wake, report } } = decided;
        self.say(&report);
        let subject = Subject { key: self.key.clone(), uid: world.deployment.uid.clone() };
        let ended: Vec<(String, HookRunStatus)> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::RecordStatus { run, status, .. } => Some((run.clone(), HookRunStatus::clone(status))),
                _ => None,
            })
            .collect();
        let mut wrote = self.shared.executor.perform(&subject, effects).await?;
        for (run, status) in &ended {
            self.count(&world, run, status);
        }
        let mut wake = wake.map(|at| until(at, world.now));
        if let Some(write) = status {
            if let Some(pause) = self.status_due(&write) {
                wake = earlier(wake, Some(pause));
            } else {
                let (run, status) = (write.run.clone(), write.status.clone());
                self.shared.executor.status(&subject, write).await?;
                self.memory.status_written = Some(Instant::now());
                self.count(&world, &run, &status);
                wrote = true;
            }
        }
        Ok(if wrote { Round::Wrote } else { Round::Rest(wake) })
    }

    /// How long a status has to wait in which only counters moved; `None`: it is due.
    fn status_due(&self, write: &StatusWrite) -> Option<Duration> {
        let since = self.memory.status_written?.elapsed();
        (!write.urgent && since < STATUS_EVERY).then(|| STATUS_EVERY.saturating_sub(since))
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
    fn count(&self, world: &World, run: &str, status: &HookRunStatus) {
        let Some(before) = world.runs.iter().find(|r| r.name == run).map(|r| &r.status) else { return };
        let metrics = &self.shared.metrics;
        if let (None, Some(ended)) = (&before.ended, &status.ended) {
            metrics.run_ended(ended.outcome);
        }
        let done = |steps: &[Step], step: &Step| {
            steps.iter().any(|s| {
                (&s.hook, s.phase, s.attempt, s.finished_at.is_some()) == (&step.hook, step.phase, step.attempt, true)
            })
        };
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

struct Decided {
    world: World,
    plan: Plan,
}

fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// From `now` to `at`; at once if that has passed.
fn until(at: Time, now: Time) -> Duration {
    Duration::from_millis(u64::try_from(at.millis_since(now)).unwrap_or(0))
}
