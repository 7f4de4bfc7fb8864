//! One look at one target.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use interlock_core::{
    api::{
        policy::Tolerance,
        reference::{Reference, WorkloadKind},
    },
    order::{Terms, met},
    pod,
    time::Time,
    world::{Deployment, Predecessor, Run, Standing},
};
use kube::Client;
use tokio::time::Instant;

use super::{
    For, Options,
    judge::{Verdict, judge},
};
use crate::{
    cli::verbs::state,
    controller::Clock,
    observe::{Key, LiveError, Observe, facts::run::holds_slot},
};

/// A failure by a condition that may be older than the last change must be there for so long.
const DOUBT: Duration = Duration::from_secs(1);

/// What a look came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    Ready(String),
    Failed(String),
    NotFound,
    /// What is waited for, and when to look again at the latest, if nothing changes before.
    NotYet(String, Option<Instant>),
}

/// What has been seen so far.
pub(super) struct Eyes {
    client: Client,
    namespace: String,
    observe: Arc<Observe>,
    wait_for: For,
    terms: Terms,
    /// Could ReplicaSets and pods be listed?
    pub(super) pods_are_known: bool,
    /// Labels of the pods of what has been seen, for when it is gone.
    selectors: BTreeMap<Reference, BTreeMap<String, String>>,
    doubts: BTreeMap<Reference, (String, Instant)>,
}

impl Eyes {
    pub(super) fn new(client: Client, namespace: &str, observe: Arc<Observe>, options: &Options) -> Self {
        let settle_seconds = i64::try_from(options.settle.as_secs()).unwrap_or(i64::MAX);
        Self {
            client,
            namespace: namespace.to_owned(),
            observe,
            wait_for: options.wait_for,
            terms: Terms { settle_seconds, ..Terms::default() },
            pods_are_known: false,
            selectors: BTreeMap::new(),
            doubts: BTreeMap::new(),
        }
    }

    pub(super) async fn look(&mut self, target: &Reference) -> Result<Look, LiveError> {
        let found = self.observe.predecessor(&self.namespace, target);
        let selector = self.observe.selector(&self.namespace, target);
        if !selector.is_empty() {
            self.selectors.insert(target.clone(), selector);
        }
        if self.wait_for == For::Gone {
            return Ok(self.gone(target, found.as_ref()));
        }
        let Some(found) = found else {
            // What has been deleted and is made again is another one; a script that waited for the first is told.
            return Ok(Look::NotFound);
        };
        let look = match target.as_deployment() {
            Some(name) => self.deployment(name, target, found).await?,
            None if self.wait_for == For::Started => self.started(target, &found),
            None => match met(Some(&found), &self.terms, now()) {
                Ok(()) => Look::Ready("settled".to_owned()),
                Err(unsettled) => match &found.standing {
                    Standing::Job(job) if job.failed.is_some() => Look::Failed(unsettled.why),
                    _ if unsettled.why == "is being deleted" => Look::Failed(unsettled.why),
                    _ => Look::NotYet(unsettled.why, unsettled.wake.map(instant)),
                },
            },
        };
        Ok(match look {
            Look::NotYet(what, at) => self.fail_fast(target, what, at),
            other => other,
        })
    }

    fn gone(&self, target: &Reference, found: Option<&Predecessor>) -> Look {
        let not_yet = |what: String| Look::NotYet(what, None);
        match found {
            Some(Predecessor { standing: Standing::Pods(pods), leaving, .. }) => match pods.total + leaving {
                0 => Look::Ready("gone".to_owned()),
                left => not_yet(format!("{left} pods are left")),
            },
            Some(_) => not_yet("exists".to_owned()),
            None => {
                let selector = self.selectors.get(target).filter(|_| self.pods_are_known);
                match selector.map_or(0, |labels| self.observe.count_pods(&self.namespace, labels)) {
                    0 => Look::Ready("gone".to_owned()),
                    left => not_yet(format!("{left} of its pods are left")),
                }
            }
        }
    }

    fn started(&self, target: &Reference, found: &Predecessor) -> Look {
        let pods = self.observe.pods_of(&self.namespace, target).len();
        let (deleting, wanted, current) = match &found.standing {
            Standing::StatefulSet(s) => (s.deleting, s.replicas > 0, s.observed_generation >= s.generation),
            Standing::DaemonSet(s) => (s.deleting, s.desired > 0, s.observed_generation >= s.generation),
            Standing::Job(job) if job.complete || job.failed.is_some() => (job.deleting, false, true),
            Standing::Job(job) => (job.deleting, true, true),
            Standing::Deployment(_) | Standing::Pods(_) | Standing::Unread => (false, true, true),
        };
        if deleting {
            Look::Failed("is being deleted".to_owned())
        } else if !current {
            Look::NotYet("its controller has not seen the last change yet".to_owned(), None)
        } else if wanted && pods == 0 {
            Look::NotYet("has no pod yet".to_owned(), None)
        } else {
            Look::Ready("started".to_owned())
        }
    }

