#![allow(clippy::pedantic, clippy::format_push_string, reason = "as in the roots of test programs")]
use apiserver::store::Part;
use interlock_core::{
    api::{
        hook::{ConditionStatus, WaitForKind},
        run::StepOutcome,
    },
    effect::Call,
};
use serde_json::json;

use super::{super::fixture::*, *};

fn hook(kind: WaitForKind) -> WaitForHook {
    WaitForHook { kind, name: "o".into(), condition: None, label: None, expression: None }
}

fn condition_of(type_: &str, status: ConditionStatus) -> Option<WaitForCondition> {
    Some(WaitForCondition { type_: type_.into(), status })
}

async fn run(plane: &Plane, hook: WaitForHook) -> (StepOutcome, String) {
    plane.run(call("k", Call::WaitFor(hook))).await
}

fn reached() -> (StepOutcome, String) {
    (StepOutcome::Succeeded, "Reached".into())
}

fn timeout() -> (StepOutcome, String) {
    (StepOutcome::TimedOut, "Timeout".into())
}

#[tokio::test(start_paused = true)]
async fn every_kind_is_found_where_it_is() {
    for (kind, plural) in [
        (WaitForKind::Deployment, "deployments"),
        (WaitForKind::StatefulSet, "statefulsets"),
        (WaitForKind::DaemonSet, "daemonsets"),
        (WaitForKind::Job, "jobs"),
        (WaitForKind::Pod, "pods"),
        (WaitForKind::Service, "services"),
        (WaitForKind::EndpointSlice, "endpointslices"),
        (WaitForKind::ConfigMap, "configmaps"),
    ] {
        assert_eq!(kind.resource().3, plural);
        let plane = Plane::new();
        // Not there is waited for.
        let hook = WaitForHook { label: Some(WaitForLabel { key: "a".into(), value: Some("b".into()) }), ..hook(kind) };
        let attempt = plane.start(call("k", Call::WaitFor(hook)), &tokio_util::sync::CancellationToken::new());
        tokio::time::sleep(std::time::Duration::from_secs(10)).await;
        assert!(!attempt.is_finished());
        plane.put(plural, object(plural, json!({"name": "other", "labels": {"a": "b"}})));
        tokio::time::sleep(std::time::Duration::from_secs(10)).await;
        assert!(!attempt.is_finished());
        plane.put(plural, object(plural, json!({"name": "o", "labels": {"a": "b"}})));
        assert_eq!(attempt.await.unwrap(), reached(), "{plural}");
    }
}

fn object(plural: &str, metadata: Value) -> Value {
    let spec = match plural {
        "deployments" => apiserver::objects::deployment("x", 1)["spec"].clone(),
        "pods" => json!({"containers": [{"name": "c", "image": "r.test/x:v1"}]}),
        _ => json!({}),
    };
    json!({"metadata": metadata, "spec": spec})
}

#[tokio::test(start_paused = true)]
async fn conditions_speak_of_the_object_as_it_is() {
    let status = |status: &str, observed: i64, own: Option<i64>| {
        let mut condition = json!({"type": "Ready", "status": status});
        if let Some(own) = own {
            condition["observedGeneration"] = json!(own);
        }
        json!({"observedGeneration": observed, "conditions": [condition, {"type": "Other", "status": "True"}]})
    };
    let ready = condition_of("Ready", ConditionStatus::True);
    for (now, wanted, want) in [
        (status("True", 1, None), ready.clone(), reached()),
        (status("True", 1, Some(1)), ready.clone(), reached()),
        (status("True", 0, None), ready.clone(), timeout()),
        (status("True", 1, Some(0)), ready.clone(), timeout()),
        (status("False", 1, None), ready.clone(), timeout()),
        (status("False", 1, None), condition_of("Ready", ConditionStatus::False), reached()),
        (status("Unknown", 1, None), condition_of("Ready", ConditionStatus::Unknown), reached()),
        (json!({}), condition_of("Ready", ConditionStatus::False), timeout()),
    ] {
        let plane = Plane::new();
        plane.put("statefulsets", json!({"metadata": {"name": "o"}, "spec": {}, "status": now}));
        let hook = WaitForHook { condition: wanted.clone(), ..hook(WaitForKind::StatefulSet) };
        assert_eq!(run(&plane, hook).await, want, "{now} {wanted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_parts_hold_of_one_state() {
    let plane = Plane::new();
    plane.put("configmaps", json!({"metadata": {"name": "o"}, "data": {"x": "1"}}));
    let hook = WaitForHook {
        label: Some(WaitForLabel { key: "go".into(), value: None }),
        expression: Some("object.kind == 'ConfigMap' && object.data.x == '2'".into()),
        ..hook(WaitForKind::ConfigMap)
    };
    assert_eq!(run(&plane, hook.clone()).await, timeout());
    plane.edit("configmaps", "o", Part::Main, |o| o["metadata"]["labels"] = json!({"go": ""}));
    assert_eq!(run(&plane, hook.clone()).await, timeout());
    plane.edit("configmaps", "o", Part::Main, |o| o["data"]["x"] = json!("2"));
    assert_eq!(run(&plane, hook.clone()).await, reached());
    // The watch is by its name: nobody else's object is asked for.
    let asked = plane.server.asked();
    assert!(asked.iter().all(|a| a.method == "GET" && a.path.contains("/configmaps")), "{asked:?}");
    for text in ["object.", "Foo{a: 1}"] {
        let hook = WaitForHook { expression: Some(text.into()), ..hook.clone() };
        assert_eq!(run(&plane, hook).await, (StepOutcome::Failed, "InvalidHook".into()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_lost_is_begun_again() {
    for fault in [apiserver::watch::Fault::Cut, apiserver::watch::Fault::Gone] {
        let plane = Plane::new();
        plane.put("configmaps", json!({"metadata": {"name": "o"}, "data": {"x": "1"}}));
        let hook = WaitForHook { expression: Some("object.data.x == '2'".into()), ..hook(WaitForKind::ConfigMap) };
        let attempt = plane.start(call("k", Call::WaitFor(hook)), &tokio_util::sync::CancellationToken::new());
        for _ in 0..3 {
            tokio::time::sleep(std::time::Duration::from_secs(3)).await;
            plane.server.faults.happens("interlock", "configmaps", fault);
        }
        plane.edit("configmaps", "o", Part::Main, |o| o["data"]["x"] = json!("2"));
        assert_eq!(attempt.await.unwrap(), reached());
    }
}
