//! A small, deterministic cluster around the planner: store, admission, Deployment and ReplicaSet controllers, kubelet,
//! hook receivers, and an executor that can crash between any two writes. Faithful to Kubernetes 1.37 where the
//! planner depends on it; each room names its source.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)] // test code; each file uses its part

pub mod admission;
pub mod check;
pub mod deployments;
pub mod executor;
pub mod kubelet;
pub mod replicasets;
pub mod stories;
pub mod user;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use interlock_core::{
    api::{hook::Hook, names, policy::HookPolicySpec, policy::IntOrPercent, reference::Reference, run::StepOutcome},
    plan::Plan,
    select,
    template::Template,
    time::Time,
    world::{AttemptResult, Budget, Deployment, DeploymentStatus, Policy, Predecessor, ReplicaSet, Run, World},
};
use serde_json::{Value, json};

pub use kubelet::SimPod;

/// Pseudo random numbers (splitmix64): the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % (n.max(1) as u64)).unwrap()
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }
}

/// What our controller has seen.
#[derive(Clone, Debug)]
pub struct View {
    pub d: Deployment,
    pub sets: Vec<ReplicaSet>,
    pub pods: Vec<SimPod>,
    pub runs: Vec<Run>,
}

#[derive(Clone, Debug)]
pub struct Sim {
    pub now: Time,
    pub rng: Rng,
    pub next: u64,
    pub d: Deployment,
    pub surge: IntOrPercent,
    pub sets: Vec<ReplicaSet>,
    pub pods: Vec<SimPod>,
    pub runs: Vec<Run>,
    pub policies: Vec<Policy>,
    pub components: BTreeMap<Reference, Option<Predecessor>>,
    pub budgets: Vec<Budget>,
    pub busy: BTreeMap<String, i64>,
    pub refusals: BTreeMap<String, String>,
    /// Memory of our controller; lost in a crash.
    pub attempts: BTreeMap<String, Option<AttemptResult>>,
    /// Outcomes of the next attempts by hook; empty: success.
    pub script: BTreeMap<String, VecDeque<StepOutcome>>,
    /// Keys of all attempts that were started, in order.
    pub calls: Vec<String>,
    /// What was told with each call.
    pub facts: Vec<(interlock_core::api::hook::Phase, serde_json::Value)>,
    /// What the receivers have accepted, by key: the same key again is answered in the same way.
    pub accepted: BTreeMap<String, StepOutcome>,
    /// At most so many pods.
    pub quota: Option<i64>,
    /// New pods have our readiness gate.
    pub gated: bool,
    /// Somebody takes away and gives back the labels that a `podGate` names, by what the pods say: key and value.
    pub keeper: Option<(String, String)>,
    /// Somebody approves whatever waits for it.
    pub approver: bool,
    /// Admission rewrites images that are written to pods.
    pub mirror: bool,
    /// The views of the controllers.
    pub dc_sets: Vec<ReplicaSet>,
    pub rsc_sets: Vec<ReplicaSet>,
    pub ours: View,
    /// While true, controllers see what is there.
    pub fresh: bool,
    /// Our controller stops before the write after so many.
    pub crash_after: Option<usize>,
    /// Of a hundred plans, so many are made once more with all lists in another order.
    pub shuffled: usize,
    /// For the checks.
    pub log: Vec<String>,
    pub events: Vec<(String, String)>,
    pub writes: usize,
    pub refused: usize,
    pub created: usize,
    pub deleted: usize,
    pub authorised: BTreeSet<String>,
    pub pardoned: BTreeSet<String>,
    /// UIDs of ReplicaSets that the Deployment controller numbered without having seen all others as they are.
    pub numbered_blindly: BTreeSet<String>,
    pub last_ran: String,
    /// What had pods when the Deployment was last written.
    pub last_active: BTreeSet<String>,
    /// When the Deployment controller last scaled the only ReplicaSet that had replicas.
    pub emptied_at: Time,
    /// `spec.replicas` as the last plan saw it.
    pub planned_replicas: i64,
    /// Our controller has had the time to look, and found nothing to do.
    pub rested: bool,
    pub violations: Vec<String>,
    pub last_plan: Option<Plan>,
    pub dc_running: bool,
    pub rsc_running: bool,
    pub kubelet_running: bool,
}

