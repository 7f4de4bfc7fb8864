//! What must be seen nowhere.

use super::*;

/// Everything that is logged on any level.
#[derive(Clone, Default)]
struct Log(Arc<Sync<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A Secret's value, a token and what a receiver answers are in no log line and in no text of ours.
#[tokio::test]
async fn canaries_are_seen_nowhere() {
    let log = Log::default();
    let sink = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(move || sink.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let canaries = ["canary-token", "canary-part", "canary-signing", "canary-answer", "canary-header"];
    let (url, _) = answers(vec![(500, "canary-answer"), (200, r#"{"x": "canary-answer"}"#)]).await;
    let (server, cluster) = cluster_with(&json!({
        "token": base64(b"canary-token"), "part": base64(b"canary-part"), "key": base64(b"canary-signing"), "bad": "canary-part",
    }));
    let hook = HttpHook {
        headers_from: vec![HeaderFrom {
            header: "Authorization".into(),
            prefix: String::new(),
            name: "s".into(),
            key: "token".into(),
        }],
        body: Some("${secret.p}".into()),
        body_from: vec![BodyFrom { variable: "p".into(), name: "s".into(), key: "part".into() }],
        hmac: Some(SecretKey { name: "s".into(), key: "key".into() }),
        repeat_until: Some(until(&[], Some("body.x == 'y'"))),
        ..post_to(&url)
    };
    let mut texts = format!("{:?}", try_with(&client(), &cluster, &hook, 3).await);
    let bad = HttpHook {
        body_from: vec![BodyFrom { variable: "p".into(), name: "s".into(), key: "bad".into() }],
        ..hook.clone()
    };
    texts += &format!("{:?}", try_with(&client(), &cluster, &bad, 1).await);
    let closed = HttpHook { url: raw("", false).await, repeat_until: None, ..hook.clone() };
    texts += &format!("{:?}", try_with(&client(), &cluster, &closed, 1).await);
    texts += &format!("{:?} {:?}", fixture::call("k", Call::Http(hook)), server.asked());
    texts += &String::from_utf8_lossy(&log.0.lock().unwrap());
    assert!(texts.contains("http"), "something is logged: {}", texts.len());
    for canary in canaries {
        let encoded = base64(canary.as_bytes());
        for text in [canary, encoded.as_str().unwrap()] {
            assert!(
                !texts.contains(text),
                "{text} in {}",
                texts.lines().find(|l| l.contains(text)).unwrap_or_default()
            );
        }
    }
}
