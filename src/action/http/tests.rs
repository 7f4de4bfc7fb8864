//! Against real receivers on loopback.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, header::LOCATION},
    response::IntoResponse,
    routing::post,
};
use interlock_core::api::policy::Phase;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::Mutex,
    time::Instant,
};

use super::*;

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

fn call(url: &str, timeout_seconds: i64) -> HookCall {
    HookCall {
        key: "run.PreUpdate.smoke.1".into(),
        hook: "smoke".into(),
        phase: Phase::PreUpdate,
        attempt: 1,
        url: url.into(),
        timeout_seconds,
        body: json!({"deployment": "web"}),
    }
}

async fn run(url: &str, timeout_seconds: i64) -> (StepOutcome, String) {
    let client = HttpClient::new(Allow { loopback: true }).unwrap();
    let result = attempt(&client, &call(url, timeout_seconds)).await;
    (result.outcome, result.reason)
}

#[tokio::test]
async fn sends_body_key_and_agent() {
    let got: Arc<Mutex<Option<(HeaderMap, Bytes)>>> = Arc::default();
    let keep = got.clone();
    let url = serve(Router::new().route(
        "/",
        post(move |headers: HeaderMap, body: Bytes| async move {
            *keep.lock().await = Some((headers, body));
            StatusCode::NO_CONTENT
        }),
    ))
    .await;
    assert_eq!(run(&url, 5).await, (StepOutcome::Succeeded, "Http204".into()));
    let (headers, body) = got.lock().await.take().unwrap();
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["idempotency-key"], "run.PreUpdate.smoke.1");
    assert_eq!(headers["user-agent"], concat!("interlock/", env!("CARGO_PKG_VERSION")));
    assert!(!headers.contains_key("cookie") && !headers.contains_key("accept-encoding"));
    assert_eq!(body, r#"{"deployment":"web"}"#);
}

#[tokio::test]
async fn a_status_other_than_2xx_is_a_failure_and_the_next_attempt_is_new() {
    let calls = Arc::new(AtomicUsize::new(0));
    let url = serve(Router::new().route(
        "/",
        post(|| async move {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }
        }),
    ))
    .await;
    assert_eq!(run(&url, 5).await, (StepOutcome::Failed, "Http500".into()));
    assert_eq!(run(&url, 5).await, (StepOutcome::Succeeded, "Http200".into()));
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let url = serve(
        Router::new()
            .route("/", post(|| async { (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, "/there")]).into_response() }))
            .route(
                "/there",
                post(|| async move {
                    count.fetch_add(1, Ordering::SeqCst);
                    StatusCode::OK
                }),
            ),
    )
    .await;
    assert_eq!(run(&url, 5).await, (StepOutcome::Failed, "Redirect".into()));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_receiver_that_hangs_times_out() {
    let url = serve(Router::new().route("/", post(std::future::pending::<StatusCode>))).await;
    let start = Instant::now();
    assert_eq!(run(&url, 1).await, (StepOutcome::TimedOut, "Timeout".into()));
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_huge_or_endless_body_is_read_to_the_limit_only() {
    let url = serve(Router::new().route("/", post(|| async { vec![b'x'; 10 << 20] }))).await;
    assert_eq!(run(&url, 5).await, (StepOutcome::Succeeded, "Http200".into()));

    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let url = serve(Router::new().route(
        "/",
        post(|| async move {
            Body::from_stream(futures::stream::repeat_with(move || {
                count.fetch_add(1, Ordering::SeqCst);
                Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 1024]))
            }))
        }),
    ))
    .await;
    assert_eq!(run(&url, 5).await, (StepOutcome::Succeeded, "Http200".into()));
    // What the kernel's buffers take on top of the limit.
    assert!(sent.load(Ordering::SeqCst) < 64 * 1024, "the connection was dropped");
}

#[tokio::test]
async fn a_body_that_drips_is_bounded_by_the_timeout() {
    let url = serve(Router::new().route(
        "/",
        post(|| async {
            Body::from_stream(futures::stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
            }))
        }),
    ))
    .await;
    let start = Instant::now();
    assert_eq!(run(&url, 1).await, (StepOutcome::TimedOut, "Timeout".into()));
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_failure_status_counts_before_its_body_has_ended() {
    let url = raw("HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\nno", true).await;
    assert_eq!(run(&url, 5).await, (StepOutcome::Failed, "Http503".into()));
}

#[tokio::test]
async fn a_closed_connection_is_a_failure_before_and_inside_the_answer() {
    assert_eq!(run(&raw("", false).await, 5).await, (StepOutcome::Failed, "ConnectionClosed".into()));
    let cut = raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", false).await;
    assert_eq!(run(&cut, 5).await, (StepOutcome::Failed, "ConnectionClosed".into()));
    let noise = raw("220 mail ready\r\n", false).await;
    assert_eq!(run(&noise, 5).await, (StepOutcome::Failed, "ConnectionClosed".into()));
}

#[tokio::test]
async fn nobody_there_and_no_tls_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let free = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(run(&format!("http://{free}/"), 5).await, (StepOutcome::Failed, "ConnectFailed".into()));
    assert_eq!(run("http://nobody.invalid/", 5).await, (StepOutcome::Failed, "ConnectFailed".into()));
    let plain = raw("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false).await;
    assert_eq!(run(&plain.replace("http:", "https:"), 5).await, (StepOutcome::Failed, "TlsFailed".into()));
}

#[tokio::test]
async fn addresses_that_hooks_may_not_call() {
    for url in [
        "http://169.254.169.254/latest",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::1]/",
        "http://2852039166/",
        "http://0xa9.0xfe.0251.254/",
        "https://100.100.100.200/",
        "http://224.0.0.1/",
    ] {
        assert_eq!(run(url, 5).await, (StepOutcome::Failed, "AddressRefused".into()), "{url}");
    }
}

#[tokio::test]
async fn loopback_is_refused_unless_allowed_by_address_and_by_name() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let url = serve(Router::new().route(
        "/",
        post(|| async move {
            count.fetch_add(1, Ordering::SeqCst);
        }),
    ))
    .await;
    let client = HttpClient::new(Allow::default()).unwrap();
    let port = url.rsplit(':').next().unwrap();
    for host in ["127.0.0.1", "localhost", "0.0.0.0", "127.1", "[::1]", "[::]", "[::ffff:127.0.0.1]"] {
        let result = attempt(&client, &call(&format!("http://{host}:{port}"), 5)).await;
        assert_eq!((result.outcome, result.reason.as_str()), (StepOutcome::Failed, "AddressRefused"), "{host}");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert_eq!(run(&format!("http://localhost:{port}"), 5).await.0, StepOutcome::Succeeded);
}

#[tokio::test]
async fn what_is_no_url_says_so() {
    for url in ["", "web", "ftp://web/", "http://", "http://a b/", "http://[::1", "unix:///x"] {
        assert_eq!(run(url, 5).await, (StepOutcome::Failed, "InvalidUrl".into()), "{url}");
    }
}
