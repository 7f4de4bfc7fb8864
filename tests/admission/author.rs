//! A policy gives its author nothing that they do not have: each kind and each reference as a user without the right, with
//! all rights but that one, and as an administrator. Writes that are refused are refused by the API server alone.

use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::place::{Place, refusal, until};

pub(crate) fn rule(group: &str, resource: &str, verb: &str) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]})
}

fn named(group: &str, resource: &str, verb: &str, name: &str) -> Value {
    let mut rule = rule(group, resource, verb);
    rule["resourceNames"] = json!([name]);
    rule
}

/// What every author here has.
fn base() -> Vec<Value> {
    vec![rule("interlock.dev", "hookpolicies", "*"), rule("apps", "deployments", "patch")]
}

/// A user with these rights in the place, known to the API server.
pub(crate) async fn user(place: &Place, name: &str, rules: &[Value]) -> Client {
    let role: Role = serde_json::from_value(json!({"metadata": {"name": name}, "rules": rules})).unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}],
    }))
    .unwrap();
    Api::namespaced(place.admin.clone(), &place.namespace).create(&PostParams::default(), &role).await.unwrap();
    Api::namespaced(place.admin.clone(), &place.namespace).create(&PostParams::default(), &binding).await.unwrap();
    let client = place.cluster.client_as(name, &[]).await.unwrap();
    until("the role is known", async || place.policies(&client).list(&kube::api::ListParams::default()).await.ok())
        .await;
    client
}

fn hook(phase: &str, kind: &str, value: &Value) -> Value {
    json!({"selector": {"matchLabels": {"a": "b"}}, "hooks": [{"name": "h", "phase": phase, kind: value}]})
}

fn http(field: &str, value: Value) -> Value {
    let mut http = json!({"url": "https://hooks.example/", "body": "x"});
    http[field] = value;
    hook("PreUpdate", "http", &http)
}

fn job() -> Value {
    let template = json!({"spec": {"containers": [{"name": "a", "image": "registry.example/a:1"}]}});
    hook("PreUpdate", "job", &json!({"serviceAccountName": "other", "mountToken": true, "template": template}))
}

/// A policy, the rights that it takes, and a word of the refusal of each.
type Case = (&'static str, Value, Vec<(Value, &'static str)>);

fn cases() -> Vec<Case> {
    let secret = || vec![(named("", "secrets", "get", "s"), "Secret s")];
    let key = json!({"name": "s", "key": "k"});
    let pods = || vec![(rule("", "pods", "patch"), "patch pods")];
    let mut cases = vec![
        (
            "job",
            job(),
            vec![(rule("batch", "jobs", "create"), "create jobs.batch"), (rule("", "pods", "create"), "create pods")],
        ),
        ("pre-pull", hook("PreUpdate", "prePull", &json!({})), vec![(rule("", "pods", "create"), "create pods")]),
        ("headers-from", http("headersFrom", json!([{"header": "a", "name": "s", "key": "k"}])), secret()),
        ("body-from", http("bodyFrom", json!([{"variable": "a", "name": "s", "key": "k"}])), secret()),
        ("hmac", http("hmac", key), secret()),
        ("client-certificate", http("clientCertificate", json!({"name": "s"})), secret()),
        ("patch-pod", hook("PrePod", "patch", &json!({"target": "Pod", "labels": {"a": "b"}})), pods()),
        ("pod-gate", hook("PrePod", "podGate", &json!({"labels": {"a": "b"}, "markPodNotReady": true})), pods()),
        (
            "drain",
            json!({"selector": {"matchLabels": {"a": "b"}}, "update": {"drain": {"readinessGate": true}}}),
            pods(),
        ),
    ];
    for (name, kind, group, resource, said) in [
        ("wait-for-deployment", "Deployment", "apps", "deployments", "deployments/w"),
        ("wait-for-stateful-set", "StatefulSet", "apps", "statefulsets", "statefulsets/w"),
        ("wait-for-daemon-set", "DaemonSet", "apps", "daemonsets", "daemonsets/w"),
        ("wait-for-job", "Job", "batch", "jobs", "jobs/w"),
        ("wait-for-pod", "Pod", "", "pods", "pods/w"),
        ("wait-for-service", "Service", "", "services", "services/w"),
        ("wait-for-endpoint-slice", "EndpointSlice", "discovery.k8s.io", "endpointslices", "endpointslices/w"),
        ("wait-for-config-map", "ConfigMap", "", "configmaps", "configmaps/w"),
    ] {
        let spec = hook("PreUpdate", "waitFor", &json!({"kind": kind, "name": "w", "expression": "true"}));
        cases.push((name, spec, vec![(named(group, resource, "get", "w"), said)]));
    }
    cases
}

/// A write with the spec as a merge patch.
async fn edit(place: &Place, client: &Client, name: &str, spec: Value) -> kube::Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    place.policies(client).patch(name, &PatchParams::default(), &patch).await.map(drop)
}

