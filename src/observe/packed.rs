//! Pods as the cache keeps them: what the pods of one ReplicaSet have in common is stored once. A thousand pods cost
//! well under one KiB each, where the planner's own type, with its maps, needs several.

use std::{
    collections::{BTreeMap, HashSet},
    hash::Hash,
    sync::Arc,
};

use interlock_core::{
    classify::Wanted,
    time::Time,
    world::{Baseline, Container, ContainerState, ContainerStatus, Pod, Resize, Resources, Terminated, Was},
};

use super::{
    ip::Ip,
    table::{Key, Version},
};

/// Values that are shared while somebody uses them.
#[derive(Debug)]
struct Pool<T: ?Sized> {
    values: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: Hash + Eq + ?Sized> Pool<T> {
    fn new() -> Self {
        Self { values: HashSet::new(), sweep_at: 256 }
    }

    fn share<Q>(&mut self, value: Q) -> Arc<T>
    where
        Q: Into<Arc<T>> + std::borrow::Borrow<T>,
    {
        if let Some(known) = self.values.get(value.borrow()) {
            return Arc::clone(known);
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|v| Arc::strong_count(v) > 1);
            self.sweep_at = (self.values.len() * 2).max(256);
        }
        let shared: Arc<T> = value.into();
        self.values.insert(Arc::clone(&shared));
        shared
    }
}

/// What pods have in common.
#[derive(Debug)]
pub struct Pools {
    texts: Pool<str>,
    maps: Pool<BTreeMap<String, String>>,
    specs: Pool<Spec>,
}

impl Pools {
    /// The same name, with its namespace kept once.
    pub fn key(&mut self, key: Key) -> Key {
        Key { namespace: self.texts.share(&*key.namespace), name: key.name }
    }
}

impl Default for Pools {
    fn default() -> Self {
        Self { texts: Pool::new(), maps: Pool::new(), specs: Pool::new() }
    }
}

/// A pod, packed.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the same facts as the planner's type")]
pub struct Packed {
    name: Arc<str>,
    uid: Arc<str>,
    resource_version: Arc<str>,
    owner: Arc<str>,
    /// Kind and name of its controller, if that is no ReplicaSet.
    controller: Arc<str>,
    generation: i64,
    observed_generation: i64,
    created: Time,
    labels: Arc<BTreeMap<String, String>>,
    annotations: Arc<BTreeMap<String, String>>,
    has_annotations: bool,
    baseline: Option<Box<PackedBaseline>>,
    containers: Box<[PackedContainer]>,
    ready: bool,
    ready_since: Option<Time>,
    containers_ready: bool,
    resize: Option<Box<Resize>>,
    scheduled: bool,
    gate: Option<bool>,
    node: Arc<str>,
    ip: Ip,
    /// Most pods have none, and an empty one takes no memory of its own.
    finalizers: Box<[Arc<str>]>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Spec {
    name: String,
    init: bool,
    index: usize,
    image: String,
    resources: Resources,
    status_resources: Option<Resources>,
}

#[derive(Debug)]
struct PackedContainer {
    spec: Arc<Spec>,
    status: Option<Status>,
}

#[derive(Debug)]
struct Status {
    id: Box<str>,
    image: Arc<str>,
    image_id: Arc<str>,
    ready: bool,
    restarts: i64,
    state: State,
    last: Option<Box<Terminated>>,
}

#[derive(Debug)]
enum State {
    Running(Option<Time>),
    Other(Box<ContainerState>),
}

#[derive(Debug)]
struct PackedBaseline {
    target: Arc<str>,
    generation: i64,
    at: Time,
    quiet: bool,
    was: Box<[(Arc<str>, PackedWas)]>,
    tries: i64,
}

#[derive(Debug)]
struct PackedWas {
    spec: Arc<str>,
    id: Box<str>,
    image: Arc<str>,
    image_id: Arc<str>,
    restarts: i64,
}

impl Packed {
    /// Packs a pod; `controller` is empty where a ReplicaSet is. Name, UID and version are those of its entry in the table, which holds them anyway.
    pub fn new(pod: Pod, controller: String, key: &Key, version: &Version, pools: &mut Pools) -> Self {
        let Pod {
            name: _,
            uid: _,
            resource_version: _,
            owner,
            generation,
            observed_generation,
            created,
            labels,
            annotations,
            has_annotations,
            baseline,
            containers,
            ready,
            ready_since,
            containers_ready,
            resize,
            scheduled,
            node,
            ip,
            finalizers,
            gate,
        } = pod;
        Self {
            name: Arc::clone(&key.name),
            uid: Arc::clone(&version.uid),
            resource_version: Arc::clone(&version.resource_version),
            owner: pools.texts.share(owner),
            controller: pools.texts.share(controller),
            generation,
            observed_generation,
            created,
            labels: pools.maps.share(labels),
            annotations: pools.maps.share(annotations),
            has_annotations,
            baseline: baseline.map(|b| Box::new(pack_baseline(b, pools))),
            containers: containers.into_iter().map(|c| pack_container(c, pools)).collect(),
            ready,
            ready_since,
            containers_ready,
            resize: resize.map(Box::new),
            scheduled,
            gate,
            node: pools.texts.share(node),
            ip: Ip::new(&ip),
            finalizers: finalizers.into_iter().map(|f| pools.texts.share(f)).collect(),
        }
    }

