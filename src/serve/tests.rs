use std::time::Duration;

use super::*;
use crate::lease::Fence;

async fn start() -> (Health, String, CancellationToken, tokio::task::JoinHandle<Result<(), ServeError>>) {
    let health = Health::new(Fence::always());
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}", server.address());
    let stop = CancellationToken::new();
    let task = tokio::spawn(server.run(health.clone(), Metrics::new(), stop.clone()));
    (health, url, stop, task)
}

async fn get(url: &str, path: &str) -> (u16, String) {
    let answer =
        reqwest::Client::builder().no_proxy().build().unwrap().get(format!("{url}{path}")).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn ready_only_when_synced_and_running_and_not_stopping() {
    let (health, url, stop, task) = start().await;
    assert_eq!(get(&url, "/healthz").await, (200, "ok\n".into()));
    assert_eq!(get(&url, "/readyz").await, (503, "the caches are not complete yet\n".into()));
    health.synced(true);
    assert_eq!(get(&url, "/readyz").await, (503, "this process leads and has not started to act yet\n".into()));
    health.running(true);
    assert_eq!(get(&url, "/readyz").await, (200, "ok\n".into()));
    health.stopping();
    assert_eq!(get(&url, "/readyz").await, (503, "shutting down\n".into()));
    assert_eq!(get(&url, "/else").await.0, 404);
    stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn metrics_are_served_as_openmetrics() {
    let (_health, url, _stop, _task) = start().await;
    let answer =
        reqwest::Client::builder().no_proxy().build().unwrap().get(format!("{url}/metrics")).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], metrics::CONTENT_TYPE);
    assert!(answer.text().await.unwrap().contains("interlock_build_info"));
}

#[tokio::test(start_paused = true)]
async fn a_silent_loop_is_dead_and_a_warm_follower_is_ready() {
    let (candidate, fence) =
        crate::lease::Candidate::new(kube::Client::new(tower::service_fn(never), "default"), "a", "b", "c".into());
    let health = Health::new(fence);
    health.synced(true);
    assert_eq!(health.ready(), Ok(()));
    tokio::time::advance(Duration::from_secs(59)).await;
    health.beat();
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(health.alive(), Ok(()));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(health.alive(), Err("the controller loop has not come round for 60 s".into()));
    assert!(health.ready().is_err());
    drop(candidate);
}

async fn never(
    _: http::Request<kube::client::Body>,
) -> Result<http::Response<kube::client::Body>, std::convert::Infallible> {
    std::future::pending().await
}

#[tokio::test]
async fn a_taken_port_is_a_clear_error() {
    let first = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let error = Server::bind(first.address()).await.err().unwrap().to_string();
    assert!(error.starts_with(&format!("--listen {}: cannot listen there: ", first.address())), "{error}");
}
