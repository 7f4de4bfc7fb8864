//! Where requests may go.

use super::*;

#[tokio::test]
async fn loopback_is_refused_unless_allowed_by_address_and_by_name() {
    let (url, got) = keeps().await;
    let refuses = HttpClient::new(Rules::default(), None, ApiServer::default());
    let port = url.trim_end_matches('/').rsplit(':').next().unwrap();
    for host in ["127.0.0.1", "localhost", "0.0.0.0", "127.1", "[::1]", "[::]", "[::ffff:127.0.0.1]"] {
        let hook = post_to(&format!("http://{host}:{port}"));
        assert_eq!(try_with(&refuses, &fixture::no_cluster(), &hook, 60).await, failed("AddressRefused"), "{host}");
    }
    assert!(got.lock().await.is_empty());
    assert_eq!(run(&format!("http://localhost:{port}"), 60).await.0, StepOutcome::Succeeded);
}

/// A name that answers with a good address when it is looked at and with another one when it is connected to.
#[tokio::test]
async fn a_name_cannot_change_its_mind_between_check_and_connection() {
    let (url, got) = keeps().await;
    let port: u16 = url.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    let lookups = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lookups);
    let mut client = HttpClient::new(Rules::default(), None, ApiServer::default());
    client.lookup = Arc::new(move |_| {
        // 192.0.2.0/24 leads nowhere.
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        let address = if first { [192, 0, 2, 1] } else { [127, 0, 0, 1] };
        Box::pin(async move { Ok(vec![(address, 0).into()]) })
    });
    let hook = post_to(&format!("http://rebinds.test:{port}/"));
    let first = try_with(&client, &fixture::no_cluster(), &hook, 1).await;
    assert!([timed_out("Timeout"), failed("ConnectFailed")].contains(&first), "{first:?}");
    assert_eq!(lookups.load(Ordering::SeqCst), 1, "what was checked is what is connected to");
    assert_eq!(try_with(&client, &fixture::no_cluster(), &hook, 60).await, failed("AddressRefused"));
    // One good address among bad ones: only that is tried.
    let mixed = HttpClient::new(
        Rules { loopback: true, deny_networks: vec!["127.0.0.2".parse().unwrap()], ..Rules::default() },
        None,
        ApiServer::default(),
    );
    let mixed = HttpClient {
        lookup: Arc::new(|_| Box::pin(async { Ok(vec![([127, 0, 0, 2], 0).into(), ([127, 0, 0, 1], 0).into()]) })),
        ..mixed
    };
    assert_eq!(try_with(&mixed, &fixture::no_cluster(), &hook, 60).await, succeeded("Http204"));
    assert_eq!(got.lock().await.len(), 1);
}

#[tokio::test]
async fn the_api_server_is_refused_where_it_is_and_where_it_says_it_is() {
    let (url, got) = keeps().await;
    let server = url.parse().unwrap();
    let client = HttpClient::new(Rules { loopback: true, ..Rules::default() }, None, ApiServer::of(&server));
    let cluster = fixture::no_cluster();
    assert_eq!(try_with(&client, &cluster, &post_to(&url), 60).await, failed("AddressRefused"));
    let by_name = post_to(&url.replace("127.0.0.1", "localhost"));
    assert_eq!(try_with(&client, &cluster, &by_name, 60).await, failed("AddressRefused"));

    let (told, cluster) = cluster_with(&json!({}));
    put(
        &told,
        "services",
        "default",
        json!({"metadata": {"name": "kubernetes"}, "spec": {"clusterIPs": ["127.0.0.3"]}}),
    );
    let port = url.trim_end_matches('/').rsplit(':').next().unwrap().parse::<u16>().unwrap();
    put(
        &told,
        "endpointslices",
        "default",
        json!({
            "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["127.0.0.1"]}],
            "ports": [{"name": "https", "port": port}],
        }),
    );
    let elsewhere = "https://192.0.2.9:6443/".parse().unwrap();
    let client = HttpClient::new(Rules { loopback: true, ..Rules::default() }, None, ApiServer::of(&elsewhere));
    assert_eq!(try_with(&client, &cluster, &post_to(&url), 60).await, failed("AddressRefused"));
    assert_eq!(try_with(&client, &cluster, &post_to("http://127.0.0.3:9/"), 60).await, failed("AddressRefused"));
    assert!(got.lock().await.is_empty());
    let listed = Rules { loopback: true, allow_networks: vec!["127.0.0.1/32".parse().unwrap()], ..Rules::default() };
    let client = HttpClient::new(listed, None, ApiServer::of(&elsewhere));
    assert_eq!(try_with(&client, &cluster, &post_to(&url), 60).await, succeeded("Http204"));
}

#[tokio::test]
async fn the_config_map_counts_from_the_next_request_on() {
    let (url, got) = keeps().await;
    let (server, cluster) = cluster_with(&json!({}));
    let client = HttpClient::new(Rules { loopback: true, ..Rules::default() }, Some("system"), ApiServer::default());
    assert_eq!(try_with(&client, &cluster, &post_to(&url), 60).await, succeeded("Http204"));
    put(&server, "configmaps", "system", json!({"metadata": {"name": RULES}, "data": {"denyNetworks": "127.0.0.0/8"}}));
    assert_eq!(try_with(&client, &cluster, &post_to(&url), 60).await, failed("AddressRefused"));
    let edit = |text: &str| {
        let target = (apiserver::kinds::of("configmaps"), "system", RULES);
        let by = apiserver::store::Caller::system("test");
        let change = |old: &Value| {
            let mut new = old.clone();
            new["data"] = json!({"denyNetworks": text});
            Ok(new)
        };
        server.store.update(by, target, apiserver::store::Part::Main, change).unwrap();
    };
    edit("all of it");
    assert_eq!(try_with(&client, &cluster, &post_to(&url), 60).await, failed("RulesInvalid"));
    edit("10.0.0.0/8");
    assert_eq!(try_with(&client, &cluster, &post_to(&url), 60).await, succeeded("Http204"));
    assert_eq!(try_with(&client, &fixture::no_cluster(), &post_to(&url), 60).await, failed("RulesUnread"));
    assert_eq!(got.lock().await.len(), 2);
}

#[tokio::test]
async fn what_is_no_url_says_so() {
    for url in ["", "web", "ftp://web/", "http://", "http://a b/", "http://[::1", "unix:///x"] {
        assert_eq!(run(url, 60).await, failed("InvalidUrl"), "{url}");
    }
}
