//! An outside observer: it watches the namespace and keeps every event.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Instant,
};

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{WatchEvent, WatchParams},
};

/// One pod as one event showed it.
#[derive(Clone, Debug)]
pub struct Sight {
    pub at: Instant,
    pub uid: String,
    pub app: String,
    pub image: String,
    pub ready: bool,
    pub deleted: bool,
    pub deleting: bool,
}

#[derive(Clone, Default)]
pub struct Observer {
    sights: Arc<Mutex<Vec<Sight>>>,
}

fn sight(pod: &Pod, deleted: bool) -> Sight {
    let status = pod.status.as_ref();
    let ready = status
        .and_then(|s| s.conditions.as_ref())
        .is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    Sight {
        at: Instant::now(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        app: pod.metadata.labels.as_ref().and_then(|l| l.get("app")).cloned().unwrap_or_default(),
        image: pod.spec.as_ref().and_then(|s| s.containers.first()).and_then(|c| c.image.clone()).unwrap_or_default(),
        ready,
        deleted,
        deleting: pod.metadata.deletion_timestamp.is_some(),
    }
}

impl Observer {
    /// Watches all pods of a namespace from now on, every event.
    pub async fn start(client: Client, namespace: &str) -> Self {
        let observer = Self::default();
        let api: Api<Pod> = Api::namespaced(client, namespace);
        let sights = observer.sights.clone();
        let list = api.list(&kube::api::ListParams::default()).await.unwrap();
        let mut version = list.metadata.resource_version.unwrap_or_default();
        sights.lock().unwrap().extend(list.items.iter().map(|p| sight(p, false)));
        tokio::spawn(async move {
            loop {
                let params = WatchParams::default().timeout(290);
                let Ok(stream) = api.watch(&params, &version).await else { return };
                let mut stream = Box::pin(stream);
                while let Ok(Some(event)) = stream.try_next().await {
                    match event {
                        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                            version = pod.metadata.resource_version.clone().unwrap_or_default();
                            sights.lock().unwrap().push(sight(&pod, false));
                        }
                        WatchEvent::Deleted(pod) => {
                            version = pod.metadata.resource_version.clone().unwrap_or_default();
                            sights.lock().unwrap().push(sight(&pod, true));
                        }
                        WatchEvent::Bookmark(mark) => version = mark.metadata.resource_version,
                        WatchEvent::Error(_) => return,
                    }
                }
            }
        });
        observer
    }

    pub fn all(&self) -> Vec<Sight> {
        self.sights.lock().unwrap().clone()
    }

    /// Where the record is now.
    pub fn mark(&self) -> usize {
        self.sights.lock().unwrap().len()
    }

    /// UIDs of the app's pods that were first seen after the mark, and of those deleted after it.
    pub fn born_and_gone(&self, app: &str, mark: usize) -> (BTreeSet<String>, BTreeSet<String>) {
        let all = self.all();
        let before: BTreeSet<_> = all[..mark].iter().filter(|s| s.app == app).map(|s| s.uid.clone()).collect();
        let after = all[mark..].iter().filter(|s| s.app == app);
        let born = after.clone().map(|s| s.uid.clone()).filter(|u| !before.contains(u)).collect();
        let gone = after.filter(|s| s.deleted).map(|s| s.uid.clone()).collect();
        (born, gone)
    }

    /// The fewest ready pods of the app at any event after the mark.
    pub fn fewest_ready(&self, app: &str, mark: usize) -> usize {
        let mut ready: BTreeMap<String, bool> = BTreeMap::new();
        let mut fewest = usize::MAX;
        for (index, s) in self.all().into_iter().enumerate().filter(|(_, s)| s.app == app) {
            if s.deleted || s.deleting {
                ready.remove(&s.uid);
            } else {
                ready.insert(s.uid, s.ready);
            }
            if index >= mark {
                fewest = fewest.min(ready.values().filter(|r| **r).count());
            }
        }
        fewest
    }

    /// When a pod of the app first showed this image.
    pub fn first_seen(&self, app: &str, image: &str) -> Option<Instant> {
        self.all().iter().find(|s| s.app == app && s.image == image && !s.deleted).map(|s| s.at)
    }

    /// All images that pods of the app showed.
    pub fn images(&self, app: &str) -> BTreeSet<String> {
        self.all().into_iter().filter(|s| s.app == app).map(|s| s.image).collect()
    }
}
