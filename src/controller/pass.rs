//! One pass over one Deployment: gather, plan, carry out, until there is nothing more to do now.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use interlock_core::{
    plan::{Plan, State, plan},
    world::{Run, World},
};
use tokio::{sync::OwnedMutexGuard, time::Instant};

use super::{
    Error, Shared,
    flight::{Flight, Landed},
    queue::Outcome,
};
use crate::{
    execute::{Failure, Subject},
    observe::{Item, Key, LiveError, facts::run::holds_slot},
};

/// So many plans one pass carries out without any news before others get their turn.
const LOOPS: usize = 50;
/// So many passes in a row may use all of [`LOOPS`]; then something does not converge, and it is slowed down.
const LONG_PASSES: u32 = 3;
/// A write that lost its precondition so often in a row in one pass is left for later.
const LOST: u32 = 5;
/// A refusal is believed for so long, or until the Deployment changes.
const REFUSED: Duration = Duration::from_mins(5);
/// Planning takes at most one part in so many of the time, so that the events of a large Deployment, of which each may call
/// for a plan, are taken together.
const PACE: u32 = 5;
/// What planning costs may grow by one part in so many from plan to plan.
const GROWTH: u32 = 8;
/// Below this a pause is not worth its timer.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// Deployments outside of a narrowed watch are read this often while somebody waits for them.
const FOREIGN_EVERY: Duration = Duration::from_secs(5);

