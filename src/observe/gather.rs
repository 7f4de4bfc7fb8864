//! The world of one Deployment, put together from the cache.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use interlock_core::{
    api::reference::{Reference, WorkloadKind},
    classify::containers,
    order::graph,
    restart::{Restart, RestartWorld, Subject},
    select,
    time::Time,
    world::{Budget, Component, Deployment, Pod, Pods, Policy, Predecessor, Run, Standing, World},
};

use super::{
    cache::{Cache, Leaving, has_labels},
    facts::{
        json::{field, strings},
        run::state,
    },
    packed::Packed,
    table::Key,
};

/// Label of the pods of StatefulSets and DaemonSets with their revision.
const REVISION: &str = "controller-revision-hash";

/// The world of a Deployment; `None` if there is none of this name. Attempts of hooks and refusals are not known here
/// and left empty. Pods that have not changed since are taken from `last`: a thousand of them cost a millisecond anew.
pub(super) fn world(cache: &Cache, key: &Key, now: Time, live: bool, last: Option<World>) -> Option<World> {
    let deployment = cache.deployments.get(key)?;
    let runs: Vec<Run> = cache.runs.by(&deployment.uid).map(|(_, run)| Run::clone(run)).collect();
    let policies: Vec<Policy> =
        cache.policies.of_namespace(&key.namespace).map(|(_, policy)| policy.fact.clone()).collect();
    let active = deployment.held() || runs.iter().any(|r| r.status.ended.is_none());
    let pods: Vec<&Packed> = pods_of(cache, &deployment.uid).collect();
    let components: BTreeMap<Reference, Option<Predecessor>> = if active {
        let awaited = predecessors(deployment, &policies, &runs);
        awaited
            .into_iter()
            .map(|reference| (reference.clone(), predecessor(cache, &key.namespace, &reference)))
            .collect()
    } else {
        BTreeMap::new()
    };
    let cycle = if components.is_empty() { Vec::new() } else { cycle(cache, key, &policies) };
    Some(World {
        now,
        live,
        budgets: if active { budgets(cache, key, &pods) } else { Vec::new() },
        busy: cache.busy(&key.namespace, &deployment.uid),
        replica_sets: cache.replica_sets.by(&deployment.uid).map(|(_, r)| r.fact.as_ref().clone()).collect(),
        pods: unpacked(&pods, last.map(|w| w.pods).unwrap_or_default()),
        deployment: Deployment::clone(deployment),
        policies,
        runs,
        components,
        cycle,
        attempts: BTreeMap::new(),
        refusals: BTreeMap::new(),
    })
}

fn unpacked(pods: &[&Packed], mut last: Vec<Pod>) -> Vec<Pod> {
    // As a rule they are the same pods, and both are in the order of ReplicaSets and names.
    if pods.len() == last.len() && pods.iter().zip(&last).all(|(packed, pod)| packed.name() == pod.name) {
        for (packed, pod) in pods.iter().zip(&mut last).filter(|(packed, pod)| !packed.is(pod)) {
            *pod = packed.unpack();
        }
        return last;
    }
    let mut known: HashMap<String, Pod> = last.into_iter().map(|pod| (pod.name.clone(), pod)).collect();
    let mut unchanged = |packed: &Packed| known.remove(packed.name()).filter(|pod| packed.is(pod));
    pods.iter().map(|packed| unchanged(packed).unwrap_or_else(|| packed.unpack())).collect()
}

fn pods_of<'a>(cache: &'a Cache, uid: &str) -> impl Iterator<Item = &'a Packed> {
    let sets: Vec<&str> = cache.replica_sets.by(uid).map(|(_, r)| r.fact.uid.as_str()).collect();
    sets.into_iter().flat_map(|set| cache.pods.by(set)).map(|(_, pod)| pod)
}

