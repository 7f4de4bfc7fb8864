//! Images that do not come up.

use serde_json::json;

use crate::node::{Node, served, set_image, shown, text};

/// An image that comes up ends the trouble.
async fn goes_on(node: &Node, tag: &str) {
    node.patch("web", set_image(&node.image(tag))).await;
    node.ended("web", "Succeeded").await;
    node.all_well("web").await;
    node.answer("web", tag).await;
}

#[tokio::test]
async fn an_unknown_image_freezes_within_the_budget_and_a_fixed_one_goes_on() {
    let Some(node) = Node::with("unknown", |policy| {
        policy["spec"]["update"] = json!({"tolerance": {"seconds": 3}});
    })
    .await
    else {
        return;
    };
    node.create(node.deployment("web", 2, &node.image("v1"))).await;
    let (before, mark) = (node.identities("web").await, node.observer.mark());
    let bad = node.image("no-such-tag");
    node.patch("web", set_image(&bad)).await;
    let message = node.stalled("web", "PodFailing").await;
    assert!(message.contains(&bad), "it names the image: {message}");
    let conditions = node.get("web").await["status"]["conditions"].clone();
    let held = conditions.as_array().unwrap().iter().find(|c| c["type"] == "interlock.dev/Held").unwrap();
    assert_eq!((text(&held["status"]), text(&held["reason"])), ("True".into(), "PodFailing".into()));
    assert!(text(&held["message"]).contains(&bad), "{held}");
    let run = node.run("web").await["status"]["conditions"].clone();
    let says = |c: &serde_json::Value| c["reason"] == "PodFailing" && text(&c["message"]).contains(&bad);
    assert!(run.as_array().unwrap().iter().any(says), "{run}");
    assert_eq!(node.gate.count("PATCH pods"), 1, "never more than maxUnavailable pods in doubt");
    let old: Vec<_> =
        node.pods("web").await.into_iter().filter(|p| p["spec"]["containers"][0]["image"] != bad).collect();
    assert_eq!(old.len(), 1);
    assert_eq!(served(&old[0], 8080).await.as_deref(), Some("v1"), "the other pod serves");
    assert_eq!(node.observer.fewest_ready("web", mark), 1);

    goes_on(&node, "v2").await;
    node.same_pods("web", mark, &before).await;
    node.true_to("web").await;
    node.checked(8);
}

#[tokio::test]
async fn an_unknown_image_is_reverted_where_the_policy_says_so() {
    let Some(node) = Node::with("reverted", |policy| {
        policy["spec"]["update"] = json!({"failure": "Revert", "tolerance": {"seconds": 3}});
    })
    .await
    else {
        return;
    };
    node.create(node.deployment("web", 2, &node.image("v1"))).await;
    let (before, mark) = (node.identities("web").await, node.observer.mark());
    let bad = node.image("no-such-tag");
    node.patch("web", set_image(&bad)).await;
    node.stalled("web", "PodFailing").await;
    // The image is one that the pod was started with a moment ago: the kubelet may wait before it starts it again.
    node.until("all pods run v1 and are ready", 90, || async {
        let pods = node.pods("web").await;
        pods.iter().all(|p| {
            p["spec"]["containers"][0]["image"] == node.image("v1")
                && p["status"]["containerStatuses"][0]["ready"] == true
        })
    })
    .await;
    node.answer("web", "v1").await;
    assert!(node.held("web").await);
    assert_eq!(node.get("web").await["spec"]["template"]["spec"]["containers"][0]["image"], bad, "it is the user's");
    goes_on(&node, "v2").await;
    node.same_pods("web", mark, &before).await;
    node.true_to("web").await;
    node.checked(2);
}

#[tokio::test]
async fn a_crash_loop_is_told_from_a_failed_pull_and_left_by_a_fresh_image() {
    let Some(node) = Node::with("crash", |policy| {
        policy["spec"]["update"] = json!({"tolerance": {"seconds": 3, "restarts": 1}});
    })
    .await
    else {
        return;
    };
    node.create(node.deployment("web", 2, &node.image("v1"))).await;
    let (before, mark) = (node.identities("web").await, node.observer.mark());
    node.patch("web", set_image(&node.image("crash1"))).await;
    let message = node.stalled("web", "PodFailing").await;
    assert!(message.contains("crashed") && message.contains("exit code 7"), "{message}");
    assert_eq!(node.gate.count("PATCH pods"), 1);
    goes_on(&node, "v2").await;
    node.same_pods("web", mark, &before).await;
    node.true_to("web").await;
    node.checked(2);
}

#[tokio::test]
async fn a_container_that_never_gets_ready_ends_at_the_deadline() {
    let Some(node) = Node::with("unready", |policy| {
        policy["spec"]["update"] = json!({"progressDeadlineSeconds": 20});
    })
    .await
    else {
        return;
    };
    node.create(node.deployment("web", 2, &node.image("v1"))).await;
    let (before, mark) = (node.identities("web").await, node.observer.mark());
    node.patch("web", set_image(&node.image("never-ready1"))).await;
    node.stalled("web", "DeadlineExceeded").await;
    assert_eq!(node.gate.count("PATCH pods"), 1);
    goes_on(&node, "v2").await;
    node.same_pods("web", mark, &before).await;
    node.true_to("web").await;
    node.checked(1);
}

/// The image that ends the trouble is one that the kubelet shows another name of.
#[tokio::test]
async fn a_fixed_image_whose_digest_is_known_under_another_name_is_done() {
    let Some(node) = Node::with("fixed", |policy| {
        policy["spec"]["update"] = json!({"tolerance": {"seconds": 3, "restarts": 0}});
    })
    .await
    else {
        return;
    };
    for (name, tag) in [("other", "v2"), ("third", "v3")] {
        node.create(node.deployment(name, 1, &format!("a.test/fixed:{tag}"))).await;
    }
    node.create(node.deployment("web", 2, &node.image("v1"))).await;
    let (before, mark) = (node.identities("web").await, node.observer.mark());
    for (bad, good) in [("no-such-tag", "v2"), ("crash1", "v3")] {
        node.patch("web", set_image(&node.image(bad))).await;
        node.stalled("web", "PodFailing").await;
        goes_on(&node, good).await;
        let other = format!("a.test/fixed:{good}");
        assert!(node.pods("web").await.iter().all(|pod| shown(pod) == other), "the case occurs");
    }
    node.same_pods("web", mark, &before).await;
    node.true_to("web").await;
    node.checked(2);
}
