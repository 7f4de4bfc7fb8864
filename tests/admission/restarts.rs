//! A RollingRestart, and a decision about one, give nobody what they do not have; its status is the controller's.

use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};

use crate::{
    author::{rule, user},
    place::Place,
};

fn api(client: &Client, place: &Place) -> Api<DynamicObject> {
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk("interlock.dev", "v1alpha1", "RollingRestart"));
    "rollingrestarts".clone_into(&mut resource.plural);
    Api::namespaced_with(client.clone(), &place.namespace, &resource)
}

fn restart(name: &str, spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({"apiVersion": "interlock.dev/v1alpha1", "kind": "RollingRestart",
        "metadata": {"name": name}, "spec": spec}))
    .unwrap()
}

fn refused(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => panic!("a refusal was expected: {other}"),
    }
}

async fn create(client: &Client, place: &Place, name: &str, spec: Value) -> Result<DynamicObject, String> {
    api(client, place).create(&PostParams::default(), &restart(name, &spec)).await.map_err(refused)
}

#[tokio::test]
async fn who_may_not_patch_deployments_restarts_none_and_who_may_not_patch_pods_changes_no_sidecar() {
    let place = Place::new().await;
    let own = || vec![rule("interlock.dev", "hookpolicies", "*"), rule("interlock.dev", "rollingrestarts", "*")];
    let nobody = user(&place, "restarts-only", &own()).await;
    let mut rules = own();
    rules.push(rule("apps", "deployments", "patch"));
    let editor = user(&place, "edits-deployments", &rules).await;
    rules.push(rule("", "pods", "patch"));
    let both = user(&place, "edits-pods", &rules).await;
    let sidecars = || json!({"sidecars": [{"name": "proxy", "image": "proxy:2"}]});

    let why = create(&nobody, &place, "a", json!({})).await.unwrap_err();
    assert!(why.contains("patch deployments.apps") && why.contains("restarts-only"), "{why}");
    create(&editor, &place, "a", json!({})).await.unwrap();
    let why = create(&editor, &place, "b", sidecars()).await.unwrap_err();
    assert!(why.contains("patch pods"), "{why}");
    create(&both, &place, "b", sidecars()).await.unwrap();

    // Decisions: by those who could restart, in their own name, added and never changed.
    let decide = |client: &Client, by: &str, id: &str| {
        let (api, patch) =
            (api(client, &place), json!({"spec": {"decisions": [{"id": id, "action": "Abort", "by": by}]}}));
        async move { api.patch("a", &PatchParams::default(), &Patch::Merge(patch)).await.map_err(refused) }
    };
    assert!(decide(&nobody, "restarts-only", "1").await.unwrap_err().contains("patch deployments.apps"));
    assert!(decide(&editor, "somebody-else", "1").await.unwrap_err().contains("must carry by: edits-deployments"));
    decide(&editor, "edits-deployments", "1").await.unwrap();
    assert!(decide(&editor, "edits-deployments", "2").await.unwrap_err().contains("only ever added"));

    // Nothing else is changed afterwards, by administrators neither.
    let change = json!({"spec": {"pauseSeconds": 1}});
    let why =
        api(&place.admin, &place).patch("a", &PatchParams::default(), &Patch::Merge(change)).await.map_err(refused);
    assert!(why.unwrap_err().contains("only spec.decisions"), "the spec was changed");
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    api(&editor, &place).patch("a", &PatchParams::default(), &Patch::Merge(labels)).await.unwrap();

    // The status is the controller's.
    let status = json!({"status": {"aborted": true}});
    let mut rules = own();
    rules.extend([rule("interlock.dev", "rollingrestarts/status", "*"), rule("apps", "deployments", "patch")]);
    let reporter = user(&place, "writes-status", &rules).await;
    let why = api(&reporter, &place)
        .patch_status("a", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .map_err(refused);
    assert!(why.unwrap_err().contains("by the controller only"), "the status was changed");
}

#[tokio::test]
async fn the_schema_refuses_what_makes_no_sense() {
    let place = Place::new().await;
    for (spec, word) in [
        (json!({"maxConcurrent": 0}), "maxConcurrent"),
        (json!({"sidecars": [{"name": "a", "image": ""}]}), "image"),
        (json!({"sidecars": [{"name": "a", "image": "b"}], "mark": "Kubectl"}), "restart mark"),
        (json!({"window": {"schedule": "0 2 * * *"}}), "durationSeconds"),
        (json!({"selector": {}}), "selector"),
    ] {
        let why = create(&place.admin, &place, "bad", spec).await.unwrap_err();
        assert!(why.contains(word), "{word}: {why}");
    }
}
