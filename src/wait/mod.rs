//! Waiting until components have settled: the test of the order gate for programs and scripts, by watches and not by
//! polling. `kubectl interlock wait` is this function with a command line.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use interlock::wait::{Options, Outcome, wait};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = kube::Client::try_default().await?;
//! let targets = ["mds".parse()?, "statefulset/etcd".parse()?];
//! let options = Options { timeout: Some(Duration::from_secs(300)), ..Options::default() };
//! match wait(&client, "storage", &targets, options, |target, what| eprintln!("{target}: {what}")).await? {
//!     Outcome::Ready(_) => println!("go on"),
//!     Outcome::Failed { target, why } => println!("{target} {why}"),
//!     Outcome::TimedOut { target, what } => println!("{target} not in time: {what}"),
//!     Outcome::NotFound { target } => println!("{target} does not exist"),
//! }
//! # Ok(())
//! # }
//! ```

pub mod judge;
mod look;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use interlock_core::api::reference::{Reference, WorkloadKind};
use kube::Client;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};

use self::look::{Eyes, Look};
use crate::observe::{
    Followed, Observe,
    object::{DaemonSetKind, DeploymentKind, JobKind, Kind, PodKind, ReplicaSetKind, RunKind, StatefulSetKind},
};

/// What is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum For {
    /// Its turn has come and its first pod of what is wanted now exists (or none is wanted). It may still fail.
    Started,
    /// The last change is through and every pod is as wanted: what an order gate asks of a predecessor.
    #[default]
    Settled,
    /// It does not exist, and neither do its pods. Pods of what did not exist from the start are not known.
    Gone,
}

/// How is waited.
#[derive(Clone, Debug)]
pub struct Options {
    /// What for.
    pub wait_for: For,
    /// For all targets together; zero: look once. `None`: without end.
    pub timeout: Option<Duration>,
    /// A settled target must also have been quiet for so long; counted in whole seconds. With zero a container that crashes
    /// again and again without a readiness probe passes between two crashes.
    pub settle: Duration,
    /// What is waited for is told again after so long, also if it is still the same. Nothing else depends on it.
    pub interval: Option<Duration>,
}

impl Default for Options {
    /// Until settled, and quiet for two seconds as an order asks by default, for five minutes.
    fn default() -> Self {
        Self {
            wait_for: For::Settled,
            timeout: Some(Duration::from_mins(5)),
            settle: Duration::from_secs(2),
            interval: None,
        }
    }
}

/// How the waiting ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All targets are as asked for; each with a word on how, in their order.
    Ready(Vec<String>),
    /// One will not become so by itself: its container's own reason, a run that stalled, a Job that failed.
    Failed {
        /// Which.
        target: Reference,
        /// Why, as a sentence without its name.
        why: String,
    },
    /// The first that is not yet as asked for.
    TimedOut {
        /// Which.
        target: Reference,
        /// What was waited for last.
        what: String,
    },
    /// One does not exist.
    NotFound {
        /// Which.
        target: Reference,
    },
}

/// It cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refuses what cannot be done without.
    #[error("cannot watch {resource}: {source}")]
    Refused {
        /// Plural of the kind.
        resource: &'static str,
        /// Its answer.
        source: kube::Error,
    },
    /// A read failed.
    #[error(transparent)]
    Read(#[from] crate::observe::LiveError),
}