    /// A Deployment: what the watches show decides whether it is worth to read it live, and what is read decides.
    async fn deployment(&mut self, name: &str, target: &Reference, found: Predecessor) -> Result<Look, LiveError> {
        let key = Key::new(&self.namespace, name);
        let look = self.seen(&key, target, &found);
        if matches!(look, Look::NotYet(..)) {
            return Ok(look);
        }
        if self.pods_are_known {
            self.observe.read_live(&self.client, &key).await?;
        } else if self.observe.deployment_live(&self.client, &key).await?.is_some() {
            self.observe.read_runs(&self.client, &key).await?;
        }
        let before = self.observe.generation(&key);
        // A change since then would be judged by the runs of the one before.
        let Some(again) = self.observe.deployment_live(&self.client, &key).await? else { return Ok(Look::NotFound) };
        if before != Some(again.generation) {
            return Ok(Look::NotYet("it is being changed".to_owned(), Some(Instant::now() + DOUBT)));
        }
        let Some(found) = self.observe.predecessor(&self.namespace, target) else { return Ok(Look::NotFound) };
        Ok(self.seen(&key, target, &found))
    }

    fn seen(&mut self, key: &Key, target: &Reference, found: &Predecessor) -> Look {
        let Some((deployment, runs)) = self.facts(key) else { return Look::NotFound };
        let verdict = judge(&deployment, &runs);
        if !matches!(verdict, Verdict::FailedIfItLasts(_)) {
            self.doubts.remove(target);
        }
        match verdict {
            Verdict::Failed(why) => Look::Failed(why),
            Verdict::FailedIfItLasts(why) => {
                let now = Instant::now();
                let since = match self.doubts.get(target) {
                    Some((before, since)) if *before == why => *since,
                    Some(_) | None => {
                        self.doubts.insert(target.clone(), (why.clone(), now));
                        now
                    }
                };
                if now >= since + DOUBT { Look::Failed(why) } else { Look::NotYet(why, Some(since + DOUBT)) }
            }
            _ if self.wait_for == For::Started => {
                let run = state::current(&deployment, &runs);
                let at_it = !deployment.held() || run.is_some_and(holds_slot);
                let status = &deployment.status;
                let current = status.observed_generation >= deployment.generation;
                match verdict {
                    Verdict::Settled(_) => Look::Ready("started".to_owned()),
                    _ if at_it && current && (deployment.replicas == 0 || status.updated > 0 || deployment.held()) => {
                        Look::Ready("started".to_owned())
                    }
                    Verdict::NotYet(what) => Look::NotYet(what, None),
                    Verdict::Failed(_) | Verdict::FailedIfItLasts(_) => Look::NotYet("has no pod yet".to_owned(), None),
                }
            }
            Verdict::NotYet(what) => Look::NotYet(what, None),
            Verdict::Settled(how) => match met(Some(found), &self.terms, now()) {
                Ok(()) => Look::Ready(how),
                Err(unsettled) => Look::NotYet(unsettled.why, unsettled.wake.map(instant)),
            },
        }
    }

    fn facts(&self, key: &Key) -> Option<(Arc<Deployment>, Vec<Run>)> {
        let deployment = self.observe.deployments(&key.namespace).into_iter().find(|d| d.name == *key.name)?;
        let runs = self.observe.runs(&key.namespace);
        let own = runs.iter().filter(|run| run.spec.deployment.uid == deployment.uid);
        let runs = own.map(|run| Run::clone(run)).collect();
        Some((deployment, runs))
    }

    /// A container of a wanted pod that says why it does not start ends the waiting, unless what is waited for are other pods:
    /// those of a held Deployment are the ones of before.
    fn fail_fast(&self, target: &Reference, what: String, at: Option<Instant>) -> Look {
        let held = match target {
            Reference::Workload(WorkloadKind::Deployment, name) => {
                self.facts(&Key::new(&self.namespace, name)).is_none_or(|(deployment, _)| deployment.held())
            }
            Reference::Workload(..) | Reference::Labels(_) | Reference::Owner(_) => false,
        };
        let mut at = at;
        if held || self.wait_for != For::Settled {
            return Look::NotYet(what, at);
        }
        for pod in self.observe.pods_of(&self.namespace, target) {
            match pod::failure(&pod, &Tolerance::default(), now()) {
                Err(why) => return Look::Failed(format!("has a pod that fails, {}: {why}", pod.name)),
                Ok(until) => at = super::earlier(at, until.map(instant)),
            }
        }
        Look::NotYet(what, at)
    }
}

fn now() -> Time {
    Clock::System.now()
}

/// This point in time as the runtime counts it; a little later, since API times have whole seconds.
fn instant(at: Time) -> Instant {
    let millis = u64::try_from(at.0.saturating_sub(now().0)).unwrap_or(0);
    Instant::now() + Duration::from_millis(millis.min(86_400_000)) + Duration::from_millis(20)
}
