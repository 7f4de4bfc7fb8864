//! An outside observer: it keeps every event of the pods, ReplicaSets and HookRuns of a namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use futures::TryStreamExt;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    Store,
    json::{at, list, text},
    store::What,
};

/// One pod as one event showed it.
#[derive(Clone, Debug)]
pub struct Sight {
    pub at: Instant,
    /// Its resourceVersion: comparable with that of other kinds, as the cluster has one etcd.
    pub version: u64,
    pub uid: String,
    pub app: String,
    pub image: String,
    pub ready: bool,
    pub deleted: bool,
    pub deleting: bool,
    /// The whole of it.
    pub pod: Arc<Value>,
}

/// All PreUpdate hooks of a run for this image were recorded as successful.
#[derive(Clone, Debug)]
struct Hooked {
    version: u64,
    app: String,
    image: String,
}

#[derive(Default)]
struct Seen {
    pods: Vec<Sight>,
    hooked: Vec<Hooked>,
    /// App and UID of each ReplicaSet, as often as it was seen; the number of pods that had been seen before; is it gone?
    sets: Vec<(String, String, usize, bool)>,
    /// Why it no longer sees everything.
    blind: Option<String>,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Observer {
    seen: Arc<Mutex<Seen>>,
    /// In this process: the server's log, and how much of it has been taken.
    log: Option<(Arc<Store>, Arc<Mutex<usize>>)>,
}

fn version(object: &Value) -> u64 {
    text(object, "/metadata/resourceVersion").parse().unwrap_or_default()
}

fn app(object: &Value) -> String {
    text(object, "/metadata/labels/app").to_owned()
}

fn sight(pod: &Arc<Value>, deleted: bool, when: Instant) -> Sight {
    Sight {
        at: when,
        version: version(pod),
        uid: text(pod, "/metadata/uid").to_owned(),
        app: app(pod),
        image: text(pod, "/spec/containers/0/image").to_owned(),
        ready: list(pod, "/status/conditions").iter().any(|c| c["type"] == "Ready" && c["status"] == "True"),
        deleted,
        deleting: !at(pod, "/metadata/deletionTimestamp").is_null(),
        pod: Arc::clone(pod),
    }
}

/// What a HookRun shows of hooks that are through, for each image that it brings.
fn hooked(run: &Value) -> Vec<Hooked> {
    let through = |s: &Value| s["phase"] == "PreUpdate" && s["outcome"] == "Succeeded";
    if !list(run, "/status/steps").iter().any(through) {
        return Vec::new();
    }
    let images = list(run, "/spec/newTemplate/spec/containers").iter().map(|c| text(c, "/image").to_owned());
    let app = text(run, "/spec/deployment/name");
    images.map(|image| Hooked { version: version(run), app: app.to_owned(), image }).collect()
}

impl Seen {
    fn take(&mut self, kind: &str, object: &Arc<Value>, gone: bool, when: Instant) {
        match kind {
            "Pod" => self.pods.push(sight(object, gone, when)),
            "ReplicaSet" => {
                let pods = self.pods.len();
                self.sets.push((app(object), text(object, "/metadata/uid").to_owned(), pods, gone));
            }
            "HookRun" => self.hooked.extend(hooked(object)),
            _ => {}
        }
    }
}

impl Observer {
    /// Watches a namespace from now on, every event.
    pub async fn start(client: Client, namespace: &str) -> Self {
        let observer = Self::default();
        for (group, version, kind) in
            [("", "v1", "Pod"), ("apps", "v1", "ReplicaSet"), ("interlock.dev", "v1alpha1", "HookRun")]
        {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            observer.follow(Api::namespaced_with(client.clone(), namespace, &resource), kind).await;
        }
        observer
    }

    /// Reads everything in the log of a server in this process.
    pub fn of(store: &Arc<Store>) -> Self {
        Self { seen: Arc::default(), log: Some((Arc::clone(store), Arc::default())) }
    }

