//! The facts of all objects, and which passes a change of one calls for.

mod awaited;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use interlock_core::{
    api::{names, policy::HookPolicyStatus, reference::Reference},
    news,
    restart::Restart,
    template::Template,
    world::{Deployment, Pod, Policy, ReplicaSet, Run},
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    facts::{
        self,
        budget::BudgetFacts,
        json::{controller, controller_name, field, strings, text},
        run::holds_slot,
        workload::Workload,
    },
    packed::{Packed, Pools},
    table::{Key, Source, Table, Version},
};

/// Something that has to be looked at again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Item {
    /// A Deployment is to be planned.
    Deployment(Key),
    /// The status of a HookPolicy is to be computed.
    Policy(Key),
    /// A RollingRestart is to be planned.
    Restart(Key),
}

/// A ReplicaSet and the UID of its Deployment.
pub struct Owned {
    /// UID of the Deployment that controls it; empty if none does.
    pub owner: Box<str>,
    /// Kind and name of its controller, such as `rollout/web`; empty if it has none or that is a Deployment.
    pub controller: Box<str>,
    /// The ReplicaSet.
    pub fact: Arc<ReplicaSet>,
}

/// A HookPolicy and what its status says now.
#[derive(Debug)]
pub struct StoredPolicy {
    /// The policy.
    pub fact: Policy,
    /// Its status; empty where it cannot be read.
    pub status: HookPolicyStatus,
}

/// An update slot that a run holds.
struct Slot {
    policy: String,
    deployment: String,
}

/// A pod that is being deleted, and has not finished.
pub struct Leaving {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Kinds and names of its controller and of what controls that.
    pub controllers: Vec<String>,
}

/// Everything that is known.
pub struct Cache {
    /// Deployments, by UID.
    pub deployments: Table<Arc<Deployment>>,
    /// ReplicaSets, by UID of their Deployment.
    pub replica_sets: Table<Owned>,
    /// Pods, by UID of their ReplicaSet.
    pub pods: Table<Packed>,
    /// PodDisruptionBudgets.
    pub budgets: Table<BudgetFacts>,
    /// HookPolicies.
    pub policies: Table<Arc<StoredPolicy>>,
    /// Deployments outside of a narrowed watch that others wait for, as they were last read.
    pub foreign: BTreeMap<Key, Arc<Deployment>>,
    /// HookRuns, by UID of their Deployment.
    pub runs: Table<Arc<Run>>,
    /// RollingRestarts.
    pub restarts: Table<Arc<Restart>>,
    /// StatefulSets; like the next two only once somebody waits for one.
    pub stateful_sets: Table<Workload>,
    /// DaemonSets.
    pub daemon_sets: Table<Workload>,
    /// Jobs.
    pub jobs: Table<Workload>,
    /// Pods that are being deleted.
    pub leaving: BTreeMap<Key, Leaving>,
    /// Are containers kept of pods, too, that belong to no ReplicaSet?
    pub keep_containers: bool,
    /// What controls a Deployment, such as `etcdcluster/main`.
    deployment_controllers: BTreeMap<Key, Box<str>>,
    pools: Pools,
    replica_sets_by_uid: HashMap<Arc<str>, Key>,
    slots: BTreeMap<Key, Slot>,
    /// Deployments by what they wait for, with its namespace.
    waiters: BTreeMap<(Arc<str>, Reference), BTreeSet<Key>>,
    waits_for: HashMap<Key, BTreeSet<Reference>>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            deployments: Table::new(|d| &d.uid),
            replica_sets: Table::new(|r| &r.owner),
            pods: Table::new(Packed::owner),
            budgets: Table::new(|_| ""),
            policies: Table::new(|_| ""),
            foreign: BTreeMap::new(),
            runs: Table::new(|r| &r.spec.deployment.uid),
            restarts: Table::new(|_| ""),
            stateful_sets: Table::new(|_| ""),
            daemon_sets: Table::new(|_| ""),
            jobs: Table::new(|_| ""),
            leaving: BTreeMap::new(),
            keep_containers: false,
            deployment_controllers: BTreeMap::new(),
            pools: Pools::default(),
            replica_sets_by_uid: HashMap::new(),
            slots: BTreeMap::new(),
            waiters: BTreeMap::new(),
            waits_for: HashMap::new(),
        }
    }
}

