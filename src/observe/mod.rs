//! The only reader: watches, live lists, and the facts of the planner made from them.
//!
//! Objects are turned into small facts when they arrive and only these are kept. Whatever one of our own writes
//! returned is taken at once, so that the next plan never speaks of an older state than we have made ourselves.

mod cache;
pub mod facts;
mod gather;
mod ip;
mod live;
pub mod object;
mod packed;
mod shape;
mod table;
mod watch;
mod watched;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
};

use interlock_core::{
    api::reference::{Reference, WorkloadKind},
    restart::RestartWorld,
    time::Time,
    world::{Deployment, Pod, Predecessor, Run, World},
};

pub use self::watched::Watched;
use self::{cache::Cache, object::Object, table::Source};
pub use self::{
    cache::{Item, StoredPolicy},
    live::LiveError,
    table::{Key, Version},
    watch::{Followed, Scope, WatchEnded, client, client_config},
};

/// Label of a HookRun with the name of its Deployment, where it fits.
pub const DEPLOYMENT_LABEL: &str = "interlock.dev/deployment";

/// A name as a label value: cut to what a label may hold. Only a help to find things; owners are told by UID.
pub fn label_value(name: &str) -> String {
    let cut: String = name.chars().take(63).collect();
    cut.trim_end_matches(['-', '.', '_']).to_owned()
}

/// The cache and everything that fills it.
pub struct Observe {
    cache: Mutex<Cache>,
    notify: Box<dyn Fn(Item) + Send + Sync>,
    /// Kinds that something waits for, beside Deployments.
    wanted: tokio::sync::watch::Sender<BTreeSet<WorkloadKind>>,
}

impl Observe {
    /// An empty cache. `notify` is told what has to be looked at again.
    pub fn new(notify: impl Fn(Item) + Send + Sync + 'static) -> Self {
        Self { cache: Mutex::default(), notify: Box::new(notify), wanted: tokio::sync::watch::Sender::default() }
    }

    /// The same, for looking at pods of any owner: their containers are kept.
    pub(crate) fn with_all_containers() -> Self {
        let observe = Self::new(|_| ());
        observe.with_mut(|cache| cache.keep_containers = true);
        observe
    }

    /// What is known of something that can be waited for; `None` if it does not exist.
    pub(crate) fn predecessor(&self, namespace: &str, reference: &Reference) -> Option<Predecessor> {
        self.with(|cache| gather::predecessor(cache, namespace, reference))
    }

    /// The pods that belong to it, beside those being deleted.
    pub(crate) fn pods_of(&self, namespace: &str, reference: &Reference) -> Vec<Pod> {
        self.with(|cache| gather::pods(cache, namespace, reference))
    }

    /// How many pods with these labels there are, those included that are being deleted.
    pub(crate) fn count_pods(&self, namespace: &str, labels: &BTreeMap<String, String>) -> usize {
        self.with(|cache| gather::count_pods(cache, namespace, labels))
    }

    /// Labels that select the pods of a workload; empty if it is not known.
    pub(crate) fn selector(&self, namespace: &str, reference: &Reference) -> BTreeMap<String, String> {
        self.with(|cache| match reference {
            Reference::Workload(WorkloadKind::Deployment, name) => {
                cache.deployments.get(&Key::new(namespace, name)).map(|d| d.match_labels.clone()).unwrap_or_default()
            }
            Reference::Workload(kind, name) => {
                let workload = cache.workloads(*kind).and_then(|table| table.get(&Key::new(namespace, name)));
                workload.map(|workload| workload.selector.clone()).unwrap_or_default()
            }
            Reference::Labels(labels) => labels.clone(),
            Reference::Owner(_) => BTreeMap::new(),
        })
    }

    /// The world of a Deployment from the cache; `None` if there is none of this name. Attempts of hooks and refusals
    /// are left empty. What has not changed since is taken from `last`, an earlier world of the same Deployment.
    pub fn world(&self, key: &Key, now: Time, last: Option<World>) -> Option<World> {
        self.assemble(key, now, false, last)
    }

    /// The same after live reads of the Deployment, its ReplicaSets, its pods and its runs.
    pub async fn world_live(
        &self,
        client: &kube::Client,
        key: &Key,
        now: Time,
        last: Option<World>,
    ) -> Result<Option<World>, LiveError> {
        self.read_live(client, key).await?;
        Ok(self.assemble(key, now, true, last))
    }

    /// A look at one Deployment without any watch, for commands.
    pub async fn once(
        client: &kube::Client,
        namespace: &str,
        name: &str,
        now: Time,
    ) -> Result<Option<World>, LiveError> {
        let observe = Self::new(|_| ());
        let key = Key::new(namespace, name);
        observe.read_once(client, &key).await?;
        let world = observe.assemble(&key, now, true, None);
        let wanted = observe.wanted.borrow().clone();
        if wanted.is_empty() {
            return Ok(world);
        }
        observe.read_wanted(client, namespace, &wanted).await;
        Ok(observe.assemble(&key, now, true, world))
    }

    /// A look at a whole namespace without any watch, for commands; all that some component waits for is read too.
    pub async fn namespace_once(client: &kube::Client, namespace: &str) -> Result<Self, LiveError> {
        let observe = Self::new(|_| ());
        observe.read_once(client, &Key::new(namespace, "")).await?;
        let awaited = observe.with(|cache| gather::all_awaited(cache, namespace));
        observe.want(&awaited);
        let wanted = observe.wanted.borrow().clone();
        observe.read_wanted(client, namespace, &wanted).await;
        Ok(observe)
    }