#[tokio::test]
async fn each_kind_and_reference_takes_the_right_of_its_author() {
    let tally = tally::Tally::new("rights of a policy's author");
    let place = Place::new().await;
    for (name, spec, rights) in cases() {
        tally.points(1);
        place.try_policy(&place.admin, name, spec.clone()).await.unwrap();
        for (lacks, (_, said)) in rights.iter().enumerate() {
            let user_name = format!("{name}-{lacks}");
            let mut rules = base();
            rules.extend(rights.iter().enumerate().filter(|(i, _)| *i != lacks).map(|(_, (rule, _))| rule.clone()));
            // The right on something else of the kind is not enough.
            rules.push(named("", "secrets", "get", "another"));
            rules.push(named("", "pods", "get", "another"));
            let author = user(&place, &user_name, &rules).await;
            let refused = [
                place.try_policy(&author, &user_name, spec.clone()).await,
                // Nothing new is in it, but whoever saves it answers for all of it.
                edit(&place, &author, name, json!({"settleSeconds": 3})).await,
            ];
            for answer in refused {
                let (code, message) = refusal(answer);
                assert_eq!(code, 403, "{name}: {message}");
                assert!(message.contains(said) && message.contains(&format!("user {user_name}")), "{name}: {message}");
                tally.checks(1);
            }
            // A policy of their own, that takes no rights, cannot be turned into it.
            place.try_policy(&author, &user_name, json!({"selector": {"matchLabels": {"a": "b"}}})).await.unwrap();
            let (code, message) = refusal(edit(&place, &author, &user_name, spec.clone()).await);
            assert_eq!(code, 403, "{name}: {message}");
            // What is not the spec stays theirs to change, and so does taking the hook away.
            let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
            place.policies(&author).patch(name, &PatchParams::default(), &patch).await.unwrap();
            tally.checks(3);
        }
        let mut rules = base();
        rules.extend(rights.iter().map(|(rule, _)| rule.clone()));
        let author = user(&place, &format!("{name}-all"), &rules).await;
        place.try_policy(&author, &format!("{name}-all"), spec).await.unwrap();
        edit(&place, &author, name, json!({"settleSeconds": 4})).await.unwrap();
        edit(&place, &author, name, json!({"hooks": null, "update": null})).await.unwrap();
        tally.checks(3);
    }
}

#[tokio::test]
async fn hooks_that_take_no_right_and_the_right_to_patch_deployments() {
    let place = Place::new().await;
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "hooks": [
        {"name": "a", "phase": "PreUpdate", "http": {"url": "https://hooks.example/"}},
        {"name": "b", "phase": "PostPod", "wait": {"seconds": 1}},
        {"name": "c", "phase": "PreUpdate", "approval": {}},
        {"name": "d", "phase": "PreUpdate", "patch": {"labels": {"a": "b"}}},
    ]});
    let author = user(&place, "plain", &base()).await;
    place.try_policy(&author, "plain", spec.clone()).await.unwrap();
    let other = user(&place, "without", &[rule("interlock.dev", "hookpolicies", "*")]).await;
    for answer in
        [place.try_policy(&other, "p", spec.clone()).await, edit(&place, &other, "plain", json!({"hooks": null})).await]
    {
        let (code, message) = refusal(answer);
        assert_eq!(code, 403);
        assert!(message.contains("patch deployments.apps") && message.contains("user without"), "{message}");
    }
}

/// So many http hooks, each with `each` references to Secrets, of which `different` differ.
fn secrets(hooks: usize, each: usize, different: usize) -> Value {
    let hooks: Vec<Value> = (0..hooks)
        .map(|i| {
            let from: Vec<Value> = (0..each)
                .map(|j| json!({"header": format!("x-{j}"), "name": format!("s{}", (i * each + j) % different), "key": "k"}))
                .collect();
            json!({"name": format!("h{i}"), "phase": "PreUpdate", "http": {"url": "https://hooks.example/", "headersFrom": from}})
        })
        .collect();
    json!({"selector": {"matchLabels": {"a": "b"}}, "hooks": hooks})
}

fn objects(different: usize) -> Value {
    let hooks: Vec<Value> = (0..32)
        .map(|i| {
            let wait = json!({"kind": "ConfigMap", "name": format!("w{}", i % different), "expression": "true"});
            json!({"name": format!("h{i}"), "phase": "PreUpdate", "waitFor": wait})
        })
        .collect();
    json!({"selector": {"matchLabels": {"a": "b"}}, "hooks": hooks})
}

/// The API server spends a bounded effort on a policy: what is allowed must fit, and what is too much must be told, not
/// fail in the middle.
#[tokio::test]
async fn the_largest_policies_fit_and_larger_ones_are_told() {
    let place = Place::new().await;
    for (name, spec) in [("secrets", secrets(32, 4, 16)), ("objects", objects(16))] {
        place.try_policy(&place.admin, name, spec).await.unwrap();
    }
    for (name, spec, said) in [
        ("many", secrets(32, 4, 17), "16 different Secrets"),
        ("places", secrets(32, 5, 16), "in 128 places"),
        ("most", secrets(32, 16, 512), "16 different Secrets"),
        ("objects-17", objects(17), "16 different objects"),
    ] {
        let (code, message) = refusal(place.try_policy(&place.admin, name, spec).await);
        assert_eq!(code, 422, "{message}");
        assert!(message.contains(said), "{message}");
    }
    // Each of them is asked for: the last one is missing.
    let mut rules = base();
    rules.extend((0..15).flat_map(|i| {
        [named("", "secrets", "get", &format!("s{i}")), named("", "configmaps", "get", &format!("w{i}"))]
    }));
    let author = user(&place, "fifteen", &rules).await;
    for (name, spec, said) in
        [("fifteen", secrets(32, 4, 16), "Secret s15"), ("fifteen-objects", objects(16), "configmaps/w15")]
    {
        let (code, message) = refusal(place.try_policy(&author, name, spec).await);
        assert_eq!(code, 403);
        assert!(message.contains(said), "{message}");
    }
    place.try_policy(&author, "fifteen", secrets(32, 4, 15)).await.unwrap();
    place.try_policy(&author, "fifteen-objects", objects(15)).await.unwrap();
}
