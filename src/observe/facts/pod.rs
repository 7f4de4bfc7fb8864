//! Pods.

use interlock_core::{
    api::names,
    world::{Container, ContainerState, ContainerStatus, Pod, Resize, Resources, Terminated},
};
use serde_json::Value;

use super::json::{
    annotations, condition, condition_true, controller, field, int_or_zero, list, strings, text, time, yes,
};

/// The facts of a pod. `None`: it has finished or is being deleted, and counts no longer.
pub fn pod(object: &Value) -> Option<Pod> {
    let metadata = field(object, "metadata");
    let spec = field(object, "spec");
    let status = field(object, "status");
    if !field(metadata, "deletionTimestamp").is_null() || matches!(text(status, "phase"), "Succeeded" | "Failed") {
        return None;
    }
    let mut annotations = annotations(metadata);
    let baseline = annotations.remove(names::UPDATE).and_then(|text| serde_json::from_str(&text).ok());
    let statuses: Vec<&Value> =
        ["containerStatuses", "initContainerStatuses"].iter().flat_map(|name| list(status, name)).collect();
    let ready = condition(status, "Ready");
    Some(Pod {
        name: text(metadata, "name").to_owned(),
        uid: text(metadata, "uid").to_owned(),
        resource_version: text(metadata, "resourceVersion").to_owned(),
        owner: controller(metadata, "ReplicaSet").to_owned(),
        generation: int_or_zero(metadata, "generation"),
        observed_generation: int_or_zero(status, "observedGeneration"),
        created: time(metadata, "creationTimestamp").unwrap_or_default(),
        labels: strings(metadata, "labels"),
        annotations,
        has_annotations: field(metadata, "annotations").as_object().is_some_and(|a| !a.is_empty()),
        baseline,
        containers: containers(spec, &statuses),
        ready: ready.is_some_and(|c| text(c, "status") == "True"),
        ready_since: ready.and_then(|c| time(c, "lastTransitionTime")),
        containers_ready: condition_true(status, "ContainersReady"),
        resize: resize(status),
        scheduled: !text(spec, "nodeName").is_empty(),
        node: text(spec, "nodeName").to_owned(),
        ip: text(status, "podIP").to_owned(),
        finalizers: list(metadata, "finalizers").iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        gate: list(spec, "readinessGates")
            .iter()
            .any(|g| text(g, "conditionType") == names::READINESS_GATE)
            .then(|| condition_true(status, names::READINESS_GATE)),
    })
}

fn containers(spec: &Value, statuses: &[&Value]) -> Vec<Container> {
    let one = |init: bool| {
        move |(index, c): (usize, &Value)| {
            let name = text(c, "name");
            let reported = statuses.iter().find(|s| text(s, "name") == name);
            Container {
                name: name.to_owned(),
                init,
                index,
                image: text(c, "image").to_owned(),
                resources: resources(field(c, "resources")),
                status_resources: reported.map(|s| field(s, "resources")).filter(|r| r.is_object()).map(resources),
                status: reported.map(|s| container_status(s)),
            }
        }
    };
    let restartable =
        list(spec, "initContainers").iter().enumerate().filter(|(_, c)| text(c, "restartPolicy") == "Always");
    list(spec, "containers").iter().enumerate().map(one(false)).chain(restartable.map(one(true))).collect()
}

fn resources(value: &Value) -> Resources {
    let part = |name: &str| {
        let mut quantities = strings(value, name);
        quantities.retain(|key, _| key == "cpu" || key == "memory");
        quantities
    };
    Resources { requests: part("requests"), limits: part("limits") }
}

fn container_status(status: &Value) -> ContainerStatus {
    let last = field(field(status, "lastState"), "terminated");
    ContainerStatus {
        id: text(status, "containerID").to_owned(),
        image: text(status, "image").to_owned(),
        image_id: text(status, "imageID").to_owned(),
        ready: yes(status, "ready"),
        restarts: int_or_zero(status, "restartCount"),
        state: state(field(status, "state")),
        last: last.is_object().then(|| terminated(last)),
    }
}

fn state(state: &Value) -> ContainerState {
    let (running, ended, waiting) = (field(state, "running"), field(state, "terminated"), field(state, "waiting"));
    if running.is_object() {
        ContainerState::Running { since: time(running, "startedAt") }
    } else if ended.is_object() {
        ContainerState::Terminated(terminated(ended))
    } else {
        ContainerState::Waiting {
            reason: text(waiting, "reason").to_owned(),
            message: text(waiting, "message").to_owned(),
        }
    }
}

