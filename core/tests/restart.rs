//! RollingRestart: a namespace of small Deployments around the planner, and a controller that may die at any write.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::large_futures)]

mod sim;

use std::collections::BTreeMap;

use interlock_core::{
    api::{
        condition, names,
        restart::{RestartAction, RestartDecision, RollingRestartSpec, RollingRestartStatus, TargetState},
    },
    effect::Effect,
    restart::{Restart, RestartWorld, Subject, plan},
    template::Template,
    time::Time,
    world::{Budget, Component, ContainerState, Pod, Policy},
};
use serde_json::{Value, json};
use sim::{Sim, policy, policy_with};

const START: Time = Time(1_800_000_000_000);

/// A namespace. Each Deployment is rolled by `turn` in one step, as its controller would in the end.
struct Namespace {
    now: Time,
    spec: RollingRestartSpec,
    status: RollingRestartStatus,
    version: u64,
    deployments: BTreeMap<String, Subject>,
    policies: Vec<Policy>,
    /// How often the template of each was changed by us.
    restarts: BTreeMap<String, usize>,
    /// In which order.
    order: Vec<String>,
    /// Rolls of these never get ready.
    broken: Vec<String>,
    events: Vec<String>,
    /// Writes that are carried out before the controller dies. The reply to the last one is lost.
    writes_left: Option<usize>,
    writes: usize,
}

fn subject(name: &str, replicas: i64) -> Subject {
    let mut sim = Sim::new(1, replicas, "app:v1", Vec::new());
    sim.settle();
    let w = sim.world(true);
    let mut d = w.deployment;
    d.name = name.into();
    d.uid = format!("uid-{name}");
    let mut pods = w.pods;
    for pod in &mut pods {
        pod.name = format!("{name}-{}", pod.name);
        pod.created = START.plus_seconds(-600);
    }
    let component = Component {
        held: false,
        deleting: false,
        generation: d.generation,
        replicas,
        status: d.status.clone(),
        old_pods: 0,
        run: None,
        changed: Some(START.plus_seconds(-600)),
    };
    Subject { deployment: d, controller: None, component, replica_sets: w.replica_sets, pods, budgets: Vec::new() }
}

impl Namespace {
    fn new(spec: Value, names: &[&str]) -> Self {
        Self {
            now: START,
            spec: serde_json::from_value(spec).unwrap(),
            status: RollingRestartStatus::default(),
            version: 1,
            deployments: names.iter().map(|n| ((*n).to_owned(), subject(n, 2))).collect(),
            policies: Vec::new(),
            restarts: BTreeMap::new(),
            order: Vec::new(),
            broken: Vec::new(),
            events: Vec::new(),
            writes_left: None,
            writes: 0,
        }
    }

    fn world(&self) -> RestartWorld {
        RestartWorld {
            now: self.now,
            restart: Restart {
                namespace: "ns".into(),
                name: "r".into(),
                uid: "request".into(),
                resource_version: self.version.to_string(),
                generation: 1,
                created: START,
                spec: Ok(self.spec.clone()),
                status: self.status.clone(),
            },
            deployments: self.deployments.clone(),
            policies: self.policies.clone(),
            refusals: BTreeMap::new(),
        }
    }

