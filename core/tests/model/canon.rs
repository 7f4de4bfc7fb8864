//! One state for all that differ in names alone: resource versions, UIDs and the names of pods are counted anew after
//! every step, since only whether two are equal matters to anybody.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use interlock_core::{
    api::names,
    effect::Effect,
    world::{Deployment, ReplicaSet, Run},
};
use serde_json::Value;

use crate::cluster::{Pending, State};
use crate::sim::{Sim, SimPod};

/// Does a view of ReplicaSets differ from what is there?
pub fn differ(view: &[ReplicaSet], real: &[ReplicaSet]) -> bool {
    view.len() != real.len()
        || view.iter().zip(real).any(|(v, r)| (&v.uid, &v.resource_version) != (&r.uid, &r.resource_version))
}

/// New words for old ones, in the order in which they are first met.
#[derive(Default)]
struct Words {
    known: BTreeMap<String, String>,
}

impl Words {
    fn word(&mut self, kind: &str, next: &mut u64, old: &mut String) {
        let new = self.known.entry(std::mem::take(old)).or_insert_with(|| {
            *next += 1;
            format!("{kind}{next}")
        });
        old.clone_from(new);
    }

    fn known(&self, old: &str) -> Option<&str> {
        self.known.get(old).map(String::as_str)
    }
}

impl State {
    /// Which of our views lag: Deployment, ReplicaSets, pods, runs.
    pub fn stale(&self) -> [bool; 4] {
        let (sim, ours) = (&self.sim, &self.sim.ours);
        let pods =
            |v: &SimPod, r: &SimPod| (&v.pod.uid, &v.pod.resource_version) != (&r.pod.uid, &r.pod.resource_version);
        let runs = |v: &Run, r: &Run| (&v.uid, &v.resource_version) != (&r.uid, &r.resource_version);
        [
            ours.d.resource_version != sim.d.resource_version,
            differ(&ours.sets, &sim.sets),
            ours.pods.len() != sim.pods.len() || ours.pods.iter().zip(&sim.pods).any(|(v, r)| pods(v, r)),
            ours.runs.len() != sim.runs.len() || ours.runs.iter().zip(&sim.runs).any(|(v, r)| runs(v, r)),
        ]
    }

