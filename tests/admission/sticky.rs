//! What is held stays held, and nobody gets an error.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::place::{Place, annotation, deployment, held_by};

/// It is held, still for the update that was held first, with the user's template.
async fn check(place: &Place, image: &str) {
    let web = place.get("web").await;
    assert_eq!(held_by(&web), Some("hooks"));
    assert_eq!(annotation(&web, "interlock.dev/held-at"), Some("1"));
    assert_eq!(annotation(&web, "interlock.dev/resume"), Some("true"));
    let containers = web.spec.template.spec.as_ref().unwrap().containers.as_slice();
    assert_eq!(containers[0].image.as_deref(), Some(image));
}

fn with_image(image: &str) -> Value {
    let mut object = deployment("web");
    object["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    object
}

#[tokio::test]
async fn against_kubectl_apply() {
    let place = Place::new().await;
    place.policy("hooks", json!({"selector": {"fieldSelector": "metadata.name=web"}})).await;
    for image in ["app:1", "app:2", "app:2", "app:3"] {
        let mut object = with_image(image);
        object["spec"]["paused"] = json!(false);
        place.kubectl(&["apply", "-f", "-"], Some(&object)).await;
    }
    check(&place, "app:3").await;
}

#[tokio::test]
async fn against_server_side_apply_with_and_without_paused() {
    let place = Place::new().await;
    place.policy("hooks", json!({"selector": {"fieldSelector": "metadata.name=web"}})).await;
    let params = PatchParams::apply("git").force();
    for (image, paused) in [("app:1", None), ("app:2", None), ("app:2", None), ("app:2", Some(false)), ("app:2", None)]
    {
        let mut object = with_image(image);
        if let Some(paused) = paused {
            object["spec"]["paused"] = json!(paused);
        }
        place.deployments(&place.dev).patch("web", &params, &Patch::Apply(object)).await.unwrap();
    }
    check(&place, "app:2").await;
}

#[tokio::test]
async fn against_replace() {
    let place = Place::new().await;
    place.held("web").await;
    let object = serde_json::from_value(with_image("app:2")).unwrap();
    place.deployments(&place.dev).replace("web", &PostParams::default(), &object).await.unwrap();
    check(&place, "app:2").await;
}

#[tokio::test]
async fn against_rollout_resume() {
    let place = Place::new().await;
    place.held("web").await;
    place.kubectl(&["rollout", "resume", "deployment/web"], None).await;
    check(&place, "app:2").await;
}

#[tokio::test]
async fn against_relabelling_out_of_the_policy() {
    let place = Place::new().await;
    place.policy("hooks", json!({"selector": {"matchLabels": {"tier": "web"}}})).await;
    place.create("web").await;
    place.set_image("web", "app:2").await;
    place.patch("web", json!({"metadata": {"labels": {"tier": null}}, "spec": {"paused": false}})).await;
    place.patch("web", json!({"spec": {"paused": false}})).await;
    check(&place, "app:2").await;
}

#[tokio::test]
async fn against_writes_to_status() {
    let place = Place::new().await;
    place.held("web").await;
    let path = format!("/apis/apps/v1/namespaces/{}/deployments/web/status", place.namespace);
    let mut body = with_image("app:2");
    body["spec"]["paused"] = json!(false);
    body["status"] = json!({"observedGeneration": 1});
    place.raw(&place.dev, "PUT", &path, "application/json", &body).await.unwrap();
    let body = json!({"metadata": {"annotations": {"interlock.dev/held-by": null}}});
    place.raw(&place.dev, "PATCH", &path, "application/merge-patch+json", &body).await.unwrap();
    check(&place, "app:2").await;
}

#[tokio::test]
async fn against_removal_of_the_marks() {
    let place = Place::new().await;
    place.held("web").await;
    place.patch("web", json!({"metadata": {"annotations": null}, "spec": {"paused": null}})).await;
    check(&place, "app:2").await;
    let marks =
        json!({"interlock.dev/held-by": "nobody", "interlock.dev/held-at": "77", "interlock.dev/resume": "false"});
    place.patch("web", json!({"metadata": {"annotations": marks}})).await;
    check(&place, "app:2").await;
}

#[tokio::test]
async fn against_deletion_and_switching_off_of_the_policy() {
    let place = Place::new().await;
    place.held("web").await;
    let off = json!({"spec": {"enforcement": "Off"}});
    place.policies(&place.admin).patch("hooks", &PatchParams::default(), &Patch::Merge(off)).await.unwrap();
    place.in_force().await;
    place.patch("web", json!({"spec": {"paused": false}})).await;
    place.delete_policy("hooks").await;
    place.patch("web", json!({"spec": {"paused": false}})).await;
    place.set_image("web", "app:4").await;
    check(&place, "app:4").await;
}

#[tokio::test]
async fn against_a_newer_template_whether_it_triggers_or_not() {
    let place = Place::new().await;
    place
        .policy("hooks", json!({"selector": {"matchLabels": {"tier": "web"}}, "trigger": {"containers": ["app"]}}))
        .await;
    place.create("web").await;
    place.set_image("web", "app:2").await;
    let labels = json!({"spec": {"paused": false, "template": {"metadata": {"labels": {"x": "y"}}}}});
    place.patch("web", labels).await;
    check(&place, "app:2").await;
    place.set_image("web", "app:3").await;
    check(&place, "app:3").await;
}

#[tokio::test]
async fn deletion_passes() {
    let place = Place::new().await;
    place.held("web").await;
    place.deployments(&place.dev).delete("web", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn the_emergency_stop_survives_a_git_loop() {
    let place = Place::new().await;
    place.policy("hooks", json!({"selector": {"fieldSelector": "metadata.name=web"}})).await;
    let git = async |image: &str| {
        let params = PatchParams::apply("git").force();
        place.deployments(&place.dev).patch("web", &params, &Patch::Apply(with_image(image))).await.unwrap()
    };
    git("app:1").await;
    git("app:2").await;
    place.patch("web", json!({"metadata": {"annotations": {"interlock.dev/resume": "false"}}})).await;
    let web = git("app:2").await;
    assert_eq!((held_by(&web), annotation(&web, "interlock.dev/resume")), (Some("hooks"), Some("false")));
    let web = git("app:3").await;
    assert_eq!((held_by(&web), annotation(&web, "interlock.dev/resume")), (Some("hooks"), Some("false")));
    place.kubectl(&["apply", "-f", "-", "--server-side", "--field-manager=git"], Some(&with_image("app:3"))).await;
    assert_eq!(annotation(&place.get("web").await, "interlock.dev/resume"), Some("false"));
}