    /// False: it died here.
    fn may_write(&mut self) -> bool {
        self.writes += 1;
        match &mut self.writes_left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// One pass and one step of everybody else. Did anything happen?
    fn turn(&mut self) -> bool {
        let world = self.world();
        let made = plan(&world);
        let mut changed = false;
        for (name, _, effect) in made.effects {
            if !self.may_write() {
                self.writes_left = None;
                return true;
            }
            self.carry_out(&name, effect);
            changed = true;
        }
        if let Some(status) = made.status {
            if !self.may_write() {
                self.writes_left = None;
                return true;
            }
            self.status = status;
            self.version += 1;
            changed = true;
        }
        self.events.extend(made.events.into_iter().map(|t| format!("{}: {}", t.reason.as_str(), t.message)));
        changed | self.roll()
    }

    fn carry_out(&mut self, name: &str, effect: Effect) {
        let subject = self.deployments.get_mut(name).unwrap();
        match effect {
            Effect::PatchDeployment { patch, .. } => {
                assert_eq!(patch["metadata"]["resourceVersion"], subject.deployment.resource_version);
                let mut template = subject.deployment.template.json().clone();
                json_patch::merge(&mut template, &patch["spec"]["template"]);
                subject.deployment.template = Template::new(template);
                subject.deployment.generation += 1;
                subject.deployment.resource_version += "x";
                subject.component.generation += 1;
                *self.restarts.entry(name.to_owned()).or_default() += 1;
                self.order.push(name.to_owned());
            }
            Effect::PatchPod { name: pod, patch } => {
                let pod = subject.pods.iter_mut().find(|p| p.name == pod).unwrap();
                change(pod, &patch);
                self.order.push(pod.name.clone());
            }
            other => panic!("{other:?}"),
        }
    }

    /// The controllers and kubelets.
    fn roll(&mut self) -> bool {
        let mut changed = false;
        for (name, s) in &mut self.deployments {
            for pod in s.pods.iter_mut().filter(|p| !p.ready) {
                changed |= started(pod, self.now);
            }
            let d = &mut s.deployment;
            let current = s.replica_sets.iter().any(|set| set.template == d.template && set.replicas > 0);
            if current || d.paused {
                continue;
            }
            changed = true;
            let mut set = s.replica_sets[0].clone();
            set.template = d.template.clone();
            set.replicas = d.replicas;
            set.uid = format!("{}-{}", d.uid, s.replica_sets.len());
            s.replica_sets.iter_mut().for_each(|s| s.replicas = 0);
            for pod in &mut s.pods {
                pod.owner.clone_from(&set.uid);
                pod.uid += "n";
                pod.created = self.now;
            }
            s.replica_sets.push(set);
            s.component.status.observed_generation = s.component.generation;
            if self.broken.contains(name) {
                s.component.status.available -= 1;
                s.pods[0].ready = false;
                s.pods[0].observed_generation = s.pods[0].generation;
                let status = s.pods[0].containers[0].status.as_mut().unwrap();
                status.ready = false;
                status.state = ContainerState::Waiting {
                    reason: "InvalidImageName".into(),
                    message: "cannot apply default tag".into(),
                };
            }
            s.component.changed = Some(self.now);
        }
        changed
    }

    /// Until nothing happens and nobody waits for the clock.
    fn settle(&mut self) {
        for _ in 0..2000 {
            if self.turn() {
                self.now = self.now.plus_millis(100);
                continue;
            }
            match plan(&self.world()).wake.filter(|at| *at > self.now) {
                Some(at) if self.status.ended_at.is_none() => self.now = at,
                _ => return,
            }
        }
        panic!("does not settle: {:#?}", self.status);
    }

    fn state(&self, name: &str) -> TargetState {
        self.status.targets.iter().find(|t| t.name == name).unwrap().state
    }

    fn reason(&self, name: &str) -> &str {
        &self.status.targets.iter().find(|t| t.name == name).unwrap().reason
    }

    fn decide(&mut self, action: RestartAction, target: Option<&str>) {
        let id = format!("d{}", self.spec.decisions.len());
        let target = target.map(str::to_owned);
        self.spec.decisions.push(RestartDecision { id, action, target, reason: String::new(), by: "ann".into() });
        self.version += 1;
    }
}

/// A JSON patch of a pod's images and of our record, as the API server carries it out.
fn change(pod: &mut Pod, patch: &Value) {
    for operation in patch.as_array().unwrap() {
        let path = operation["path"].as_str().unwrap();
        if operation["op"] == "replace" && path.ends_with("/image") {
            let index: usize = path.split('/').nth(3).unwrap().parse().unwrap();
            pod.containers[index].image = operation["value"].as_str().unwrap().into();
        }
        let record =
            if path == "/metadata/annotations" { &operation["value"][names::UPDATE] } else { &operation["value"] };
        if path.starts_with("/metadata/annotations") && operation["op"] != "test" && record.is_string() {
            pod.baseline = serde_json::from_str(record.as_str().unwrap()).unwrap();
        }
    }
    pod.generation += 1;
    pod.resource_version += "x";
    pod.ready = false;
}

/// Its containers run again, with the images of its spec, if they can.
fn started(pod: &mut Pod, now: Time) -> bool {
    if matches!(&pod.containers[0].status.as_ref().unwrap().state, ContainerState::Waiting { reason, .. } if reason == "InvalidImageName")
    {
        return false;
    }
    pod.observed_generation = pod.generation;
    pod.ready = true;
    for container in &mut pod.containers {
        let image = container.image.clone();
        let status = container.status.as_mut().unwrap();
        if status.image != image {
            status.id += "n";
            status.image_id = format!("sha256:{image}");
            status.image = image;
            status.state = ContainerState::Running { since: Some(now) };
        }
        status.ready = true;
    }
    true
}

#[test]
fn all_are_restarted_one_after_the_other_by_name() {
    let mut ns = Namespace::new(json!({}), &["c", "a", "b"]);
    ns.settle();
    assert_eq!(ns.order, ["a", "b", "c"]);
    assert!(["a", "b", "c"].iter().all(|n| ns.state(n) == TargetState::Done), "{:#?}", ns.status);
    assert!(condition::is_true(&ns.status.conditions, "Succeeded"));
    // Each only when the one before was settled, for settleSeconds.
    let times: Vec<_> = ns.status.targets.iter().map(|t| (t.started_at.unwrap(), t.finished_at.unwrap())).collect();
    assert!(times.windows(2).all(|w| w[0].1 <= w[1].0), "{times:?}");
    assert!(times.iter().all(|(start, end)| end.millis_since(*start) >= 2000), "{times:?}");
}

#[test]
fn the_order_of_policies_counts_before_names() {
    let order = json!({"order": [{"name": "z"}, {"name": "m", "after": ["z"]}, {"name": "b", "after": ["m"]}]});
    let mut ns = Namespace::new(json!({"maxConcurrent": 3}), &["a", "b", "m", "z"]);
    ns.policies = vec![policy("p", policy_with(order))];
    ns.settle();
    assert_eq!(ns.status.targets.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["z", "m", "b", "a"]);
    // a waits for nobody, so it goes at once; the others keep their order.
    assert_eq!(ns.order, ["z", "a", "m", "b"]);
}

/// humio-operator PR 311, kueue PR 8851 (regressions.md 42): a restart waits for Ready, and for what still settles.
#[test]
fn r42_nothing_is_restarted_while_it_settles_or_before_the_one_before_is_ready() {
    let mut ns = Namespace::new(json!({}), &["a", "b"]);
    ns.deployments.get_mut("a").unwrap().component.changed = Some(START);
    for _ in 0..20 {
        ns.turn();
    }
    assert!(ns.order.is_empty(), "{:?}", ns.order);
    assert_eq!(ns.status.waiting_for.as_ref().unwrap().reason, "NotSettled");
    ns.settle();
    assert_eq!(ns.order, ["a", "b"]);
}

#[test]
fn it_stops_at_the_first_that_fails_and_resume_goes_on_without_a_second_restart() {
    let mut ns = Namespace::new(json!({}), &["a", "b", "c"]);
    ns.broken = vec!["b".into()];
    ns.settle();
    assert_eq!(ns.order, ["a", "b"]);
    assert_eq!(
        (ns.state("b"), ns.reason("b"), ns.state("c")),
        (TargetState::Failed, "PodFailing", TargetState::Pending)
    );
    let stalled = condition::find(&ns.status.conditions, "Stalled").unwrap();
    assert!(
        stalled.message.contains("cannot apply default tag") && stalled.message.contains("resume restart/r"),
        "{}",
        stalled.message
    );
    // Repaired.
    ns.broken.clear();
    let b = ns.deployments.get_mut("b").unwrap();
    b.component.status.available += 1;
    b.pods[0].ready = true;
    let status = b.pods[0].containers[0].status.as_mut().unwrap();
    status.ready = true;
    status.state = ContainerState::Running { since: Some(ns.now) };
    ns.settle();
    assert_eq!(ns.state("b"), TargetState::Failed, "only a person lets it go on");
    ns.decide(RestartAction::Resume, None);
    ns.settle();
    assert_eq!(ns.order, ["a", "b", "c"]);
    assert!(condition::is_true(&ns.status.conditions, "Succeeded"), "{:#?}", ns.status);
}

#[test]
fn a_person_can_skip_what_failed_or_end_it_all() {
    for (action, end) in [(RestartAction::Skip, "Succeeded"), (RestartAction::Abort, "Aborted")] {
        let mut ns = Namespace::new(json!({}), &["a", "b", "c"]);
        ns.broken = vec!["b".into()];
        ns.settle();
        ns.decide(action, None);
        ns.settle();
        assert_eq!(condition::find(&ns.status.conditions, "Succeeded").unwrap().reason, end);
        assert_eq!(ns.restarts.contains_key("c"), action == RestartAction::Skip);
        // Each is used once.
        let used = ns.status.decisions_used.clone();
        ns.settle();
        assert_eq!(ns.status.decisions_used, used);
    }
    let mut ns = Namespace::new(json!({}), &["a"]);
    ns.decide(RestartAction::Resume, Some("nobody"));
    ns.settle();
    assert!(ns.events.iter().any(|e| e.starts_with("DecisionRefused")), "{:?}", ns.events);
}

/// The controller dies before each of its writes: nothing is restarted twice, and all ends well.
#[test]
fn death_at_any_write_restarts_nothing_twice() {
    let mut reference = Namespace::new(json!({}), &["a", "b", "c"]);
    reference.settle();
    let writes = reference.writes;
    assert!(writes > 9, "{writes}");
    for left in 0..writes {
        let mut ns = Namespace::new(json!({}), &["a", "b", "c"]);
        ns.writes_left = Some(left);
        ns.settle();
        assert_eq!(ns.order, ["a", "b", "c"], "death before write {left}");
        assert!(ns.restarts.values().all(|n| *n == 1), "death before write {left}: {:?}", ns.restarts);
        assert!(condition::is_true(&ns.status.conditions, "Succeeded"));
    }
}

/// fluxcd/flux2#2526 (regressions.md 41): a Git tool takes the mark away. That is told, and not done again.
#[test]
fn r41_a_mark_that_is_taken_away_is_told_and_not_written_again() {
    let mut ns = Namespace::new(json!({"mark": "Kubectl"}), &["a"]);
    while ns.order.is_empty() {
        ns.turn();
    }
    ns.roll();
    let a = ns.deployments.get_mut("a").unwrap();
    let before = a.replica_sets[0].template.clone();
    a.deployment.template = before;
    a.deployment.generation += 1;
    a.component.generation += 1;
    a.component.status.observed_generation += 1;
    ns.settle();
    assert_eq!(ns.restarts["a"], 1);
    assert_eq!((ns.state("a"), ns.reason("a")), (TargetState::Done, "MarkRemoved"));
    assert_eq!(ns.events.iter().filter(|e| e.starts_with("MarkRemoved")).count(), 1, "{:?}", ns.events);
    // Our own key is one that no such tool knows.
    let mut ns = Namespace::new(json!({}), &["a"]);
    ns.settle();
    let template = ns.deployments["a"].deployment.template.json().clone();
    assert_eq!(template["metadata"]["annotations"][names::RESTART], "request");
}

/// Reason, spec, and what is done to the Deployment before.
type Skipped = (&'static str, &'static str, fn(&mut Subject));

/// knative/serving#14705 (regressions.md 43), and everybody else who is left as they are.
#[test]
fn r43_who_is_skipped_and_why() {
    let cases: [Skipped; 9] = [
        ("OwnedByOther", "{}", |s| s.controller = Some("revision/x".into())),
        ("Paused", "{}", |s| s.deployment.paused = true),
        ("ScaledToZero", "{}", |s| s.deployment.replicas = 0),
        ("NoPods", "{}", |s| s.pods.clear()),
        ("OptedOut", "{}", |s| {
            s.deployment.annotations.insert(names::RESTARTS.into(), "never".into());
        }),
        ("AlreadyRestarted", "{}", |s| s.pods.iter_mut().for_each(|p| p.created = START.plus_seconds(1))),
        ("Downtime", "{}", |s| s.deployment.recreate = true),
        ("SkipWhen", r#"{"skipWhen": [{"name": "app", "image": "app:v1"}]}"#, |_| ()),
        ("InTemplate", r#"{"sidecars": [{"name": "app", "image": "app:v2"}]}"#, |_| ()),
    ];
    for (reason, spec, make) in cases {
        let mut ns = Namespace::new(serde_json::from_str(spec).unwrap(), &["a"]);
        make(ns.deployments.get_mut("a").unwrap());
        ns.settle();
        assert_eq!((ns.state("a"), ns.reason("a")), (TargetState::Skipped, reason), "{:#?}", ns.status);
        assert!(ns.order.is_empty());
    }
    // One replica has a second one beside it meanwhile, unless it may have no surge.
    for (surge, downtime, restarts) in [(1, false, true), (0, false, false), (0, true, true)] {
        let mut ns = Namespace::new(json!({"allowDowntime": downtime}), &[]);
        ns.deployments.insert("a".into(), subject("a", 1));
        let d = &mut ns.deployments.get_mut("a").unwrap().deployment;
        d.max_surge = Some(interlock_core::api::policy::IntOrPercent::Int(surge));
        ns.settle();
        assert_eq!(!ns.order.is_empty(), restarts, "surge {surge}: {}", ns.reason("a"));
    }
}

#[test]
fn a_dry_run_lists_what_would_happen_and_changes_nothing() {
    let mut ns = Namespace::new(json!({"dryRun": true}), &["a", "b"]);
    ns.deployments.get_mut("b").unwrap().deployment.paused = true;
    ns.settle();
    assert!(ns.order.is_empty());
    assert_eq!((ns.state("a"), ns.state("b"), ns.reason("b")), (TargetState::Pending, TargetState::Skipped, "Paused"));
    assert_eq!(condition::find(&ns.status.conditions, "Succeeded").unwrap().reason, "DryRun");
}

#[test]
fn it_waits_for_the_pause_the_window_and_budgets() {
    let mut ns = Namespace::new(json!({"pauseSeconds": 60}), &["a", "b"]);
    ns.settle();
    let targets = &ns.status.targets;
    assert!(targets[1].started_at.unwrap().millis_since(targets[0].finished_at.unwrap()) >= 60_000);

    // 1_800_000_000 is 2027-01-15T08:00:00Z.
    let mut ns = Namespace::new(json!({"window": {"schedule": "0 22 * * *", "durationSeconds": 3600}}), &["a"]);
    for _ in 0..5 {
        ns.turn();
    }
    assert_eq!(ns.status.waiting_for.as_ref().unwrap().reason, "Window");
    ns.settle();
    assert_eq!(ns.status.targets[0].started_at.unwrap().to_string(), "2027-01-15T22:00:00Z");

    let mut ns = Namespace::new(json!({}), &["a"]);
    let a = ns.deployments.get_mut("a").unwrap();
    a.deployment.max_unavailable = Some(interlock_core::api::policy::IntOrPercent::Int(1));
    let pods = a.pods.iter().map(|p| p.name.clone()).collect();
    let budget =
        Budget { name: "b".into(), pods, others_ready: 0, desired_healthy: 2, expected: 2, allowed: 0, current: true };
    a.budgets = vec![budget];
    for _ in 0..5 {
        ns.turn();
    }
    assert_eq!(ns.status.waiting_for.as_ref().unwrap().reason, "Budget");
    ns.deployments.get_mut("a").unwrap().budgets[0].allowed = 1;
    ns.settle();
    assert_eq!(ns.restarts["a"], 1);
}

#[test]
fn a_window_that_cannot_be_read_stops_it_with_a_word() {
    let mut ns = Namespace::new(json!({"window": {"schedule": "bad", "durationSeconds": 3600}}), &["a"]);
    ns.settle();
    let stalled = condition::find(&ns.status.conditions, "Stalled").unwrap();
    assert!(stalled.reason == "Invalid" && stalled.message.contains("spec.window.schedule"), "{}", stalled.message);
    assert!(ns.order.is_empty());
}

fn injected(ns: &mut Namespace, image: &str) {
    for pod in ns.deployments.values_mut().flat_map(|s| &mut s.pods) {
        let mut proxy = pod.containers[0].clone();
        proxy.name = "proxy".into();
        proxy.image = image.into();
        proxy.index = 1;
        let status = proxy.status.as_mut().unwrap();
        status.image = image.into();
        status.id = format!("{}-proxy", pod.name);
        pod.containers.push(proxy);
    }
}

#[test]
fn sidecars_change_in_the_running_pods_within_max_unavailable() {
    let mut ns = Namespace::new(json!({"sidecars": [{"name": "proxy", "image": "proxy:2"}]}), &[]);
    for name in ["a", "b"] {
        ns.deployments.insert(name.into(), subject(name, 4));
    }
    injected(&mut ns, "proxy:1");
    let uids = |ns: &Namespace| -> Vec<String> {
        ns.deployments.values().flat_map(|s| &s.pods).map(|p| p.uid.clone()).collect()
    };
    let before = uids(&ns);
    for _ in 0..200 {
        if !ns.turn() {
            break;
        }
        let down = ns.deployments.values().flat_map(|s| &s.pods).filter(|p| !p.ready).count();
        assert!(down <= 1, "{down} pods are down");
        ns.now = ns.now.plus_millis(100);
    }
    ns.settle();
    assert!(condition::is_true(&ns.status.conditions, "Succeeded"), "{:#?}", ns.status);
    assert_eq!(uids(&ns), before, "no pod is made anew");
    assert_eq!(ns.order.len(), 8, "one write per pod: {:?}", ns.order);
    assert!(ns.deployments.values().flat_map(|s| &s.pods).all(|p| p.containers[1].image == "proxy:2"));
    assert!(ns.order[..4].iter().all(|pod| pod.starts_with("a-")), "{:?}", ns.order);

    // One pod has nobody beside it.
    let mut ns = Namespace::new(json!({"sidecars": [{"name": "proxy", "image": "proxy:2"}]}), &[]);
    ns.deployments.insert("a".into(), subject("a", 1));
    injected(&mut ns, "proxy:1");
    ns.settle();
    assert_eq!(ns.reason("a"), "Downtime");
}