/// A template with one container.
pub fn template(image: &str) -> Template {
    template_with(image, &[], &[])
}

/// A template with one container, environment and annotations.
pub fn template_with(image: &str, env: &[(&str, &str)], annotations: &[(&str, &str)]) -> Template {
    let env: Vec<Value> = env.iter().map(|(k, v)| json!({"name": k, "value": v})).collect();
    let mut container = json!({"name": "app", "image": image, "resources": {}});
    if !env.is_empty() {
        container["env"] = Value::Array(env);
    }
    let mut metadata = json!({"labels": {"app": "web"}});
    if !annotations.is_empty() {
        let map: BTreeMap<&str, &str> = annotations.iter().copied().collect();
        metadata["annotations"] = json!(map);
    }
    Template::new(json!({"metadata": metadata, "spec": {"containers": [container]}}))
}

pub fn policy(name: &str, spec: HookPolicySpec) -> Policy {
    Policy {
        name: name.into(),
        uid: format!("uid-{name}"),
        generation: 1,
        created: Time(0),
        spec: Ok(spec),
        problem: None,
    }
}

/// A policy that selects `web` and says nothing else.
pub fn plain_policy() -> HookPolicySpec {
    serde_json::from_value(json!({"selector": {"fieldSelector": "metadata.name=web"}})).unwrap()
}

/// The same with more fields.
pub fn policy_with(more: Value) -> HookPolicySpec {
    let mut all = json!({"selector": {"fieldSelector": "metadata.name=web"}});
    json_patch::merge(&mut all, &more);
    serde_json::from_value(all).unwrap()
}

pub fn parse_hooks(text: &str) -> Result<Vec<Hook>, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

impl Sim {
    /// A Deployment `web` that has just been written; nothing runs yet.
    pub fn new(seed: u64, replicas: i64, image: &str, policies: Vec<Policy>) -> Self {
        Self::born(seed, replicas, image, policies, &[])
    }

    /// The same, with annotations.
    pub fn born(seed: u64, replicas: i64, image: &str, policies: Vec<Policy>, annotations: &[(&str, &str)]) -> Self {
        let now = Time(1_800_000_000_000);
        let d = Deployment {
            namespace: "test".into(),
            name: "web".into(),
            uid: "d-uid".into(),
            resource_version: "1".into(),
            generation: 1,
            created: now.whole_seconds(),
            deleting: false,
            labels: BTreeMap::from([("app".into(), "web".into())]),
            annotations: annotations.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            own_hooks: None,
            own_after: None,
            replicas,
            paused: false,
            template: template(image),
            match_labels: BTreeMap::from([("app".into(), "web".into())]),
            min_ready_seconds: 0,
            history_limit: 10,
            recreate: false,
            max_unavailable: None,
            max_surge: None,
            status: DeploymentStatus::default(),
        };
        let view = View { d: d.clone(), sets: vec![], pods: vec![], runs: vec![] };
        let mut sim = Self {
            now,
            rng: Rng(seed),
            next: 1,
            d,
            surge: IntOrPercent::Percent("25%".into()),
            sets: vec![],
            pods: vec![],
            runs: vec![],
            policies,
            components: BTreeMap::new(),
            budgets: vec![],
            busy: BTreeMap::new(),
            refusals: BTreeMap::new(),
            attempts: BTreeMap::new(),
            script: BTreeMap::new(),
            calls: vec![],
            facts: vec![],
            accepted: BTreeMap::new(),
            quota: None,
            gated: false,
            keeper: None,
            approver: false,
            mirror: false,
            dc_sets: vec![],
            rsc_sets: vec![],
            ours: view,
            fresh: true,
            crash_after: None,
            shuffled: 3,
            log: vec![],
            events: vec![],
            writes: 0,
            refused: 0,
            created: 0,
            deleted: 0,
            authorised: BTreeSet::new(),
            pardoned: BTreeSet::new(),
            numbered_blindly: BTreeSet::new(),
            last_ran: String::new(),
            last_active: BTreeSet::new(),
            emptied_at: Time(0),
            planned_replicas: replicas,
            rested: false,
            violations: vec![],
            last_plan: None,
            dc_running: true,
            rsc_running: true,
            kubelet_running: true,
        };
        sim.birth();
        sim
    }

