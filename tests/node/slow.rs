//! Updates that take their time: in between, conditions say that all is well.

use apiserver::observer::Sight;

use crate::node::Node;

/// Whether an event says Ready and has seen the newest generation although no container runs the spec's image: neither
/// must count.
fn deceives(sight: &Sight, old: &str) -> bool {
    let pod = &*sight.pod;
    let seen = !pod["status"]["observedGeneration"].is_null()
        && pod["status"]["observedGeneration"] == pod["metadata"]["generation"];
    let container = pod["status"]["containerStatuses"].as_array().and_then(|c| c.last());
    let stale = container.is_some_and(|c| c["image"] == old || c["state"]["running"].is_null());
    sight.ready && seen && stale && sight.image != old
}

async fn slowly(node: Node, deployment: serde_json::Value, old: &str, new: &str) {
    node.create(deployment).await;
    let mark = node.observer.mark();
    node.updates("web", &node.image(new), new).await;
    let deceived = node.observer.all()[mark..].iter().filter(|s| deceives(s, old)).count();
    assert!(deceived > 0, "the case that this test is about did not occur");
    node.checked(deceived);
}

#[tokio::test]
async fn a_slow_pull_without_a_readiness_probe() {
    let Some(node) = Node::new("slow-blind").await else { return };
    let old = node.image("v1");
    let deployment = node.without_probe("web", 2, &old);
    slowly(node, deployment, &old, "slow3").await;
}

#[tokio::test]
async fn a_slow_pull_with_a_readiness_probe() {
    let Some(node) = Node::new("slow-probed").await else { return };
    let old = node.image("v1");
    let deployment = node.deployment("web", 2, &old);
    slowly(node, deployment, &old, "slow3").await;
}

#[tokio::test]
async fn a_process_that_is_deaf_to_term() {
    let Some(node) = Node::new("deaf").await else { return };
    let old = node.image("deaf1");
    let deployment = node.deployment("web", 2, &old);
    slowly(node, deployment, &old, "deaf2").await;
}
