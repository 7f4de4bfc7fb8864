//! How each kind goes into the cache.

use std::collections::BTreeSet;

use interlock_core::api::reference::WorkloadKind;
use serde_json::Value;

use super::{
    cache::{Cache, Item},
    object::{
        BudgetKind, DaemonSetKind, DeploymentKind, JobKind, Kind, PodKind, PolicyKind, ReplicaSetKind, RestartKind,
        RunKind, StatefulSetKind,
    },
    table::{Key, Source, Version},
};

/// A kind that the cache keeps.
pub trait Watched: Kind {
    /// Takes a view of an object. Returns what has to be looked at again.
    fn put(cache: &mut Cache, object: &Value, source: Source) -> Vec<Item>;
    /// The object is gone.
    fn delete(cache: &mut Cache, key: &Key, gone: &Version) -> Vec<Item>;
    /// A complete list begins.
    fn begin(cache: &mut Cache);
    /// It has ended.
    fn finish(cache: &mut Cache) -> Vec<Item>;
    /// Which of these objects a live list up to `version` should have contained and did not.
    fn unlisted(cache: &Cache, candidates: &[Key], seen: &BTreeSet<Key>, version: &str) -> Vec<(Key, Version)>;
}

macro_rules! watched {
    ($($kind:ident: $table:ident, $put:ident, $delete:ident $(, $waited:expr)?;)*) => {$(
        impl Watched for $kind {
            fn put(cache: &mut Cache, object: &Value, source: Source) -> Vec<Item> {
                cache.$put(object, source)
            }
            fn delete(cache: &mut Cache, key: &Key, gone: &Version) -> Vec<Item> {
                cache.$delete(key, gone)
            }
            fn begin(cache: &mut Cache) {
                cache.$table.begin();
            }
            fn finish(cache: &mut Cache) -> Vec<Item> {
                let stale = cache.$table.finish();
                #[allow(unused_mut, reason = "only kinds that are watched on demand add to it")]
                let mut items: Vec<Item> = stale.iter().flat_map(|(key, gone)| cache.$delete(key, gone)).collect();
                $(items.extend(cache.waiting_for_kind($waited));)?
                items
            }
            fn unlisted(cache: &Cache, candidates: &[Key], seen: &BTreeSet<Key>, version: &str) -> Vec<(Key, Version)> {
                cache.$table.unlisted(candidates, seen, version)
            }
        }
    )*};
}

watched! {
    DeploymentKind: deployments, put_deployment, delete_deployment;
    ReplicaSetKind: replica_sets, put_replica_set, delete_replica_set;
    PodKind: pods, put_pod, delete_pod;
    BudgetKind: budgets, put_budget, delete_budget;
    PolicyKind: policies, put_policy, delete_policy;
    RunKind: runs, put_run, delete_run;
    RestartKind: restarts, put_restart, delete_restart;
    StatefulSetKind: stateful_sets, put_stateful_set, delete_stateful_set, WorkloadKind::StatefulSet;
    DaemonSetKind: daemon_sets, put_daemon_set, delete_daemon_set, WorkloadKind::DaemonSet;
    JobKind: jobs, put_job, delete_job, WorkloadKind::Job;
}
