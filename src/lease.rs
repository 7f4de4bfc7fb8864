//! Leader election on a `coordination.k8s.io/v1` Lease, and the [`Fence`] that every write asks first.
//!
//! Clocks of other machines are never compared with ours. A candidate takes a Lease over when it has itself seen it
//! unchanged for the whole duration, on its own monotonic clock. A holder believes in itself only for [`DEADLINE`]
//! after the *start* of its last successful renewal, and [`DEADLINE`] < [`DURATION`], so it stops before another one
//! begins. The clock is `CLOCK_MONOTONIC`, which goes on while a process is stopped: one that was suspended for a
//! minute finds its fence down before it has done anything.

use std::{fmt, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

#[cfg(test)]
mod tests;

/// How long others wait after the last change that they saw.
pub const DURATION: Duration = Duration::from_secs(15);
/// How long a holder believes in itself after the start of its last successful renewal.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// How often the Lease is renewed, and looked at by candidates.
pub const PERIOD: Duration = Duration::from_secs(2);
/// How long one request may take.
const CALL: Duration = Duration::from_secs(4);
/// A Lease that asks for more than this is not believed.
const LONGEST: Duration = Duration::from_mins(5);

/// Answers whether this process may still write. Cheap to clone and to ask.
#[derive(Clone, Debug)]
pub struct Fence(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Always,
    Lease(watch::Receiver<Option<Instant>>),
}

impl Fence {
    /// A fence that is never down: there is no leader election.
    pub fn always() -> Self {
        Self(Kind::Always)
    }

    /// May this process write now?
    pub fn holds(&self) -> bool {
        match &self.0 {
            Kind::Always => true,
            Kind::Lease(renewed) => renewed.borrow().is_some_and(|at| at.elapsed() < DEADLINE),
        }
    }

    /// Returns once the Lease is ours. Never, if the election has ended without that.
    pub async fn acquired(&self) {
        let Kind::Lease(renewed) = &self.0 else { return };
        let mut renewed = renewed.clone();
        while !self.holds() {
            if renewed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Why a process is no longer the leader. It must end: what it knows may be old.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseLost {
    /// No renewal succeeded within [`DEADLINE`].
    #[error("lease {lease} could not be renewed within {} s ({why}); another process may lead by now", DEADLINE.as_secs())]
    NotRenewed {
        /// Namespace and name.
        lease: String,
        /// The last failure.
        why: String,
    },
    /// Somebody else holds it.
    #[error("lease {lease} is held by {holder:?}; this process no longer leads")]
    Taken {
        /// Namespace and name.
        lease: String,
        /// Who holds it; empty if nobody does.
        holder: String,
    },
}

/// A candidate for the leadership.
pub struct Candidate {
    api: Api<Lease>,
    namespace: String,
    name: String,
    identity: String,
    renewed: watch::Sender<Option<Instant>>,
    seen: Option<Seen>,
}

/// What a candidate last saw of somebody else's Lease.
struct Seen {
    spec: LeaseSpec,
    since: Instant,
}

/// What came of one attempt to take or keep the Lease.
enum Round {
    Ours(Box<Lease>),
    Theirs(String),
}

/// A failure that may pass.
#[derive(Debug)]
enum Trouble {
    Api(kube::Error),
    Slow,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api(kube::Error::Api(status)) => write!(f, "{}", status.message),
            Self::Api(error) => write!(f, "{error}"),
            Self::Slow => f.write_str("the API server did not answer in time"),
        }
    }
}

impl Candidate {
    /// A candidate for the Lease `name` in `namespace`, with the fence that tells when it leads. `identity` must be
    /// unique to this process: a restarted one must not take itself for the one before.
    pub fn new(client: Client, namespace: &str, name: &str, identity: String) -> (Self, Fence) {
        let (renewed, fence) = watch::channel(None);
        let api = Api::namespaced(client, namespace);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        (Self { api, namespace, name, identity, renewed, seen: None }, Fence(Kind::Lease(fence)))
    }

    /// Waits for the Lease, renews it until `stop`, then gives it back so that the next one need not wait. Whoever
    /// writes behind the fence must have ended before `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), LeaseLost> {
        let Some(lease) = self.acquire(&stop).await else { return Ok(()) };
        let outcome = self.keep(lease, &stop).await;
        self.renewed.send_replace(None);
        self.release(outcome?).await;
        Ok(())
    }

    /// `None`: stopped before it was ours.
    async fn acquire(&mut self, stop: &CancellationToken) -> Option<Lease> {
        tracing::info!(lease = %self.id(), identity = %self.identity, "waiting for the lease");
        let mut last = String::new();
        loop {
            let start = Instant::now();
            let state = match timeout_at(start + CALL, self.try_acquire()).await {
                Ok(Ok(Round::Ours(lease))) => {
                    self.renewed.send_replace(Some(start));
                    tracing::info!(lease = %self.id(), "leading");
                    return Some(*lease);
                }
                Ok(Ok(Round::Theirs(holder))) => format!("held by {holder}"),
                Ok(Err(trouble)) => trouble.to_string(),
                Err(_) => Trouble::Slow.to_string(),
            };
            if state != last {
                tracing::info!(lease = %self.id(), %state, "not leading");
                last = state;
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = sleep_until(start + PERIOD) => {}
            }
        }
    }

    async fn try_acquire(&mut self) -> Result<Round, Trouble> {
        let now = Instant::now();
        let Some(current) = self.api.get_opt(&self.name).await.map_err(Trouble::Api)? else {
            // Deleted under a holder that was seen alive: that one makes it again, and believes in itself meanwhile.
            return match &self.seen {
                Some(seen) if !seen.over(now) => Ok(Round::Theirs("nobody: it was deleted".into())),
                _ => self.write(None).await,
            };
        };
        let spec = current.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return self.write(Some(current)).await;
        }
        match &self.seen {
            Some(seen) if seen.spec == spec => {
                if seen.over(now) {
                    return self.write(Some(current)).await;
                }
            }
            _ => self.seen = Some(Seen { spec, since: now }),
        }
        Ok(Round::Theirs(holder))
    }

    /// Renews until `stop`, and returns the Lease as it was last written.
    async fn keep(&self, mut lease: Lease, stop: &CancellationToken) -> Result<Lease, LeaseLost> {
        let mut renewed = self.renewed.borrow().unwrap_or_else(Instant::now);
        let mut next = renewed + PERIOD;
        let mut why = String::from("this process stood still");
        loop {
            tokio::select! {
                // A stopped process that goes on finds the deadline passed first.
                biased;
                () = sleep_until(renewed + DEADLINE) => {
                    return Err(LeaseLost::NotRenewed { lease: self.id(), why });
                }
                () = stop.cancelled() => return Ok(lease),
                () = sleep_until(next) => {}
            }
            let start = Instant::now();
            let limit = (start + CALL).min(renewed + DEADLINE);
            why = match timeout_at(limit, self.renew(&lease)).await {
                Ok(Ok(Round::Ours(new))) => {
                    lease = *new;
                    renewed = start;
                    self.renewed.send_replace(Some(start));
                    next = start + PERIOD;
                    continue;
                }
                Ok(Ok(Round::Theirs(holder))) => return Err(LeaseLost::Taken { lease: self.id(), holder }),
                Ok(Err(trouble)) => trouble.to_string(),
                Err(_) => Trouble::Slow.to_string(),
            };
            tracing::warn!(lease = %self.id(), %why, "lease not renewed");
            next = Instant::now().max(start + PERIOD / 2);
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Round, Trouble> {
        match self.write(Some(lease.clone())).await? {
            Round::Ours(lease) => Ok(Round::Ours(lease)),
            // Changed by somebody, or by a renewal of ours whose answer was lost.
            Round::Theirs(_) => match self.api.get_opt(&self.name).await.map_err(Trouble::Api)? {
                None => self.write(None).await,
                Some(current) => {
                    let holder = current.spec.as_ref().and_then(|s| s.holder_identity.clone()).unwrap_or_default();
                    if holder == self.identity { self.write(Some(current)).await } else { Ok(Round::Theirs(holder)) }
                }
            },
        }
    }

    /// Writes the Lease as ours: over `current` and only over that, or new. Losing the race is no failure.
    async fn write(&self, current: Option<Lease>) -> Result<Round, Trouble> {
        let now = MicroTime(k8s_openapi::jiff::Timestamp::now());
        let parameters = PostParams { field_manager: Some("interlock".into()), ..PostParams::default() };
        let fresh = current.is_none();
        let mut lease = current.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            spec.holder_identity = Some(self.identity.clone());
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |n| n.saturating_add(1)));
        }
        spec.lease_duration_seconds = Some(i32::try_from(DURATION.as_secs()).unwrap_or(i32::MAX));
        spec.renew_time = Some(now);
        let written = if fresh {
            self.api.create(&parameters, &lease).await
        } else {
            self.api.replace(&self.name, &parameters, &lease).await
        };
        match written {
            Ok(lease) => Ok(Round::Ours(Box::new(lease))),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Round::Theirs("another candidate".into())),
            // Gone between reading and writing; a missing namespace, on the other hand, is worth telling.
            Err(kube::Error::Api(status)) if status.code == 404 && !fresh => Ok(Round::Theirs("nobody".into())),
            Err(error) => Err(Trouble::Api(error)),
        }
    }

    /// Best effort: without it the next one waits for [`DURATION`].
    async fn release(&self, mut lease: Lease) {
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = None;
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(k8s_openapi::jiff::Timestamp::now()));
        let parameters = PostParams { field_manager: Some("interlock".into()), ..PostParams::default() };
        let write = self.api.replace(&self.name, &parameters, &lease);
        match timeout_at(Instant::now() + CALL, write).await {
            Ok(Ok(_)) => tracing::info!(lease = %self.id(), "lease given back"),
            Ok(Err(error)) => {
                tracing::warn!(lease = %self.id(), error = %Trouble::Api(error), "lease not given back");
            }
            Err(_) => tracing::warn!(lease = %self.id(), error = %Trouble::Slow, "lease not given back"),
        }
    }

    fn id(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Seen {
    /// Has the holder been silent for as long as it asked others to wait?
    fn over(&self, now: Instant) -> bool {
        let asked = self.spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0);
        now.duration_since(self.since) >= Duration::from_secs(asked).clamp(DURATION, LONGEST)
    }
}

/// A name for this process: the pod's or host's, and something that is different each time.
pub fn identity() -> String {
    let host = std::env::var("POD_NAME")
        .ok()
        .filter(|name| !name.is_empty())
        .or_else(|| hostname::get().ok()?.into_string().ok())
        .unwrap_or_else(|| "interlock".into());
    format!("{host}_{}", crate::cli::random_id())
}
