//! Who may write policies and runs, and what protects the definitions.

use interlock::api::HookRun;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::place::{Place, refusal};

fn template() -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "app:1", "fieldOfANewerServer": {"a": [1]}}]},
    })
}

fn run() -> HookRun {
    serde_json::from_value(json!({
        "metadata": {"name": "web-1"},
        "spec": {
            "deployment": {"name": "web", "uid": "u"}, "sequence": 1, "target": "abc",
            "newTemplate": template(), "oldTemplate": template(),
            "settings": {
                "settleSeconds": 2, "maxConcurrentUpdates": 1, "maxHoldSeconds": 0, "onDelete": "Hold", "historyLimit": 10,
            },
        },
    }))
    .unwrap()
}

fn decision(id: &str, by: &str) -> Value {
    json!({"id": id, "action": "Retry", "target": "hook/smoke", "by": by})
}

/// A namespace with a run in it, and its developer's rights to decide.
async fn with_run() -> Place {
    let place = Place::new().await;
    let runs = runs(&place, &place.controller);
    runs.create(&PostParams::default(), &run()).await.unwrap();
    place
}

fn runs(place: &Place, client: &Client) -> Api<HookRun> {
    Api::namespaced(client.clone(), &place.namespace)
}

async fn decide(place: &Place, client: &Client, decisions: Value) -> kube::Result<HookRun> {
    let patch = Patch::Merge(json!({"spec": {"decisions": decisions}}));
    runs(place, client).patch("web-1", &PatchParams::default(), &patch).await
}

/// Gives a user the shipped role in this namespace.
async fn grant(place: &Place, user: &str, role: &str) -> Client {
    let binding = serde_json::from_value(json!({
        "metadata": {"name": format!("{user}-{role}")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
    }))
    .unwrap();
    let bindings: Api<k8s_openapi::api::rbac::v1::RoleBinding> = Api::namespaced(place.admin.clone(), &place.namespace);
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    place.cluster.client_as(user, &[]).await.unwrap()
}

#[tokio::test]
async fn a_policy_needs_the_right_to_patch_deployments() {
    let place = Place::new().await;
    let author = grant(&place, "author", "interlock-edit").await;
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}});
    let answer = crate::place::until("the role is known", async || {
        match place.try_policy(&author, "p", spec.clone()).await {
            // Refused by RBAC, not yet by the policy.
            Err(kube::Error::Api(status)) if !status.message.contains("interlock-author") => None,
            answer => Some(answer),
        }
    })
    .await;
    let (code, message) = refusal(answer);
    assert_eq!(code, 403);
    assert!(message.contains("patch deployments.apps") && message.contains("user author"), "{message}");
    place.try_policy(&place.dev, "p", spec).await.unwrap();
    // What is not the spec may be changed.
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    place.policies(&author).patch("p", &PatchParams::default(), &patch).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"enforcement": "Off"}}));
    let (code, _) = refusal(place.policies(&author).patch("p", &PatchParams::default(), &patch).await);
    assert_eq!(code, 403);
}

#[tokio::test]
async fn a_run_keeps_what_a_newer_server_knows() {
    let place = with_run().await;
    let stored = runs(&place, &place.dev).get("web-1").await.unwrap();
    assert_eq!(stored.spec, run().spec);
    assert_eq!(stored.spec.new_template.json().pointer("/spec/containers/0/fieldOfANewerServer/a/0"), Some(&json!(1)),);
}

#[tokio::test]
async fn runs_are_made_and_reported_by_the_controller_only() {
    let place = with_run().await;
    let mut other = run();
    other.metadata.name = Some("web-2".to_owned());
    let (code, message) = refusal(runs(&place, &place.dev).create(&PostParams::default(), &other).await);
    assert_eq!(code, 403);
    assert!(message.contains("by the controller only"), "{message}");
    let status = Patch::Merge(json!({"status": {"orderPassed": true}}));
    let params = PatchParams::default();
    let (code, _) = refusal(runs(&place, &place.dev).patch_status("web-1", &params, &status).await);
    assert_eq!(code, 403);
    runs(&place, &place.controller).patch_status("web-1", &params, &status).await.unwrap();
}

#[tokio::test]
async fn the_spec_of_a_run_changes_for_nobody() {
    let place = with_run().await;
    for client in [&place.dev, &place.admin, &place.controller] {
        for spec in [json!({"target": "other"}), json!({"oldTemplate": null}), json!({"owed": []})] {
            let patch = Patch::Merge(json!({"spec": spec}));
            let (code, message) = refusal(runs(&place, client).patch("web-1", &PatchParams::default(), &patch).await);
            assert_eq!(code, 403, "{spec}");
            assert!(message.contains("only spec.decisions"), "{message}");
        }
    }
}

#[tokio::test]
async fn a_decision_needs_its_right_and_ones_own_name_and_is_never_changed() {
    let place = with_run().await;
    let (code, message) = refusal(decide(&place, &place.dev, json!([decision("a", "dev")])).await);
    assert_eq!(code, 403);
    assert!(message.contains("verb decide"), "{message}");
    let ann = grant(&place, "ann", "interlock-decide").await;
    crate::place::until("the role is known", async || decide(&place, &ann, json!([decision("a", "ann")])).await.ok())
        .await;
    let (_, message) = refusal(decide(&place, &ann, json!([decision("a", "ann"), decision("b", "dev")])).await);
    assert!(message.contains("by: ann"), "{message}");
    for (who, decisions) in [
        (&ann, json!([])),
        (&ann, json!([decision("b", "ann")])),
        (&place.admin, json!([])),
        (&ann, json!([{"id": "a", "action": "Abort", "target": "hook/smoke", "by": "ann"}])),
    ] {
        let (code, message) = refusal(decide(&place, who, decisions).await);
        assert_eq!(code, 403);
        assert!(message.contains("only ever added"), "{message}");
    }
    // An administrator decides in their own name as well.
    let (code, _) = refusal(decide(&place, &place.admin, json!([decision("a", "ann"), decision("b", "ann")])).await);
    assert_eq!(code, 403);
    decide(&place, &ann, json!([decision("a", "ann"), decision("b", "ann")])).await.unwrap();
}

#[tokio::test]
async fn the_definitions_cannot_be_deleted_alone_or_together() {
    let place = Place::new().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(place.admin.clone());
    for name in ["hookpolicies.interlock.dev", "hookruns.interlock.dev", "rollingrestarts.interlock.dev"] {
        let (code, message) = refusal(definitions.delete(name, &DeleteParams::default()).await.map(drop));
        assert_eq!(code, 403);
        assert!(message.contains("kubectl interlock uninstall"), "{message}");
    }
    let ours = ListParams::default().labels("app.kubernetes.io/part-of=interlock");
    let (code, _) = refusal(definitions.delete_collection(&DeleteParams::default(), &ours).await.map(drop));
    assert_eq!(code, 403);
    assert_eq!(definitions.list(&ours).await.unwrap().items.len(), 3);
}

#[tokio::test]
async fn the_roles_for_people_reach_no_shipped_role() {
    use k8s_openapi::api::rbac::v1::ClusterRole;
    let place = Place::new().await;
    let roles: Api<ClusterRole> = Api::all(place.admin.clone());
    for name in ["view", "edit", "admin"] {
        let role = roles.get(name).await.unwrap();
        let groups = role.rules.into_iter().flatten().flat_map(|rule| rule.api_groups.unwrap_or_default());
        assert!(groups.into_iter().all(|group| group != "interlock.dev"), "{name}");
    }
}
