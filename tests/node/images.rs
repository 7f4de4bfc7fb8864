//! Image references of which the kubelet's status shows something else than the spec.

use crate::node::{Node, shown, text};

#[tokio::test]
async fn another_tag_of_the_same_digest() {
    let Some(node) = Node::new("alias").await else { return };
    assert_eq!(node.digest("v1"), node.digest("v1-again"));
    node.create(node.deployment("web", 2, &node.image("v1"))).await;
    let containers = |pods: &[serde_json::Value]| -> Vec<String> {
        pods.iter().map(|p| text(&p["status"]["containerStatuses"][0]["containerID"])).collect()
    };
    let before = containers(&node.pods("web").await);
    node.updates("web", &node.image("v1-again"), "v1").await;
    let after = containers(&node.pods("web").await);
    assert!(after.iter().all(|id| !before.contains(id)), "the containers are other ones");
    node.updates("web", &node.image("v2"), "v2").await;
}

#[tokio::test]
async fn an_image_pinned_by_its_digest() {
    let Some(node) = Node::new("pinned").await else { return };
    let pinned = |tag| format!("registry.test/pinned@{}", node.digest(tag));
    node.create(node.deployment("web", 2, &node.image("v1"))).await;
    node.updates("web", &pinned("v2"), "v2").await;
    node.updates("web", &pinned("v3"), "v3").await;
    node.updates("web", &node.image("v4"), "v4").await;
    // A name with both: the tag is for people.
    let both = format!("{}@{}", node.image("v5"), node.digest("v5"));
    node.updates("web", &both, "v5").await;
}

#[tokio::test]
async fn a_short_name() {
    let Some(node) = Node::new("short").await else { return };
    node.create(node.deployment("web", 2, "short:v1")).await;
    node.updates("web", "short:v2", "v2").await;
    for pod in node.pods("web").await {
        assert_eq!(shown(&pod), "docker.io/library/short:v2", "the kubelet completes the name");
    }
    node.updates("web", "docker.io/library/short:v3", "v3").await;
}

/// The kubelet shows the first of all names that the node knows the digest by.
#[tokio::test]
async fn a_name_whose_digest_is_known_under_another() {
    let Some(node) = Node::new("known").await else { return };
    for (name, tag) in [("other", "v2"), ("third", "v3")] {
        node.create(node.deployment(name, 1, &format!("a.test/known:{tag}"))).await;
    }
    node.create(node.deployment("web", 2, "known:v1")).await;
    node.updates("web", "known:v2", "v2").await;
    assert!(node.pods("web").await.iter().all(|pod| shown(pod) == "a.test/known:v2"), "the case occurs");
    node.updates("web", &node.image("v3"), "v3").await;
    assert!(node.pods("web").await.iter().all(|pod| shown(pod) == "a.test/known:v3"), "the case occurs");
    node.checked(2);
}