/// Waits until all targets are as asked for, or one will not become so. `tell` is called with what a target waits for, when
/// that changes.
///
/// Safe right after a change: a change that is governed is held in the very request that makes it; a status that is behind
/// its generation is not believed; and a verdict from the watches is checked by live reads before it is given.
///
/// Needs the right to list and watch the kinds of the targets and, for Deployments, `hookruns`; with `replicasets` and `pods`
/// it also fails fast when a container says why it does not start.
pub async fn wait(
    client: &Client,
    namespace: &str,
    targets: &[Reference],
    options: Options,
    mut tell: impl FnMut(&Reference, &str),
) -> Result<Outcome, Error> {
    let end = options.timeout.map(|timeout| Instant::now() + timeout);
    let observe = Arc::new(Observe::with_all_containers());
    let (news, mut told) = mpsc::unbounded_channel();
    let (needed, helpful) = kinds(targets);
    let mut watches = JoinSet::new();
    for plural in needed.iter().chain(&helpful) {
        follow(&mut watches, plural, &observe, client, namespace, &news);
    }
    let mut unlisted: BTreeSet<&str> = needed.union(&helpful).copied().collect();
    let mut missing: BTreeSet<&str> = BTreeSet::new();
    let mut trouble = String::new();
    let mut eyes = Eyes::new(client.clone(), namespace, observe, &options);
    let mut said: BTreeMap<&Reference, (String, Instant)> = BTreeMap::new();
    loop {
        let mut wake = end;
        let mut first: Option<(&Reference, String)> = None;
        if unlisted.is_empty() {
            eyes.pods_are_known = !missing.contains(PodKind::PLURAL) && !missing.contains(ReplicaSetKind::PLURAL);
            let mut ready = Vec::new();
            for target in targets {
                match eyes.look(target).await? {
                    Look::Ready(how) => ready.push(how),
                    Look::Failed(why) => return Ok(Outcome::Failed { target: target.clone(), why }),
                    Look::NotFound => return Ok(Outcome::NotFound { target: target.clone() }),
                    Look::NotYet(what, at) => {
                        wake = earlier(wake, at);
                        let now = Instant::now();
                        let due = said.get(target).is_none_or(|(before, at)| {
                            *before != what || options.interval.is_some_and(|interval| now >= *at + interval)
                        });
                        if due && end.is_none_or(|end| now < end) {
                            tell(target, &what);
                            said.insert(target, (what.clone(), now));
                        }
                        wake = earlier(wake, options.interval.map(|i| said.get(target).map_or(now, |s| s.1) + i));
                        first.get_or_insert((target, what));
                    }
                }
            }
            if first.is_none() {
                return Ok(Outcome::Ready(ready));
            }
        }
        // A timeout of zero still gets one look.
        let looked = first.is_some() || end.is_some_and(|end| Instant::now() >= end + FIRST_LOOK);
        if end.is_some_and(|end| Instant::now() >= end) && looked {
            let (target, what) = match (first, targets.first()) {
                (Some((target, what)), _) => (target.clone(), what),
                (None, Some(target)) => (target.clone(), format!("the API server has not answered{trouble}")),
                (None, None) => return Ok(Outcome::Ready(Vec::new())),
            };
            return Ok(Outcome::TimedOut { target, what });
        }
        let until = if unlisted.is_empty() { wake } else { wake.map(|at| at + FIRST_LOOK) };
        let next = tokio::select! {
            next = told.recv() => next,
            () = sleep(until) => None,
        };
        // What has come meanwhile is looked at together.
        for (plural, followed) in next.into_iter().chain(std::iter::from_fn(|| told.try_recv().ok())) {
            match followed {
                Followed::News => {}
                Followed::Listed => drop(unlisted.remove(plural)),
                Followed::Troubled(why) => trouble = format!(" ({plural}: {why})"),
                Followed::Refused(source) if needed.contains(plural) => {
                    return Err(Error::Refused { resource: plural, source });
                }
                Followed::Refused(error) => {
                    tracing::debug!(plural, %error, "cannot be watched; its failures are not seen early");
                    unlisted.remove(plural);
                    missing.insert(plural);
                }
            }
        }
    }
}

/// How long the first look of a wait without time may take.
const FIRST_LOOK: Duration = Duration::from_secs(10);

async fn sleep(until: Option<Instant>) {
    match until {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

type News = mpsc::UnboundedSender<(&'static str, Followed)>;

fn follow(
    watches: &mut JoinSet<()>,
    plural: &'static str,
    observe: &Arc<Observe>,
    client: &Client,
    namespace: &str,
    news: &News,
) {
    let (observe, client, namespace, news) = (Arc::clone(observe), client.clone(), namespace.to_owned(), news.clone());
    watches.spawn(async move {
        let tell = |followed| drop(news.send((plural, followed)));
        match plural {
            DeploymentKind::PLURAL => observe.follow::<DeploymentKind>(client, &namespace, tell).await,
            RunKind::PLURAL => observe.follow::<RunKind>(client, &namespace, tell).await,
            ReplicaSetKind::PLURAL => observe.follow::<ReplicaSetKind>(client, &namespace, tell).await,
            StatefulSetKind::PLURAL => observe.follow::<StatefulSetKind>(client, &namespace, tell).await,
            DaemonSetKind::PLURAL => observe.follow::<DaemonSetKind>(client, &namespace, tell).await,
            JobKind::PLURAL => observe.follow::<JobKind>(client, &namespace, tell).await,
            _ => observe.follow::<PodKind>(client, &namespace, tell).await,
        }
    });
}

/// Kinds (their plurals) that are needed, and those that only help.
fn kinds(targets: &[Reference]) -> (BTreeSet<&'static str>, BTreeSet<&'static str>) {
    let mut needed = BTreeSet::new();
    let mut helpful = BTreeSet::from([PodKind::PLURAL]);
    for target in targets {
        match target {
            Reference::Workload(WorkloadKind::Deployment, _) => {
                needed.extend([DeploymentKind::PLURAL, RunKind::PLURAL]);
                helpful.insert(ReplicaSetKind::PLURAL);
            }
            Reference::Workload(WorkloadKind::StatefulSet, _) => drop(needed.insert(StatefulSetKind::PLURAL)),
            Reference::Workload(WorkloadKind::DaemonSet, _) => drop(needed.insert(DaemonSetKind::PLURAL)),
            Reference::Workload(WorkloadKind::Job, _) => drop(needed.insert(JobKind::PLURAL)),
            Reference::Labels(_) => drop(needed.insert(PodKind::PLURAL)),
            Reference::Owner(_) => {
                needed.insert(PodKind::PLURAL);
                helpful.extend([ReplicaSetKind::PLURAL, DeploymentKind::PLURAL]);
            }
        }
    }
    helpful.retain(|plural| !needed.contains(plural));
    (needed, helpful)
}