    /// Have first complete lists of all kinds arrived?
    pub fn synced(&self) -> bool {
        self.with(Cache::synced)
    }

    /// Everything there is to look at.
    pub fn everything(&self) -> Vec<Item> {
        self.with(Cache::everything)
    }

    /// A HookPolicy and its status.
    pub fn policy(&self, key: &Key) -> Option<Arc<StoredPolicy>> {
        self.with(|cache| cache.policies.get(key).cloned())
    }

    /// The world of a RollingRestart from the cache; `None` if there is none of this name. Refusals are left empty.
    pub fn restart_world(&self, key: &Key, now: Time) -> Option<RestartWorld> {
        self.with(|cache| gather::restart_world(cache, key, now))
    }

    /// The HookPolicies of a namespace.
    pub fn policies(&self, namespace: &str) -> Vec<Arc<StoredPolicy>> {
        self.with(|cache| cache.policies.of_namespace(namespace).map(|(_, p)| Arc::clone(p)).collect())
    }

    /// `metadata.generation` of a Deployment.
    pub fn generation(&self, key: &Key) -> Option<i64> {
        self.with(|cache| cache.deployments.get(key).map(|d| d.generation))
    }

    /// UID of a Deployment.
    pub fn uid(&self, key: &Key) -> Option<String> {
        self.with(|cache| cache.deployments.get(key).map(|d| d.uid.clone()))
    }

    /// The Deployments of a namespace.
    pub fn deployments(&self, namespace: &str) -> Vec<Arc<Deployment>> {
        self.with(|cache| cache.deployments.of_namespace(namespace).map(|(_, d)| Arc::clone(d)).collect())
    }

    /// How many runs have not ended, and how many of them stand still.
    pub fn count_runs(&self) -> (i64, i64) {
        self.with(|cache| {
            let open = cache.runs.iter().filter(|(_, run)| run.status.ended.is_none());
            open.fold((0, 0), |(open, stalled), (_, run)| (open + 1, stalled + i64::from(run.status.stall.is_some())))
        })
    }

    /// The HookRuns of a namespace.
    pub fn runs(&self, namespace: &str) -> Vec<Arc<Run>> {
        self.with(|cache| cache.runs.of_namespace(namespace).map(|(_, r)| Arc::clone(r)).collect())
    }

    /// Takes what a call returned. Everything it touches is looked at again but `by`, which is being looked at now.
    pub fn learn<K: Watched>(&self, object: &Object<K>, by: Option<&Item>) {
        self.take(object, Source::Call, by);
    }

    /// An object that is gone.
    pub fn forget<K: Watched>(&self, key: &Key, gone: &Version, by: Option<&Item>) {
        let items = self.with_mut(|cache| K::delete(cache, key, gone));
        self.tell(items, by);
    }

    fn assemble(&self, key: &Key, now: Time, live: bool, last: Option<World>) -> Option<World> {
        self.with_mut(|cache| {
            let world = gather::world(cache, key, now, live, last);
            let awaited = world.iter().flat_map(|w| w.components.keys()).cloned();
            let members = world.iter().flat_map(|w| &w.cycle).map(Reference::deployment);
            let waits: BTreeSet<Reference> = awaited.chain(members).collect();
            self.want(&waits);
            cache.set_waits(key, waits);
            world
        })
    }

    /// From now on these kinds are watched.
    fn want(&self, references: &BTreeSet<Reference>) {
        let kinds = references.iter().filter_map(|reference| match reference {
            Reference::Workload(WorkloadKind::Deployment, _) | Reference::Labels(_) | Reference::Owner(_) => None,
            Reference::Workload(kind, _) => Some(*kind),
        });
        for kind in kinds {
            self.wanted.send_if_modified(|wanted| wanted.insert(kind));
        }
    }

    fn take<K: Watched>(&self, object: &Object<K>, source: Source, by: Option<&Item>) {
        // Conversions are total. Should one panic all the same, it costs this object and not the watch.
        let taken = catch_unwind(AssertUnwindSafe(|| self.with_mut(|cache| K::put(cache, &object.json, source))));
        match taken {
            Ok(items) => self.tell(items, by),
            Err(_) => {
                tracing::error!(kind = K::KIND, object = ?kube::ResourceExt::name_any(object), "an object cannot be taken in; this is a bug");
            }
        }
    }

    fn drop_unlisted<K: Watched>(
        &self,
        seen: &BTreeSet<Key>,
        version: &str,
        candidates: impl FnOnce(&Cache) -> Vec<Key>,
    ) {
        let items: Vec<Item> = self.with_mut(|cache| {
            let candidates = candidates(cache);
            let gone = K::unlisted(cache, &candidates, seen, version);
            gone.iter().flat_map(|(key, gone)| K::delete(cache, key, gone)).collect()
        });
        self.tell(items, None);
    }

    fn tell(&self, items: Vec<Item>, by: Option<&Item>) {
        for item in items {
            if Some(&item) != by {
                (self.notify)(item);
            }
        }
    }

    fn with<R>(&self, read: impl FnOnce(&Cache) -> R) -> R {
        read(&self.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with_mut<R>(&self, change: impl FnOnce(&mut Cache) -> R) -> R {
        change(&mut self.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
