//! Copies of our marks: `rollout undo` and restored YAML bring them back.

use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::place::{Place, annotation, deployment, held_by, paused, until};

/// Gives the ReplicaSets of the Deployment marks, as its controller does when it takes one for the new one while held.
async fn mark_replica_sets(place: &Place) {
    let sets: Api<ReplicaSet> = Api::namespaced(place.admin.clone(), &place.namespace);
    let all = until("there are ReplicaSets", async || {
        Some(sets.list(&ListParams::default()).await.unwrap().items).filter(|sets| !sets.is_empty())
    })
    .await;
    let marks = json!({"metadata": {"annotations": {
        "interlock.dev/held-by": "old", "interlock.dev/held-at": "1", "interlock.dev/resume": "false",
        "interlock.dev/release": "17",
    }}});
    for set in all {
        let name = set.metadata.name.unwrap();
        sets.patch(&name, &PatchParams::default(), &Patch::Merge(&marks)).await.unwrap();
    }
}

/// A Deployment with two revisions in its history.
async fn two_revisions(place: &Place) {
    place.create("web").await;
    let sets: Api<ReplicaSet> = Api::namespaced(place.admin.clone(), &place.namespace);
    for (image, count) in [("app:1", 1), ("app:2", 2)] {
        place.set_image("web", image).await;
        until("its ReplicaSet is there", async || {
            Some(sets.list(&ListParams::default()).await.unwrap().items.len()).filter(|found| *found == count)
        })
        .await;
    }
}

#[tokio::test]
async fn an_undo_is_held_afresh_in_spite_of_old_marks() {
    let place = Place::new().await;
    two_revisions(&place).await;
    mark_replica_sets(&place).await;
    place.policy("hooks", json!({"selector": {"fieldSelector": "metadata.name=web"}})).await;
    let generation = place.get("web").await.metadata.generation.unwrap();
    place.kubectl(&["rollout", "undo", "deployment/web"], None).await;
    let web = place.get("web").await;
    assert_eq!(held_by(&web), Some("hooks"));
    assert_eq!(annotation(&web, "interlock.dev/held-at"), Some(generation.to_string().as_str()));
    assert_eq!(annotation(&web, "interlock.dev/resume"), Some("true"), "somebody's old pause does not come back");
}

#[tokio::test]
async fn an_undo_that_does_not_trigger_rolls_and_its_old_marks_hold_nothing() {
    let place = Place::new().await;
    two_revisions(&place).await;
    mark_replica_sets(&place).await;
    place.kubectl(&["rollout", "undo", "deployment/web"], None).await;
    let web = place.get("web").await;
    assert_eq!(annotation(&web, "interlock.dev/held-by"), Some("old"), "kubectl brings them back");
    assert!(!paused(&web));
    assert_eq!(held_by(&place.set_image("web", "app:9").await), None);
    // With a policy the next change is held afresh.
    place.policy("hooks", json!({"selector": {"fieldSelector": "metadata.name=web"}})).await;
    let web = place.set_image("web", "app:10").await;
    assert_eq!((held_by(&web), annotation(&web, "interlock.dev/resume")), (Some("hooks"), Some("true")));
    assert_ne!(annotation(&web, "interlock.dev/held-at"), Some("1"));
}

#[tokio::test]
async fn an_undo_while_held_keeps_the_marks_of_the_hold() {
    let place = Place::new().await;
    two_revisions(&place).await;
    place.policy("hooks", json!({"selector": {"fieldSelector": "metadata.name=web"}})).await;
    let held = place.set_image("web", "app:3").await;
    let at = annotation(&held, "interlock.dev/held-at").unwrap().to_owned();
    mark_replica_sets(&place).await;
    // What kubectl's undo writes; kubectl itself refuses a paused Deployment in some versions.
    let patch: json_patch::Patch = serde_json::from_value(json!([
        {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "app:1"},
        {"op": "replace", "path": "/metadata/annotations", "value": {
            "interlock.dev/held-by": "old", "interlock.dev/held-at": "1", "interlock.dev/resume": "false",
        }},
    ]))
    .unwrap();
    let patch = Patch::<()>::Json(patch);
    let web = place.deployments(&place.dev).patch("web", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(held_by(&web), Some("hooks"));
    assert_eq!(annotation(&web, "interlock.dev/held-at"), Some(at.as_str()));
    assert_eq!(annotation(&web, "interlock.dev/resume"), Some("true"));
}

#[tokio::test]
async fn marks_in_the_yaml_of_a_new_deployment_hold_nothing() {
    let place = Place::new().await;
    let mut object = deployment("web");
    object["metadata"]["annotations"] =
        json!({"interlock.dev/held-by": "hooks", "interlock.dev/held-at": "3", "interlock.dev/resume": "true"});
    assert!(!paused(&place.create_from(object).await));
    assert_eq!(held_by(&place.set_image("web", "app:2").await), None);
}