    /// UID of the ReplicaSet that owns it; empty if none does.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Kind and name of its controller, such as `statefulset/etcd`; empty if that is a ReplicaSet or there is none.
    pub fn controller(&self) -> &str {
        &self.controller
    }

    /// When its readiness last flipped.
    pub fn ready_since(&self) -> Option<Time> {
        self.ready_since
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its labels.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// Is condition `Ready` True?
    pub fn ready(&self) -> bool {
        self.ready
    }

    /// Has an update of ours put it to another template than that of this hash, and does it show another image than is
    /// wanted there? Then it is going to be put back.
    pub fn strays(&self, hash: &str, wanted: &BTreeMap<String, Wanted>) -> bool {
        let other = |c: &PackedContainer| wanted.get(&c.spec.name).is_some_and(|w| w.image != c.spec.image);
        self.baseline.as_ref().is_some_and(|b| *b.target != *hash) && self.containers.iter().any(other)
    }

    /// The last visible change: of its readiness, or the start of a container.
    pub fn changed(&self) -> Option<Time> {
        let starts = self.containers.iter().filter_map(|c| match c.status.as_ref()?.state {
            State::Running(since) => since,
            State::Other(_) => None,
        });
        starts.chain(self.ready_since).max()
    }

    /// Is this what [`Self::unpack`] would give?
    pub fn is(&self, pod: &Pod) -> bool {
        *self.resource_version == *pod.resource_version && *self.uid == *pod.uid
    }

    /// The pod as the planner sees it.
    pub fn unpack(&self) -> Pod {
        Pod {
            name: self.name.to_string(),
            uid: self.uid.to_string(),
            resource_version: self.resource_version.to_string(),
            owner: self.owner.to_string(),
            generation: self.generation,
            observed_generation: self.observed_generation,
            created: self.created,
            labels: BTreeMap::clone(&self.labels),
            annotations: BTreeMap::clone(&self.annotations),
            has_annotations: self.has_annotations,
            baseline: self.baseline.as_deref().map(unpack_baseline),
            containers: self.containers.iter().map(unpack_container).collect(),
            ready: self.ready,
            ready_since: self.ready_since,
            containers_ready: self.containers_ready,
            resize: self.resize.as_deref().cloned(),
            scheduled: self.scheduled,
            node: self.node.to_string(),
            ip: self.ip.to_string(),
            finalizers: self.finalizers.iter().map(ToString::to_string).collect(),
            gate: self.gate,
        }
    }
}

fn pack_container(container: Container, pools: &mut Pools) -> PackedContainer {
    let Container { name, init, index, image, resources, status_resources, status } = container;
    let spec = Spec { name, init, index, image, resources, status_resources };
    let status = status.map(|s| {
        let ContainerStatus { id, image, image_id, ready, restarts, state, last } = s;
        Status {
            id: id.into(),
            image: pools.texts.share(image),
            image_id: pools.texts.share(image_id),
            ready,
            restarts,
            state: match state {
                ContainerState::Running { since } => State::Running(since),
                other @ (ContainerState::Waiting { .. } | ContainerState::Terminated(_)) => {
                    State::Other(Box::new(other))
                }
            },
            last: last.map(Box::new),
        }
    });
    PackedContainer { spec: pools.specs.share(spec), status }
}

fn unpack_container(packed: &PackedContainer) -> Container {
    let PackedContainer { spec, status } = packed;
    Container {
        name: spec.name.clone(),
        init: spec.init,
        index: spec.index,
        image: spec.image.clone(),
        resources: spec.resources.clone(),
        status_resources: spec.status_resources.clone(),
        status: status.as_ref().map(|s| ContainerStatus {
            id: s.id.to_string(),
            image: s.image.to_string(),
            image_id: s.image_id.to_string(),
            ready: s.ready,
            restarts: s.restarts,
            state: match &s.state {
                State::Running(since) => ContainerState::Running { since: *since },
                State::Other(state) => ContainerState::clone(state),
            },
            last: s.last.as_deref().cloned(),
        }),
    }
}

fn pack_baseline(baseline: Baseline, pools: &mut Pools) -> PackedBaseline {
    let Baseline { target, generation, at, quiet, was, tries } = baseline;
    let was = was.into_iter().map(|(container, was)| {
        let Was { spec, id, image, image_id, restarts } = *was;
        let was = PackedWas {
            spec: pools.texts.share(spec),
            id: id.into(),
            image: pools.texts.share(image),
            image_id: pools.texts.share(image_id),
            restarts,
        };
        (pools.texts.share(container), was)
    });
    let was = was.collect();
    PackedBaseline { target: pools.texts.share(target), generation, at, quiet, was, tries }
}

fn unpack_baseline(packed: &PackedBaseline) -> Baseline {
    let PackedBaseline { target, generation, at, quiet, was, tries } = packed;
    let was = was.iter().map(|(container, was)| {
        let PackedWas { spec, id, image, image_id, restarts } = was;
        let was = Was {
            spec: spec.to_string(),
            id: id.to_string(),
            image: image.to_string(),
            image_id: image_id.to_string(),
            restarts: *restarts,
        };
        (container.to_string(), Box::new(was))
    });
    Baseline {
        target: target.to_string(),
        generation: *generation,
        at: *at,
        quiet: *quiet,
        was: was.collect(),
        tries: *tries,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::observe::facts::pod::pod;

    fn pack(pod: Pod, pools: &mut Pools) -> Packed {
        let version = Version { uid: pod.uid.as_str().into(), resource_version: pod.resource_version.as_str().into() };
        let key = Key::new("ns", &pod.name);
        Packed::new(pod, String::new(), &key, &version, pools)
    }

    fn sample(n: usize) -> Pod {
        pod(&json!({
            "metadata": {"name": format!("web-{n}"), "uid": format!("u{n}"), "resourceVersion": "7", "labels": {"app": "web"}, "annotations": {
                "interlock.dev/update": "{\"target\":\"t\",\"gen\":3,\"at\":\"2026-01-01T00:00:00Z\",\"was\":{\"web\":{\"spec\":\"a\",\"id\":\"b\",\"image\":\"c\",\"imageID\":\"d\",\"restarts\":1}}}"}},
            "spec": {"containers": [{"name": "web", "image": "i", "resources": {"limits": {"cpu": "1"}}}, {"name": "b", "image": "j"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}], "containerStatuses": [
                {"name": "web", "containerID": format!("c{n}"), "image": "i", "state": {"running": {"startedAt": "2026-01-01T00:00:09Z"}}, "lastState": {"terminated": {"exitCode": 1}}},
                {"name": "b", "state": {"waiting": {"reason": "X"}}}]},
        }))
        .unwrap()
    }

    #[test]
    fn packing_loses_nothing() {
        let mut pools = Pools::default();
        for ip in ["", "10.0.0.7", "2001:db8::1", "2001:DB8::1", "::ffff:10.0.0.7", "no address"] {
            let pod = Pod { ip: ip.to_owned(), ..sample(1) };
            assert_eq!(pack(pod.clone(), &mut pools).unpack(), pod);
        }
        let packed = pack(sample(1), &mut pools);
        assert_eq!(packed.changed(), Some("2026-01-01T00:00:09Z".parse().unwrap()));
    }

    #[test]
    fn what_is_common_is_kept_once_and_goes_with_its_last_user() {
        let mut pools = Pools::default();
        let all: Vec<_> = (0..1000).map(|n| pack(sample(n), &mut pools)).collect();
        assert_eq!((pools.maps.values.len(), pools.specs.values.len()), (2, 2));
        drop(all);
        for n in 0..1000 {
            pools.texts.share(n.to_string());
        }
        assert!(pools.texts.values.len() <= 512);
    }
}