/// All that this Deployment may have to wait for. What cannot be read is reported where it stands.
pub(super) fn predecessors(deployment: &Deployment, policies: &[Policy], runs: &[Run]) -> BTreeSet<Reference> {
    let own = deployment.own_after.iter().flatten();
    let orders = policies.iter().filter_map(|p| p.spec.as_ref().ok()).flat_map(|s| &s.order);
    let ordered = orders.filter(|c| c.name == deployment.name).flat_map(|c| &c.after);
    let begun = runs.iter().filter(|r| r.status.ended.is_none()).flat_map(|r| &r.spec.settings.after);
    own.chain(ordered).chain(begun).filter_map(|text| text.parse().ok()).collect()
}

/// The world of a RollingRestart; `None` if there is none of this name. Refusals are left empty. Deployments that are over
/// have no pods here: nothing more is decided about them.
pub(super) fn restart_world(cache: &Cache, key: &Key, now: Time) -> Option<RestartWorld> {
    let restart = Restart::clone(cache.restarts.get(key)?);
    let over: BTreeSet<&str> =
        restart.status.targets.iter().filter(|t| t.state.over()).map(|t| t.name.as_str()).collect();
    let subject = |(key, deployment): (&Key, &Arc<Deployment>)| {
        let detail = !over.contains(&*key.name);
        let pods: Vec<&Packed> = if detail { pods_of(cache, &deployment.uid).collect() } else { Vec::new() };
        let sets = cache.replica_sets.by(&deployment.uid).filter(|_| detail);
        let subject = Subject {
            deployment: Deployment::clone(deployment),
            controller: cache.controller_of(key).map(str::to_owned),
            component: component(cache, key)?,
            replica_sets: sets.map(|(_, r)| r.fact.as_ref().clone()).collect(),
            budgets: budgets(cache, key, &pods),
            pods: pods.iter().map(|pod| pod.unpack()).collect(),
        };
        Some((key.name.to_string(), subject))
    };
    Some(RestartWorld {
        now,
        deployments: cache.deployments.of_namespace(&key.namespace).filter_map(subject).collect(),
        policies: cache.policies.of_namespace(&key.namespace).map(|(_, policy)| policy.fact.clone()).collect(),
        refusals: BTreeMap::new(),
        restart,
    })
}

/// All that something in this namespace may wait for.
pub(super) fn all_awaited(cache: &Cache, namespace: &str) -> BTreeSet<Reference> {
    let own = cache.deployments.of_namespace(namespace).flat_map(|(_, d)| d.own_after.iter().flatten());
    let policies = cache.policies.of_namespace(namespace).filter_map(|(_, p)| p.fact.spec.as_ref().ok());
    let ordered = policies.flat_map(|spec| &spec.order).flat_map(|component| &component.after);
    own.chain(ordered).filter_map(|text| text.parse().ok()).collect()
}

/// The circle of Deployments that this one is a member of, by the orders that govern them and their annotations.
fn cycle(cache: &Cache, key: &Key, policies: &[Policy]) -> Vec<String> {
    let after = |name: &str| -> Vec<Reference> {
        let Some(deployment) = cache.deployments.get(&Key::new(&key.namespace, name)) else { return Vec::new() };
        let readable = policies.iter().filter_map(|p| Some((p.name.as_str(), p.spec.as_ref().ok()?)));
        let meta = select::Meta { labels: &deployment.labels, annotations: &deployment.annotations };
        let governor = select::governor(readable.clone(), &key.namespace, name, meta).policy;
        let orders = readable.filter(|(policy, _)| Some(*policy) == governor).flat_map(|(_, spec)| &spec.order);
        let ordered = orders.filter(|c| c.name == name).flat_map(|c| &c.after);
        deployment.own_after.iter().flatten().chain(ordered).filter_map(|text| text.parse().ok()).collect()
    };
    graph::cycle_through(&key.name, after).unwrap_or_default()
}

