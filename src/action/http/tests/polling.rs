//! Asking again until an answer is the wanted one.

use super::*;

#[tokio::test]
async fn asked_again_until_an_answer_is_the_wanted_one() {
    let (url, calls) =
        answers(vec![(503, ""), (200, "no json"), (200, r#"{"done": false}"#), (200, r#"{"done": true}"#)]).await;
    let hook = HttpHook { repeat_until: Some(until(&[], Some("status == 200 && body.done"))), ..post_to(&url) };
    assert_eq!(try_hook(&hook, 30).await, succeeded("Http200"));
    assert_eq!(calls.load(Ordering::SeqCst), 4);

    let (url, _) = answers(vec![(200, ""), (404, "")]).await;
    let hook = HttpHook { repeat_until: Some(until(&["404"], None)), ..post_to(&url) };
    assert_eq!(try_hook(&hook, 30).await, succeeded("Http404"));
}

#[tokio::test]
async fn asked_again_after_trouble_on_the_way_and_not_after_what_no_answer_changes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let free = listener.local_addr().unwrap();
    drop(listener);
    let hook = HttpHook { repeat_until: Some(until(&[], None)), ..post_to(&format!("http://{free}/")) };
    let later = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let listener = TcpListener::bind(free).await.unwrap();
        // The first one is closed without an answer.
        drop(listener.accept().await);
        axum::serve(listener, Router::new().route("/", post(|| async {}))).await
    });
    assert_eq!(try_hook(&hook, 30).await, succeeded("Http200"));
    later.abort();
    let (url, calls) = answers(vec![(200, "{}")]).await;
    for (hook, reason) in [
        (HttpHook { repeat_until: Some(until(&[], Some("body ="))), ..post_to(&url) }, "InvalidHook"),
        (HttpHook { repeat_until: Some(until(&[], None)), ..post_to("http://224.0.0.1/") }, "AddressRefused"),
        (HttpHook { repeat_until: Some(until(&[], None)), ..post_to("ftp://x/") }, "InvalidUrl"),
    ] {
        assert_eq!(try_hook(&hook, 30).await, failed(reason));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn polling_ends_with_the_timeout_and_says_what_was_answered_last() {
    let (url, _) = answers(vec![(503, "")]).await;
    let hook = HttpHook { repeat_until: Some(until(&[], None)), ..post_to(&url) };
    assert_eq!(try_hook(&hook, 5).await, timed_out("Http503"));
    let (url, _) = answers(vec![(200, "[]")]).await;
    let hook = HttpHook { repeat_until: Some(until(&[], Some("body.done"))), ..post_to(&url) };
    assert_eq!(try_hook(&hook, 5).await, timed_out("NotYet"));
    let url = serve(Router::new().route("/", post(std::future::pending::<StatusCode>))).await;
    let hook = HttpHook { repeat_until: Some(until(&[], None)), ..post_to(&url) };
    assert_eq!(try_hook(&hook, 1).await, timed_out("Timeout"));
}

/// An answer that is too long for its body to be looked at has none.
#[tokio::test]
async fn a_body_over_the_limit_is_no_json() {
    let long: &'static str =
        Box::leak(format!("{{\"done\": true, \"x\": \"{}\"}}", "x".repeat(BODY_LIMIT)).into_boxed_str());
    let (url, _) = answers(vec![(200, long)]).await;
    let hook = HttpHook { repeat_until: Some(until(&[], Some("body == null"))), ..post_to(&url) };
    assert_eq!(try_hook(&hook, 60).await, succeeded("Http200"));
}
