//! Requests: what is sent.

use super::*;

#[tokio::test]
async fn sends_body_key_and_agent() {
    let (url, got) = keeps().await;
    assert_eq!(run(&url, 60).await, succeeded("Http204"));
    let (method, headers, body) = got.lock().await.pop().unwrap();
    assert_eq!(method, Method::POST);
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["idempotency-key"], "run.PreUpdate.smoke.1");
    assert_eq!(headers["user-agent"], concat!("interlock/", env!("CARGO_PKG_VERSION")));
    assert!(!headers.contains_key("cookie") && !headers.contains_key("accept-encoding"));
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["deployment"], "web");
}

#[tokio::test]
async fn methods_headers_and_templates() {
    let (url, got) = keeps().await;
    for (method, body, sent) in [
        ("GET", None, ""),
        ("DELETE", None, ""),
        ("DELETE", Some("x"), "x"),
        ("PUT", Some(r#"{"i":"${images.app}"}"#), r#"{"i":"r.test/app:v2"}"#),
    ] {
        let hook = HttpHook {
            method: method.into(),
            body: body.map(Into::into),
            headers: vec![
                Header { name: "X-A".into(), value: "1".into() },
                Header { name: "X-A".into(), value: "2".into() },
                Header { name: "content-type".into(), value: "text/x-own".into() },
                Header { name: "User-Agent".into(), value: "own".into() },
            ],
            ..post_to(&url)
        };
        assert_eq!(try_hook(&hook, 60).await, succeeded("Http204"));
        let (got_method, headers, got_body) = got.lock().await.pop().unwrap();
        assert_eq!((got_method.as_str(), &got_body[..]), (method, sent.as_bytes()));
        assert_eq!(headers.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(
            (&headers["content-type"], &headers["user-agent"]),
            (&"text/x-own".parse().unwrap(), &"own".parse().unwrap())
        );
    }
    for (name, value) in [
        ("Host", "x"),
        ("content-length", "1"),
        ("Transfer-Encoding", "chunked"),
        ("Idempotency-Key", "x"),
        ("X-Interlock-Signature", "x"),
        ("Connection", "close"),
        ("b ad", "x"),
        ("X-A", "a\nb"),
    ] {
        let hook = HttpHook { headers: vec![Header { name: name.into(), value: value.into() }], ..post_to(&url) };
        assert_eq!(try_hook(&hook, 60).await, failed("InvalidHook"), "{name}");
    }
    for hook in [
        HttpHook { method: "CONNECT".into(), ..post_to(&url) },
        HttpHook { method: "A B".into(), ..post_to(&url) },
        HttpHook { body: Some("${nobody}".into()), ..post_to(&url) },
        HttpHook { success_status: vec!["20x".into()], ..post_to(&url) },
    ] {
        assert_eq!(try_hook(&hook, 60).await, failed("InvalidHook"));
    }
    assert!(got.lock().await.is_empty());
}

#[tokio::test]
async fn a_cloud_event_has_the_key_as_its_id() {
    let (url, got) = keeps().await;
    let hook = HttpHook { format: BodyFormat::CloudEvents, ..post_to(&url) };
    let mut call = fixture::call("run.PrePod.h.pod.1", Call::Http(hook.clone()));
    call.pod = Some(ObjectRef { name: "web-1".into(), uid: "p".into() });
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    let cluster = fixture::no_cluster();
    assert_eq!(
        client().attempt(&Attempt { cluster: &cluster, call: &call, until }, &hook).await.outcome,
        StepOutcome::Succeeded
    );
    let (_, headers, body) = got.lock().await.pop().unwrap();
    assert_eq!(headers["content-type"], "application/cloudevents+json; charset=UTF-8");
    let event: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        event,
        json!({
            "specversion": "1.0",
            "id": "run.PrePod.h.pod.1",
            "source": "/apis/apps/v1/namespaces/ns/deployments/web",
            "type": "dev.interlock.hook.PreUpdate",
            "subject": "h/web-1",
            "time": "2027-01-15T08:00:00Z",
            "datacontenttype": "application/json",
            "data": call.facts,
        })
    );
}

#[tokio::test]
async fn secrets_go_where_they_belong_and_a_missing_one_is_a_failure() {
    let (url, got) = keeps().await;
    let (server, cluster) =
        cluster_with(&json!({"token": base64(b"t0ken\n"), "part": base64(b"a\"b"), "raw": base64(&[0xff, 0])}));
    let from = |key: &str| HeaderFrom {
        header: "Authorization".into(),
        prefix: "Bearer ".into(),
        name: "s".into(),
        key: key.into(),
    };
    let part = |name: &str, key: &str| BodyFrom { variable: "p".into(), name: name.into(), key: key.into() };
    let hook = HttpHook {
        headers_from: vec![from("token")],
        body: Some(r#"{"p": "${secret.p}"}"#.into()),
        body_from: vec![part("s", "part")],
        hmac: Some(SecretKey { name: "s".into(), key: "raw".into() }),
        ..post_to(&url)
    };
    assert_eq!(try_with(&client(), &cluster, &hook, 60).await, succeeded("Http204"));
    let (_, headers, body) = got.lock().await.pop().unwrap();
    assert_eq!(headers["authorization"], "Bearer t0ken");
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({"p": "a\"b"}));
    let signature = headers["x-interlock-signature"].to_str().unwrap();
    let seconds: i64 = signature.strip_prefix("t=").unwrap().split(',').next().unwrap().parse().unwrap();
    assert_eq!(signature, request::sign(&[0xff, 0], seconds, &body).unwrap());
    // One read of one Secret, by its name.
    let asked = server.asked();
    assert_eq!(
        asked.iter().map(|a| (a.method.as_str(), a.path.as_str())).collect::<Vec<_>>(),
        [("GET", "/api/v1/namespaces/ns/secrets/s")]
    );

    for (hook, reason) in [
        (HttpHook { headers_from: vec![from("nobody")], ..post_to(&url) }, "SecretMissing"),
        (HttpHook { headers_from: vec![from("raw")], ..post_to(&url) }, "SecretInvalid"),
        (HttpHook { body: Some("x".into()), body_from: vec![part("other", "part")], ..post_to(&url) }, "SecretMissing"),
        (
            HttpHook { hmac: Some(SecretKey { name: "other".into(), key: "x".into() }), ..post_to(&url) },
            "SecretMissing",
        ),
        (HttpHook { client_certificate: Some(SecretName { name: "s".into() }), ..post_to(&url) }, "SecretMissing"),
    ] {
        assert_eq!(try_with(&client(), &cluster, &hook, 60).await, failed(reason));
        assert_eq!(try_with(&client(), &fixture::no_cluster(), &hook, 60).await, failed("SecretUnread"));
    }
    assert!(got.lock().await.is_empty());
}

/// The time in front of the body is signed with it.
#[test]
fn the_signature_is_an_hmac_sha_256() {
    let signature = request::sign(b"Jefe", 1, b"x").unwrap();
    assert!(signature.starts_with("t=1,v1=") && signature.len() == 7 + 64, "{signature}");
    assert_ne!(signature, request::sign(b"Jefe", 2, b"x").unwrap());
    assert_ne!(signature, request::sign(b"Jeff", 1, b"x").unwrap());
    assert_ne!(signature, request::sign(b"Jefe", 1, b"y").unwrap());
    // HMAC-SHA256("key", "1.body"), from another implementation.
    assert_eq!(
        request::sign(b"key", 1, b"body").unwrap(),
        "t=1,v1=91b5374b153842ad05b2c4eab9349b8321b14703165bd3fb8b034dfb8be98ae5"
    );
}
