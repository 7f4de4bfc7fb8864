//! The same raw requests to the API server in this process and to the real one: the same codes, reasons and causes, the same
//! changes of generation and version.

use std::time::Duration;

use apiserver::{ControlPlane, Server};
use http::{Request, header::CONTENT_TYPE};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tally::Tally;

use crate::harness::{Env, objects};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const PATCH: &str = "application/json-patch+json";

/// Verb, path in the namespace or whole, content type, body. `$uid` and `$rv` in a body are those of the object at the path.
type Ask = (&'static str, &'static str, &'static str, Value);

const DEPLOYMENT: &str = "apps/v1/deployments/web";
const SET: &str = "apps/v1/replicasets/set";
const POD: &str = "v1/pods/pod";
const POLICY: &str = "interlock.dev/v1alpha1/hookpolicies/sem";

fn asks() -> Vec<Ask> {
    let image = |i: &str| json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": i}]}}}});
    let mut unnamed = objects::deployment("web", 0);
    unnamed["metadata"] = json!({});
    let mut generated = objects::deployment("web", 0);
    generated["metadata"] = json!({"generateName": "web-"});
    let test = |path: &str, value: Value| json!([{"op": "test", "path": path, "value": value}, {"op": "add", "path": "/metadata/labels/j", "value": "1"}]);
    let cpu = |cpu: &str| json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
    vec![
        ("POST", "apps/v1/deployments", JSON, objects::deployment("web", 0)),
        ("POST", "apps/v1/deployments", JSON, unnamed),
        ("POST", "apps/v1/deployments?dryRun=All", JSON, generated),
        ("GET", "apps/v1/deployments/none", JSON, Value::Null),
        ("PATCH", "apps/v1/deployments/none", MERGE, json!({})),
        ("DELETE", "apps/v1/deployments/none", JSON, json!({})),
        ("GET", "apps/v1/unknowns", JSON, Value::Null),
        ("PATCH", DEPLOYMENT, MERGE, json!({"metadata": {"resourceVersion": "1"}, "spec": {"paused": true}})),
        ("PATCH", DEPLOYMENT, MERGE, json!({"metadata": {"resourceVersion": "$rv", "labels": {"l": "1"}}})),
        ("PATCH", DEPLOYMENT, MERGE, json!({"metadata": {"annotations": {"a": "1"}}})),
        ("PATCH", DEPLOYMENT, MERGE, json!({"metadata": {"annotations": {"a": null}}})),
        ("PATCH", DEPLOYMENT, MERGE, json!({"metadata": {"uid": "no"}})),
        ("PATCH", DEPLOYMENT, MERGE, json!({"metadata": {"name": "other"}})),
        ("PATCH", DEPLOYMENT, MERGE, json!({"metadata": {"generation": 99}})),
        ("PATCH", DEPLOYMENT, MERGE, json!({"spec": {"paused": true}})),
        ("PATCH", DEPLOYMENT, MERGE, json!({"spec": {"paused": true}})),
        ("PATCH", DEPLOYMENT, MERGE, json!({"spec": {"paused": null}})),
        ("PATCH", DEPLOYMENT, MERGE, json!({"spec": {"replicas": -1}})),
        ("PATCH", DEPLOYMENT, MERGE, json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}})),
        ("PATCH", DEPLOYMENT, STRATEGIC, image("r.test/img:v2")),
        ("PATCH", DEPLOYMENT, STRATEGIC, image("r.test/img:v2")),
        ("PATCH", "apps/v1/deployments/web?dryRun=All", STRATEGIC, image("r.test/img:v3")),
        ("PATCH", DEPLOYMENT, PATCH, test("/spec/replicas", json!(7))),
        ("PATCH", DEPLOYMENT, PATCH, test("/metadata/uid", json!("no"))),
        ("PATCH", DEPLOYMENT, PATCH, test("/metadata/uid", json!("$uid"))),
        ("PATCH", DEPLOYMENT, PATCH, json!([{"op": "remove", "path": "/metadata/annotations/none"}])),
        ("PATCH", DEPLOYMENT, PATCH, json!([{"op": "replace", "path": "/metadata/annotations/none", "value": "1"}])),
        (
            "PATCH",
            DEPLOYMENT,
            PATCH,
            json!([{"op": "add", "path": "/metadata/resourceVersion", "value": "1"}, {"op": "add", "path": "/spec/paused", "value": true}]),
        ),
        ("PATCH", DEPLOYMENT, PATCH, json!({"op": "add"})),
        ("PATCH", DEPLOYMENT, "text/plain", json!({})),
        (
            "PATCH",
            "apps/v1/deployments/web/status",
            STRATEGIC,
            json!({"status": {"conditions": [{"type": "interlock.dev/Held", "status": "True", "reason": "R", "message": "m"}]}}),
        ),
        ("PATCH", "apps/v1/deployments/web/status", STRATEGIC, json!({"spec": {"replicas": 5}})),
        (
            "PUT",
            DEPLOYMENT,
            JSON,
            json!({"metadata": {"name": "web", "resourceVersion": "1"}, "spec": objects::deployment("web", 0)["spec"]}),
        ),
        ("DELETE", DEPLOYMENT, JSON, json!({"preconditions": {"uid": "no"}})),
        ("DELETE", DEPLOYMENT, JSON, json!({"preconditions": {"uid": "$uid", "resourceVersion": "1"}})),
        ("DELETE", DEPLOYMENT, JSON, json!({"dryRun": ["All"]})),
        ("PATCH", SET, MERGE, json!({"spec": {"template": {"metadata": {"annotations": {"x": "1"}}}}})),
        ("PATCH", SET, MERGE, json!({"metadata": {"annotations": {"x": "1"}}})),
        ("PATCH", SET, PATCH, test("/spec/replicas", json!(1))),
        (
            "PATCH",
            SET,
            PATCH,
            json!([{"op": "test", "path": "/spec/replicas", "value": 0}, {"op": "remove", "path": "/metadata/annotations/x"}]),
        ),
        (
            "PATCH",
            POD,
            PATCH,
            json!([{"op": "test", "path": "/spec/containers/0/name", "value": "c"}, {"op": "replace", "path": "/spec/containers/0/image", "value": "r.test/img:v2"}]),
        ),
        (
            "PATCH",
            POD,
            PATCH,
            json!([{"op": "test", "path": "/metadata/generation", "value": 77}, {"op": "replace", "path": "/spec/containers/0/image", "value": "r.test/img:v3"}]),
        ),
        (
            "PATCH",
            POD,
            PATCH,
            json!([{"op": "add", "path": "/metadata/annotations/interlock.dev~1update", "value": "x"}]),
        ),
        ("PATCH", POD, MERGE, json!({"metadata": {"labels": {"l": "2"}}})),
        ("PATCH", POD, STRATEGIC, json!({"spec": {"containers": [{"name": "c", "command": ["x"]}]}})),
        ("PATCH", POD, STRATEGIC, cpu("200m")),
        ("PATCH", "v1/pods/pod/resize", STRATEGIC, cpu("200m")),
        (
            "PATCH",
            "v1/pods/pod/resize",
            STRATEGIC,
            json!({"spec": {"containers": [{"name": "c", "image": "r.test/img:v9"}]}}),
        ),
        (
            "PATCH",
            "v1/pods/pod/resize",
            STRATEGIC,
            json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}}]}}),
        ),
        ("PATCH", "v1/pods/pod/resize", PATCH, test("/metadata/uid", json!("no"))),
        ("POST", "interlock.dev/v1alpha1/hookpolicies", JSON, json!({"metadata": {"name": "sem"}, "spec": {}})),
        (
            "POST",
            "interlock.dev/v1alpha1/hookpolicies",
            JSON,
            json!({"metadata": {"name": "other"}, "spec": {"maxConcurrentUpdates": "x"}}),
        ),
        ("PATCH", POLICY, STRATEGIC, json!({})),
        ("PATCH", POLICY, MERGE, json!({"spec": {"settleSeconds": 7}})),
        ("PATCH", POLICY, MERGE, json!({"spec": {"settleSeconds": 7}})),
        ("PATCH", POLICY, MERGE, json!({"spec": {"unknown": 7}})),
        ("PATCH", POLICY, MERGE, json!({"metadata": {"labels": {"l": "1"}}})),
        (
            "PATCH",
            "interlock.dev/v1alpha1/hookpolicies/sem/status",
            PATCH,
            json!([{"op": "add", "path": "/status", "value": {"selected": 3}}]),
        ),
        (
            "PATCH",
            "interlock.dev/v1alpha1/hookpolicies/sem/status",
            PATCH,
            json!([{"op": "add", "path": "/metadata/resourceVersion", "value": "1"}, {"op": "add", "path": "/status", "value": {"selected": 4}}]),
        ),
        ("PATCH", "interlock.dev/v1alpha1/hookpolicies/sem/status", MERGE, json!({"spec": {"settleSeconds": 9}})),
        ("PATCH", "interlock.dev/v1alpha1/hookpolicies/sem/status", MERGE, json!({"status": {"selected": "many"}})),
        ("DELETE", POLICY, JSON, json!({"preconditions": {"uid": "no"}})),
        (
            "POST",
            "coordination.k8s.io/v1/leases",
            JSON,
            json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}),
        ),
        (
            "PUT",
            "coordination.k8s.io/v1/leases/l",
            JSON,
            json!({"metadata": {"name": "l", "resourceVersion": "1"}, "spec": {"holderIdentity": "b"}}),
        ),
        (
            "PUT",
            "coordination.k8s.io/v1/leases/l",
            JSON,
            json!({"metadata": {"name": "l", "resourceVersion": "$rv"}, "spec": {"holderIdentity": "b"}}),
        ),
        (
            "POST",
            "events.k8s.io/v1/events",
            JSON,
            json!({"metadata": {"name": "e"}, "eventTime": "2027-01-15T08:00:00.000000Z", "action": "A", "reason": "R", "type": "Normal", "note": "n",
            "reportingController": "interlock.dev/controller", "reportingInstance": "i", "regarding": {"kind": "Deployment", "namespace": "$ns", "name": "web"}}),
        ),
        ("GET", "apps/v1/deployments?labelSelector=l%3D1", JSON, Value::Null),
        ("GET", "apps/v1/deployments?fieldSelector=status.phase%3Dx", JSON, Value::Null),
        ("GET", "apps/v1/deployments?fieldSelector=metadata.name%3Dweb&limit=1", JSON, Value::Null),
        (
            "GET",
            "apps/v1/deployments?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=2",
            JSON,
            Value::Null,
        ),
        (
            "DELETE",
            DEPLOYMENT,
            JSON,
            json!({"propagationPolicy": "Background", "preconditions": {"uid": "$uid", "resourceVersion": "$rv"}}),
        ),
        ("DELETE", POD, JSON, json!({})),
    ]
}