    fn read_log(&self) {
        let Some((store, cursor)) = &self.log else { return };
        let mut cursor = cursor.lock().unwrap();
        let mut seen = self.seen.lock().unwrap();
        *cursor = store.each_from(*cursor, |entry| {
            seen.take(entry.kind.kind, &entry.object, entry.what == What::Deleted, entry.at);
            true
        });
    }

    /// Lists, then watches for as long as the test lasts.
    async fn follow(&self, api: Api<DynamicObject>, kind: &'static str) {
        let seen = self.seen.clone();
        let add = move |object: &DynamicObject, gone: bool| {
            let object = Arc::new(serde_json::to_value(object).unwrap());
            seen.lock().unwrap().take(kind, &object, gone, Instant::now());
        };
        let seen = self.seen.clone();
        let list = api.list(&ListParams::default()).await.unwrap();
        let mut from = list.metadata.resource_version.unwrap_or_default();
        list.items.iter().for_each(|object| add(object, false));
        tokio::spawn(async move {
            let params = WatchParams::default().timeout(290);
            loop {
                let mut stream = match api.watch(&params, &from).await {
                    Ok(stream) => Box::pin(stream),
                    Err(error) => return seen.lock().unwrap().blind = Some(error.to_string()),
                };
                while let Ok(Some(event)) = stream.try_next().await {
                    let (object, gone) = match event {
                        WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                        WatchEvent::Deleted(object) => (object, true),
                        WatchEvent::Bookmark(mark) => {
                            from = mark.metadata.resource_version;
                            continue;
                        }
                        WatchEvent::Error(status) => return seen.lock().unwrap().blind = Some(status.message),
                    };
                    from = object.resource_version().unwrap_or_default();
                    add(&object, gone);
                }
            }
        });
    }

    /// Every event of a pod so far.
    pub fn all(&self) -> Vec<Sight> {
        self.read_log();
        let seen = self.seen.lock().unwrap();
        assert!(seen.blind.is_none(), "the observer missed something: {:?}", seen.blind);
        seen.pods.clone()
    }

    /// Where the record is now.
    pub fn mark(&self) -> usize {
        self.all().len()
    }

    /// UIDs of all ReplicaSets that the app ever had.
    pub fn sets(&self, app: &str) -> BTreeSet<String> {
        self.read_log();
        let seen = self.seen.lock().unwrap();
        seen.sets.iter().filter(|(of, ..)| of == app).map(|(_, uid, ..)| uid.clone()).collect()
    }

    /// How many ReplicaSets of the app were first seen after the mark, and how many of them all were deleted after it.
    pub fn sets_born_and_gone(&self, app: &str, mark: usize) -> (usize, usize) {
        self.read_log();
        let seen = self.seen.lock().unwrap();
        let of_app = || seen.sets.iter().filter(|(of, ..)| of == app);
        let before: BTreeSet<&String> = of_app().filter(|(_, _, at, _)| *at < mark).map(|(_, uid, ..)| uid).collect();
        let all: BTreeSet<&String> = of_app().map(|(_, uid, ..)| uid).collect();
        (all.len() - before.len(), of_app().filter(|(_, _, at, gone)| *at >= mark && *gone).count())
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

    /// The first event in which a pod of the app showed this image.
    pub fn first_seen(&self, app: &str, image: &str) -> Option<Sight> {
        self.all().into_iter().find(|s| s.app == app && s.image == image && !s.deleted)
    }

    /// Was it stored, before this event, that the PreUpdate hooks for the image in it are through?
    pub fn hooks_recorded_before(&self, sight: &Sight) -> bool {
        self.read_log();
        let seen = self.seen.lock().unwrap();
        seen.hooked.iter().any(|h| h.app == sight.app && h.image == sight.image && h.version < sight.version)
    }

    /// All images that pods of the app showed.
    pub fn images(&self, app: &str) -> BTreeSet<String> {
        self.all().into_iter().filter(|s| s.app == app).map(|s| s.image).collect()
    }
}
