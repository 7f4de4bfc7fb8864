//! New images are on the node before a pod is touched. The images of these tests hold one program, no shell and nothing else.

use apiserver::observer::Sight;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use crate::node::{Node, set_image, text};

fn policy(spec: &mut Value, timeout: i64) {
    spec["spec"]["hooks"] =
        json!([{"name": "pull", "phase": "PreUpdate", "prePull": {}, "timeoutSeconds": timeout, "retries": 0}]);
}

fn pulls(sight: &Sight) -> bool {
    let owners = sight.pod["metadata"]["ownerReferences"].as_array();
    owners.is_some_and(|all| all.iter().any(|o| o["kind"] == "HookRun"))
}

/// Those that pulled are gone.
async fn no_trace(node: &Node) {
    node.until("the pods that pulled are gone", 60, || async {
        let all = node.observer.all();
        let mut made = all.iter().filter(|s| pulls(s)).map(|s| &s.uid);
        made.all(|uid| all.iter().any(|s| s.uid == *uid && s.deleted))
    })
    .await;
}

/// What the kubelet says of the image, of the pods of the app.
async fn told(node: &Node, image: &str) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(node.admin.clone(), &node.namespace);
    let all = events.list(&ListParams::default()).await.unwrap().items;
    let of_app = |e: &&Event| e.involved_object.name.as_deref().is_some_and(|name| name.starts_with("web-"));
    all.iter().filter(of_app).filter_map(|e| e.message.clone()).filter(|m| m.contains(image)).collect()
}

#[tokio::test]
async fn the_new_image_is_on_the_node_before_the_first_pod_is_patched() {
    let Some(node) = Node::with("pulled-before", |p| policy(p, 300)).await else { return };
    node.create(node.deployment("web", 2, &node.image("v1"))).await;
    let image = node.image("slow1");
    node.updates("web", &image, "slow1").await;

    let step = node.run("web").await["status"]["steps"][0].clone();
    assert_eq!((text(&step["outcome"]), text(&step["reason"])), ("Succeeded".into(), "Pulled".into()), "{step}");
    let all = node.observer.all();
    let there = |s: &&Sight| !text(&s.pod["status"]["containerStatuses"][0]["imageID"]).is_empty();
    let pulled = all.iter().filter(|s| pulls(s)).find(there).expect("the kubelet tells that it has the image");
    let digest = text(&pulled.pod["status"]["containerStatuses"][0]["imageID"]);
    assert!(digest.ends_with(&node.digest("slow1")), "{digest}");
    let written = node.observer.first_seen("web", &image).unwrap();
    assert!(pulled.version < written.version, "pulled before a pod was written");
    let never = all.iter().filter(|s| pulls(s)).all(|s| s.pod["status"]["containerStatuses"][0]["started"] != true);
    assert!(never, "nothing of the image was run");
    node.until("the kubelet tells of both pods", 60, || async {
        told(&node, &image).await.iter().filter(|m| m.contains("already present on machine")).count() == 2
    })
    .await;
    let told = told(&node, &image).await;
    assert!(!told.iter().any(|m| m.starts_with("Pulling") || m.starts_with("Successfully pulled")), "{told:#?}");
    no_trace(&node).await;
    node.checked(7);
}

#[tokio::test]
async fn an_image_that_is_nowhere_fails_the_hook_and_no_pod_is_touched() {
    let Some(node) = Node::with("pulled-never", |p| policy(p, 10)).await else { return };
    node.create(node.deployment("web", 2, &node.image("v1"))).await;
    let (before, mark) = (node.identities("web").await, node.observer.mark());
    node.patch("web", set_image(&node.image("no-such-tag"))).await;
    let message = node.stalled("web", "HookFailed").await;
    assert!(message.contains("pull"), "{message}");
    let step = node.run("web").await["status"]["steps"][0].clone();
    assert_eq!(step["outcome"], "TimedOut", "{step}");
    // A kubelet that has not said why within the time leaves the plain word.
    assert!(["ImagePull", "Timeout"].contains(&text(&step["reason"]).as_str()), "{step}");
    no_trace(&node).await;
    assert_eq!(node.gate.count("PATCH pods"), 0);
    assert!(node.observer.fewest_ready("web", mark) >= 2, "nothing was touched");
    node.answer("web", "v1").await;
    // One that is somewhere ends the trouble.
    node.patch("web", set_image(&node.image("v2"))).await;
    node.ended("web", "Succeeded").await;
    node.all_well("web").await;
    node.same_pods("web", mark, &before).await;
    node.answer("web", "v2").await;
    node.checked(5);
}