fn terminated(value: &Value) -> Terminated {
    Terminated {
        id: text(value, "containerID").to_owned(),
        exit_code: int_or_zero(value, "exitCode"),
        reason: text(value, "reason").to_owned(),
    }
}

fn resize(status: &Value) -> Option<Resize> {
    if let Some(pending) = condition(status, "PodResizePending").filter(|c| text(c, "status") == "True") {
        return Some(match text(pending, "reason") {
            "Infeasible" => Resize::Infeasible(text(pending, "message").to_owned()),
            _ => Resize::Deferred,
        });
    }
    condition_true(status, "PodResizeInProgress").then_some(Resize::InProgress)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Value {
        json!({
            "metadata": {"name": "web-1", "uid": "u", "generation": 4, "annotations": {"a": "b", names::UPDATE: "{\"target\":\"t\",\"gen\":3,\"at\":\"2026-01-01T00:00:00Z\"}"},
                "ownerReferences": [{"kind": "ReplicaSet", "uid": "rs", "controller": true}]},
            "spec": {
                "nodeName": "n",
                "initContainers": [{"name": "setup", "image": "s"}, {"name": "side", "image": "x", "restartPolicy": "Always"}],
                "containers": [{"name": "web", "image": "web:2", "resources": {"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}}}],
            },
            "status": {
                "phase": "Running", "observedGeneration": 4,
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}, {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": "no"}],
                "containerStatuses": [{"name": "web", "containerID": "c://1", "restartCount": 2, "ready": true, "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}},
                    "lastState": {"terminated": {"containerID": "c://0", "exitCode": 137, "reason": "OOMKilled"}}}],
                "initContainerStatuses": [{"name": "side", "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
            },
        })
    }

    #[test]
    fn what_the_planner_needs_is_read() {
        let read = pod(&sample()).unwrap();
        assert_eq!((read.owner.as_str(), read.ready, read.scheduled, read.has_annotations), ("rs", true, true, true));
        assert_eq!(read.annotations.len(), 1);
        assert_eq!(read.baseline.unwrap().generation, 3);
        assert_eq!(read.resize, Some(Resize::Infeasible("no".into())));
        let [web, side] = &read.containers[..] else { panic!("{:?}", read.containers) };
        assert_eq!((web.name.as_str(), web.init, web.index), ("web", false, 0));
        assert_eq!(web.resources.requests.keys().collect::<Vec<_>>(), ["cpu"]);
        assert_eq!(web.status.as_ref().unwrap().last.as_ref().unwrap().exit_code, 137);
        assert_eq!((side.name.as_str(), side.init, side.index), ("side", true, 1));
    }

    /// regressions.md 29: terminating or finished pods counted as current.
    #[test]
    fn finished_and_terminating_pods_do_not_count() {
        for (path, value) in [
            ("status", json!({"phase": "Failed"})),
            ("status", json!({"phase": "Succeeded"})),
            ("metadata", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})),
        ] {
            let mut object = sample();
            object[path] = value;
            assert_eq!(pod(&object), None);
        }
    }

    #[test]
    fn odd_content_counts_as_absent() {
        for odd in [json!(null), json!([]), json!(1), json!("\0"), json!(true), json!({}), json!(-1e300)] {
            for path in ["metadata", "spec", "status"] {
                let mut object = sample();
                object[path] = odd.clone();
                let _ = pod(&object);
            }
            for path in [
                "/spec/containers",
                "/spec/containers/0",
                "/spec/containers/0/name",
                "/spec/containers/0/resources/requests",
                "/status/containerStatuses",
                "/status/containerStatuses/0",
                "/status/containerStatuses/0/state",
                "/status/containerStatuses/0/state/running/startedAt",
                "/status/containerStatuses/0/lastState/terminated",
                "/status/conditions",
                "/metadata/ownerReferences",
                "/metadata/annotations",
                "/metadata/generation",
            ] {
                let mut object = sample();
                *object.pointer_mut(path).unwrap() = odd.clone();
                assert!(pod(&object).is_some());
            }
        }
    }

    #[test]
    fn a_malformed_record_of_ours_is_no_record() {
        for odd in ["", "{", "[]", "{\"target\":1}", "\0"] {
            let mut object = sample();
            object["metadata"]["annotations"][names::UPDATE] = odd.into();
            assert_eq!(pod(&object).unwrap().baseline, None);
        }
    }
}
