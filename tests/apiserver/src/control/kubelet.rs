//! Scheduler and kubelets in one. What is published is what was seen on a real node (docs/done-rule.md) and what KWOK's
//! stages of the development cluster publish: a change of the spec is first only acknowledged, then old containers are
//! stopped, new ones pulled and started. Image tags `bad-pull`, `bad-crash`, `bad-ready` fail.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use interlock_core::image;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Lag, View};
use crate::{
    json::{at, int, list, text},
    kinds,
    store::{Caller, Part, Preconditions, Store},
};

const US: &str = "kubelet";
const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
const CREATE: Duration = ms(10);
const START: Duration = ms(150);
const ACKNOWLEDGE: Duration = ms(10);
/// Old containers are stopped one after the other.
const STOP: Duration = ms(50);
const UPDATE: Duration = ms(100);
const READY: Duration = ms(20);
const CRASH: Duration = ms(400);
const DELETE: Duration = ms(30);
/// Reasons of a failed pull, and how long each stays.
const PULL: [(&str, Duration); 3] =
    [("ErrImagePull", ms(1_000)), ("ImagePullBackOff", ms(11_000)), ("CrashLoopBackOff", ms(14_000))];

#[derive(Debug)]
struct Memory {
    uid: String,
    doing: Doing,
    acknowledged: i64,
    containers: Vec<Container>,
    /// Status and last transition of the conditions.
    conditions: BTreeMap<&'static str, (bool, String)>,
    /// Are all readiness gates open, by what was last seen?
    open: bool,
}

#[derive(Debug)]
enum Doing {
    Creating(Instant),
    Starting(Instant),
    Settled,
    Acknowledging(Instant),
    Replacing(Instant),
    Deleting(Instant),
}

#[derive(Debug)]
struct Container {
    name: String,
    init: bool,
    probed: bool,
    /// As the spec that it was started with says.
    image: String,
    published: String,
    image_id: String,
    id: String,
    starts: i64,
    restarts: i64,
    ready: bool,
    state: Value,
    last: Value,
    resources: Value,
    next: Option<(Instant, Next)>,
}

#[derive(Clone, Copy, Debug)]
enum Next {
    Ready,
    Crash,
    /// Starts again after the back-off.
    Again,
    /// The next reason of a failed pull.
    Pull(usize),
}

pub(super) async fn run(store: Arc<Store>) {
    let mut view = View::new(&store, &["pods"], Lag::default());
    let mut memories: BTreeMap<(String, String), Memory> = BTreeMap::new();
    let mut timer = None;
    loop {
        view.wait(timer).await;
        view.take();
        let pods: Vec<Arc<Value>> = view.of("pods").cloned().collect();
        let key = |pod: &Value| (text(pod, "/metadata/namespace").to_owned(), text(pod, "/metadata/name").to_owned());
        memories.retain(|k, m| pods.iter().any(|p| key(p) == *k && text(p, "/metadata/uid") == m.uid));
        for pod in &pods {
            let memory = memories.entry(key(pod)).or_insert_with(|| Memory::of(pod));
            // Our own writes are seen in the next turn.
            if memory.step(&store, pod) {
                memory.publish(&store, pod);
            }
        }
        timer = memories.values().filter_map(Memory::wake).min();
    }
}

impl Memory {
    fn of(pod: &Value) -> Self {
        Self {
            uid: text(pod, "/metadata/uid").to_owned(),
            doing: Doing::Creating(Instant::now() + CREATE),
            acknowledged: 0,
            containers: Vec::new(),
            conditions: BTreeMap::new(),
            open: gates_open(pod),
        }
    }

    fn wake(&self) -> Option<Instant> {
        let doing = match self.doing {
            Doing::Settled => None,
            Doing::Creating(at)
            | Doing::Starting(at)
            | Doing::Acknowledging(at)
            | Doing::Replacing(at)
            | Doing::Deleting(at) => Some(at),
        };
        self.containers.iter().filter_map(|c| c.next.map(|(at, _)| at)).chain(doing).min()
    }

