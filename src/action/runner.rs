//! Who carries out an attempt.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use interlock_core::{
    effect::{Call, HookCall},
    world::AttemptResult,
};
use kube::Client;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{Attempt, Cluster, End, TIMEOUT, drained, http::HttpClient, job, patch, prepull, waitfor};
use crate::{controller::Clock, execute::Fence};

/// An attempt that goes on.
pub type Attempting = Pin<Box<dyn Future<Output = AttemptResult> + Send>>;
/// A tidying that goes on.
pub type Tidying = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is to be tidied up after an attempt.
#[derive(Clone, Debug)]
pub enum Tidy {
    /// The result of this attempt is stored: what it left may go when its time has come.
    Recorded(Arc<HookCall>),
    /// An attempt that is not running here was cancelled: what it may have left goes.
    Cancelled {
        /// Namespace.
        namespace: Arc<str>,
        /// Key of the attempt.
        key: String,
    },
}

type Start = dyn Fn(HookCall, CancellationToken) -> Attempting + Send + Sync;
type Clean = dyn Fn(Tidy) -> Tidying + Send + Sync;

/// Carries out attempts. Cheap to clone.
#[derive(Clone)]
pub struct Runner {
    start: Arc<Start>,
    pub(super) tidy: Arc<Clean>,
}

impl Runner {
    /// One that calls a function and leaves nothing.
    pub fn of<F>(attempt: impl Fn(HookCall) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = AttemptResult> + Send + 'static,
    {
        let start = move |call, stop: CancellationToken| -> Attempting {
            let running = attempt(call);
            Box::pin(async move {
                tokio::select! {
                    result = running => result,
                    () = stop.cancelled() => std::future::pending().await,
                }
            })
        };
        let tidy = |_| -> Tidying { Box::pin(std::future::ready(())) };
        Self { start: Arc::new(start), tidy: Arc::new(tidy) }
    }

    /// The same, but `http` hooks go to a function: for tests without a network.
    pub fn http_by<F>(self, attempt: impl Fn(HookCall) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = AttemptResult> + Send + 'static,
    {
        let (http, tidy, all) = (Self::of(attempt), Arc::clone(&self.tidy), self);
        let start = move |call: HookCall, stop: CancellationToken| -> Attempting {
            if matches!(call.call, Call::Http(_)) { http.start(call, stop) } else { all.start(call, stop) }
        };
        Self { start: Arc::new(start), tidy }
    }

    /// Begins an attempt. Once the token is cancelled, it takes away what it made, and ends.
    pub fn start(&self, call: HookCall, stop: CancellationToken) -> Attempting {
        (self.start)(call, stop)
    }

    /// Tidies up.
    pub fn tidy(&self, what: Tidy) -> Tidying {
        (self.tidy)(what)
    }
}

/// The runners of all kinds.
pub struct Runners {
    cluster: Cluster,
    http: HttpClient,
}

impl Runners {
    /// `fence` is asked before every write. `clock` is the planner's.
    pub fn new(client: Client, fence: Fence, clock: Clock, http: HttpClient) -> Self {
        Self { cluster: Cluster::new(client, fence, clock), http }
    }

    /// All of them as one.
    pub fn runner(self) -> Runner {
        let all = Arc::new(self);
        let tidy = Arc::clone(&all);
        Runner {
            start: Arc::new(move |call: HookCall, stop: CancellationToken| -> Attempting {
                let all = Arc::clone(&all);
                Box::pin(async move { Box::pin(all.attempt(&call, &stop)).await })
            }),
            tidy: Arc::new(move |what: Tidy| -> Tidying {
                let all = Arc::clone(&tidy);
                Box::pin(async move { all.tidy(what).await })
            }),
        }
    }

    async fn attempt(&self, call: &HookCall, stop: &CancellationToken) -> AttemptResult {
        let spent = self.cluster.now().millis_since(call.started_at).max(0);
        let left = call.timeout_seconds.saturating_mul(1000).saturating_sub(spent).max(0);
        let until = Instant::now() + Duration::from_millis(left.unsigned_abs());
        let attempt = Attempt { cluster: &self.cluster, call, until };
        let end = match &call.call {
            Call::Http(hook) => or_stopped(stop, self.http.attempt(&attempt, hook)).await,
            Call::Job(hook) => job::attempt(&attempt, hook, stop).await,
            Call::PrePull { hook, images, pull_secrets, match_labels } => {
                let pull = prepull::Pull { hook, images, secrets: pull_secrets, match_labels };
                prepull::attempt(&attempt, &pull, stop).await
            }
            Call::WaitFor(hook) => or_stopped(stop, in_time(until, waitfor::attempt(&attempt, hook))).await,
            Call::Patch(hook) => or_stopped(stop, in_time(until, Box::pin(patch::attempt(&attempt, hook)))).await,
            Call::Undo(hook) => or_stopped(stop, in_time(until, Box::pin(patch::undo(&attempt, hook)))).await,
            Call::Drained => or_stopped(stop, in_time(until, Box::pin(drained::attempt(&attempt)))).await,
        };
        let End { outcome, reason } = end;
        tracing::debug!(key = call.key, ?outcome, %reason, "an attempt has ended");
        AttemptResult { outcome, reason: reason.into_owned(), at: self.cluster.now() }
    }

    async fn tidy(&self, what: Tidy) {
        match what {
            Tidy::Recorded(call) => {
                if let Call::Job(hook) = &call.call {
                    job::recorded(&self.cluster, &call, hook).await;
                }
            }
            Tidy::Cancelled { namespace, key } => {
                job::cancelled(&self.cluster, &namespace, &key).await;
                prepull::cancelled(&self.cluster, &namespace, &key).await;
            }
        }
    }
}

/// Whatever is not done when its time is over has timed out.
async fn in_time(until: Instant, attempt: impl Future<Output = End>) -> End {
    timeout_at(until, attempt).await.unwrap_or_else(|_| End::timed_out(TIMEOUT))
}

/// For attempts that leave nothing: they may be dropped anywhere.
async fn or_stopped(stop: &CancellationToken, attempt: impl Future<Output = End>) -> End {
    tokio::select! {
        end = attempt => end,
        () = stop.cancelled() => End::cancelled(),
    }
}