    /// A Deployment that runs the image, complete and at rest.
    pub fn running(seed: u64, replicas: i64, image: &str, policies: Vec<Policy>) -> Self {
        let mut sim = Self::new(seed, replicas, image, policies);
        sim.settle();
        sim.created = 0;
        sim.writes = 0;
        sim.now = sim.now.plus_seconds(60);
        sim
    }

    pub fn note(&mut self, text: String) {
        let at = self.now.0 - 1_800_000_000_000;
        self.log.push(format!("{at:>8} {text}"));
    }

    pub fn fresh_rv(&mut self) -> String {
        self.next += 1;
        self.next.to_string()
    }

    pub fn fresh_uid(&mut self, kind: &str) -> String {
        self.next += 1;
        format!("{kind}-{}", self.next)
    }

    /// Everything as our controller would gather it.
    pub fn world(&self, live: bool) -> World {
        let view = if live {
            View { d: self.d.clone(), sets: self.sets.clone(), pods: self.pods.clone(), runs: self.runs.clone() }
        } else {
            self.ours.clone()
        };
        World {
            now: self.now,
            live,
            deployment: view.d,
            pods: view
                .pods
                .iter()
                .map(|p| p.pod.clone())
                .filter(|p| view.sets.iter().any(|s| s.uid == p.owner))
                .collect(),
            replica_sets: view.sets,
            policies: self.policies.clone(),
            runs: view.runs,
            components: self.components.clone(),
            cycle: Vec::new(),
            budgets: self.budgets_now(),
            busy: self.busy.clone(),
            attempts: self.attempts.clone(),
            refusals: self.refusals.clone(),
        }
    }

    fn budgets_now(&self) -> Vec<Budget> {
        self.budgets
            .iter()
            .map(|b| {
                let mut b = b.clone();
                b.pods = self.pods.iter().map(|p| p.pod.name.clone()).collect();
                b.expected = i64::try_from(b.pods.len()).unwrap();
                let healthy = i64::try_from(self.pods.iter().filter(|p| p.pod.ready).count()).unwrap();
                b.allowed = (healthy - b.desired_healthy).max(0);
                b
            })
            .collect()
    }

    pub fn look(&mut self) {
        self.ours =
            View { d: self.d.clone(), sets: self.sets.clone(), pods: self.pods.clone(), runs: self.runs.clone() };
    }

    /// One turn of everybody. Did anything change?
    pub fn turn(&mut self) -> bool {
        if self.fresh {
            self.dc_sets = self.sets.clone();
            self.rsc_sets = self.sets.clone();
            self.look();
        }
        let mut changed = self.reconcile();
        if self.dc_running {
            changed |= self.deployment_controller();
            if self.fresh {
                self.dc_sets = self.sets.clone();
                self.rsc_sets = self.sets.clone();
            }
        }
        if self.rsc_running {
            changed |= self.replica_set_controller();
        }
        if self.kubelet_running {
            for i in 0..self.pods.len() {
                changed |= self.kubelet(i);
            }
        }
        changed |= self.hook_receivers();
        changed |= self.keep();
        changed |= self.approve();
        self.remember_what_ran();
        changed
    }