fn url(namespace: &str, path: &str) -> String {
    match path.strip_prefix("v1/") {
        Some(rest) => format!("/api/v1/namespaces/{namespace}/{rest}"),
        None => {
            let mut parts = path.splitn(3, '/');
            let (group, version, rest) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
            format!("/apis/{group}/{version}/namespaces/{namespace}/{rest}")
        }
    }
}

/// The code, and every JSON document of the body.
async fn send(client: &Client, method: &str, url: &str, content_type: &str, body: &Value) -> (u16, Vec<Value>) {
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(url).header(CONTENT_TYPE, content_type).body(Body::from(bytes));
    let answer = client.send(request.unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let bytes = answer.into_body().collect_bytes().await.unwrap();
    let documents = serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>();
    (code, documents.map(|d| d.unwrap_or_default()).collect())
}

/// The object at a path without its subresource, once nobody changes it any more.
async fn settled(client: &Client, namespace: &str, path: &str) -> Value {
    let path = path.split('?').next().unwrap();
    let parts: Vec<&str> = path.split('/').collect();
    let own = if path.starts_with("v1/") { 3 } else { 4 };
    let Some(object) = parts.get(..own) else { return Value::Null };
    let url = url(namespace, &object.join("/"));
    let watched = ["deployments", "replicasets", "pods"].contains(&parts[own - 2]);
    let mut last = None;
    loop {
        let (code, documents) = send(client, "GET", &url, JSON, &Value::Null).await;
        let now = if code == 200 { documents[0].clone() } else { Value::Null };
        let version = now["metadata"]["resourceVersion"].clone();
        let behind =
            now["status"]["observedGeneration"].as_i64().is_some_and(|seen| now["metadata"]["generation"] != seen);
        if !watched || now.is_null() || !behind && last.as_ref() == Some(&version) {
            return now;
        }
        last = Some(version);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

fn filled(body: &Value, namespace: &str, target: &Value) -> Value {
    let text = body
        .to_string()
        .replace("$uid", target["metadata"]["uid"].as_str().unwrap_or("none"))
        .replace("$rv", target["metadata"]["resourceVersion"].as_str().unwrap_or("0"))
        .replace("$ns", namespace);
    serde_json::from_str(&text).unwrap()
}

async fn answers(client: &Client, namespace: &str) -> Vec<(String, Value)> {
    let template = objects::deployment("set", 0)["spec"]["template"].clone();
    for (path, object) in [
        ("apps/v1/deployments", objects::deployment("web", 0)),
        (
            "apps/v1/replicasets",
            json!({"metadata": {"name": "set"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "set"}}, "template": template}}),
        ),
        (
            "v1/pods",
            json!({"metadata": {"name": "pod", "annotations": {"a": "1"}, "labels": {"l": "1"}}, "spec": {"terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "r.test/img:v1", "resources": {"requests": {"cpu": "100m"}}}]}}),
        ),
        (
            "interlock.dev/v1alpha1/hookpolicies",
            json!({"apiVersion": "interlock.dev/v1alpha1", "kind": "HookPolicy", "metadata": {"name": "sem"}, "spec": {}}),
        ),
    ] {
        let (code, documents) = send(client, "POST", &url(namespace, path), JSON, &object).await;
        assert_eq!(code, 201, "{documents:?}");
    }
    let mut all = Vec::new();
    let mut known: Option<(&str, Value)> = None;
    for (method, path, content_type, body) in asks() {
        let before = match known.take() {
            Some((at, object)) if at == path => object,
            _ => settled(client, namespace, path).await,
        };
        let mut body = filled(&body, namespace, &before);
        if matches!(method, "POST" | "PUT") && body["kind"].is_null() {
            let kind = ["Deployment", "HookPolicy", "Lease", "Event"]
                .into_iter()
                .find(|k| path.contains(&k.to_lowercase().trim_end_matches('y').to_owned()));
            let version = path.split('/').take(2).collect::<Vec<_>>().join("/");
            body["kind"] = json!(kind);
            body["apiVersion"] = json!(version);
        }
        let (code, documents) = send(client, method, &url(namespace, path), content_type, &body).await;
        let after = settled(client, namespace, path).await;
        let generation = |o: &Value| o["metadata"]["generation"].as_i64().unwrap_or(0);
        // A bookmark at the end of a watch comes or not.
        let initial = |d: &Value| !d["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"].is_null();
        let status: Vec<Value> = documents
            .iter()
            .filter(|d| d["type"] != "BOOKMARK" || initial(d))
            .map(|d| {
                let object = if d["object"].is_null() { d } else { &d["object"] };
                json!({
                    "type": d["type"], "kind": object["kind"], "code": object["code"], "reason": if object["kind"] == "Status" { &object["reason"] } else { &Value::Null },
                    "first cause": object["details"]["causes"][0]["field"],
                    "test failed": object["message"].as_str().map(|m| m.contains("the server rejected our request")),
                    "items": object["items"].as_array().map(Vec::len),
                    "more": object["metadata"]["continue"].is_string(),
                    "end of initial events": object["metadata"]["annotations"]["k8s.io/initial-events-end"],
                })
            })
            .collect();
        let answer = json!({
            "code": code, "documents": status,
            "generations": generation(&after) - generation(&before),
            "gone": after.is_null(),
            // The real one keeps managedFields, which a resize that changes nothing else may change. What was refused changed
            // nothing; a late status of a controller did.
            "version changed": code < 300 && method != "GET" && !path.ends_with("/resize") && after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"],
            "images": after["spec"]["containers"][0]["image"],
            "settle": after["spec"]["settleSeconds"], "selected": after["status"]["selected"],
            "unknown": after["spec"]["unknown"], "labels": after["metadata"]["labels"],
        });
        all.push((format!("{method} {path} {body}"), answer));
        known = Some((path, after));
    }
    all
}

#[tokio::test]
async fn the_same_requests_get_the_same_answers() {
    let tally = Tally::new("requests in process and on a real control plane");
    let here = tokio::task::spawn_blocking(|| {
        inproc::story(async {
            let server = Server::new(1, 2);
            let _plane = ControlPlane::start(&server);
            answers(&server.client("admin"), inproc::NAMESPACE).await
        })
    });
    let env = Env::new("sem").await;
    let there = answers(&env.admin, &env.namespace).await;
    let here = here.await.unwrap();
    tally.points(there.len());
    tally.checks(there.len() * 8);
    let faults: Vec<String> = there
        .iter()
        .zip(&here)
        .filter(|((_, there), (_, here))| there != here)
        .map(|((ask, there), (_, here))| {
            tally.failure();
            format!("{ask}{}", inproc::difference(there, here))
        })
        .collect();
    assert!(faults.is_empty(), "answered otherwise in process:\n{}", faults.join("\n"));
}
