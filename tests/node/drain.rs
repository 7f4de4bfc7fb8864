//! What drain is worth to those who send requests: pods leave the EndpointSlices before their containers are replaced.
//!
//! The measured figures in docs/hooks.md are those that these tests print (`--nocapture`).

use std::{collections::BTreeSet, time::Duration};

use interlock_core::api::names::{READINESS_GATE, READINESS_GATE_LABEL};
use k8s_openapi::api::{core::v1::Namespace, discovery::v1::EndpointSlice};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    load::{Load, Sent},
    node::{Node, set_image, text},
};

const PODS: usize = 2;

/// New pods of this namespace get the readiness gate from now on.
async fn choose(node: &Node) {
    let namespaces: Api<Namespace> = Api::all(node.admin.clone());
    let label = Patch::Merge(json!({"metadata": {"labels": {(READINESS_GATE_LABEL): "enabled"}}}));
    namespaces.patch(&node.namespace, &PatchParams::default(), &label).await.unwrap();
    // The label reaches admission a moment later.
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(node.admin.clone(), &node.namespace);
    let probe = serde_json::from_value(json!({
        "metadata": {"generateName": "probe-", "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true},
        ]},
        "spec": {"containers": [{"name": "c", "image": "c"}]},
    }))
    .unwrap();
    let dry = PostParams { dry_run: true, field_manager: None };
    node.until("the gate is in force", 20, || async {
        let answer = serde_json::to_value(pods.create(&dry, &probe).await.unwrap()).unwrap();
        has_gate(&answer)
    })
    .await;
}

fn has_gate(pod: &Value) -> bool {
    pod["spec"]["readinessGates"].as_array().is_some_and(|g| g.iter().any(|g| g["conditionType"] == READINESS_GATE))
}

fn condition<'p>(pod: &'p Value, kind: &str) -> &'p Value {
    let all = pod["status"]["conditions"].as_array();
    all.and_then(|all| all.iter().find(|c| c["type"] == kind)).map_or(&Value::Null, |c| &c["status"])
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    })
}

/// Before a pod's first write of this image it was out of service, and afterwards it is in service.
fn drained(node: &Node, image: &str) {
    let all = node.observer.all();
    let uids: BTreeSet<&str> = all.iter().filter(|s| s.app == "web").map(|s| s.uid.as_str()).collect();
    for uid in uids {
        let written = all.iter().find(|s| s.uid == uid && s.image == image).expect("it was updated");
        assert!(has_gate(&written.pod), "{}", written.pod["spec"]);
        for kind in [READINESS_GATE, "Ready"] {
            assert_eq!(condition(&written.pod, kind), "False", "{kind} at the write: {}", written.pod["status"]);
            let last = all.iter().rfind(|s| s.uid == uid).unwrap();
            assert_eq!(condition(&last.pod, kind), "True", "{kind} at the end: {}", last.pod["status"]);
        }
        node.checked(5);
    }
}

/// Updates two pods in place under a steady load, to an image that takes a second to pull. Returns what became of the requests.
async fn under_load(node: &Node) -> Vec<Sent> {
    node.apply(service()).await;
    node.create(node.deployment("web", PODS as i64, &node.image("v1"))).await;
    let (before, mark) = (node.identities("web").await, node.observer.mark());
    let load = Load::start(node.cluster, &node.namespace, "web");
    node.until("the load is answered", 30, || async { load.answered() >= 50 }).await;
    let began = Instant::now();
    node.patch("web", set_image(&node.image("slow1"))).await;
    node.ended("web", "Succeeded").await;
    let took = began.elapsed();
    let so_far = load.answered();
    node.until("the load goes on", 30, || async { load.answered() >= so_far + 50 }).await;
    let sent = load.end();
    node.all_well("web").await;
    node.same_pods("web", mark, &before).await;
    assert!(node.observer.fewest_ready("web", mark) + 1 >= PODS, "maxUnavailable");
    for version in ["v1", "slow1"] {
        let by = |to| sent.iter().any(|s| s.to == Some(to) && s.answer.as_deref() == Ok(version));
        assert!(before.iter().all(|(_, ip)| by(ip.parse().unwrap())), "{version} answered at every address");
    }
    let during = sent.iter().filter(|s| (began..began + took).contains(&s.at)).count();
    let lost = sent.iter().filter(|s| s.answer.is_err()).count();
    println!("figure: {}: {lost} of {during} requests lost during an update of {took:.1?}", node.namespace);
    node.checked(sent.len() + 3);
    sent
}

#[tokio::test]
async fn an_update_with_drain_and_pre_pull_loses_no_request() {
    let Some(node) = Node::with("drained", |policy| {
        policy["spec"]["update"] = json!({"drain": {"readinessGate": true, "seconds": 2}});
        policy["spec"]["hooks"] = json!([{"name": "pull", "phase": "PreUpdate", "prePull": {}, "timeoutSeconds": 300}]);
    })
    .await
    else {
        return;
    };
    choose(&node).await;
    let sent = under_load(&node).await;
    let lost: Vec<_> = sent.iter().filter(|s| s.answer.is_err()).collect();
    assert!(lost.is_empty(), "{} of {} requests lost: {lost:#?}", lost.len(), sent.len());
    drained(&node, &node.image("slow1"));
    node.true_to("web").await;
}

