//! Other parts of a pod that change in place: resources, and sidecars.

use serde_json::{Value, json};

use crate::node::{Node, served, text};

fn containers(pods: &[Value], list: &str) -> Vec<String> {
    let mut all: Vec<_> = pods.iter().map(|p| text(&p["status"][list][0]["containerID"])).collect();
    all.sort();
    all
}

/// Images of the main containers stay, so the picture of `all_well` would not tell old from new.
async fn done(node: &Node) {
    node.ended("web", "Succeeded").await;
    node.complete("web").await;
}

#[tokio::test]
async fn cpu_changes_without_a_restart_and_together_with_an_image() {
    let Some(node) = Node::new("cpu").await else { return };
    let mut deployment = node.deployment("web", 2, &node.image("v1"));
    deployment["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "20m"}});
    node.create(deployment).await;
    let (before, mark) = (node.identities("web").await, node.observer.mark());
    let running = containers(&node.pods("web").await, "containerStatuses");
    let change = |cpu: &str, image: &str| {
        let container = json!({"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}});
        json!({"spec": {"template": {"spec": {"containers": [container]}}}})
    };
    let given = async |cpu: &str| {
        for pod in node.pods("web").await {
            assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"], cpu);
            let status = &pod["status"]["containerStatuses"][0];
            assert_eq!(status["resources"]["requests"]["cpu"], cpu, "what runs: {status}");
        }
    };
    node.patch("web", change("40m", &node.image("v1"))).await;
    done(&node).await;
    given("40m").await;
    assert_eq!(containers(&node.pods("web").await, "containerStatuses"), running, "nothing was restarted");
    node.same_pods("web", mark, &before).await;
    node.answer("web", "v1").await;

    node.patch("web", change("30m", &node.image("v2"))).await;
    node.until("the run of the second change", 20, || async { node.runs("web").await.len() == 2 }).await;
    done(&node).await;
    given("30m").await;
    node.same_pods("web", mark, &before).await;
    node.answer("web", "v2").await;
    node.true_to("web").await;
    node.checked(9);
}

#[tokio::test]
async fn a_sidecar_is_replaced_and_the_container_beside_it_is_not() {
    let Some(node) = Node::new("sidecar").await else { return };
    let mut deployment = node.deployment("web", 2, &node.image("v1"));
    let side = |tag: &str| json!([{"name": "side", "image": node.image(tag)}]);
    let mut first = side("v1");
    first[0]["restartPolicy"] = json!("Always");
    first[0]["env"] = json!([{"name": "PORT", "value": "8081"}]);
    deployment["spec"]["template"]["spec"]["initContainers"] = first;
    node.create(deployment).await;
    let (before, mark) = (node.identities("web").await, node.observer.mark());
    let running = containers(&node.pods("web").await, "containerStatuses");
    node.patch("web", json!({"spec": {"template": {"spec": {"initContainers": side("v2")}}}})).await;
    done(&node).await;
    for pod in node.pods("web").await {
        assert_eq!(served(&pod, 8081).await.as_deref(), Some("v2"), "{}", pod["status"]["initContainerStatuses"]);
    }
    assert_eq!(containers(&node.pods("web").await, "containerStatuses"), running, "only the sidecar was restarted");
    node.same_pods("web", mark, &before).await;
    node.answer("web", "v1").await;
    node.true_to("web").await;
    node.checked(3);
}
