//! Pods and the kubelet, as seen on a real node (docs/done-rule.md): it acknowledges the generation while the old
//! container still runs, stops it, pulls, starts. Image tags `bad-pull`, `bad-crash`, `bad-ready` fail.

use std::collections::{BTreeMap, BTreeSet};

use interlock_core::{
    api::names,
    classify, image,
    time::Time,
    world::{Baseline, Container, ContainerState, ContainerStatus, Pod, ReplicaSet, Terminated},
};
use serde_json::{Value, json};

use super::Sim;

/// Restarts after which a crashing container is left alone, so that stories end.
const MOST_CRASHES: i64 = 12;

#[derive(Clone, Debug)]
pub struct SimPod {
    pub pod: Pod,
    pub spec: Value,
    /// Image that each container was last started with.
    pub started: BTreeMap<String, String>,
    /// When a crashed container is started again.
    pub next_at: Option<Time>,
    pub restarts_of_image: i64,
    /// How many containers were started in it.
    pub starts: u64,
    /// It was well when we changed it, and has not been since.
    pub taken: bool,
    /// It is at its hooks, and was well when they began.
    pub hooked: Option<bool>,
    /// It was down or at its hooks when that was last counted.
    pub counted: bool,
}

impl SimPod {
    /// As the API serves it, as far as patches can see.
    pub fn json(&self) -> Value {
        let p = &self.pod;
        let mut metadata = json!({"uid": p.uid, "name": p.name, "generation": p.generation, "labels": p.labels});
        if p.has_annotations {
            let mut annotations: BTreeMap<String, String> = p.annotations.clone();
            if let Some(baseline) = &p.baseline {
                annotations.insert(names::UPDATE.into(), serde_json::to_string(baseline).unwrap());
            }
            metadata["annotations"] = json!(annotations);
        }
        if !p.finalizers.is_empty() {
            metadata["finalizers"] = json!(p.finalizers);
        }
        json!({"metadata": metadata, "spec": self.spec})
    }

    /// Takes a patched object back. The spec's own change counts one generation.
    pub fn take(&mut self, json: &Value) {
        let map = |at: &str| -> BTreeMap<String, String> {
            json.pointer(at).and_then(|v| serde_json::from_value(v.clone()).ok()).unwrap_or_default()
        };
        self.pod.labels = map("/metadata/labels");
        self.pod.has_annotations = json.pointer("/metadata/annotations").is_some();
        let mut annotations = map("/metadata/annotations");
        self.pod.baseline = annotations.remove(names::UPDATE).and_then(|t| serde_json::from_str::<Baseline>(&t).ok());
        self.pod.annotations = annotations;
        if json["spec"] != self.spec {
            self.pod.generation += 1;
            self.spec = json["spec"].clone();
        }
        read_containers(&mut self.pod, &self.spec);
    }

    /// Runs what its spec says, ready.
    pub fn steady(&self) -> bool {
        self.pod.ready
            && self.pod.gate != Some(false)
            && self.pod.containers.iter().all(|c| self.started.get(&c.name) == Some(&c.image))
    }
}

fn read_containers(pod: &mut Pod, spec: &Value) {
    let old = std::mem::take(&mut pod.containers);
    for (list, init) in [("containers", false), ("initContainers", true)] {
        for (index, c) in spec[list].as_array().into_iter().flatten().enumerate() {
            if init && c["restartPolicy"] != "Always" {
                continue;
            }
            let name = c["name"].as_str().unwrap_or_default().to_owned();
            let before = old.iter().find(|o| o.name == name);
            let resources = classify::resources(c.get("resources"));
            pod.containers.push(Container {
                init,
                index,
                image: c["image"].as_str().unwrap_or_default().to_owned(),
                status_resources: before.and_then(|b| b.status_resources.clone()),
                resources,
                status: before.and_then(|b| b.status.clone()),
                name,
            });
        }
    }
}

impl Sim {
    pub fn create_pod(&mut self, set: &ReplicaSet) {
        let json = set.template.with_hash_label(&set.hash_label);
        let uid = self.fresh_uid("pod");
        let (labels, annotations) = classify::metadata(&interlock_core::template::Template::new(json.clone()));
        let mut labels = labels;
        labels.insert(names::POD_TEMPLATE_HASH.into(), set.hash_label.clone());
        let mut pod = Pod {
            name: format!("{}-{:05}", set.name, self.next),
            uid,
            resource_version: self.fresh_rv(),
            owner: set.uid.clone(),
            generation: 1,
            observed_generation: 0,
            created: self.now.whole_seconds(),
            labels,
            has_annotations: !annotations.is_empty(),
            annotations,
            baseline: None,
            containers: vec![],
            ready: false,
            ready_since: None,
            containers_ready: false,
            resize: None,
            scheduled: false,
            node: String::new(),
            ip: String::new(),
            finalizers: vec![],
            gate: self.gated.then_some(false),
        };
        let spec = json["spec"].clone();
        read_containers(&mut pod, &spec);
        self.note(format!("RSC creates pod {} ({})", pod.name, super::image_of(&set.template)));
        self.created += 1;
        if !self.authorised.contains(set.template.hash()) {
            let text = format!("gate: pod {} of {} starts ungated", pod.name, super::image_of(&set.template));
            self.violation(text);
        }
        self.pods.push(SimPod {
            pod,
            spec,
            started: BTreeMap::new(),
            next_at: None,
            restarts_of_image: 0,
            starts: 0,
            taken: false,
            hooked: None,
            counted: false,
        });
    }