/// What is known of something that a Deployment may wait for; `None` if it does not exist.
pub(super) fn predecessor(cache: &Cache, namespace: &str, reference: &Reference) -> Option<Predecessor> {
    let leaving = |labels: &BTreeMap<String, String>| {
        let of_namespace =
            cache.leaving.range(Key::new(namespace, "")..).take_while(|(k, _)| &*k.namespace == namespace);
        // Without a selector nobody can tell whose they are.
        count(of_namespace.filter(|(_, pod)| !labels.is_empty() && has_labels(&pod.labels, labels)))
    };
    match reference {
        Reference::Workload(WorkloadKind::Deployment, name) => {
            let key = Key::new(namespace, name);
            let deployment = cache.deployments.get(&key).or_else(|| cache.foreign.get(&key))?;
            Some(Predecessor {
                standing: Standing::Deployment(component(cache, &key)?),
                labels: strings(field(deployment.template.json(), "metadata"), "labels"),
                leaving: leaving(&deployment.match_labels).max(deployment.status.terminating),
            })
        }
        Reference::Workload(kind, name) => {
            let table = cache.workloads(*kind)?;
            let Some(workload) = table.get(&Key::new(namespace, name)) else {
                let unread = Predecessor { standing: Standing::Unread, labels: BTreeMap::new(), leaving: 0 };
                return (!table.synced()).then_some(unread);
            };
            let owner = Reference::Owner(format!("{}/{name}", kind.word()));
            let pods = cache.pods.of_namespace(namespace).map(|(_, pod)| pod);
            let changed = pods.filter(|pod| cache.means(&owner, pod)).filter_map(Packed::ready_since).max();
            Some(Predecessor {
                standing: workload.with_change(changed),
                labels: workload.labels.clone(),
                leaving: leaving(&workload.selector),
            })
        }
        Reference::Labels(_) | Reference::Owner(_) => {
            let pods = cache.pods.of_namespace(namespace).map(|(_, pod)| pod);
            let pods: Vec<&Packed> = pods.filter(|pod| cache.means(reference, pod)).collect();
            let mut labels = pods.first().map(|pod| pod.labels().clone()).unwrap_or_default();
            labels.retain(|key, value| pods.iter().all(|pod| pod.labels().get(key) == Some(value)));
            let leaves = |pod: &Leaving| match reference {
                Reference::Owner(owner) => pod.controllers.contains(owner),
                Reference::Labels(labels) => has_labels(&pod.labels, labels),
                Reference::Workload(..) => false,
            };
            let of_namespace =
                cache.leaving.range(Key::new(namespace, "")..).take_while(|(k, _)| &*k.namespace == namespace);
            Some(Predecessor {
                standing: Standing::Pods(Pods {
                    total: count(pods.iter()),
                    ready: count(pods.iter().filter(|pod| pod.ready())),
                    not_ready: pods.iter().find(|pod| !pod.ready()).map(|pod| pod.name().to_owned()),
                    changed: pods.iter().filter_map(|pod| pod.ready_since()).max(),
                }),
                labels,
                leaving: count(of_namespace.filter(|(_, pod)| leaves(pod))),
            })
        }
    }
}

