//! Answers: what counts as success, and trouble on the way to it.

use super::*;

#[tokio::test]
async fn which_status_is_success() {
    for (status, success, want) in [
        (202, &[][..], succeeded("Http202")),
        (404, &[], failed("Http404")),
        (404, &["200-299", "404"], succeeded("Http404")),
        (200, &["204"], failed("Http200")),
        (302, &["302"], succeeded("Http302")),
        (302, &[], failed("Redirect")),
    ] {
        let code = StatusCode::from_u16(status).unwrap();
        let url = serve(Router::new().route("/", post(move || async move { code }))).await;
        let hook = HttpHook { success_status: success.iter().map(|s| (*s).to_owned()).collect(), ..post_to(&url) };
        assert_eq!(try_hook(&hook, 60).await, want, "{status} {success:?}");
    }
}

#[tokio::test]
async fn a_status_other_than_2xx_is_a_failure_and_the_next_attempt_is_new() {
    let calls = Arc::new(AtomicUsize::new(0));
    let url = serve(Router::new().route(
        "/",
        post(|| async move {
            if calls.fetch_add(1, Ordering::SeqCst) < 3 { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }
        }),
    ))
    .await;
    for _ in 0..3 {
        assert_eq!(run(&url, 60).await, failed("Http500"));
    }
    assert_eq!(run(&url, 60).await, succeeded("Http200"));
}

/// A receiver answers after we have given up, and is asked again with the same key: it can tell that it did so already.
#[tokio::test]
async fn a_late_answer_and_a_duplicate_delivery_have_the_same_key() {
    let done: Arc<Sync<Vec<String>>> = Arc::default();
    let log = Arc::clone(&done);
    let url = serve(Router::new().route(
        "/",
        post(move |headers: HeaderMap| async move {
            let key = headers["idempotency-key"].to_str().unwrap().to_owned();
            let new = !log.lock().unwrap().contains(&key);
            log.lock().unwrap().push(key);
            if new {
                tokio::time::sleep(Duration::from_millis(1500)).await;
            }
            StatusCode::OK
        }),
    ))
    .await;
    assert_eq!(run(&url, 1).await, timed_out("Timeout"));
    assert_eq!(run(&url, 60).await, succeeded("Http200"));
    let done = done.lock().unwrap();
    assert_eq!((done.len(), &done[0]), (2, &done[1]));
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
    assert_eq!(run(&url, 60).await, failed("Redirect"));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_receiver_that_hangs_times_out() {
    let url = serve(Router::new().route("/", post(std::future::pending::<StatusCode>))).await;
    assert_eq!(run(&url, 1).await, timed_out("Timeout"));
}

#[tokio::test]
async fn a_huge_or_endless_body_is_read_to_the_limit_only() {
    let url = serve(Router::new().route("/", post(|| async { vec![b'x'; 10 << 20] }))).await;
    assert_eq!(run(&url, 60).await, succeeded("Http200"));

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
    assert_eq!(run(&url, 60).await, succeeded("Http200"));
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
    assert_eq!(run(&url, 1).await, timed_out("Timeout"));
}

#[tokio::test]
async fn a_failure_status_counts_before_its_body_has_ended() {
    let url = raw("HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\nno", true).await;
    assert_eq!(run(&url, 60).await, failed("Http503"));
}

#[tokio::test]
async fn a_closed_connection_is_a_failure_before_and_inside_the_answer() {
    assert_eq!(run(&raw("", false).await, 60).await, failed("ConnectionClosed"));
    let cut = raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", false).await;
    assert_eq!(run(&cut, 60).await, failed("ConnectionClosed"));
    let noise = raw("220 mail ready\r\n", false).await;
    assert_eq!(run(&noise, 60).await, failed("ConnectionClosed"));
}

#[tokio::test]
async fn nobody_there_and_no_tls_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let free = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(run(&format!("http://{free}/"), 60).await, failed("ConnectFailed"));
    assert_eq!(run("http://nobody.invalid/", 60).await, failed("ConnectFailed"));
    let plain = raw("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false).await;
    assert_eq!(run(&plain.replace("http:", "https:"), 60).await, failed("TlsFailed"));
}