    /// Does what is due. Is there something to publish?
    fn step(&mut self, store: &Store, pod: &Value) -> bool {
        let now = Instant::now();
        let generation = int(pod, "/metadata/generation");
        let due = |at: Instant| at <= now;
        if !at(pod, "/metadata/deletionTimestamp").is_null() && !matches!(self.doing, Doing::Deleting(_)) {
            self.doing = Doing::Deleting(now + DELETE);
            self.containers.iter_mut().for_each(|c| c.next = None);
            return false;
        }
        let mut publish = self.open != gates_open(pod) && self.acknowledged > 0;
        self.open = gates_open(pod);
        match self.doing {
            Doing::Creating(at) if due(at) => {
                self.acknowledged = generation;
                self.containers = containers(pod);
                self.doing = Doing::Starting(now + START);
                publish = true;
            }
            Doing::Starting(at) if due(at) => {
                // It starts what the spec says now.
                self.acknowledged = generation;
                self.containers = containers(pod);
                let images = images(pod);
                for c in &mut self.containers {
                    c.start(images.get(&c.name).cloned().unwrap_or_default(), store);
                }
                self.doing = Doing::Settled;
                publish = true;
            }
            Doing::Acknowledging(at) if due(at) => {
                self.acknowledged = generation;
                for c in &mut self.containers {
                    c.resources = resources(pod, &c.name);
                }
                let changed = self.changed(pod).len();
                self.doing = if changed == 0 {
                    Doing::Settled
                } else {
                    Doing::Replacing(now + STOP * u32::try_from(changed).unwrap() + UPDATE)
                };
                publish = true;
            }
            Doing::Replacing(at) if due(at) => {
                for (index, image) in self.changed(pod) {
                    self.containers[index].replace(image, store);
                }
                self.doing = Doing::Settled;
                publish = true;
            }
            Doing::Settled if generation > self.acknowledged => {
                self.doing = Doing::Acknowledging(now + ACKNOWLEDGE);
            }
            Doing::Deleting(at) if due(at) => {
                let target = (kinds::of("pods"), text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
                let conditions = Preconditions { uid: Some(&self.uid), grace: Some(0), ..Preconditions::default() };
                let _ = store.delete(Caller::system(US), target, conditions);
                self.doing = Doing::Deleting(now + Duration::from_secs(60));
            }
            Doing::Creating(_)
            | Doing::Starting(_)
            | Doing::Settled
            | Doing::Acknowledging(_)
            | Doing::Replacing(_)
            | Doing::Deleting(_) => {}
        }
        for c in &mut self.containers {
            if let Some((at, next)) = c.next
                && due(at)
            {
                c.next = None;
                c.go_on(next, store);
                publish = true;
            }
        }
        publish
    }

    /// Containers that do not run what the spec says.
    fn changed(&self, pod: &Value) -> Vec<(usize, String)> {
        let images = images(pod);
        let changed = self.containers.iter().enumerate().filter_map(|(i, c)| {
            let image = images.get(&c.name)?;
            (c.image != *image).then(|| (i, image.clone()))
        });
        changed.collect()
    }

    fn publish(&mut self, store: &Store, pod: &Value) {
        let started = !matches!(self.doing, Doing::Creating(_) | Doing::Starting(_));
        let ready = started && self.containers.iter().all(|c| c.ready);
        let serves = ready && self.open;
        let states = [("PodScheduled", true), ("Initialized", started), ("ContainersReady", ready), ("Ready", serves)];
        for (type_, is) in states {
            let entry = self.conditions.entry(type_).or_insert_with(|| (is, store.stamp()));
            if entry.0 != is {
                *entry = (is, store.stamp());
            }
        }
        let conditions: Vec<Value> = self
            .conditions
            .iter()
            .map(|(type_, (is, since))| {
                json!({"type": type_, "status": if *is { "True" } else { "False" }, "lastTransitionTime": since,
                    "observedGeneration": self.acknowledged})
            })
            .collect();
        let statuses = |init: bool| -> Vec<Value> {
            self.containers.iter().filter(|c| c.init == init).map(Container::status).collect()
        };
        let running = self.containers.iter().any(|c| c.state["running"].is_object() || c.starts > 0);
        let mut status = json!({
            "phase": if running { "Running" } else { "Pending" },
            "qosClass": at(pod, "/status/qosClass"),
            "observedGeneration": self.acknowledged,
            "conditions": conditions,
            "containerStatuses": statuses(false),
            "podIP": "10.0.0.1",
        });
        let init = statuses(true);
        if !init.is_empty() {
            status["initContainerStatuses"] = json!(init);
        }
        let target = (kinds::of("pods"), text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
        if text(pod, "/spec/nodeName").is_empty() {
            let _ = store.update(Caller::system("scheduler"), target, Part::Binding, |old| {
                let mut new = old.clone();
                new["spec"]["nodeName"] = json!("node-1");
                Ok(new)
            });
        }
        let _ = store.update(Caller::system(US), target, Part::Status, |old| {
            let mut new = old.clone();
            let own = |c: &Value| self.conditions.contains_key(text(c, "/type"));
            let others: Vec<Value> = list(old, "/status/conditions").iter().filter(|c| !own(c)).cloned().collect();
            new["status"] = status;
            new["status"]["conditions"].as_array_mut().unwrap().extend(others);
            Ok(new)
        });
    }
}

impl Container {
    fn status(&self) -> Value {
        let mut status = json!({
            "name": self.name, "image": self.published, "imageID": self.image_id, "ready": self.ready,
            "restartCount": self.restarts, "state": self.state, "lastState": self.last, "started": self.ready,
        });
        if !self.id.is_empty() {
            status["containerID"] = json!(self.id);
        }
        if !self.resources.is_null() {
            status["resources"] = self.resources.clone();
        }
        status
    }

    fn bad(&self) -> &'static str {
        ["bad-pull", "bad-crash", "bad-ready"].into_iter().find(|k| self.image.contains(k)).unwrap_or("")
    }

    /// The old one has been stopped.
    fn replace(&mut self, image: String, store: &Store) {
        if self.state["running"].is_object() {
            self.last = json!({"terminated": {"containerID": self.id, "exitCode": 0, "reason": "Completed", "finishedAt": store.stamp()}});
        }
        self.start(image, store);
    }

    fn start(&mut self, image: String, store: &Store) {
        self.image = image;
        self.ready = false;
        self.next = None;
        if self.bad() == "bad-pull" {
            self.pull_failed(0);
            return;
        }
        if self.starts > 0 {
            self.restarts += 1;
        }
        self.starts += 1;
        self.id = format!("containerd://{}-{}-{:06}", self.name, self.starts, store.random(1_000_000));
        self.published = image::normalise(&self.image);
        let repository = self.image.rsplit_once(':').map_or(self.image.as_str(), |(r, _)| r);
        self.image_id = format!("{repository}@sha256:{:016x}", digest(&self.image));
        self.state = json!({"running": {"startedAt": store.stamp()}});
        let now = Instant::now();
        match self.bad() {
            "bad-crash" => {
                self.ready = !self.probed;
                self.next = Some((now + CRASH, Next::Crash));
            }
            "bad-ready" => {}
            _ if self.probed => self.next = Some((now + READY, Next::Ready)),
            _ => self.ready = true,
        }
    }

    fn pull_failed(&mut self, index: usize) {
        let (reason, stays) = PULL[index];
        let message = format!("failed to pull and unpack image \"{}\": not found", self.image);
        self.state = json!({"waiting": {"reason": reason, "message": message}});
        self.next = Some((Instant::now() + stays, Next::Pull((index + 1) % PULL.len())));
    }

    fn go_on(&mut self, next: Next, store: &Store) {
        match next {
            Next::Ready => self.ready = true,
            Next::Crash => {
                self.ready = false;
                self.last = json!({"terminated": {"containerID": self.id, "exitCode": 1, "reason": "Error", "finishedAt": store.stamp()}});
                let seconds = 10_u64.saturating_mul(1 << self.restarts.clamp(0, 5)).min(300);
                let message = format!("back-off {seconds}s restarting failed container={}", self.name);
                self.state = json!({"waiting": {"reason": "CrashLoopBackOff", "message": message}});
                self.next = Some((Instant::now() + Duration::from_secs(seconds), Next::Again));
            }
            Next::Again => self.start(self.image.clone(), store),
            Next::Pull(index) => self.pull_failed(index),
        }
    }
}

/// Main containers, and init containers that run beside them.
fn listed(pod: &Value) -> Vec<(&Value, bool)> {
    let main = list(pod, "/spec/containers").iter().map(|c| (c, false));
    let init = list(pod, "/spec/initContainers").iter().filter(|c| c["restartPolicy"] == "Always").map(|c| (c, true));
    main.chain(init).collect()
}

fn images(pod: &Value) -> BTreeMap<String, String> {
    listed(pod).into_iter().map(|(c, _)| (text(c, "/name").to_owned(), text(c, "/image").to_owned())).collect()
}

fn resources(pod: &Value, name: &str) -> Value {
    listed(pod).into_iter().find(|(c, _)| c["name"] == name).map(|(c, _)| c["resources"].clone()).unwrap_or_default()
}

fn containers(pod: &Value) -> Vec<Container> {
    let one = |(c, init): (&Value, bool)| Container {
        name: text(c, "/name").to_owned(),
        init,
        probed: c["readinessProbe"].is_object(),
        image: String::new(),
        published: text(c, "/image").to_owned(),
        image_id: String::new(),
        id: String::new(),
        starts: 0,
        restarts: 0,
        ready: false,
        state: json!({"waiting": {"reason": "ContainerCreating"}}),
        last: json!({}),
        resources: c["resources"].clone(),
        next: None,
    };
    listed(pod).into_iter().map(one).collect()
}

fn digest(text: &str) -> u64 {
    text.bytes().fold(7, |h: u64, b| h.wrapping_mul(0x100_0000_01b3) ^ u64::from(b))
}

/// Are the conditions of all readiness gates True?
fn gates_open(pod: &Value) -> bool {
    list(pod, "/spec/readinessGates").iter().all(|gate| {
        let open = |c: &&Value| c["type"] == gate["conditionType"] && c["status"] == "True";
        list(pod, "/status/conditions").iter().any(|c| open(&c))
    })
}