/// What the test before this one would find without the product's part in it.
#[tokio::test]
async fn the_same_update_without_drain_and_pre_pull_loses_requests() {
    let Some(node) = Node::with("undrained", |policy| policy["spec"]["hooks"] = json!([])).await else { return };
    let sent = under_load(&node).await;
    assert!(sent.iter().any(|s| s.answer.is_err()), "the load sees what is lost");
}

#[tokio::test]
async fn pods_that_have_the_gate_from_their_template_are_drained_as_well() {
    let Some(node) = Node::with("gate-in-template", |policy| {
        policy["spec"]["update"] = json!({"drain": {"readinessGate": true}});
    })
    .await
    else {
        return;
    };
    node.apply(service()).await;
    let mut deployment = node.deployment("web", PODS as i64, &node.image("v1"));
    deployment["spec"]["template"]["spec"]["readinessGates"] = json!([{"conditionType": READINESS_GATE}]);
    node.create(deployment).await;
    let (before, mark) = (node.identities("web").await, node.observer.mark());
    node.patch("web", set_image(&node.image("v2"))).await;
    node.ended("web", "Succeeded").await;
    node.all_well("web").await;
    node.same_pods("web", mark, &before).await;
    assert!(node.observer.fewest_ready("web", mark) + 1 >= PODS, "maxUnavailable");
    node.answer("web", "v2").await;
    drained(&node, &node.image("v2"));
    let run = node.run("web").await["status"]["conditions"].to_string();
    assert!(!run.contains("NoReadinessGate"), "{run}");
    node.true_to("web").await;
    node.checked(2);
}

/// Addresses that the EndpointSlices of the Service show as ready.
async fn in_service(node: &Node) -> usize {
    let slices: Api<EndpointSlice> = Api::namespaced(node.admin.clone(), &node.namespace);
    let list = slices.list(&ListParams::default().labels("kubernetes.io/service-name=web")).await.unwrap();
    let endpoints = list.items.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    endpoints.filter(|e| e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true)).count()
}

/// How long it took each of these pods to become Ready, since a moment or since its containers were.
fn to_ready(node: &Node, uids: &BTreeSet<String>, since: Option<Instant>) -> Vec<Duration> {
    let all = node.observer.all();
    let first = |uid: &str, kind: &str| all.iter().find(|s| s.uid == uid && condition(&s.pod, kind) == "True");
    let ready = |uid: &String| Some(first(uid, "Ready")?.at - since.or(first(uid, "ContainersReady").map(|s| s.at))?);
    uids.iter().filter_map(ready).collect()
}

#[tokio::test]
async fn a_new_pod_behind_the_gate_serves_as_soon_as_a_controller_says_so() {
    let Some(mut node) = Node::new("gate-closed").await else { return };
    choose(&node).await;
    node.apply(service()).await;
    node.kill().await;
    let deployment = serde_json::from_value(node.deployment("web", PODS as i64, &node.image("v1"))).unwrap();
    node.deployments().create(&PostParams::default(), &deployment).await.unwrap();
    let all = |pods: &[Value], kind: &str, status: &str| {
        pods.len() == PODS && pods.iter().all(|p| has_gate(p) && condition(p, kind) == status)
    };
    node.until("healthy pods", 60, || async { all(&node.pods("web").await, "ContainersReady", "True") }).await;
    // Endpoints are told after the pods.
    node.until("their addresses are known", 60, || async {
        let slices: Api<EndpointSlice> = Api::namespaced(node.admin.clone(), &node.namespace);
        let list = slices.list(&ListParams::default()).await.unwrap();
        list.items.iter().flat_map(|slice| slice.endpoints.iter().flatten()).count() == PODS
    })
    .await;
    assert!(all(&node.pods("web").await, "Ready", "False"), "{:#?}", node.pods("web").await);
    assert_eq!(in_service(&node).await, 0, "nobody has said that they serve");

    let started = Instant::now();
    node.start().await;
    node.until("ready", 60, || async { all(&node.pods("web").await, "Ready", "True") }).await;
    node.until("in service", 60, || async { in_service(&node).await == PODS }).await;
    println!(
        "figure: from the controller's start to Ready: {:.2?}",
        to_ready(&node, &node.uids("web").await, Some(started))
    );

    // With a controller the gate adds next to nothing.
    let mark = node.observer.mark();
    node.scale("web", PODS as i64 + 2).await;
    node.complete("web").await;
    let (born, _) = node.observer.born_and_gone("web", mark);
    assert_eq!(born.len(), 2);
    node.until("in service", 60, || async { in_service(&node).await == PODS + 2 }).await;
    println!("figure: from containers ready to Ready: {:.2?}", to_ready(&node, &born, None));

    // Pods that serve go on without a controller.
    node.kill().await;
    assert_eq!(in_service(&node).await, PODS + 2);
    assert!(node.pods("web").await.iter().all(|p| text(condition(p, "Ready")) == "True"));
    node.checked(7);
}