    /// The same state in the words that all of its kind have.
    pub fn canonical(mut self) -> Self {
        let sim = &mut self.sim;
        for sets in [&mut sim.sets, &mut sim.dc_sets, &mut sim.rsc_sets, &mut sim.ours.sets] {
            sets.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
        }
        for runs in [&mut sim.runs, &mut sim.ours.runs] {
            runs.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let mut next = 0;
        let (mut versions, mut sets) = (Words::default(), Words::default());
        for d in [&mut sim.d, &mut sim.ours.d] {
            versions.word("", &mut next, &mut d.resource_version);
        }
        for set in each_set(sim) {
            versions.word("", &mut next, &mut set.resource_version);
            sets.word("rs-", &mut next, &mut set.uid);
        }
        for run in sim.runs.iter_mut().chain(&mut sim.ours.runs) {
            versions.word("", &mut next, &mut run.resource_version);
        }
        for pod in sim.pods.iter_mut().chain(&mut sim.ours.pods) {
            sets.word("rs-", &mut next, &mut pod.pod.owner);
        }
        release_marks(sim, &versions);
        let pods = pods(sim, &mut versions, &mut next);
        if let Some(pending) = &mut self.pending {
            rewrite(pending, &versions, &sets, &pods);
        }
        sim.next = next;
        self.print = print(&self.sim, self.pending.as_ref());
        self
    }
}

fn each_set(sim: &mut Sim) -> impl Iterator<Item = &mut ReplicaSet> {
    sim.sets.iter_mut().chain(&mut sim.dc_sets).chain(&mut sim.rsc_sets).chain(&mut sim.ours.sets)
}

/// A release mark that does not equal the present version never will.
fn release_marks(sim: &mut Sim, versions: &Words) {
    let present = sim.d.resource_version.clone();
    let mend = |annotations: &mut BTreeMap<String, String>| {
        if let Some(mark) = annotations.get_mut(names::RELEASE) {
            *mark = versions.known(mark).filter(|new| *new == present).unwrap_or("0").to_owned();
        }
    };
    mend(&mut sim.d.annotations);
    mend(&mut sim.ours.d.annotations);
    for set in each_set(sim) {
        mend(&mut set.annotations);
    }
}

/// Pods are alike but for what they are: they get their names by that. Old UID to new UID and name.
fn pods(sim: &mut Sim, versions: &mut Words, next: &mut u64) -> BTreeMap<String, (String, String)> {
    let uids: BTreeSet<String> = sim.pods.iter().chain(&sim.ours.pods).map(|p| p.pod.uid.clone()).collect();
    let bare = |p: &SimPod| {
        let mut p = p.clone();
        let version = std::mem::take(&mut p.pod.resource_version);
        (p.pod.uid, p.pod.name) = (String::new(), String::new());
        (p.pod, p.started, p.next_at, p.restarts_of_image, p.starts, p.taken, version)
    };
    let find = |list: &[SimPod], uid: &str| list.iter().find(|p| p.pod.uid == uid).map(bare);
    let mut all: Vec<_> = uids
        .into_iter()
        .map(|uid| {
            let (mut real, mut seen) = (find(&sim.pods, &uid), find(&sim.ours.pods, &uid));
            let same = real.as_ref().map(|r| &r.6) == seen.as_ref().map(|s| &s.6);
            for pod in real.iter_mut().chain(&mut seen) {
                pod.6.clear();
            }
            (real, seen.filter(|_| !same), same, uid)
        })
        .collect();
    all.sort();
    let mut words = BTreeMap::new();
    for (index, (_, _, _, uid)) in all.into_iter().enumerate() {
        *next += 1;
        words.insert(uid, (format!("pod-{next}"), format!("web-pod{index}")));
    }
    for list in [&mut sim.pods, &mut sim.ours.pods] {
        for p in list.iter_mut() {
            let (uid, name) = words[&p.pod.uid].clone();
            (p.pod.uid, p.pod.name) = (uid, name);
        }
        list.sort_by(|a, b| a.pod.name.cmp(&b.pod.name));
        for p in list.iter_mut() {
            versions.word("", next, &mut p.pod.resource_version);
        }
    }
    words
}

/// What is still to be written speaks in the same words.
fn rewrite(pending: &mut Pending, versions: &Words, sets: &Words, pods: &BTreeMap<String, (String, String)>) {
    let version = |old: &mut String| {
        *old = versions.known(old).unwrap_or("0").to_owned();
    };
    let tests = |patch: &mut Value, new: &dyn Fn(&str) -> String| {
        for operation in patch.as_array_mut().into_iter().flatten().filter(|o| o["path"] == "/metadata/uid") {
            operation["value"] = Value::String(new(operation["value"].as_str().unwrap_or_default()));
        }
    };
    let uid_of_pod = |old: &str| pods.get(old).map_or_else(|| "gone".to_owned(), |(uid, _)| uid.clone());
    let uid_of_set = |old: &str| sets.known(old).unwrap_or("gone").to_owned();
    for effect in &mut pending.effects {
        match effect {
            Effect::PatchPod { name, patch } | Effect::ResizePod { name, patch } => {
                let uid = patch[0]["value"].as_str().unwrap_or_default().to_owned();
                *name = pods.get(&uid).map_or_else(|| "gone".to_owned(), |(_, name)| name.clone());
                tests(patch, &uid_of_pod);
            }
            Effect::SetReadinessGate { name, uid, .. } => {
                *name = pods.get(uid).map_or_else(|| "gone".to_owned(), |(_, name)| name.clone());
                *uid = uid_of_pod(uid);
            }
            Effect::PatchReplicaSet { patch, .. } => tests(patch, &uid_of_set),
            Effect::DeleteReplicaSet { uid, resource_version, .. } => {
                *uid = uid_of_set(uid);
                version(resource_version);
            }
            Effect::RecordStatus { resource_version, .. } => version(resource_version),
            Effect::PatchDeployment { patch, .. } => {
                let mut old = patch["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
                version(&mut old);
                patch["metadata"]["resourceVersion"] = Value::String(old.clone());
                if patch["metadata"]["annotations"][names::RELEASE].is_string() {
                    patch["metadata"]["annotations"][names::RELEASE] = Value::String(old);
                }
            }
            Effect::CreateRun { .. }
            | Effect::DeleteRun { .. }
            | Effect::CreateReplicaSet { .. }
            | Effect::MirrorConditions { .. }
            | Effect::StartHook(_)
            | Effect::CancelHooks(_)
            | Effect::Event { .. } => {}
        }
    }
    if let Some(write) = &mut pending.status {
        version(&mut write.resource_version);
    }
}

/// A number that stands for everything that can matter later.
fn print(sim: &Sim, pending: Option<&Pending>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let h = &mut hasher;
    (sim.now, &sim.d, &sim.sets, &sim.runs, &sim.policies).hash(h);
    for p in &sim.pods {
        (&p.pod, &p.started, p.next_at, p.restarts_of_image, p.starts, p.taken).hash(h);
    }
    // What a view has seen as it is needs no more than its version.
    deployment(&sim.ours.d, &sim.d, h);
    for view in [&sim.dc_sets, &sim.rsc_sets, &sim.ours.sets] {
        view.len().hash(h);
        for set in view {
            if sim.sets.iter().any(|s| s.resource_version == set.resource_version) {
                set.resource_version.hash(h);
            } else {
                set.hash(h);
            }
        }
    }
    sim.ours.pods.len().hash(h);
    for p in &sim.ours.pods {
        if sim.pods.iter().any(|r| r.pod.resource_version == p.pod.resource_version) {
            p.pod.resource_version.hash(h);
        } else {
            p.pod.hash(h);
        }
    }
    sim.ours.runs.len().hash(h);
    for run in &sim.ours.runs {
        if sim.runs.iter().any(|r| r.resource_version == run.resource_version) {
            run.resource_version.hash(h);
        } else {
            run.hash(h);
        }
    }
    (&sim.attempts, &sim.accepted, &sim.script, &sim.authorised, &sim.pardoned, &sim.last_ran, sim.rested).hash(h);
    sim.violations.hash(h);
    if let Some(pending) = pending {
        format!("{:?} {:?}", pending.effects, pending.status.as_ref().map(|s| (&s.run, &s.resource_version))).hash(h);
        pending.status.as_ref().map(|s| &s.status).hash(h);
    }
    hasher.finish()
}

fn deployment(view: &Deployment, real: &Deployment, h: &mut DefaultHasher) {
    if view.resource_version == real.resource_version {
        view.resource_version.hash(h);
    } else {
        view.hash(h);
    }
}
