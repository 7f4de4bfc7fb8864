//! How a hold ends, and how it does not.

use interlock::install::release_patch;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::place::{Place, annotation, held_by, image_patch, paused, refusal, until};

/// The release as a merge patch for what is stored now. Again, if the Deployment controller wrote in between.
async fn release(place: &Place, client: &Client) -> Deployment {
    until("the release met no conflict", async || {
        let version = place.get("web").await.metadata.resource_version.unwrap();
        let patch = Patch::Merge(release_patch(&version, true));
        match place.deployments(client).patch("web", &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 409 => None,
            answer => Some(answer.unwrap()),
        }
    })
    .await
}

#[tokio::test]
async fn the_controller_and_an_administrator_end_a_hold() {
    for who in ["controller", "admin"] {
        let place = Place::new().await;
        place.held("web").await;
        let client = if who == "admin" { &place.admin } else { &place.controller };
        let web = release(&place, client).await;
        assert!(!paused(&web), "{who}");
        for mark in ["held-by", "held-at", "resume"] {
            assert_eq!(annotation(&web, &format!("interlock.dev/{mark}")), None, "{who}");
        }
        // The release itself is no un-pause to be held, and the next change is held again.
        assert_eq!(held_by(&place.set_image("web", "app:3").await), Some("hooks"));
    }
}

#[tokio::test]
async fn somebody_without_the_right_does_not() {
    let place = Place::new().await;
    place.held("web").await;
    assert_eq!(held_by(&release(&place, &place.dev).await), Some("hooks"));
}

#[tokio::test]
async fn the_documented_command_works_for_an_administrator_and_not_for_others() {
    let place = Place::new().await;
    place.held("web").await;
    let break_glass = async |user: Option<&str>| {
        until("the command met no conflict", async || {
            let args = ["get", "deployment", "web", "-o", "jsonpath={.metadata.resourceVersion}"];
            let (version, _) = place.kubectl_as(None, &args, None).await.unwrap();
            let patch = format!(
                r#"{{"metadata":{{"resourceVersion":"{version}","annotations":{{"interlock.dev/release":"{version}","interlock.dev/held-by":null,"interlock.dev/held-at":null,"interlock.dev/resume":null}}}},"spec":{{"paused":false}}}}"#
            );
            match place.kubectl_as(user, &["patch", "deployment", "web", "--type=merge", "-p", &patch], None).await {
                Err(message) if message.contains("modified") => None,
                answer => Some(answer.unwrap()),
            }
        })
        .await
    };
    let (_, warning) = break_glass(Some(crate::place::DEV)).await;
    assert!(warning.contains("kubectl interlock explain"), "{warning}");
    assert_eq!(held_by(&place.get("web").await), Some("hooks"));
    break_glass(None).await;
    assert!(!paused(&place.get("web").await));
}

#[tokio::test]
async fn a_mark_of_another_version_releases_nothing() {
    let place = Place::new().await;
    let old = place.held("web").await.metadata.resource_version.unwrap();
    place.patch("web", json!({"metadata": {"labels": {"x": "y"}}})).await;
    let mut patch = release_patch(&old, true);
    // With the old resourceVersion it is a conflict; without, it is simply no release.
    let (code, _) = refusal(place.try_patch(&place.admin, "web", patch.clone()).await);
    assert_eq!(code, 409);
    patch["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(held_by(&place.try_patch(&place.admin, "web", patch).await.unwrap()), Some("hooks"));
}

#[tokio::test]
async fn a_write_that_changes_the_template_releases_nothing() {
    let place = Place::new().await;
    place.held("web").await;
    let web = until("the write met no conflict", async || {
        let version = place.get("web").await.metadata.resource_version.unwrap();
        let mut patch = release_patch(&version, true);
        patch["spec"]["template"] = image_patch("app:9")["spec"]["template"].clone();
        place.try_patch(&place.admin, "web", patch).await.ok()
    })
    .await;
    assert_eq!(held_by(&web), Some("hooks"));
}

#[tokio::test]
async fn an_old_mark_in_a_birth_or_update_releases_nothing() {
    let place = Place::new().await;
    place.policy("hooks", json!({"order": [{"name": "web", "after": ["x"]}]})).await;
    let mut object = crate::place::deployment("web");
    for mark in ["", "0", "1"] {
        object["metadata"]["annotations"] = json!({"interlock.dev/release": mark});
        let object = serde_json::from_value(object.clone()).unwrap();
        let params = kube::api::PostParams { dry_run: true, field_manager: None };
        let web = place.deployments(&place.admin).create(&params, &object).await.unwrap();
        assert_eq!(held_by(&web), Some("hooks"), "{mark:?}");
    }
}

#[tokio::test]
async fn an_administrator_may_un_pause_without_a_hold() {
    let place = Place::new().await;
    place.policy("hooks", json!({"selector": {"fieldSelector": "metadata.name=web"}})).await;
    place.create("web").await;
    place.patch("web", json!({"spec": {"paused": true}})).await;
    assert!(!paused(&release(&place, &place.admin).await));
    place.patch("web", json!({"spec": {"paused": true}})).await;
    assert_eq!(held_by(&release(&place, &place.dev).await), Some("hooks"));
}
