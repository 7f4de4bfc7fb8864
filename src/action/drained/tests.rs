#![allow(clippy::pedantic, clippy::format_push_string, reason = "as in the roots of test programs")]
use apiserver::store::Part;
use interlock_core::{
    api::run::{ObjectRef, StepOutcome},
    effect::{Call, HookCall},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::super::fixture::*;

fn drained() -> HookCall {
    let mut call = call("k", Call::Drained);
    call.pod = Some(ObjectRef { name: "web-1".into(), uid: "p1".into() });
    call
}

fn slice(name: &str, service: &str, endpoints: &serde_json::Value) -> serde_json::Value {
    json!({"metadata": {"name": name, "labels": {super::SERVICE: service}}, "addressType": "IPv4", "endpoints": endpoints})
}

/// Regression 32: a live read, and only what is shown there counts.
#[tokio::test(start_paused = true)]
async fn r32_a_pod_is_drained_when_no_slice_shows_it_as_ready() {
    let plane = Plane::new();
    let of = |uid: &str, ready: serde_json::Value| json!({"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "uid": uid}, "conditions": ready});
    plane.put("services", json!({"metadata": {"name": "web"}, "spec": {}}));
    plane.put("services", json!({"metadata": {"name": "peers"}, "spec": {"publishNotReadyAddresses": true}}));
    plane.put(
        "endpointslices",
        slice("a", "web", &json!([of("p1", json!({"ready": true})), of("p2", json!({"ready": true}))])),
    );
    plane.put("endpointslices", slice("b", "gone", &json!([of("p1", json!({}))])));
    plane.put("endpointslices", slice("c", "peers", &json!([of("p1", json!({"ready": true}))])));
    let attempt = plane.start(drained(), &CancellationToken::new());
    let pause = || tokio::time::sleep(std::time::Duration::from_secs(5));
    pause().await;
    assert!(!attempt.is_finished());
    plane.edit("endpointslices", "a", Part::Main, |s| {
        s["endpoints"][0]["conditions"] = json!({"ready": false, "serving": true})
    });
    pause().await;
    assert!(!attempt.is_finished(), "one that does not say so is ready");
    plane.edit("endpointslices", "b", Part::Main, |s| s["endpoints"] = json!([]));
    assert_eq!(attempt.await.unwrap(), (StepOutcome::Succeeded, "Drained".into()));
    // A pod that no Service knows.
    assert_eq!(Plane::new().run(drained()).await, (StepOutcome::Succeeded, "Drained".into()));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_not_drained() {
    let plane = Plane::new();
    plane.server.mute("interlock", "endpointslices", true);
    assert_eq!(plane.run(drained()).await, (StepOutcome::TimedOut, "Timeout".into()));
    let mut nobody = drained();
    nobody.pod = None;
    assert_eq!(plane.run(nobody).await, (StepOutcome::Failed, "InvalidHook".into()));
}
