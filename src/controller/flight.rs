//! Writes to pods that are under way. They do not hold up the next plan: the next pod is written the moment one is
//! done, not when all those that were chosen with it have been answered.
//!
//! Until its answer comes, a pod is shown to the planner as the write will leave it, so that it counts as changing and
//! takes up its part of maxUnavailable; nothing else is written to it. Everything but pods waits until all are answered.

use std::collections::{BTreeMap, VecDeque};

use futures::{
    StreamExt as _,
    future::{BoxFuture, FutureExt as _},
    stream::FuturesUnordered,
};
use interlock_core::{
    api::{names, run::HookRunStatus},
    effect::Effect,
    plan::StatusWrite,
    world::{Pod, World},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::execute::{Executor, Failure, SIDE_BY_SIDE, Subject, by_pod, pod_of};

/// What was under way and has come about.
pub(super) enum Landed {
    /// All writes to one pod.
    Pod(String),
    /// A status of a run.
    Status {
        /// What was stored.
        before: Box<HookRunStatus>,
        /// What is stored now.
        after: Box<HookRunStatus>,
    },
}

type Answer = (Landed, Result<bool, Failure>);

/// Writes that wait for their turn and writes that wait for their answer.
pub(super) struct Flight<'a> {
    executor: &'a Executor,
    subject: Subject,
    waiting: VecDeque<Vec<Effect>>,
    pods: BTreeMap<String, Vec<Effect>>,
    answers: FuturesUnordered<BoxFuture<'a, Answer>>,
    /// A status is under way.
    status: bool,
    /// The last plan had more writes than could go at once: there may be more where these came from.
    more: bool,
    /// Since then another write can begin.
    open: Instant,
}

impl<'a> Flight<'a> {
    /// Nothing is under way.
    pub(super) fn new(executor: &'a Executor, subject: Subject) -> Self {
        let answers = FuturesUnordered::new();
        let (waiting, pods) = (VecDeque::new(), BTreeMap::new());
        Self { executor, subject, waiting, pods, answers, status: false, more: false, open: Instant::now() }
    }

    /// Nothing waits for an answer.
    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Something waits for its turn: no use in choosing more.
    pub(super) fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Can another write to a pod begin at once?
    pub(super) fn has_room(&self) -> bool {
        self.pods.len() < SIDE_BY_SIDE
    }

    /// Since when another write can begin.
    pub(super) fn open(&self) -> Instant {
        self.open
    }

    /// A plan is to be made anew: what has not begun is chosen again, or not.
    pub(super) fn reconsider(&mut self) {
        self.waiting.clear();
        self.more = false;
    }

    /// Carries out writes to pods, all of one plan.
    pub(super) fn add(&mut self, effects: Vec<Effect>) {
        // What a plan wants of a pod that is being written to comes after the answer.
        let free = |group: &Vec<Effect>| group.first().and_then(pod_of).is_some_and(|pod| !self.pods.contains_key(pod));
        let groups: VecDeque<Vec<Effect>> = by_pod(effects).into_iter().filter(free).collect();
        self.more = groups.len() > SIDE_BY_SIDE;
        self.waiting = groups;
        self.begin();
    }

    /// A status is under way, and the next one has to wait for what it returns.
    pub(super) fn has_status(&self) -> bool {
        self.status
    }

    /// Stores a status of a run in which only counters moved.
    pub(super) fn add_status(&mut self, write: StatusWrite, before: HookRunStatus) {
        self.status = true;
        let (executor, subject) = (self.executor, self.subject.clone());
        let after = Box::new(write.status.clone());
        let landed = Landed::Status { before: Box::new(before), after };
        self.answers.push(async move { (landed, executor.status(&subject, write).await.map(|()| true)) }.boxed());
    }

    fn begin(&mut self) {
        while self.has_room()
            && let Some(group) = self.waiting.pop_front()
        {
            let Some(pod) = group.first().and_then(pod_of).map(ToOwned::to_owned) else { continue };
            self.pods.insert(pod.clone(), group.clone());
            let (executor, subject) = (self.executor, self.subject.clone());
            let write = async move { (Landed::Pod(pod), executor.in_order(&subject, group).await) };
            self.answers.push(write.boxed());
        }
    }