/// What is remembered of a Deployment between passes. Losing it costs a write or a read, nothing else.
#[derive(Default)]
pub(super) struct Memory {
    /// When, and how long the next one in which only counters moved has to wait.
    pub(super) status_written: Option<(Instant, Duration)>,
    foreign_read: Option<Instant>,
    refusals: BTreeMap<String, Refusal>,
    long_passes: u32,
    pub(super) report: Option<(State, String)>,
    /// The next plan is not to be made before.
    pause: Option<Instant>,
    /// What a plan costs: the least that lately one took. The clock on the wall also counts what others did on this CPU
    /// meanwhile, and would make long pauses of it.
    cost: Option<Duration>,
    /// While an update goes on: what the last plan was made from.
    pub(super) last: Option<World>,
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

pub(super) fn latest(world: &World) -> Option<&Run> {
    world.runs.iter().filter(|r| r.status.ended.is_none()).max_by_key(|r| r.spec.sequence)
}

/// What one round of a pass led to.
pub(super) enum Round {
    /// Something was written: plan again.
    Wrote,
    /// Something has come in: plan again.
    News,
    /// Nothing more to do now. Again after this time at the latest.
    Rest(Option<Duration>),
    /// There is no such Deployment.
    Gone,
}

pub(super) async fn pass(shared: &Shared, key: &Key) -> Result<Outcome, Error> {
    let mut memory = shared.remember(key);
    let subject = Subject::new(key.clone(), shared.observe.uid(key).unwrap_or_default());
    let flight = Flight::new(&shared.executor, subject);
    let item = Item::Deployment(key.clone());
    let outcome =
        Pass { shared, key, item, memory: &mut memory, flight, since: None, answered: None, lost: 0 }.run().await;
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

/// A pass under way.
pub(super) struct Pass<'a> {
    pub(super) shared: &'a Shared,
    pub(super) key: &'a Key,
    item: Item,
    pub(super) memory: &'a mut Memory,
    pub(super) flight: Flight<'a>,
    /// When the first change came that has led to no write yet.
    pub(super) since: Option<Instant>,
    /// When the last write of this pass was answered that the next plan had to wait for.
    pub(super) answered: Option<Instant>,
    lost: u32,
}

impl Pass<'_> {
    /// `None`: there is no such Deployment, and nothing to remember of it.
    async fn run(&mut self) -> Result<Option<Outcome>, Failure> {
        let mut loops = 0;
        while loops < LOOPS {
            loops += 1;
            match self.round().await {
                Ok(Round::Wrote) => self.lost = 0,
                Ok(Round::News) => {
                    self.lost = 0;
                    loops = 0;
                }
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
        self.land().await?;
        self.memory.long_passes += 1;
        if self.memory.long_passes < LONG_PASSES {
            return Ok(Some(Outcome::Again));
        }
        tracing::error!(deployment = %self.key, "plans do not come to an end; slowing down. This is a bug, please report it");
        Ok(Some(Outcome::Failed { retry_after: None }))
    }

    async fn round(&mut self) -> Result<Round, Failure> {
        if self.shared.queue.is_closed() {
            self.land().await?;
            return Ok(Round::Rest(None));
        }
        let mut result = self.try_round().await;
        if let Ok(Round::Rest(wake)) = result
            && !self.flight.is_empty()
        {
            result = self.rest(wake.map(|wake| Instant::now() + wake)).await;
        }
        if result.is_err() {
            // Whatever the reason: nothing is decided while something is under way.
            while !self.flight.is_empty() {
                let _ = self.flight.next().await;
            }
        }
        result
    }

    async fn try_round(&mut self) -> Result<Round, Failure> {
        if let Some(pause) = self.memory.pause.take() {
            self.pause(pause).await?;
        }
        self.flight.reconsider();
        let news = self.shared.queue.look(&self.item);
        self.since = self.since.or(news);
        let begin = Instant::now();
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
        let took = begin.elapsed();
        let cost = self.memory.cost.map_or(took, |known| took.min(known + known / GROWTH + SHORTEST_PAUSE / 100));
        self.memory.cost = Some(cost);
        let pause = cost * (PACE - 1);
        self.memory.pause = (pause >= SHORTEST_PAUSE).then(|| Instant::now() + pause);
        if decided.plan.look_live {
            if !self.flight.is_empty() {
                return self.land().await;
            }
            let Some(live) = self.decide_live().await? else { return Ok(Round::Gone) };
            decided = live;
            // What takes time now are the reads.
            self.since = None;
        }
        self.carry_out(decided, foreign).await
    }

    /// Lets the pace of planning pass. It does not hold up writes: when there are more to choose, that is done at once.
    async fn pause(&mut self, until: Instant) -> Result<(), Failure> {
        loop {
            tokio::select! {
                biased;
                landed = self.flight.next(), if !self.flight.is_empty() => {
                    self.landed(landed?);
                    if self.flight.has_more() {
                        return Ok(());
                    }
                }
                () = tokio::time::sleep_until(until) => return Ok(()),
            }
        }
    }

    /// Waits for what makes another plan: answers after which there is more to do, news, or the time.
    async fn rest(&mut self, until: Option<Instant>) -> Result<Round, Failure> {
        let shared = self.shared;
        loop {
            let timer = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                landed = self.flight.next(), if !self.flight.is_empty() => {
                    self.landed(landed?);
                    if self.flight.is_empty() || self.flight.has_more() {
                        return Ok(Round::Wrote);
                    }
                }
                () = shared.queue.news(&self.item), if !self.flight.is_full() => return Ok(Round::News),
                () = timer => return Ok(Round::News),
            }
        }
    }

    /// Waits for the answers of all that is under way.
    pub(super) async fn land(&mut self) -> Result<Round, Failure> {
        self.flight.reconsider();
        while !self.flight.is_empty() {
            let landed = self.flight.next().await?;
            self.landed(landed);
        }
        self.answered = Some(Instant::now());
        Ok(Round::Wrote)
    }

    fn landed(&self, landed: Landed) {
        match landed {
            Landed::Pod(_) => {}
            Landed::Status { before, after } => self.count(Some(&before), &after),
        }
    }

    async fn decide_live(&mut self) -> Result<Option<Decided>, Failure> {
        let now = self.shared.clock.now();
        let last = self.memory.last.take();
        let world = self.shared.observe.world_live(&self.shared.client, self.key, now, last).await.map_err(unread)?;
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
        let last = self.memory.last.take();
        let mut world = self.shared.observe.world(self.key, self.shared.clock.now(), last)?;
        self.complete(&mut world);
        Some(world)
    }

    /// Adds what only this process knows.
    fn complete(&mut self, world: &mut World) {
        self.flight.foresee(world);
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
            let keys: Vec<Key> = world
                .components
                .keys()
                .filter_map(|r| Some(Key::new(&self.key.namespace, r.as_deployment()?)))
                .collect();
            self.shared.observe.read_foreign(&self.shared.client, &keys).await.map_err(unread)?;
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
}

/// A plan and what it was made from.
pub(super) struct Decided {
    pub(super) world: World,
    pub(super) plan: Plan,
}

/// A live read that failed.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn unread(error: LiveError) -> Failure {
    Failure::Transient { what: "live read".to_owned(), message: error.to_string(), retry_after: None }
}

pub(super) fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}
