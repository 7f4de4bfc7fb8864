//! The queue that plans one Deployment at a time, and the passes that are not about one Deployment.

mod carry;
mod clock;
mod flight;
mod pass;
mod policies;
mod probe;
mod queue;
mod restarts;
mod workers;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::Client;
use tokio_util::sync::CancellationToken;

pub use self::clock::Clock;
use self::{
    pass::{Memory, Slots},
    queue::{Outcome, Queue},
    workers::Signals,
};
use crate::{
    action::{Actions, Runner},
    execute::Executor,
    lease::Fence,
    observe::{Item, Key, Observe, Scope, WatchEnded},
    publish::metrics::Metrics,
    serve::Health,
};

/// How often the counts of runs in the metrics are taken.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// What a controller needs beside a client.
pub struct Options {
    /// Which objects it looks after.
    pub scope: Scope,
    /// Its clock.
    pub clock: Clock,
    /// Names this process in events.
    pub instance: String,
    /// Carries out attempts of hooks.
    pub hooks: Runner,
    /// Where it counts.
    pub metrics: Metrics,
    /// Where it says that it is alive.
    pub health: Health,
}

/// Why a controller ended. The process is to end too.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A watch has ended.
    #[error(transparent)]
    Watch(#[from] WatchEnded),
    /// A write was to be made, and leadership was not certain.
    #[error("leadership is not certain any more; nothing more is written")]
    Fenced,
}

/// What all passes share.
struct Shared {
    client: Client,
    queue: Arc<Queue>,
    observe: Arc<Observe>,
    executor: Executor,
    actions: Arc<Actions>,
    metrics: Metrics,
    scope: Scope,
    clock: Clock,
    slots: Slots,
    memory: Mutex<HashMap<Key, Memory>>,
    policies: policies::Memories,
    restarts: restarts::Memories,
}

impl Shared {
    fn remember(&self, key: &Key) -> Memory {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).remove(key).unwrap_or_default()
    }

    fn keep(&self, key: &Key, memory: Memory) {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), memory);
    }

    async fn pass(self: Arc<Self>, item: Item) -> Result<Outcome, Error> {
        match &item {
            Item::Deployment(key) => pass::pass(&self, key).await,
            Item::Policy(key) => policies::pass(&self, key).await,
            Item::Restart(key) => restarts::pass(&self, key).await,
        }
    }
}

/// Runs a controller until `stop`. The watches begin at once, so that a follower is warm; passes begin when the caches
/// are complete and `fence` holds. A graceful stop waits ten seconds for passes in flight.
///
/// The client must not repeat requests by itself: see [`crate::observe::client`].
pub async fn run(client: Client, options: Options, fence: Fence, stop: CancellationToken) -> Result<(), Error> {
    let Options { scope, clock, instance, hooks, metrics, health } = options;
    let queue = Arc::new(Queue::default());
    let observe = {
        let queue = Arc::clone(&queue);
        Arc::new(Observe::new(move |item| queue.trigger(item)))
    };
    let actions = {
        let queue = Arc::clone(&queue);
        Arc::new(Actions::new(hooks, move |key| queue.trigger(Item::Deployment(key.clone()))))
    };
    let check = {
        let fence = fence.clone();
        Arc::new(move || fence.holds())
    };
    let executor =
        Executor::new(client.clone(), check, Arc::clone(&observe), Arc::clone(&actions), metrics.clone(), instance);
    let shared = Arc::new(Shared {
        client: client.clone(),
        queue: Arc::clone(&queue),
        observe: Arc::clone(&observe),
        executor,
        actions,
        metrics: metrics.clone(),
        scope: scope.clone(),
        clock,
        slots: Slots::default(),
        memory: Mutex::default(),
        policies: policies::Memories::default(),
        restarts: restarts::Memories::default(),
    });
    let signals = Signals {
        beat: {
            let health = health.clone();
            Box::new(move || health.beat())
        },
        panicked: {
            let metrics = metrics.clone();
            Box::new(move || metrics.panicked())
        },
    };

    let watches = Arc::clone(&observe).watch(client, scope, metrics.clone());
    let work = async {
        tokio::select! {
            () = wait_until_ready(&observe, &health, &fence) => {}
            () = stop.cancelled() => return Ok(()),
        }
        health.running(true);
        metrics.leading(true);
        for item in observe.everything() {
            queue.trigger(item);
        }
        let pass = |item| Arc::clone(&shared).pass(item);
        workers::work(Arc::clone(&queue), pass, &signals, stop.clone()).await
    };
    let count = async {
        loop {
            let (open, stalled) = observe.count_runs();
            metrics.runs(open, stalled);
            tokio::time::sleep(COUNT_EVERY).await;
        }
    };
    let stopping = async {
        stop.cancelled().await;
        health.stopping();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = work => result,
        ended = watches => Err(ended.into()),
        () = async { tokio::join!(count, stopping); } => Ok(()),
    }
}

/// The caches are complete and this process leads.
async fn wait_until_ready(observe: &Observe, health: &Health, fence: &Fence) {
    while !observe.synced() {
        health.beat();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    health.synced(true);
    tracing::info!("caches are complete");
    let beat = async {
        loop {
            health.beat();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    tokio::select! {
        () = fence.acquired() => {}
        () = beat => {}
    }
}
