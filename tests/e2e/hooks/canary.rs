//! What answers say, what Secrets hold and the controller's own token are seen nowhere: not in an object of the cluster, nor in
//! the controller's log at level debug, nor in its metrics.

use std::{
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use k8s_openapi::ByteString;
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    core::DynamicObject,
    discovery::{Discovery, verbs},
};
use serde_json::{Value, json};
use tally::Tally;

use crate::{
    controller::Controller,
    harness::{Env, objects},
};

/// Nobody else has written this.
fn random() -> String {
    format!("{:016x}{:016x}", RandomState::new().hash_one(1), RandomState::new().hash_one(2))
}

/// Path, `Authorization`, body, signature.
type Heard = (String, String, String, String);

/// A receiver whose every answer carries the canary, in header and body.
#[derive(Clone)]
struct Singer {
    canary: String,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Singer {
    async fn start(canary: &str) -> (Self, String) {
        let singer = Self { canary: canary.to_owned(), heard: Arc::default() };
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(sing).with_state(singer.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (singer, url)
    }

    fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }
}

async fn sing(State(singer): State<Singer>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let of = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let path = uri.path().to_owned();
    let before = singer.heard().iter().filter(|h| h.0 == path).count();
    let body = String::from_utf8_lossy(&body).into_owned();
    singer.heard.lock().unwrap().push((path.clone(), of("authorization"), body, of("x-interlock-signature")));
    let canary = &singer.canary;
    let status = match path.as_str() {
        "/fails" => StatusCode::INTERNAL_SERVER_ERROR,
        "/elsewhere" => StatusCode::FOUND,
        _ => StatusCode::OK,
    };
    let answer = json!({"canary": canary, "polls": before + 1});
    (status, [(header::LOCATION, format!("/{canary}")), (header::SERVER, canary.clone())], answer.to_string())
        .into_response()
}

/// Every object that the API server shows, but Secrets.
async fn objects_of(client: &Client) -> Vec<(String, String)> {
    let discovery = Discovery::new(client.clone()).run().await.unwrap();
    let mut all = Vec::new();
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if resource.kind == "Secret" || !capabilities.supports_operation(verbs::LIST) {
                continue;
            }
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            // Namespaces and definitions of other tests come and go meanwhile.
            let Ok(list) = api.list(&ListParams::default()).await else { continue };
            for object in list.items {
                let name =
                    format!("{} {}/{}", resource.kind, object.namespace().unwrap_or_default(), object.name_any());
                all.push((name, serde_json::to_string(&object).unwrap()));
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_secrets_and_tokens_are_seen_nowhere() {
    let env = Env::new("hk-canary").await;
    let (answer, in_header, in_body, in_hmac) = (random(), random(), random(), random());
    let (singer, url) = Singer::start(&answer).await;
    env.apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
        "stringData": {"header": in_header, "body": in_body, "hmac": in_hmac}}))
        .await;
    let http = |name: &str, phase: &str, more: Value| {
        let mut http = json!({
            "url": format!("{url}/{name}"),
            "headersFrom": [{"header": "Authorization", "prefix": "Bearer ", "name": "s", "key": "header"}],
            "body": "{\"token\": \"${secret.part}\", \"run\": \"${run}\"}",
            "bodyFrom": [{"variable": "part", "name": "s", "key": "body"}],
            "hmac": {"name": "s", "key": "hmac"},
        });
        json_patch::merge(&mut http, &more);
        json!({"name": name, "phase": phase, "retries": 1, "backoffSeconds": 0, "timeoutSeconds": 30, "failure": "Continue", "http": http})
    };
    let mut policy = objects::policy("p", &url);
    policy["spec"]["hooks"] = json!([
        http("works", "PreUpdate", json!({})),
        http("fails", "PreUpdate", json!({})),
        http("elsewhere", "PreUpdate", json!({})),
        http("polled", "PreUpdate", json!({"repeatUntil": {"expression": "body.polls >= 2", "intervalSeconds": 1}})),
        http("pod", "PrePod", json!({})),
        http("gone", "PreUpdate", json!({"url": "http://127.0.0.1:1/"})),
        http("secretless", "PreUpdate", json!({"hmac": {"name": "s", "key": "nothing"}})),
        http("after", "PostUpdate", json!({"format": "Facts"})),
    ]);
    env.policy(policy).await;
    // With its own token, not by a proxy that has it.
    let account = env.cluster.service_account_kubeconfig("interlock-system", "interlock").await.unwrap();
    let file = std::fs::read_to_string(&account).unwrap();
    let token = &file[file.find("eyJ").expect("the controller has a token")..];
    let token = token.split(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).next().unwrap();
    assert_eq!(token.split('.').count(), 3, "header, claims, signature");
    let controller =
        Controller::start(&account, &env.namespace, &["--leader-elect=false", "--log-level", "debug"]).await;
    controller.ready().await;
    env.create(objects::deployment("web", 1)).await;
    env.patch("web", objects::set_image("v2")).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;

    // It was a full run, and all of them were in use.
    let heard = singer.heard();
    for (path, calls) in [("/works", 1), ("/fails", 2), ("/elsewhere", 2), ("/polled", 2), ("/pod", 1), ("/after", 1)] {
        assert_eq!(heard.iter().filter(|h| h.0 == path).count(), calls, "{path}: {heard:?}");
    }
    assert!(heard.iter().all(|h| h.1 == format!("Bearer {in_header}") && h.2.contains(&in_body) && !h.3.is_empty()));
    let reasons = env.run("web").await["status"]["steps"].to_string();
    for reason in ["Http200", "Http500", "Redirect", "ConnectFailed", "SecretMissing"] {
        assert!(reasons.contains(reason), "{reason}: {reasons}");
    }

    let mut places = objects_of(&env.admin).await;
    let log = controller.log();
    assert!(log.len() > 20 && log.iter().any(|line| line.contains("\"DEBUG\"")), "a log at level debug");
    places.push(("the log".to_owned(), log.join("\n")));
    let metrics = controller.metrics().await;
    assert!(metrics.contains("interlock_"), "{metrics}");
    places.push(("the metrics".to_owned(), metrics));
    for kind in ["HookRun ", "Event ", "HookPolicy ", "Pod ", "Deployment ", "ReplicaSet "] {
        let here = |name: &String| name.starts_with(kind) && name.contains(&env.namespace);
        assert!(places.iter().any(|(name, _)| here(name)), "no {kind}was looked at");
    }
    let tally = Tally::new("canaries, real control plane");
    tally.points(places.len());
    let signature = token.rsplit('.').next().unwrap().to_owned();
    for (what, canary) in
        [("answer", answer), ("header", in_header), ("body", in_body), ("key", in_hmac), ("token", signature)]
    {
        let coded = serde_json::to_value(ByteString(canary.clone().into_bytes())).unwrap();
        let coded = coded.as_str().unwrap().trim_end_matches('=');
        for (place, text) in &places {
            assert!(!text.contains(&canary) && !text.contains(coded), "the {what} is in {place}: {text}");
            tally.checks(2);
        }
    }
}
