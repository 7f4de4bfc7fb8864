//! The main job with real containers.

use serde_json::json;

use crate::{
    harness::Moment,
    node::{Node, served, set_image, stopped},
};

const APPS: [&str; 3] = ["one", "two", "three"];

#[tokio::test]
async fn a_chain_of_three_is_updated_in_place_and_answers_from_the_same_addresses() {
    let Some(node) = Node::with("chain", |policy| {
        policy["spec"]["order"] =
            json!([{"name": "one"}, {"name": "two", "after": ["one"]}, {"name": "three", "after": ["two"]}]);
        policy["spec"]["settleSeconds"] = json!(1);
    })
    .await
    else {
        return;
    };
    let (v1, v2) = (node.image("v1"), node.image("v2"));
    for app in APPS {
        node.create(node.deployment(app, 2, &v1)).await;
        node.all_well(app).await;
        node.answer(app, "v1").await;
    }
    let mark = node.observer.mark();
    let mut before = Vec::new();
    for app in APPS {
        before.push(node.identities(app).await);
    }
    // Before the write to a pod, all pods that were written before it have to answer with the new version.
    let stops: Vec<_> = (2..=6).map(|nth| node.gate.stop_at(Moment::Before, "PATCH pods", nth)).collect();
    for app in APPS {
        node.patch(app, set_image(&v2)).await;
    }
    for (written, mut stop) in (1_usize..).zip(stops) {
        let stopped = stopped(&mut stop).await;
        let mut new = Vec::new();
        for app in APPS {
            for pod in node.pods(app).await {
                let is_new = pod["spec"]["containers"][0]["image"] == v2;
                new.extend(is_new.then_some(app));
                let version = if is_new { "v2" } else { "v1" };
                assert_eq!(served(&pod, 8080).await.as_deref(), Some(version), "{app}: {}", pod["status"]);
            }
        }
        let order = ["one", "one", "two", "two", "three"];
        assert_eq!(new, order[..written], "each only after those before it: {}", node.picture().await);
        node.checked(7);
        stopped.go_on();
    }
    for app in APPS {
        node.ended(app, "Succeeded").await;
        node.all_well(app).await;
    }
    for (app, before) in APPS.iter().zip(&before) {
        node.same_pods(app, mark, before).await;
        node.answer(app, "v2").await;
        node.true_to(app).await;
        assert_eq!(node.sets(app).await.len(), 2, "the running ReplicaSet and the history of one revision");
    }
    assert_eq!(node.gate.count("PATCH pods"), 6, "one write per pod");
    let calls = node.receiver.calls();
    for app in APPS {
        let of = |path: &str| calls.iter().filter(|c| c.path == path && c.text("deployment") == app).count();
        assert_eq!((of("/before"), of("/after")), (1, 1), "{app}: {calls:#?}");
    }
    node.checked(7);
}