    fn approve(&mut self) -> bool {
        let run = self.runs.iter().max_by_key(|r| r.spec.sequence);
        let waits = run.is_some_and(|r| {
            r.status.waiting_for.as_ref().is_some_and(|w| w.reason == "Approval")
                && r.spec.decisions.iter().all(|d| r.status.decisions_used.contains(&d.id))
        });
        if self.approver && waits {
            self.decide(interlock_core::api::run::Action::Approve, None);
        }
        self.approver && waits
    }

    /// Whoever keeps pods from their updates lets go when asked, and takes hold again when the update is over.
    pub fn keep(&mut self) -> bool {
        let Some((key, value)) = self.keeper.clone() else { return false };
        let mut changed = false;
        for i in 0..self.pods.len() {
            let pod = &self.pods[i].pod;
            let asks = pod.annotations.get(names::POD_STATE).map(String::as_str);
            let has = pod.labels.contains_key(&key);
            let wants = !matches!(asks, Some("PreparingUpdate" | "Updating"));
            if has == wants {
                continue;
            }
            let rv = self.fresh_rv();
            let pod = &mut self.pods[i].pod;
            if wants {
                pod.labels.insert(key.clone(), value.clone())
            } else {
                pod.labels.remove(&key)
            };
            pod.resource_version = rv;
            let line = format!("KEEPER of {}: {}", pod.name, if wants { "takes hold" } else { "lets go" });
            self.note(line);
            changed = true;
        }
        changed
    }

    pub fn hook_receivers(&mut self) -> bool {
        let mut changed = false;
        let open: Vec<String> = self.attempts.iter().filter(|(_, r)| r.is_none()).map(|(k, _)| k.clone()).collect();
        for key in open {
            let hook = key.split('.').nth(2).unwrap_or_default().to_owned();
            let outcome = match self.accepted.get(&key) {
                Some(outcome) => *outcome,
                None => self.script.get_mut(&hook).and_then(VecDeque::pop_front).unwrap_or(StepOutcome::Succeeded),
            };
            if key.contains(".Drained.") || key.ends_with(".undo") {
                let result = AttemptResult { outcome: StepOutcome::Succeeded, reason: "Drained".into(), at: self.now };
                self.attempts.insert(key, Some(result));
                changed = true;
                continue;
            }
            if self.accepted.insert(key.clone(), outcome).is_none() {
                self.check_accepted(&key);
            }
            let reason = if outcome == StepOutcome::Succeeded { "Http200" } else { "Http503" };
            let result = AttemptResult { outcome, reason: reason.into(), at: self.now };
            self.attempts.insert(key, Some(result));
            changed = true;
        }
        changed
    }

    /// Turns until nothing changes and nobody waits for the clock. Panics if that never comes.
    pub fn settle(&mut self) {
        self.settle_within(3000);
    }

    pub fn settle_within(&mut self, turns: usize) {
        for _ in 0..turns {
            if self.turn() {
                self.now = self.now.plus_millis(20);
                continue;
            }
            let plan = self.plan_now();
            let clock = [plan.wake, self.kubelet_wake()].into_iter().flatten().filter(|t| *t > self.now).min();
            match clock {
                Some(at) => self.now = at,
                None => return,
            }
        }
        panic!("does not settle; {}", self.story());
    }

    /// Turns until the test is true.
    pub fn until(&mut self, what: &str, test: impl Fn(&Self) -> bool) {
        for _ in 0..3000 {
            if test(self) {
                return;
            }
            if self.turn() {
                self.now = self.now.plus_millis(20);
            } else {
                let plan = self.plan_now();
                match [plan.wake, self.kubelet_wake()].into_iter().flatten().filter(|t| *t > self.now).min() {
                    Some(at) => self.now = at,
                    None => panic!("{what} never comes; {}", self.story()),
                }
            }
        }
        panic!("{what} does not come; {}", self.story());
    }

