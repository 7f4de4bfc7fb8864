//! An outside observer: a watch on the pods of a namespace, which belongs to none of those that are measured.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use futures::TryStreamExt as _;
use interlock::observe::{
    facts,
    object::{Object, PodKind},
};
use interlock_core::world::Pod;
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

/// How far behind the cluster the watch may be at the end.
const BEHIND: Duration = Duration::from_secs(30);

/// What was seen of one update.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Ready pods that were missing, integrated over the run: pod seconds.
    pub(crate) missing: f64,
    /// Pods that came into being.
    pub(crate) created: usize,
    /// Pods that went.
    pub(crate) deleted: usize,
}

/// Watches from its start until [`Observer::finish`].
pub(crate) struct Observer {
    pods: Api<Object<PodKind>>,
    record: Arc<Mutex<Record>>,
    task: JoinHandle<()>,
}

struct Record {
    desired: usize,
    pods: BTreeMap<String, bool>,
    first: BTreeSet<String>,
    seen: Seen,
    changed: Instant,
    broken: Option<String>,
}

impl Record {
    fn take(&mut self, uid: String, pod: Option<&Pod>, gone: bool) {
        let ready = self.pods.values().filter(|ready| **ready).count();
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let missing = self.desired.saturating_sub(ready) as f64;
        let now = Instant::now();
        self.seen.missing += missing * now.duration_since(self.changed).as_secs_f64();
        self.changed = now;
        if gone {
            self.pods.remove(&uid);
            self.seen.deleted += 1;
        } else {
            if !self.first.contains(&uid) && !self.pods.contains_key(&uid) {
                self.seen.created += 1;
            }
            self.pods.insert(uid, pod.is_some_and(|p| p.ready));
        }
    }
}

/// UID, and whether it is ready.
fn state(object: &Object<PodKind>) -> (String, Option<Pod>) {
    (kube::ResourceExt::uid(object).unwrap_or_default(), facts::pod::pod(&object.json))
}

impl Observer {
    /// Watches the pods of a namespace, of which so many are to be ready.
    pub(crate) async fn start(client: Client, namespace: &str, desired: usize) -> Result<Self> {
        let pods: Api<Object<PodKind>> = Api::namespaced(client, namespace);
        let list = pods.list(&ListParams::default()).await.context("the observer cannot list pods")?;
        let there: BTreeMap<String, bool> =
            list.items.iter().map(state).map(|(uid, pod)| (uid, pod.is_some_and(|p| p.ready))).collect();
        let record = Record {
            desired,
            first: there.keys().cloned().collect(),
            pods: there,
            seen: Seen::default(),
            changed: Instant::now(),
            broken: None,
        };
        let record = Arc::new(Mutex::new(record));
        let version = list.metadata.resource_version.unwrap_or_default();
        let task = tokio::spawn({
            let (pods, record) = (pods.clone(), Arc::clone(&record));
            async move {
                if let Err(error) = watch(&pods, &record, version).await {
                    lock(&record).broken = Some(format!("{error:#}"));
                }
            }
        });
        Ok(Self { pods, record, task })
    }

    /// What was seen, once the record has caught up with the cluster.
    pub(crate) async fn finish(self) -> Result<Seen> {
        let end = Instant::now() + BEHIND;
        loop {
            let list = self.pods.list(&ListParams::default()).await.context("the observer cannot list pods")?;
            let there: BTreeMap<String, bool> =
                list.items.iter().map(state).map(|(uid, pod)| (uid, pod.is_some_and(|p| p.ready))).collect();
            {
                let record = lock(&self.record);
                if let Some(why) = &record.broken {
                    bail!("the outside observer has lost events: {why}");
                }
                if record.pods == there {
                    self.task.abort();
                    return Ok(record.seen.clone());
                }
            }
            if Instant::now() > end {
                bail!("the outside observer is still behind the cluster after {} s", BEHIND.as_secs());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

fn lock(record: &Mutex<Record>) -> std::sync::MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Never returns but with an error: then events may be missing.
async fn watch(pods: &Api<Object<PodKind>>, record: &Mutex<Record>, mut version: String) -> Result<()> {
    loop {
        let mut events = Box::pin(pods.watch(&WatchParams::default().timeout(290), &version).await?);
        while let Some(event) = events.try_next().await? {
            let (object, gone) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(mark) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => bail!("the API server ended the watch: {}", status.message),
            };
            version = kube::ResourceExt::resource_version(&object).unwrap_or(version);
            let (uid, pod) = state(&object);
            lock(record).take(uid, pod.as_ref(), gone);
        }
    }
}