/// The pods of something that can be waited for; of a workload with revisions those of the one that is wanted.
pub(super) fn pods(cache: &Cache, namespace: &str, reference: &Reference) -> Vec<Pod> {
    let of_namespace = || cache.pods.of_namespace(namespace).map(|(_, pod)| pod);
    match reference {
        Reference::Workload(WorkloadKind::Deployment, name) => {
            let Some(deployment) = cache.deployments.get(&Key::new(namespace, name)) else { return Vec::new() };
            let sets =
                cache.replica_sets.by(&deployment.uid).filter(|(_, set)| set.fact.template == deployment.template);
            sets.flat_map(|(_, set)| cache.pods.by(&set.fact.uid)).map(|(_, pod)| pod.unpack()).collect()
        }
        Reference::Workload(kind, name) => {
            let owner = Reference::Owner(format!("{}/{name}", kind.word()));
            let pods: Vec<Pod> = of_namespace().filter(|pod| cache.means(&owner, pod)).map(Packed::unpack).collect();
            let revision = |pod: &Pod| pod.labels.get(REVISION).cloned();
            let workload = cache.workloads(*kind).and_then(|table| table.get(&Key::new(namespace, name)));
            let wanted = match workload.map(|workload| &workload.standing) {
                Some(Standing::StatefulSet(set)) => Some(set.update_revision.clone()),
                // Its status does not name the revision: the youngest pod has it.
                Some(Standing::DaemonSet(_)) => pods.iter().max_by_key(|pod| pod.created).and_then(revision),
                _ => None,
            };
            pods.into_iter().filter(|pod| wanted.is_none() || revision(pod) == wanted).collect()
        }
        Reference::Labels(_) | Reference::Owner(_) => {
            of_namespace().filter(|pod| cache.means(reference, pod)).map(Packed::unpack).collect()
        }
    }
}

/// How many pods with these labels there are, those included that are being deleted.
pub(super) fn count_pods(cache: &Cache, namespace: &str, labels: &BTreeMap<String, String>) -> usize {
    let leaving = cache.leaving.range(Key::new(namespace, "")..).take_while(|(k, _)| &*k.namespace == namespace);
    cache.pods.of_namespace(namespace).filter(|(_, pod)| has_labels(pod.labels(), labels)).count()
        + leaving.filter(|(_, pod)| has_labels(&pod.labels, labels)).count()
}

fn count(things: impl Iterator) -> i64 {
    i64::try_from(things.count()).unwrap_or(i64::MAX)
}

/// What is known of a Deployment that another one may wait for; `None` if there is none of this name.
pub(super) fn component(cache: &Cache, key: &Key) -> Option<Component> {
    let deployment = cache.deployments.get(key).or_else(|| cache.foreign.get(key))?;
    let mut old_pods = 0;
    let mut changed = None;
    let (hash, wanted) = (deployment.template.hash(), containers(&deployment.template));
    for (_, set) in cache.replica_sets.by(&deployment.uid) {
        for (_, pod) in cache.pods.by(&set.fact.uid) {
            old_pods += i64::from(set.fact.template != deployment.template || pod.strays(hash, &wanted));
            changed = changed.max(pod.changed());
        }
    }
    let latest = cache.runs.by(&deployment.uid).map(|(_, run)| run).max_by_key(|run| run.spec.sequence);
    let ended = latest.and_then(|run| run.status.ended.as_ref()).map(|ended| ended.at);
    Some(Component {
        held: deployment.held(),
        deleting: deployment.deleting,
        generation: deployment.generation,
        replicas: deployment.replicas,
        status: deployment.status.clone(),
        old_pods,
        run: latest.map(|run| state(run)),
        changed: changed.max(ended),
    })
}

/// The PodDisruptionBudgets that cover pods of this Deployment.
fn budgets(cache: &Cache, key: &Key, ours: &[&Packed]) -> Vec<Budget> {
    let mut budgets = Vec::new();
    for (_, facts) in cache.budgets.of_namespace(&key.namespace) {
        let covers = |pod: &Packed| facts.selector.as_ref().is_none_or(|s| s.matches(pod.labels()));
        let pods: BTreeSet<String> = ours.iter().filter(|p| covers(p)).map(|p| p.name().to_owned()).collect();
        if pods.is_empty() {
            continue;
        }
        let others = cache.pods.of_namespace(&key.namespace).map(|(_, pod)| pod);
        let others_ready = others.filter(|p| p.ready() && covers(p) && !pods.contains(p.name())).count();
        budgets.push(Budget {
            name: facts.name.clone(),
            pods,
            others_ready: i64::try_from(others_ready).unwrap_or(i64::MAX),
            desired_healthy: facts.desired_healthy,
            expected: facts.expected,
            allowed: facts.allowed,
            current: facts.current,
        });
    }
    budgets
}
