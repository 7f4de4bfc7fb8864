//! What Deployments wait for: workloads of other kinds, pods by label or owner, and who is to be told of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use interlock_core::api::reference::{Reference, WorkloadKind};
use serde_json::Value;

use super::{
    super::{
        facts::{self, workload::Workload},
        packed::Packed,
        table::{Key, Source, Table, Version},
    },
    Cache, Item, has_labels, identity,
};

impl Cache {
    /// Takes a StatefulSet.
    pub fn put_stateful_set(&mut self, object: &Value, source: Source) -> Vec<Item> {
        self.put_workload(WorkloadKind::StatefulSet, object, source)
    }

    /// A StatefulSet is gone.
    pub fn delete_stateful_set(&mut self, key: &Key, gone: &Version) -> Vec<Item> {
        self.delete_workload(WorkloadKind::StatefulSet, key, gone)
    }

    /// Takes a DaemonSet.
    pub fn put_daemon_set(&mut self, object: &Value, source: Source) -> Vec<Item> {
        self.put_workload(WorkloadKind::DaemonSet, object, source)
    }

    /// A DaemonSet is gone.
    pub fn delete_daemon_set(&mut self, key: &Key, gone: &Version) -> Vec<Item> {
        self.delete_workload(WorkloadKind::DaemonSet, key, gone)
    }

    /// Takes a Job.
    pub fn put_job(&mut self, object: &Value, source: Source) -> Vec<Item> {
        self.put_workload(WorkloadKind::Job, object, source)
    }

    /// A Job is gone.
    pub fn delete_job(&mut self, key: &Key, gone: &Version) -> Vec<Item> {
        self.delete_workload(WorkloadKind::Job, key, gone)
    }

    /// What is known of objects of a kind; `None` for Deployments, of which more is.
    pub fn workloads(&self, kind: WorkloadKind) -> Option<&Table<Workload>> {
        match kind {
            WorkloadKind::Deployment => None,
            WorkloadKind::StatefulSet => Some(&self.stateful_sets),
            WorkloadKind::DaemonSet => Some(&self.daemon_sets),
            WorkloadKind::Job => Some(&self.jobs),
        }
    }

    fn workloads_mut(&mut self, kind: WorkloadKind) -> Option<&mut Table<Workload>> {
        match kind {
            WorkloadKind::Deployment => None,
            WorkloadKind::StatefulSet => Some(&mut self.stateful_sets),
            WorkloadKind::DaemonSet => Some(&mut self.daemon_sets),
            WorkloadKind::Job => Some(&mut self.jobs),
        }
    }

    fn put_workload(&mut self, kind: WorkloadKind, object: &Value, source: Source) -> Vec<Item> {
        let Some((key, version)) = identity(object) else { return Vec::new() };
        let fact = match kind {
            WorkloadKind::Deployment => return Vec::new(),
            WorkloadKind::StatefulSet => facts::workload::stateful_set(object),
            WorkloadKind::DaemonSet => facts::workload::daemon_set(object),
            WorkloadKind::Job => facts::workload::job(object),
        };
        let Some(table) = self.workloads_mut(kind) else { return Vec::new() };
        if !table.put(key.clone(), version, Some(fact), source) {
            return Vec::new();
        }
        self.waiting_for(&key.namespace, &Reference::Workload(kind, key.name.to_string()))
    }

    fn delete_workload(&mut self, kind: WorkloadKind, key: &Key, gone: &Version) -> Vec<Item> {
        if self.workloads_mut(kind).and_then(|table| table.delete(key, gone)).is_none() {
            return Vec::new();
        }
        self.waiting_for(&key.namespace, &Reference::Workload(kind, key.name.to_string()))
    }

    /// What waits for an object of this kind; to be told when a complete list of them has arrived.
    pub fn waiting_for_kind(&self, kind: WorkloadKind) -> Vec<Item> {
        let of_kind = |reference: &Reference| matches!(reference, Reference::Workload(k, _) if *k == kind);
        let waiters = self.waiters.iter().filter(|((_, reference), _)| of_kind(reference));
        waiters.flat_map(|(_, keys)| keys).cloned().map(Item::Deployment).collect()
    }

    /// Kinds and names of what controls a pod: its controller, and what controls that.
    pub(super) fn controllers<'a>(&'a self, replica_set: &str, controller: &'a str) -> Vec<&'a str> {
        let set = self.replica_sets_by_uid.get(replica_set).and_then(|key| self.replica_sets.get(key));
        let deployment = set.and_then(|set| self.deployments.by(&set.owner).next());
        let above = deployment.and_then(|(key, _)| self.deployment_controllers.get(key)).map(|name| &**name);
        let all = [Some(controller), set.map(|set| &*set.controller), above];
        all.into_iter().flatten().filter(|name| !name.is_empty()).collect()
    }

    /// Does a reference mean this pod?
    pub fn means(&self, reference: &Reference, pod: &Packed) -> bool {
        match reference {
            Reference::Workload(..) => false,
            Reference::Labels(labels) => has_labels(pod.labels(), labels),
            Reference::Owner(owner) => self.controllers(pod.owner(), pod.controller()).contains(&owner.as_str()),
        }
    }

    /// What waits for this pod.
    pub(super) fn wait_for_pod(&self, key: &Key) -> Vec<Item> {
        if self.waiters.is_empty() {
            return Vec::new();
        }
        let Some(pod) = self.pods.get(key) else { return Vec::new() };
        let first = (Arc::clone(&key.namespace), Reference::Labels(BTreeMap::new()));
        let of_pods = self.waiters.range(first..).take_while(|((namespace, _), _)| *namespace == key.namespace);
        let waiters = of_pods.filter(|((_, reference), _)| self.means(reference, pod)).flat_map(|(_, keys)| keys);
        waiters.cloned().map(Item::Deployment).collect()
    }

    pub(super) fn waiting_for(&self, namespace: &Arc<str>, reference: &Reference) -> Vec<Item> {
        let waiters = self.waiters.get(&(Arc::clone(namespace), reference.clone()));
        waiters.into_iter().flatten().cloned().map(Item::Deployment).collect()
    }

    pub(super) fn waiting_in(&self, namespace: &Arc<str>) -> Vec<Item> {
        let first = (Arc::clone(namespace), Reference::deployment(""));
        let waiters = self.waiters.range(first..).take_while(|((n, _), _)| n == namespace).flat_map(|(_, keys)| keys);
        waiters.cloned().map(Item::Deployment).collect()
    }

    /// Remembers what this Deployment waits for, so that a change of it plans the Deployment again.
    pub fn set_waits(&mut self, key: &Key, references: BTreeSet<Reference>) {
        if self.waits_for.get(key).is_some_and(|known| *known == references)
            || references.is_empty() && !self.waits_for.contains_key(key)
        {
            return;
        }
        for reference in self.waits_for.remove(key).unwrap_or_default() {
            let awaited = (Arc::clone(&key.namespace), reference);
            if let Some(waiters) = self.waiters.get_mut(&awaited) {
                waiters.remove(key);
                if waiters.is_empty() {
                    self.waiters.remove(&awaited);
                }
            }
        }
        for reference in &references {
            let awaited = (Arc::clone(&key.namespace), reference.clone());
            self.waiters.entry(awaited).or_default().insert(key.clone());
        }
        if !references.is_empty() {
            self.waits_for.insert(key.clone(), references);
        }
    }
}
