//! What is held, and what is not.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::place::{Place, annotation, deployment, held_by, image_patch, paused, until};

/// A spec that selects one Deployment by name, and more fields.
fn by_name(name: &str, more: &Value) -> Value {
    let mut spec = json!({"selector": {"fieldSelector": format!("metadata.name={name}")}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

#[tokio::test]
async fn a_template_change_is_held_and_that_of_a_neighbour_is_not() {
    let place = Place::new().await;
    place.policy("hooks", by_name("web", &json!({}))).await;
    let before = place.create("web").await;
    assert_eq!(held_by(&before), None);
    place.create("other").await;
    let web = place.set_image("web", "app:2").await;
    assert_eq!(held_by(&web), Some("hooks"));
    assert_eq!(annotation(&web, "interlock.dev/resume"), Some("true"));
    assert_eq!(held_by(&place.set_image("other", "app:2").await), None);
}

#[tokio::test]
async fn selection_by_namespace_and_by_inequality() {
    let place = Place::new().await;
    place.policy("here", json!({"selector": {"fieldSelector": format!("metadata.namespace=={}, metadata.name!=b", place.namespace)}})).await;
    for (name, by) in [("a", Some("here")), ("b", None)] {
        place.create(name).await;
        assert_eq!(held_by(&place.set_image(name, "app:2").await), by, "{name}");
    }
}

#[tokio::test]
async fn selection_by_labels_and_expressions() {
    let place = Place::new().await;
    let spec = json!({"selector": {
        "matchLabels": {"tier": "web"},
        "matchExpressions": [
            {"key": "app", "operator": "In", "values": ["a", "b", "c"]},
            {"key": "app", "operator": "NotIn", "values": ["b"]},
            {"key": "tier", "operator": "Exists"},
            {"key": "skip", "operator": "DoesNotExist"},
        ],
    }});
    place.policy("labels", spec).await;
    for (name, by) in [("a", Some("labels")), ("b", None), ("d", None)] {
        place.create(name).await;
        assert_eq!(held_by(&place.set_image(name, "app:2").await), by, "{name}");
    }
    let mut skipped = deployment("c");
    skipped["metadata"]["labels"]["skip"] = json!("yes");
    place.create_from(skipped).await;
    assert_eq!(held_by(&place.set_image("c", "app:2").await), None);
}

#[tokio::test]
async fn a_deployment_without_labels_or_annotations_is_no_error() {
    let place = Place::new().await;
    place.policy("labels", json!({"selector": {"matchLabels": {"tier": "web"}}})).await;
    place.policy("not", json!({"selector": {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}})).await;
    let mut bare = deployment("bare");
    bare["metadata"] = json!({"name": "bare"});
    place.create_from(bare).await;
    assert_eq!(held_by(&place.set_image("bare", "app:2").await), Some("not"));
    let mut generated = deployment("x");
    generated["metadata"] = json!({"generateName": "x-"});
    place.create_from(generated).await;
}

#[tokio::test]
async fn selection_by_order_and_by_annotation_needs_no_selector_and_adds_to_one() {
    let place = Place::new().await;
    place
        .policy(
            "order",
            json!({"selector": {"matchLabels": {"tier": "db"}}, "order": [{"name": "first"}, {"name": "web"}]}),
        )
        .await;
    place.create("web").await;
    assert_eq!(held_by(&place.set_image("web", "app:2").await), Some("order"));
    let mut named = deployment("named");
    named["metadata"]["annotations"] = json!({"interlock.dev/policy": "order"});
    place.create_from(named).await;
    assert_eq!(held_by(&place.set_image("named", "app:2").await), Some("order"));
    let mut other = deployment("other");
    other["metadata"]["annotations"] = json!({"interlock.dev/policy": "another"});
    place.create_from(other).await;
    assert_eq!(held_by(&place.set_image("other", "app:2").await), None);
}

#[tokio::test]
async fn annotations_alone_hold_without_any_policy() {
    let place = Place::new().await;
    for (name, key) in [("hooks", "interlock.dev/hooks"), ("after", "interlock.dev/after")] {
        let mut object = deployment(name);
        object["metadata"]["annotations"] = json!({key: "x"});
        let born = place.create_from(object).await;
        // Only predecessors hold a birth.
        assert_eq!(held_by(&born), (name == "after").then_some("annotation"));
    }
    assert_eq!(held_by(&place.set_image("hooks", "app:2").await), Some("annotation"));
}

#[tokio::test]
async fn the_birth_of_a_component_with_predecessors_is_held_before_any_replica_set() {
    let place = Place::new().await;
    place.policy("stack", json!({"order": [{"name": "etcd"}, {"name": "mds", "after": ["etcd"]}]})).await;
    assert_eq!(held_by(&place.create("etcd").await), None);
    assert_eq!(held_by(&place.create("mds").await), Some("stack"));
    // The Deployment controller has looked at both.
    for name in ["mds", "etcd"] {
        until("the Deployment controller has seen it", async || {
            place.get(name).await.status?.observed_generation.filter(|seen| *seen >= 1)
        })
        .await;
    }
    let sets: Api<ReplicaSet> = Api::namespaced(place.admin.clone(), &place.namespace);
    let sets = until("etcd has its ReplicaSet", async || {
        Some(sets.list(&ListParams::default()).await.unwrap().items).filter(|sets| !sets.is_empty())
    })
    .await;
    assert!(sets.iter().all(|set| set.metadata.name.as_ref().unwrap().starts_with("etcd-")), "{sets:?}");
}

#[tokio::test]
async fn un_pausing_a_change_that_was_made_before_is_held() {
    let place = Place::new().await;
    place.create("web").await;
    place.patch("web", json!({"spec": {"paused": true}})).await;
    assert_eq!(held_by(&place.set_image("web", "app:2").await), None);
    place.policy("hooks", by_name("web", &json!({}))).await;
    let web = place.patch("web", json!({"spec": {"paused": false}})).await;
    assert_eq!(held_by(&web), Some("hooks"));
    assert_eq!(annotation(&web, "interlock.dev/resume"), Some("true"));
}

#[tokio::test]
async fn no_single_write_steps_out_of_its_policy_and_rolls() {
    let place = Place::new().await;
    place.policy("labels", json!({"selector": {"matchLabels": {"tier": "web"}}})).await;
    place.create("out").await;
    let mut patch = image_patch("app:2");
    patch["metadata"] = json!({"labels": {"tier": null}});
    assert_eq!(held_by(&place.patch("out", patch).await), Some("labels"));
    // And into it.
    let mut into = deployment("in");
    into["metadata"]["labels"] = json!({});
    place.create_from(into).await;
    let mut patch = image_patch("app:2");
    patch["metadata"] = json!({"labels": {"tier": "web"}});
    assert_eq!(held_by(&place.patch("in", patch).await), Some("labels"));
    // The annotations as well.
    for key in ["interlock.dev/policy", "interlock.dev/hooks"] {
        let name = key.rsplit('/').next().unwrap();
        let mut object = deployment(name);
        object["metadata"]["labels"] = json!({});
        object["metadata"]["annotations"] = json!({key: "labels"});
        place.policy(&format!("p-{name}"), json!({"selector": {"matchLabels": {"tier": "none"}}})).await;
        place.create_from(object).await;
        let mut patch = image_patch("app:2");
        patch["metadata"] = json!({"annotations": {key: null}});
        assert!(held_by(&place.patch(name, patch).await).is_some(), "{key}");
    }
}

#[tokio::test]
async fn only_enforcement_hold_holds() {
    let place = Place::new().await;
    for (name, enforcement, by) in [("a", "Audit", None), ("o", "Off", None), ("h", "Hold", Some("h"))] {
        place.policy(name, by_name(name, &json!({"enforcement": enforcement}))).await;
        place.create(name).await;
        assert_eq!(held_by(&place.set_image(name, "app:2").await), by, "{enforcement}");
    }
}

#[tokio::test]
async fn only_changes_that_trigger_are_held() {
    let place = Place::new().await;
    place
        .policy(
            "t",
            by_name("web", &json!({"trigger": {"labels": ["v"], "annotations": ["sum"], "containers": ["side"]}})),
        )
        .await;
    let cases = [
        (image_patch("app:2"), false),
        (json!({"spec": {"template": {"metadata": {"labels": {"other": "1"}}}}}), false),
        (json!({"spec": {"template": {"metadata": {"labels": {"v": "1"}}}}}), true),
        (json!({"spec": {"template": {"metadata": {"annotations": {"sum": "1"}}}}}), true),
        (
            json!({"spec": {"template": {"spec": {
                "containers": [{"name": "app", "image": "app:1"}, {"name": "side", "image": "side:2"}],
            }}}}),
            true,
        ),
    ];
    place.create("web").await;
    let params = kube::api::PatchParams { dry_run: true, ..kube::api::PatchParams::default() };
    for (patch, holds) in cases {
        let after =
            place.deployments(&place.dev).patch("web", &params, &kube::api::Patch::Merge(&patch)).await.unwrap();
        assert_eq!(held_by(&after).is_some(), holds, "{patch}");
    }
}

#[tokio::test]
async fn of_two_policies_the_smallest_name_wins() {
    let place = Place::new().await;
    for name in ["m", "z", "b"] {
        place.policy(name, by_name("web", &json!({}))).await;
    }
    // An audit with a smaller name does not take the hold away, nor does a hold by the Deployment's own annotation.
    place.policy("a", by_name("web", &json!({"enforcement": "Audit"}))).await;
    place.create("web").await;
    place.patch("web", json!({"metadata": {"annotations": {"interlock.dev/hooks": "[]"}}})).await;
    assert_eq!(held_by(&place.set_image("web", "app:2").await), Some("b"));
}

#[tokio::test]
async fn of_two_policies_the_smallest_name_wins_at_an_un_pause_too() {
    let place = Place::new().await;
    place.create("web").await;
    place.patch("web", json!({"spec": {"paused": true}})).await;
    for name in ["m", "z", "b"] {
        place.policy(name, by_name("web", &json!({}))).await;
    }
    let web = place.patch("web", json!({"spec": {"paused": false}})).await;
    assert_eq!((held_by(&web), annotation(&web, "interlock.dev/resume")), (Some("b"), Some("true")));
}

#[tokio::test]
async fn scaling_and_labels_pass_also_while_held() {
    let place = Place::new().await;
    place.policy("hooks", by_name("web", &json!({}))).await;
    place.create("web").await;
    for held in [None, Some("hooks")] {
        place.patch("web", json!({"spec": {"replicas": 2}, "metadata": {"labels": {"x": "y"}}})).await;
        place.kubectl(&["scale", "deployment/web", "--replicas=3"], None).await;
        let web = place.get("web").await;
        assert_eq!((held_by(&web), web.spec.replicas), (held, Some(3)));
        place.set_image("web", "app:2").await;
    }
}

#[tokio::test]
async fn a_pause_of_the_users_own_outlives_the_hold() {
    let place = Place::new().await;
    place.policy("hooks", by_name("web", &json!({}))).await;
    place.create("web").await;
    place.patch("web", json!({"spec": {"paused": true}})).await;
    let web = place.set_image("web", "app:2").await;
    assert_eq!((held_by(&web), annotation(&web, "interlock.dev/resume")), (Some("hooks"), Some("false")));
    // They un-pause: the hold stays, the wish is noted.
    let web = place.patch("web", json!({"spec": {"paused": false}})).await;
    assert_eq!((held_by(&web), annotation(&web, "interlock.dev/resume")), (Some("hooks"), Some("true")));
    // So also together with a new template.
    place.patch("web", json!({"metadata": {"annotations": {"interlock.dev/resume": "false"}}})).await;
    let mut patch = image_patch("app:3");
    patch["spec"]["paused"] = json!(false);
    let web = place.patch("web", patch).await;
    assert_eq!((held_by(&web), annotation(&web, "interlock.dev/resume")), (Some("hooks"), Some("true")));
}

#[tokio::test]
async fn kubectl_prints_a_warning_on_the_write_that_is_held() {
    let place = Place::new().await;
    place.policy("hooks", by_name("web", &json!({}))).await;
    place.create("web").await;
    let path = format!("/apis/apps/v1/namespaces/{}/deployments/web", place.namespace);
    let (warnings, _) =
        place.raw(&place.dev, "PATCH", &path, "application/merge-patch+json", &image_patch("app:2")).await.unwrap();
    let command = format!("kubectl interlock explain deploy/web -n {}", place.namespace);
    assert!(warnings.iter().any(|warning| warning.contains(&command) && warning.contains("(hooks)")), "{warnings:?}");
    // A resume that does not help says so too.
    let (_, err) = place.kubectl(&["rollout", "resume", "deployment/web"], None).await;
    assert!(err.contains(&command), "{err}");
    // Nothing is said where nothing is held.
    let (_, err) = place.kubectl(&["create", "deployment", "calm", "--image=a"], None).await;
    assert!(!err.contains("interlock"), "{err}");
}

#[tokio::test]
async fn system_namespaces_and_our_own_are_left_alone() {
    let place = Place::new().await;
    for namespace in ["kube-system", "kube-public", "kube-node-lease", "interlock-system"] {
        let deployments: Api<Deployment> = Api::namespaced(place.admin.clone(), namespace);
        let mut object = deployment("web");
        object["metadata"]["annotations"] = json!({"interlock.dev/after": "x"});
        let object = serde_json::from_value(object).unwrap();
        let params = PostParams { dry_run: true, field_manager: None };
        assert!(!paused(&deployments.create(&params, &object).await.unwrap()), "{namespace}");
    }
}

#[tokio::test]
async fn a_policy_holds_in_its_own_namespace_only() {
    let (here, there) = (Place::new().await, Place::new().await);
    here.policy("hooks", by_name("web", &json!({}))).await;
    there.create("web").await;
    assert_eq!(held_by(&there.set_image("web", "app:2").await), None);
}
