//! An outside observer: a watch on the pods of the namespace that keeps every event and tells of progress.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::time::{Instant, sleep};

use crate::{
    say::Say,
    sight::{self, Sight},
};

/// The API server may end a watch after this many seconds; the next goes on where it ended.
const WATCH_SECONDS: u32 = 290;
/// How far behind the cluster the watch may be.
const BEHIND: Duration = Duration::from_secs(10);

/// The record. It grows until the process ends.
#[derive(Clone)]
pub(crate) struct Observer {
    pods: Api<Pod>,
    record: Arc<Mutex<Record>>,
}

#[derive(Default)]
struct Record {
    sights: Vec<Sight>,
    /// Why events may be missing.
    broken: Option<String>,
    /// Pods by UID with the image with which they were last told to be ready.
    told: BTreeMap<String, String>,
}

impl Observer {
    /// Watches all pods of the namespace from now on.
    ///
    /// # Errors
    /// When pods cannot be listed.
    pub(crate) async fn start(client: Client, namespace: &str, say: Say) -> Result<Self> {
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let list = pods.list(&ListParams::default()).await.context("the observer cannot list pods")?;
        let record = Arc::new(Mutex::new(Record::default()));
        let observer = Self { pods, record };
        for pod in &list.items {
            observer.see(Sight::new(pod, false), say);
        }
        let version = list.metadata.resource_version.unwrap_or_default();
        let watching = observer.clone();
        tokio::spawn(async move {
            if let Err(error) = watching.watch(version, say).await {
                watching.with(|record| record.broken = Some(format!("{error:#}")));
            }
        });
        Ok(observer)
    }

    /// Never returns but with an error: then events may be missing.
    async fn watch(&self, mut version: String, say: Say) -> Result<()> {
        loop {
            let params = WatchParams::default().timeout(WATCH_SECONDS);
            let mut events = Box::pin(self.pods.watch(&params, &version).await?);
            while let Some(event) = events.try_next().await? {
                let (pod, gone) = match event {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
                    WatchEvent::Deleted(pod) => (pod, true),
                    WatchEvent::Bookmark(mark) => {
                        version = mark.metadata.resource_version;
                        continue;
                    }
                    WatchEvent::Error(status) => bail!("the API server ended the watch: {}", status.message),
                };
                let sight = Sight::new(&pod, gone);
                version.clone_from(&sight.version);
                self.see(sight, say);
            }
        }
    }

    fn see(&self, sight: Sight, say: Say) {
        self.with(|record| {
            let Sight { name, uid, app, running, ready, gone, .. } = sight.clone();
            record.sights.push(sight);
            let all = || sight::ready(&sight::picture(&record.sights, &app), None);
            if gone {
                record.told.remove(&uid);
                say.line(format_args!("{app}: pod {name} deleted, {} ready", all()));
            } else if ready && record.told.get(&uid) != Some(&running) {
                let tag = running.rsplit_once(':').map_or(running.as_str(), |(_, tag)| tag);
                let pod = if record.told.contains_key(&uid) { "pod" } else { "new pod" };
                say.line(format_args!("{app}: {pod} {name} ready with {tag}, {} ready", all()));
                record.told.insert(uid, running);
            }
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut Record) -> T) -> T {
        act(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Everything seen, once the record has caught up with the cluster.
    ///
    /// # Errors
    /// When events were lost, or the watch stays behind.
    pub(crate) async fn sights(&self) -> Result<Vec<Sight>> {
        let end = Instant::now() + BEHIND;
        loop {
            let list = self.pods.list(&ListParams::default()).await.context("pods cannot be listed")?;
            let there: BTreeMap<String, String> =
                list.items.iter().map(|pod| Sight::new(pod, false)).map(|pod| (pod.uid, pod.version)).collect();
            let (sights, broken) = self.with(|record| (record.sights.clone(), record.broken.clone()));
            if let Some(why) = broken {
                bail!("the outside observer has lost events, so nothing can be proved: {why}");
            }
            let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
            for sight in &sights {
                if sight.gone {
                    seen.remove(sight.uid.as_str());
                } else {
                    seen.insert(&sight.uid, &sight.version);
                }
            }
            if seen.len() == there.len()
                && seen.iter().all(|(uid, version)| there.get(*uid).is_some_and(|v| v == version))
            {
                return Ok(sights);
            }
            if Instant::now() > end {
                bail!("the outside observer is still behind the cluster after {} s", BEHIND.as_secs());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}