    /// Complete, and not held: what runs is what is wanted.
    pub fn remember_what_ran(&mut self) {
        if !self.d.held()
            && self.complete()
            && (self.d.replicas > 0 || self.sets.iter().any(|s| s.template == self.d.template))
        {
            self.last_ran = self.d.template.hash().to_owned();
        }
    }

    pub fn complete(&self) -> bool {
        let s = &self.d.status;
        s.observed_generation >= self.d.generation
            && s.updated == self.d.replicas
            && s.replicas == s.updated
            && s.available == s.updated
    }

    /// The end of the story, for a failed test.
    pub fn story(&self) -> String {
        let mut text = String::from("the story:\n");
        let first = self.log.iter().position(|l| l.contains("VIOLATION")).unwrap_or(self.log.len());
        let from = first.saturating_sub(90);
        for line in self.log[from..].iter().take(110) {
            text.push_str(line);
            text.push('\n');
        }
        text.push_str(&self.picture());
        text
    }

    pub fn picture(&self) -> String {
        let d = &self.d;
        let mut text = format!(
            "deployment gen {}/{} replicas {} paused {} template {} ({}) marks {:?} status {:?}\n",
            d.generation,
            d.status.observed_generation,
            d.replicas,
            d.paused,
            d.template.hash(),
            image_of(&d.template),
            d.annotations,
            (d.status.replicas, d.status.updated, d.status.available),
        );
        for s in &self.sets {
            text.push_str(&format!(
                "set {} gen {}/{} created {} {} ({}) replicas {}/{} available {} rev {} history {} copy {} {:?}\n",
                s.name,
                s.generation,
                s.observed_generation,
                s.created.0 / 1000 - 1_800_000_000,
                s.template.hash(),
                image_of(&s.template),
                s.replicas,
                s.status_replicas,
                s.available,
                s.revision(),
                s.history,
                s.copy,
                s.annotations
            ));
        }
        for p in &self.pods {
            let c = &p.pod.containers;
            text.push_str(&format!(
                "pod {} of {} gen {}/{} ready {} images {:?} baseline {:?} state {:?}\n",
                p.pod.name,
                p.pod.owner,
                p.pod.generation,
                p.pod.observed_generation,
                p.pod.ready,
                c.iter().map(|c| c.image.as_str()).collect::<Vec<_>>(),
                p.pod.baseline.as_ref().map(|b| &b.target),
                c.iter().filter_map(|c| c.status.as_ref().map(|s| &s.state)).collect::<Vec<_>>()
            ));
        }
        for r in &self.runs {
            text.push_str(&format!(
                "run {} seq {} target {} old {:?} ended {:?} stall {:?} way {:?} commit {:?} waiting {:?} steps {:?}\n",
                r.name,
                r.spec.sequence,
                r.spec.target,
                r.spec.old_template.as_ref().map(Template::hash),
                r.status.ended.as_ref().map(|e| e.outcome),
                r.status.stall,
                r.status.way,
                r.status.commit,
                r.status.waiting_for.as_ref().map(|w| (&w.reason, &w.what)),
                r.status.steps.iter().map(|s| (&s.hook, s.attempt, s.outcome)).collect::<Vec<_>>()
            ));
        }
        if let Some(plan) = &self.last_plan {
            text.push_str(&format!("last plan: {:?}\n", plan.report));
        }
        text
    }

    pub fn reparse(&mut self) {
        let own = |annotations: &BTreeMap<String, String>| {
            (
                annotations.get(names::HOOKS).map(|t| parse_hooks(t)),
                annotations.get(names::AFTER).map(|t| select::parse_after(t)),
            )
        };
        (self.d.own_hooks, self.d.own_after) = own(&self.d.annotations);
        for set in &mut self.sets {
            (set.own_hooks, set.own_after) = own(&set.annotations);
        }
    }
}

/// Image of the first container.
pub fn image_of(template: &Template) -> String {
    template.json().pointer("/spec/containers/0/image").and_then(Value::as_str).unwrap_or_default().to_owned()
}