    /// When a kubelet or the passing of minReadySeconds does something by the clock alone.
    pub fn kubelet_wake(&self) -> Option<Time> {
        let available = self
            .pods
            .iter()
            .filter_map(|p| interlock_core::pod::available_at(&p.pod, self.d.min_ready_seconds))
            .filter(|at| *at > self.now);
        self.pods.iter().filter_map(|p| p.next_at).chain(available).filter(|at| *at > self.now).min()
    }

    /// One step of the kubelet for one pod. Did anything change?
    pub fn kubelet(&mut self, i: usize) -> bool {
        let now = self.now;
        let Some(p) = self.pods.get_mut(i) else { return false };
        let before = p.pod.clone();
        step(p, now);
        p.taken &= !p.steady();
        if p.pod == before {
            return false;
        }
        self.next += 1;
        p.pod.resource_version = self.next.to_string();
        true
    }
}

fn step(p: &mut SimPod, now: Time) {
    let pod = &mut p.pod;
    if pod.observed_generation < pod.generation {
        pod.observed_generation = pod.generation;
        pod.scheduled = true;
        for c in &mut pod.containers {
            c.status.get_or_insert_with(|| ContainerStatus {
                image: c.image.clone(),
                state: ContainerState::Waiting { reason: "ContainerCreating".into(), message: String::new() },
                ..ContainerStatus::default()
            });
        }
        return;
    }
    for c in &mut pod.containers {
        if p.started.get(&c.name) == Some(&c.image) {
            continue;
        }
        p.started.insert(c.name.clone(), c.image.clone());
        p.restarts_of_image = 0;
        p.next_at = None;
        let status = c.status.get_or_insert_with(ContainerStatus::default);
        p.starts += 1;
        start(status, &c.image, now, p.starts);
        pod.ready = false;
        pod.containers_ready = false;
        pod.ready_since = Some(now);
        return;
    }
    for c in &mut pod.containers {
        let Some(status) = &mut c.status else { continue };
        let bad = kind(&c.image);
        if bad == "bad-crash" {
            match &status.state {
                ContainerState::Running { .. } => {
                    status.last = Some(Terminated { id: status.id.clone(), exit_code: 1, reason: "Error".into() });
                    status.state = ContainerState::Waiting {
                        reason: "CrashLoopBackOff".into(),
                        message: "back-off 10s restarting failed container".into(),
                    };
                    p.next_at = (p.restarts_of_image < MOST_CRASHES).then(|| now.plus_seconds(2));
                    return;
                }
                ContainerState::Waiting { .. } | ContainerState::Terminated(_)
                    if p.next_at.is_some_and(|at| at <= now) =>
                {
                    p.restarts_of_image += 1;
                    p.next_at = None;
                    let image = c.image.clone();
                    p.starts += 1;
                    start(status, &image, now, p.starts);
                    return;
                }
                ContainerState::Waiting { .. } | ContainerState::Terminated(_) => continue,
            }
        }
        if bad.is_empty() && !status.ready && matches!(status.state, ContainerState::Running { .. }) {
            status.ready = true;
            let all = pod.containers.iter().all(|c| c.status.as_ref().is_some_and(|s| s.ready));
            if all {
                pod.containers_ready = true;
                pod.ready = pod.gate != Some(false);
                pod.ready_since = Some(now);
            }
            return;
        }
    }
    let ready = pod.containers_ready && pod.gate != Some(false);
    if pod.ready != ready {
        pod.ready = ready;
        pod.ready_since = Some(now);
    }
}

fn kind(image: &str) -> &'static str {
    ["bad-pull", "bad-crash", "bad-ready"].into_iter().find(|k| image.contains(k)).unwrap_or("")
}

fn start(status: &mut ContainerStatus, spec_image: &str, now: Time, id: u64) {
    status.ready = false;
    if !status.id.is_empty() && matches!(status.state, ContainerState::Running { .. }) {
        status.last = Some(Terminated { id: status.id.clone(), exit_code: 137, reason: "Error".into() });
    }
    if kind(spec_image) == "bad-pull" {
        status.state = ContainerState::Waiting {
            reason: "ErrImagePull".into(),
            message: format!("failed to pull and unpack image \"{spec_image}\": not found"),
        };
        return;
    }
    if !status.id.is_empty() {
        status.restarts += 1;
    }
    status.id = format!("containerd://{id}");
    status.image = image::normalise(spec_image);
    status.image_id = format!("{}@sha256:{:x}", spec_image.split(':').next().unwrap_or_default(), digest(spec_image));
    status.state = ContainerState::Running { since: Some(now.whole_seconds()) };
}

fn digest(text: &str) -> u64 {
    text.bytes().fold(7, |h: u64, b| h.wrapping_mul(0x100_0000_01b3) ^ u64::from(b))
}

/// Names of pods with UIDs, to see who survived.
pub fn identities(sim: &Sim) -> BTreeSet<String> {
    sim.pods.iter().map(|p| p.pod.uid.clone()).collect()
}