/// Namespace, name and version of an object; `None` if it has no name.
pub(super) fn identity(object: &Value) -> Option<(Key, Version)> {
    let metadata = field(object, "metadata");
    let name = text(metadata, "name");
    let version =
        Version { uid: text(metadata, "uid").into(), resource_version: text(metadata, "resourceVersion").into() };
    (!name.is_empty()).then(|| (Key::new(text(metadata, "namespace"), name), version))
}

fn deleting(object: &Value) -> bool {
    !field(field(object, "metadata"), "deletionTimestamp").is_null()
}

/// Is this pod being deleted, and has not finished?
fn leaves(pod: &Value) -> bool {
    deleting(pod) && !matches!(text(field(pod, "status"), "phase"), "Succeeded" | "Failed")
}

/// Does an object with these labels have all of those?
pub(super) fn has_labels(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

impl Cache {
    /// Have first complete lists of all kinds arrived?
    pub fn synced(&self) -> bool {
        self.deployments.synced()
            && self.replica_sets.synced()
            && self.pods.synced()
            && self.budgets.synced()
            && self.policies.synced()
            && self.runs.synced()
            && self.restarts.synced()
    }

    /// Takes a Deployment.
    pub fn put_deployment(&mut self, object: &Value, source: Source) -> Vec<Item> {
        let Some((key, version)) = identity(object) else { return Vec::new() };
        let mut fact = facts::deployment::deployment(object);
        if let Some(known) = self.replica_sets.by(&fact.uid).find(|(_, r)| r.fact.template == fact.template) {
            fact.template = known.1.fact.template.clone();
        }
        let before = self.deployments.get(&key).cloned();
        let selects = |d: &Deployment| (d.labels.clone(), d.annotation(names::POLICY).map(ToOwned::to_owned));
        let reselect = before.as_deref().map(selects) != Some(selects(&fact));
        let held = fact.held();
        let news = before.as_deref().is_none_or(|before| news::of_deployment(before, &fact));
        if !self.deployments.put(key.clone(), version, Some(Arc::new(fact)), source) {
            return Vec::new();
        }
        let controller = controller_name(field(object, "metadata"));
        if controller.is_empty() {
            self.deployment_controllers.remove(&key);
        } else {
            self.deployment_controllers.insert(key.clone(), controller.into());
        }
        let mut items = self.dependents(&key);
        if reselect || before.is_some_and(|b| b.held() != held) {
            items.extend(self.policies_of(&key.namespace));
        }
        items.extend(news.then_some(Item::Deployment(key)));
        items
    }

    /// A Deployment is gone.
    pub fn delete_deployment(&mut self, key: &Key, gone: &Version) -> Vec<Item> {
        if self.deployments.delete(key, gone).is_none() {
            return Vec::new();
        }
        self.deployment_controllers.remove(key);
        let mut items = self.dependents(key);
        items.extend(self.policies_of(&key.namespace));
        items.push(Item::Deployment(key.clone()));
        items
    }

    /// Takes a ReplicaSet.
    pub fn put_replica_set(&mut self, object: &Value, source: Source) -> Vec<Item> {
        let Some((key, version)) = identity(object) else { return Vec::new() };
        let owner: Box<str> = controller(field(object, "metadata"), "Deployment").into();
        let fact = (!deleting(object)).then(|| {
            let mut fact = facts::replicaset::replica_set(object);
            if let Some(template) = self.known_template(&owner, &fact.template) {
                fact.template = template;
            }
            let controller = if owner.is_empty() { controller_name(field(object, "metadata")) } else { String::new() };
            Owned { owner: owner.clone(), controller: controller.into(), fact: Arc::new(fact) }
        });
        let uid = version.uid.clone();
        let deployment = self.deployments.by(&owner).next().map(|(_, deployment)| deployment);
        let news = match (self.replica_sets.get(&key), &fact, deployment) {
            (Some(before), Some(after), Some(deployment)) if before.owner == after.owner => {
                news::of_replica_set(&before.fact, &after.fact, deployment)
            }
            _ => true,
        };
        if !self.replica_sets.put(key.clone(), version, fact, source) {
            return Vec::new();
        }
        self.replica_sets_by_uid.insert(uid, key);
        self.told(&owner, news)
    }

    /// A ReplicaSet is gone.
    pub fn delete_replica_set(&mut self, key: &Key, gone: &Version) -> Vec<Item> {
        self.replica_sets_by_uid.remove(&gone.uid);
        match self.replica_sets.delete(key, gone) {
            Some(last) => self.deployment_and_dependents(&last.owner),
            None => Vec::new(),
        }
    }

    /// Takes a pod.
    pub fn put_pod(&mut self, object: &Value, source: Source) -> Vec<Item> {
        let Some((key, version)) = identity(object) else { return Vec::new() };
        let key = self.pools.key(key);
        let owner: Box<str> = controller(field(object, "metadata"), "ReplicaSet").into();
        let fact = facts::pod::pod(object).map(|mut pod| {
            if owner.is_empty() && !self.keep_containers {
                // Only counted by budgets, and only labels and readiness matter there.
                pod.containers.clear();
                pod.annotations.clear();
            }
            pod
        });
        let news = self.pod_is_news(&key, fact.as_ref());
        let by_name = if owner.is_empty() { controller_name(field(object, "metadata")) } else { String::new() };
        let leaving = leaves(object).then(|| Leaving {
            labels: strings(field(object, "metadata"), "labels"),
            controllers: self.controllers(&owner, &by_name).into_iter().map(ToOwned::to_owned).collect(),
        });
        let fact = fact.map(|pod| Packed::new(pod, by_name, &key, &version, &mut self.pools));
        let before = self.wait_for_pod(&key);
        if !self.pods.put(key.clone(), version, fact, source) {
            return Vec::new();
        }
        let mut items = self.of_replica_set(&owner, news);
        items.extend(before);
        items.extend(self.wait_for_pod(&key));
        let left = match leaving {
            Some(leaving) => self.leaving.insert(key.clone(), leaving).is_none(),
            None => self.leaving.remove(&key).is_some(),
        };
        if left {
            items.extend(self.waiting_in(&key.namespace));
        }
        items
    }

    /// Does what is now known of this pod call for a plan of its Deployment?
    fn pod_is_news(&self, key: &Key, after: Option<&Pod>) -> bool {
        let (Some(before), Some(after)) = (self.pods.get(key), after) else { return true };
        let owner = self.deployment_of(before.owner()).unwrap_or_default();
        let deployment = self.deployments.by(owner).next().map(|(_, deployment)| deployment);
        let runs = self.runs.by(owner).map(|(_, run)| &**run);
        news::of_pod(&before.unpack(), after, deployment.and_then(|d| news::heading(d, runs)))
    }

    /// A pod is gone.
    pub fn delete_pod(&mut self, key: &Key, gone: &Version) -> Vec<Item> {
        let known = self.pods.version(key).is_some_and(|version| version.uid == gone.uid);
        let mut items = self.wait_for_pod(key);
        if known && self.leaving.remove(key).is_some() {
            items.extend(self.waiting_in(&key.namespace));
        }
        match self.pods.delete(key, gone) {
            Some(last) => items.extend(self.of_replica_set(last.owner(), true)),
            None if known => {}
            None => items.clear(),
        }
        items
    }

    /// Takes a HookPolicy.
    pub fn put_policy(&mut self, object: &Value, source: Source) -> Vec<Item> {
        let Some((key, version)) = identity(object) else { return Vec::new() };
        let fact = facts::policy::policy(object);
        let same = self.policies.get(&key).is_some_and(|known| known.fact == fact);
        let status = HookPolicyStatus::deserialize(field(object, "status")).unwrap_or_default();
        if !self.policies.put(key.clone(), version, Some(Arc::new(StoredPolicy { fact, status })), source) || same {
            return Vec::new();
        }
        self.everything_in(&key.namespace)
    }

    /// A HookPolicy is gone.
    pub fn delete_policy(&mut self, key: &Key, gone: &Version) -> Vec<Item> {
        if self.policies.delete(key, gone).is_some() { self.everything_in(&key.namespace) } else { Vec::new() }
    }

    /// Takes a HookRun. One whose spec cannot be read is left out, with a warning.
    pub fn put_run(&mut self, object: &Value, source: Source) -> Vec<Item> {
        let Some((key, version)) = identity(object) else { return Vec::new() };
        let fact = if deleting(object) { None } else { self.read_run(&key, object) };
        let before = self.runs.get(&key).cloned();
        let after = fact.clone();
        if !self.runs.put(key.clone(), version, fact, source) {
            return Vec::new();
        }
        self.run_changed(&key, before.as_deref(), after.as_deref())
    }

    /// A HookRun is gone.
    pub fn delete_run(&mut self, key: &Key, gone: &Version) -> Vec<Item> {
        match self.runs.delete(key, gone) {
            Some(last) => self.run_changed(key, Some(&last), None),
            None => Vec::new(),
        }
    }

    /// Takes a RollingRestart.
    pub fn put_restart(&mut self, object: &Value, source: Source) -> Vec<Item> {
        let Some((key, version)) = identity(object) else { return Vec::new() };
        let fact = (!deleting(object)).then(|| Arc::new(facts::restart::restart(object)));
        if self.restarts.put(key.clone(), version, fact, source) { vec![Item::Restart(key)] } else { Vec::new() }
    }

    /// A RollingRestart is gone.
    pub fn delete_restart(&mut self, key: &Key, gone: &Version) -> Vec<Item> {
        self.restarts.delete(key, gone).map(|_| Item::Restart(key.clone())).into_iter().collect()
    }

    /// What controls a Deployment, such as `etcdcluster/main`.
    pub fn controller_of(&self, key: &Key) -> Option<&str> {
        self.deployment_controllers.get(key).map(|name| &**name)
    }

    /// Takes a PodDisruptionBudget.
    pub fn put_budget(&mut self, object: &Value, source: Source) -> Vec<Item> {
        let Some((key, version)) = identity(object) else { return Vec::new() };
        let fact = facts::budget::budget(object);
        let same = self.budgets.get(&key) == Some(&fact);
        if !self.budgets.put(key.clone(), version, Some(fact), source) || same {
            return Vec::new();
        }
        self.held_in(&key.namespace)
    }

    /// A PodDisruptionBudget is gone.
    pub fn delete_budget(&mut self, key: &Key, gone: &Version) -> Vec<Item> {
        if self.budgets.delete(key, gone).is_some() { self.held_in(&key.namespace) } else { Vec::new() }
    }

    /// Update slots held by the runs of other Deployments, by policy name.
    pub fn busy(&self, namespace: &str, uid: &str) -> BTreeMap<String, i64> {
        let mut busy = BTreeMap::new();
        let first = Key::new(namespace, "");
        for (_, slot) in self.slots.range(first..).take_while(|(key, _)| &*key.namespace == namespace) {
            if slot.deployment != uid {
                *busy.entry(slot.policy.clone()).or_insert(0) += 1;
            }
        }
        busy
    }

    /// All there is to look at.
    pub fn everything(&self) -> Vec<Item> {
        let deployments = self.deployments.iter().map(|(key, _)| Item::Deployment(key.clone()));
        let policies = self.policies.iter().map(|(key, _)| Item::Policy(key.clone()));
        let restarts = self.restarts.iter().map(|(key, _)| Item::Restart(key.clone()));
        deployments.chain(policies).chain(restarts).collect()
    }

    fn read_run(&self, key: &Key, object: &Value) -> Option<Arc<Run>> {
        match facts::run::run(object) {
            Ok(mut run) => {
                let uid = run.spec.deployment.uid.clone();
                if let Some(template) = self.known_template(&uid, &run.spec.new_template) {
                    run.spec.new_template = template;
                }
                if let Some(old) = &run.spec.old_template
                    && let Some(template) = self.known_template(&uid, old)
                {
                    run.spec.old_template = Some(template);
                }
                Some(Arc::new(run))
            }
            Err(why) => {
                if !self.runs.knows(key) {
                    tracing::warn!(run = %key, %why, "a HookRun cannot be read and is left out; delete it");
                }
                None
            }
        }
    }

    /// An equal template that is kept already: of the Deployment, its ReplicaSets or its runs.
    fn known_template(&self, uid: &str, template: &Template) -> Option<Template> {
        let deployment = self.deployments.by(uid).map(|(_, d)| &d.template);
        let sets = self.replica_sets.by(uid).map(|(_, r)| &r.fact.template);
        let runs = self.runs.by(uid).flat_map(|(_, r)| r.spec.old_template.iter().chain([&r.spec.new_template]));
        deployment.chain(sets).chain(runs).find(|t| *t == template).cloned()
    }

    fn run_changed(&mut self, key: &Key, before: Option<&Run>, after: Option<&Run>) -> Vec<Item> {
        let slot = after.filter(|r| holds_slot(r)).and_then(|r| {
            Some(Slot { policy: r.spec.policy.as_ref()?.name.clone(), deployment: r.spec.deployment.uid.clone() })
        });
        let had = match slot {
            Some(slot) => self.slots.insert(key.clone(), slot).is_some(),
            None => self.slots.remove(key).is_some(),
        };
        let has = self.slots.contains_key(key);
        let mut items = Vec::new();
        for run in before.into_iter().chain(after) {
            items.extend(self.deployment_and_dependents(&run.spec.deployment.uid));
            if let Some(policy) = &run.spec.policy {
                items.push(Item::Policy(Key::new(&key.namespace, &policy.name)));
            }
        }
        if had && !has {
            items.extend(self.held_in(&key.namespace));
        }
        items
    }

    /// UID of the Deployment that this ReplicaSet belongs to.
    fn deployment_of(&self, replica_set: &str) -> Option<&str> {
        let key = self.replica_sets_by_uid.get(replica_set)?;
        Some(&self.replica_sets.get(key)?.owner)
    }

    /// The Deployment that this ReplicaSet belongs to, if it is news for it, and what waits for it.
    fn of_replica_set(&self, uid: &str, news: bool) -> Vec<Item> {
        self.deployment_of(uid).map(|owner| self.told(owner, news)).unwrap_or_default()
    }

    fn deployment_and_dependents(&self, uid: &str) -> Vec<Item> {
        self.told(uid, true)
    }

    /// A Deployment, if it is news for it, and what waits for it, which counts what it does not.
    fn told(&self, uid: &str, news: bool) -> Vec<Item> {
        let Some((key, _)) = self.deployments.by(uid).next() else { return Vec::new() };
        let mut items = self.dependents(key);
        items.extend(news.then(|| Item::Deployment(key.clone())));
        items
    }

    fn dependents(&self, key: &Key) -> Vec<Item> {
        let mut items = self.waiting_for(&key.namespace, &Reference::deployment(&*key.name));
        items.extend(self.restarting_in(&key.namespace));
        items
    }

    /// RollingRestarts of this namespace that go on: any change there may be what one of them waits for.
    fn restarting_in(&self, namespace: &str) -> Vec<Item> {
        let open = self.restarts.of_namespace(namespace).filter(|(_, restart)| restart.status.ended_at.is_none());
        open.map(|(key, _)| Item::Restart(key.clone())).collect()
    }

    fn held_in(&self, namespace: &str) -> Vec<Item> {
        let held = self.deployments.of_namespace(namespace).filter(|(_, d)| d.held());
        let held = held.map(|(key, _)| Item::Deployment(key.clone()));
        held.chain(self.restarting_in(namespace)).collect()
    }

    fn policies_of(&self, namespace: &str) -> Vec<Item> {
        self.policies.of_namespace(namespace).map(|(key, _)| Item::Policy(key.clone())).collect()
    }

    fn everything_in(&self, namespace: &str) -> Vec<Item> {
        let mut items = self.policies_of(namespace);
        items.extend(self.deployments.of_namespace(namespace).map(|(key, _)| Item::Deployment(key.clone())));
        items.extend(self.restarting_in(namespace));
        items
    }
}
