//! Against real receivers on loopback.
#![allow(clippy::pedantic, clippy::format_push_string, reason = "as in the roots of test programs")]

mod answered;
mod canary;
mod polling;
mod sent;
mod target;
mod tls;

use std::sync::{
    Arc, Mutex as Sync,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, Method, StatusCode, header::LOCATION},
    response::IntoResponse,
    routing::{any, post},
};
use interlock_core::{
    api::{
        hook::{BodyFormat, BodyFrom, Header, HeaderFrom, SecretKey, SecretName},
        run::ObjectRef,
    },
    effect::Call,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::Mutex,
};

use super::{super::fixture, *};

async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/")
}

/// Takes one request after the other, writes `answer` and then closes or stays.
async fn raw(answer: &'static str, stay: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer).await;
            let _ = stream.write_all(answer.as_bytes()).await;
            if stay {
                open.push(stream);
            }
        }
    });
    format!("http://{address}/")
}

type Got = Arc<Mutex<Vec<(Method, HeaderMap, Bytes)>>>;

/// Keeps what it gets.
async fn keeps() -> (String, Got) {
    let got: Got = Arc::default();
    let keep = Arc::clone(&got);
    let url = serve(Router::new().fallback(any(move |method: Method, headers: HeaderMap, body: Bytes| async move {
        keep.lock().await.push((method, headers, body));
        StatusCode::NO_CONTENT
    })))
    .await;
    (url, got)
}

fn post_to(url: &str) -> HttpHook {
    HttpHook { url: url.into(), method: "POST".into(), ..HttpHook::default() }
}

/// A client that may call this host.
fn client() -> HttpClient {
    HttpClient::new(Rules { loopback: true, ..Rules::default() }, None, ApiServer::default())
}

async fn try_with(client: &HttpClient, cluster: &Cluster, hook: &HttpHook, seconds: u64) -> (StepOutcome, String) {
    let call = fixture::call("run.PreUpdate.smoke.1", Call::Http(hook.clone()));
    let until = tokio::time::Instant::now() + Duration::from_secs(seconds);
    let end = client.attempt(&Attempt { cluster, call: &call, until }, hook).await;
    (end.outcome, end.reason.into_owned())
}

async fn try_hook(hook: &HttpHook, seconds: u64) -> (StepOutcome, String) {
    try_with(&client(), &fixture::no_cluster(), hook, seconds).await
}

async fn run(url: &str, seconds: u64) -> (StepOutcome, String) {
    try_hook(&post_to(url), seconds).await
}

fn succeeded(reason: &str) -> (StepOutcome, String) {
    (StepOutcome::Succeeded, reason.into())
}

fn failed(reason: &str) -> (StepOutcome, String) {
    (StepOutcome::Failed, reason.into())
}

fn timed_out(reason: &str) -> (StepOutcome, String) {
    (StepOutcome::TimedOut, reason.into())
}

/// An API server with one Secret, and the cluster that it is.
fn cluster_with(data: &Value) -> (apiserver::Server, Cluster) {
    let server = apiserver::Server::new(1, 0);
    put(&server, "secrets", "ns", json!({"metadata": {"name": "s"}, "data": data}));
    let cluster = fixture::cluster(server.client("interlock"));
    (server, cluster)
}

fn put(server: &apiserver::Server, plural: &str, namespace: &str, object: Value) {
    let kind = apiserver::kinds::of(plural);
    server.store.create(apiserver::store::Caller::system("test"), kind, namespace, object).unwrap();
}

fn base64(bytes: &[u8]) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).unwrap()
}

fn until(status: &[&str], expression: Option<&str>) -> RepeatUntil {
    RepeatUntil {
        status: status.iter().map(|s| (*s).to_owned()).collect(),
        expression: expression.map(Into::into),
        interval_seconds: 1,
    }
}

/// A receiver with one answer after the other; the last one stays.
async fn answers(all: Vec<(u16, &'static str)>) -> (String, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let url = serve(Router::new().fallback(any(move || async move {
        let (code, body) = all[count.fetch_add(1, Ordering::SeqCst).min(all.len() - 1)];
        (StatusCode::from_u16(code).unwrap(), body)
    })))
    .await;
    (url, calls)
}
