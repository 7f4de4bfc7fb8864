use std::sync::atomic::Ordering;

use http::StatusCode;
use interlock_core::time::Time;
use serde_json::json;

use super::*;
use crate::{
    execute::tests::{Fixture, failure, patch_pod, subject},
    observe::facts,
};

fn pod_json() -> Value {
    json!({
        "metadata": {"name": "web-1", "uid": "u", "generation": 4, "resourceVersion": "7", "labels": {"a": "1", "b": "1"}},
        "spec": {
            "initContainers": [{"name": "setup", "image": "s"}, {"name": "side", "image": "x:1", "restartPolicy": "Always"}],
            "containers": [{"name": "web", "image": "web:1", "resources": {"requests": {"cpu": "1"}}}],
        },
        "status": {"phase": "Running", "observedGeneration": 4},
    })
}

/// As the planner writes them.
fn patches() -> Vec<Value> {
    let record = json!({"target": "t", "gen": 4, "at": "2026-01-01T00:00:00Z", "was": {"web": {"spec": "web:1", "id": "c", "image": "i", "imageID": "d", "restarts": 0}}});
    let image = json!([
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/spec/containers/0/image", "value": "web:1"},
        {"op": "replace", "path": "/spec/containers/0/image", "value": "web:2"},
        {"op": "replace", "path": "/spec/initContainers/1/image", "value": "x:2"},
        {"op": "test", "path": "/metadata/generation", "value": 4},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/labels/a", "value": "2"},
        {"op": "remove", "path": "/metadata/labels/b"},
        {"op": "add", "path": "/metadata/annotations/example.com~1x", "value": "y"},
        {"op": "add", "path": format!("/metadata/annotations/{}", names::UPDATE.replace('/', "~1")), "value": record.to_string()},
    ]);
    let resize = json!([
        {"op": "add", "path": "/spec/containers/0/resources/requests/cpu", "value": "2"},
        {"op": "add", "path": "/spec/containers/0/resources/limits", "value": {"memory": "1Gi"}},
    ]);
    vec![image, resize]
}

#[test]
fn what_is_foreseen_is_what_the_api_server_makes_of_it() {
    let (mut json, mut pod) = (pod_json(), facts::pod::pod(&pod_json()).unwrap());
    for patch in patches() {
        foresee(&mut pod, &patch);
        let operations: json_patch::Patch = serde_json::from_value(patch).unwrap();
        json_patch::patch(&mut json, &operations).unwrap();
        // It counts the generation, and the version is not known before.
        let generation = json["metadata"]["generation"].as_i64().unwrap() + 1;
        json["metadata"]["generation"] = json!(generation);
        json["metadata"]["resourceVersion"] = json!("");
        assert_eq!(pod, facts::pod::pod(&json).unwrap());
    }
    assert!(shows(&pod, &patches()[0]) && !shows(&facts::pod::pod(&pod_json()).unwrap(), &patches()[0]));
}

#[tokio::test(start_paused = true)]
async fn so_many_go_at_once_and_nothing_goes_twice() {
    let f = Fixture::new(|_| (StatusCode::OK, json!({"metadata": {}})));
    let mut flight = Flight::new(&f.executor, subject());
    flight.add((0..20).map(|n| patch_pod(&format!("p{n:02}"))).collect());
    assert!(flight.is_full() && !flight.has_more());
    flight.reconsider();
    // A plan that does not know of the first answers names pods that are being written to.
    flight.add((10..32).map(|n| patch_pod(&format!("p{n:02}"))).collect());
    while !flight.is_empty() {
        flight.next().await.map(drop).unwrap();
    }
    let asked = f.asked();
    assert_eq!(asked.len(), 32);
    assert_eq!(asked.iter().collect::<std::collections::BTreeSet<_>>().len(), 32);
    assert_eq!(f.most.load(Ordering::SeqCst), SIDE_BY_SIDE);
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_nothing_more_begins() {
    let f = Fixture::new(|_| failure(409, "changed"));
    let mut flight = Flight::new(&f.executor, subject());
    flight.add((0..40).map(|n| patch_pod(&format!("p{n:02}"))).collect());
    while !flight.is_empty() {
        assert!(matches!(flight.next().await, Err(Failure::Lost { .. })));
    }
    assert_eq!(f.asked().len(), SIDE_BY_SIDE);
}

#[tokio::test(start_paused = true)]
async fn a_pod_counts_as_changed_until_its_answer() {
    let f = Fixture::new(|_| (StatusCode::OK, json!({"metadata": {}})));
    let mut flight = Flight::new(&f.executor, subject());
    flight.add(vec![Effect::PatchPod { name: "web-1".to_owned(), patch: patches().remove(0) }]);
    f.observe.learn(
        &crate::observe::object::Object::<crate::observe::object::DeploymentKind>::new(
            json!({"metadata": {"namespace": "ns", "name": "web", "uid": "d", "resourceVersion": "1"}}),
        ),
        None,
    );
    let mut world = f.observe.world(&subject().key, Time(0), None).unwrap();
    world.pods.push(facts::pod::pod(&pod_json()).unwrap());
    flight.foresee(&mut world);
    assert_eq!((world.pods[0].containers[0].image.as_str(), world.pods[0].generation), ("web:2", 5));
    flight.next().await.map(drop).unwrap();
    world.pods = vec![facts::pod::pod(&pod_json()).unwrap()];
    flight.foresee(&mut world);
    assert_eq!(world.pods[0].containers[0].image, "web:1");
}