    fn could_begin(&self) -> bool {
        self.has_room() && self.waiting.is_empty()
    }

    /// The next answer; waits for ever if none is awaited. After a failure nothing more begins.
    pub(super) async fn next(&mut self) -> Result<Landed, Failure> {
        let Some((landed, result)) = self.answers.next().await else { return std::future::pending().await };
        let could = self.could_begin();
        match &landed {
            Landed::Pod(pod) => drop(self.pods.remove(pod)),
            Landed::Status { .. } => self.status = false,
        }
        if result.is_err() {
            self.waiting.clear();
        }
        self.begin();
        if !could && self.could_begin() {
            self.open = Instant::now();
        }
        result.map(|_| landed)
    }

    /// Something is under way, there is room, and the last plan had more to write than could begin.
    pub(super) fn has_more(&self) -> bool {
        self.more && self.waiting.is_empty() && !self.answers.is_empty()
    }

    /// Shows pods that are being written to as the writes will leave them.
    pub(super) fn foresee(&self, world: &mut World) {
        if self.pods.is_empty() {
            return;
        }
        for pod in &mut world.pods {
            for effect in self.pods.get(&pod.name).into_iter().flatten() {
                if let Effect::SetReadinessGate { open, .. } = effect {
                    pod.gate = pod.gate.map(|_| *open);
                    pod.ready &= open;
                }
                if let Effect::PatchPod { name: _, patch } | Effect::ResizePod { name: _, patch } = effect
                    && !shows(pod, patch)
                {
                    foresee(pod, patch);
                }
            }
        }
    }
}

/// Was the watch faster than the answer?
fn shows(pod: &Pod, patch: &Value) -> bool {
    let record_at = format!("/metadata/annotations/{}", names::UPDATE.replace('/', "~1"));
    let operations = patch.as_array().map(Vec::as_slice).unwrap_or_default();
    let record = operations.iter().find(|o| o.get("path").and_then(Value::as_str) == Some(record_at.as_str()));
    let record = record.and_then(|o| o.get("value")?.as_str());
    record.is_some_and(|record| serde_json::from_str(record).ok() == pod.baseline)
}

/// What a JSON patch of ours will make of a pod. Its version is not known before.
fn foresee(pod: &mut Pod, patch: &Value) {
    let operations = patch.as_array().map(Vec::as_slice).unwrap_or_default();
    let text =
        |operation: &Value, field: &str| operation.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut changes = false;
    for operation in operations.iter().filter(|o| text(o, "op") != "test") {
        let segments: Vec<String> =
            text(operation, "path").split('/').skip(1).map(|s| s.replace("~1", "/").replace("~0", "~")).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let value = (text(operation, "op") != "remove").then(|| text(operation, "value"));
        match segments.as_slice() {
            ["metadata", "annotations", key] if *key == names::UPDATE => {
                pod.baseline = value.and_then(|record| serde_json::from_str(&record).ok());
            }
            ["metadata", "annotations", key] => drop(set(&mut pod.annotations, key, value)),
            ["metadata", "labels", key] => drop(set(&mut pod.labels, key, value)),
            ["spec", kind, index, rest @ ..] => {
                let found = pod
                    .containers
                    .iter_mut()
                    .find(|c| c.init == (*kind == "initContainers") && c.index.to_string() == **index);
                let Some(container) = found else { continue };
                changes = true;
                let quantities = || serde_json::from_value(operation.get("value").cloned().unwrap_or_default());
                match rest {
                    ["resources", "requests"] => container.resources.requests = quantities().unwrap_or_default(),
                    ["resources", "limits"] => container.resources.limits = quantities().unwrap_or_default(),
                    ["image"] => container.image = value.unwrap_or_default(),
                    ["resources", "requests", key] => drop(set(&mut container.resources.requests, key, value)),
                    ["resources", "limits", key] => drop(set(&mut container.resources.limits, key, value)),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    pod.has_annotations = true;
    pod.generation += i64::from(changes);
    pod.resource_version.clear();
}

fn set(map: &mut BTreeMap<String, String>, key: &str, value: Option<String>) -> Option<String> {
    match value {
        Some(value) => map.insert(key.to_owned(), value),
        None => map.remove(key),
    }
}

#[cfg(test)]
mod tests;
