//! An outside observer: it watches the namespace and keeps every event of pods, ReplicaSets and HookRuns.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Instant,
};

use futures::TryStreamExt;
use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{WatchEvent, WatchParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde::de::DeserializeOwned;

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
    #[allow(dead_code)] // not every test program looks at it
    pub pod: Arc<Pod>,
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
    /// UIDs of ReplicaSets by app.
    sets: BTreeMap<String, BTreeSet<String>>,
    /// Why it no longer sees everything.
    blind: Option<String>,
}

#[derive(Clone, Default)]
pub struct Observer {
    seen: Arc<Mutex<Seen>>,
}

fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|v| v.parse().ok()).unwrap_or_default()
}

fn app(object: &impl ResourceExt) -> String {
    object.labels().get("app").cloned().unwrap_or_default()
}

fn sight(pod: &Pod, deleted: bool) -> Sight {
    let status = pod.status.as_ref();
    let ready = status
        .and_then(|s| s.conditions.as_ref())
        .is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    Sight {
        at: Instant::now(),
        version: version(pod),
        uid: pod.uid().unwrap_or_default(),
        app: app(pod),
        image: pod.spec.as_ref().and_then(|s| s.containers.first()).and_then(|c| c.image.clone()).unwrap_or_default(),
        ready,
        deleted,
        deleting: pod.metadata.deletion_timestamp.is_some(),
        pod: Arc::new(pod.clone()),
    }
}

/// What a HookRun shows of hooks that are through, for each image that it brings.
fn hooked(run: &DynamicObject) -> Vec<Hooked> {
    let steps = run.data["status"]["steps"].as_array();
    if !steps.is_some_and(|s| s.iter().any(|s| s["phase"] == "PreUpdate" && s["outcome"] == "Succeeded")) {
        return Vec::new();
    }
    let app = run.data["spec"]["deployment"]["name"].as_str().unwrap_or_default();
    let containers = run.data["spec"]["newTemplate"]["spec"]["containers"].as_array();
    let images = containers.into_iter().flatten().filter_map(|c| c["image"].as_str());
    images.map(|image| Hooked { version: version(run), app: app.to_owned(), image: image.to_owned() }).collect()
}

impl Observer {
    /// Watches a namespace from now on, every event.
    pub async fn start(client: Client, namespace: &str) -> Self {
        let observer = Self::default();
        let mut runs = ApiResource::from_gvk(&GroupVersionKind::gvk("interlock.dev", "v1alpha1", "HookRun"));
        "hookruns".clone_into(&mut runs.plural);
        observer
            .follow(Api::namespaced(client.clone(), namespace), |seen, pod, gone| seen.pods.push(sight(pod, gone)))
            .await;
        observer
            .follow(Api::namespaced(client.clone(), namespace), |seen, set: &ReplicaSet, _| {
                seen.sets.entry(app(set)).or_default().insert(set.uid().unwrap_or_default());
            })
            .await;
        observer
            .follow(Api::namespaced_with(client, namespace, &runs), |seen, run, _| seen.hooked.extend(hooked(run)))
            .await;
        observer
    }

    /// Lists, then watches for as long as the test lasts; `take` gets each object, and whether it is gone.
    async fn follow<K>(&self, api: Api<K>, take: impl Fn(&mut Seen, &K, bool) + Send + 'static)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let seen = self.seen.clone();
        let list = api.list(&kube::api::ListParams::default()).await.unwrap();
        let mut from = list.metadata.resource_version.unwrap_or_default();
        list.items.iter().for_each(|object| take(&mut seen.lock().unwrap(), object, false));
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
                    take(&mut seen.lock().unwrap(), &object, gone);
                }
            }
        });
    }

    /// Every event of a pod so far.
    pub fn all(&self) -> Vec<Sight> {
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
        self.seen.lock().unwrap().sets.get(app).cloned().unwrap_or_default()
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
        let seen = self.seen.lock().unwrap();
        seen.hooked.iter().any(|h| h.app == sight.app && h.image == sight.image && h.version < sight.version)
    }

    /// All images that pods of the app showed.
    pub fn images(&self, app: &str) -> BTreeSet<String> {
        self.all().into_iter().filter(|s| s.app == app).map(|s| s.image).collect()
    }
}
