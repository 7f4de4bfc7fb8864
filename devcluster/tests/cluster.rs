//! A cluster does what a cluster does: pods get ready, change in place, and the audit log tells who
//! did it.

mod common;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use common::{deployment, pods, ready_pods, until};
use devcluster::{Cluster, Component, Event, Options};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

#[tokio::test]
async fn a_deployment_gets_ready_and_an_image_changes_in_place() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let client = cluster.client_with_agent("in-place-test/1").await?;
    deployment(&client, "web", 3).await?;
    let pods = ready_pods(&client, "web", 3).await?;
    for pod in &pods {
        let status = pod.status.as_ref().context("status")?;
        assert_eq!(status.observed_generation, pod.metadata.generation);
        let container = &status.container_statuses.as_ref().context("container statuses")?[0];
        assert!(container.image_id.starts_with("r.test/app@sha256:"), "{}", container.image_id);
    }

    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let name = pods[0].metadata.name.clone().context("name")?;
    let old = pods[0].status.clone().and_then(|status| status.container_statuses).context("container statuses")?;
    let mark = cluster.audit_mark().await?;
    let patch = json!({ "spec": { "containers": [{ "name": "app", "image": "r.test/app:v2" }] } });
    api.patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    let new = until("the new image", async || {
        let status = api.get(&name).await?.status.and_then(|status| status.container_statuses);
        let container = status.context("container statuses")?.remove(0);
        Ok((container.ready && container.image == "r.test/app:v2").then_some(container))
    })
    .await?;
    assert_eq!(new.restart_count, 1);
    assert_ne!(new.image_id, old[0].image_id);
    let uid = api.get(&name).await?.metadata.uid;
    assert_eq!(uid, pods[0].metadata.uid, "the pod is the same");

    let is_ours = |event: &Event| event.user_agent == "in-place-test/1" && event.verb == "patch";
    let audit = cluster.audit()?;
    let event = audit.wait_for(mark, Duration::from_secs(10), is_ours).await?;
    assert_eq!((event.name.as_str(), event.code, event.acting_user()), (name.as_str(), 200, "admin"));
    assert!(event.is_about("pods"));
    let after = cluster.audit_mark().await?;
    ensure!(!audit.writes_since(after)?.iter().any(is_ours), "nothing of ours comes behind a later mark");
    assert_eq!(audit.writes_since(mark)?.iter().filter(|event| is_ours(event)).count(), 1);
    Ok(())
}

#[tokio::test]
async fn clients_are_who_they_say() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let admin = cluster.client().await?;
    let who = |client: kube::Client| async move {
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&review)?)?;
        let answer: serde_json::Value = client.request(request).await?;
        let groups = answer["status"]["userInfo"]["groups"].as_array().cloned().unwrap_or_default();
        let groups: Vec<String> = groups.iter().filter_map(|group| group.as_str().map(str::to_owned)).collect();
        let name = answer["status"]["userInfo"]["username"].as_str().context("user name")?.to_owned();
        anyhow::Ok((name, groups))
    };
    assert_eq!(who(admin.clone()).await?.0, "admin");

    let (name, groups) = who(cluster.client_as("dev", &["team"]).await?).await?;
    assert_eq!((name.as_str(), groups), ("dev", vec!["team".to_owned(), "system:authenticated".to_owned()]));

    if cluster.is_owned() {
        let path = cluster.issue_client_cert("carl", &["one", "two"])?;
        let (name, groups) = who(cluster.client_from(&path).await?).await?;
        assert_eq!(name, "carl");
        assert!(groups.contains(&"one".to_owned()) && groups.contains(&"two".to_owned()), "{groups:?}");
    }

    let space: Namespace = serde_json::from_value(json!({ "metadata": { "name": "accounts" } }))?;
    Api::all(admin.clone()).create(&PostParams::default(), &space).await?;
    let account: ServiceAccount = serde_json::from_value(json!({ "metadata": { "name": "robot" } }))?;
    Api::namespaced(admin, "accounts").create(&PostParams::default(), &account).await?;
    let path = cluster.service_account_kubeconfig("accounts", "robot").await?;
    let (name, _) = who(cluster.client_from(&path).await?).await?;
    assert_eq!(name, "system:serviceaccount:accounts:robot");
    Ok(())
}

#[tokio::test]
async fn components_can_be_frozen_killed_and_restarted() -> Result<()> {
    let cluster = Cluster::start(Options::default()).await?;
    let client = cluster.client().await?;
    deployment(&client, "web", 2).await?;
    let before = ready_pods(&client, "web", 2).await?;

    cluster.pause(Component::ApiServer)?;
    let frozen = tokio::time::timeout(Duration::from_secs(1), client.apiserver_version()).await;
    assert!(frozen.is_err(), "a frozen API server does not answer");
    cluster.resume(Component::ApiServer)?;
    client.apiserver_version().await?;

    cluster.kill(Component::ApiServer)?;
    assert!(client.apiserver_version().await.is_err());
    assert!(cluster.pid(Component::ApiServer).is_err());
    cluster.restart(Component::ApiServer).await?;
    let pods = Api::<Pod>::namespaced(client.clone(), "default").list(&ListParams::default()).await?.items;
    assert_eq!(pods.len(), before.len(), "the data is still there");

    cluster.restart(Component::Etcd).await?;
    cluster.restart(Component::Kwok).await?;
    cluster.restart(Component::ControllerManager).await?;
    cluster.restart(Component::Scheduler).await?;
    deployment(&client, "second", 2).await?;
    ready_pods(&client, "second", 2).await?;
    Ok(())
}

#[tokio::test]
async fn a_proxy_can_sit_before_the_controller_manager() -> Result<()> {
    let cluster = Cluster::start(Options::default()).await?;
    let client = cluster.client().await?;
    let server = cluster.server()?.replace("https://", "");
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let proxy = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((mut from, _)) = listener.accept().await {
            let mut to = tokio::net::TcpStream::connect(&server).await?;
            connections.spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
        }
        anyhow::Ok(())
    });
    cluster.route(Component::ControllerManager, Some(&format!("https://{address}"))).await?;
    deployment(&client, "web", 2).await?;
    ready_pods(&client, "web", 2).await?;

    // Without the proxy the controller manager sees nothing, so all its requests do go through it.
    proxy.abort();
    assert!(proxy.await.is_err_and(|error| error.is_cancelled()));
    deployment(&client, "unseen", 1).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(pods(&client, "unseen").await?.is_empty());
    cluster.route(Component::ControllerManager, None).await?;
    ready_pods(&client, "unseen", 1).await?;
    Ok(())
}

#[tokio::test]
async fn a_given_cluster_can_be_used_but_not_broken() -> Result<()> {
    let own = Cluster::shared().await?;
    let given = Cluster::attach(own.kubeconfig_path().to_owned()).await?;
    given.client().await?.apiserver_version().await?;
    assert!(!given.is_owned());
    let error = given.kill(Component::ApiServer).expect_err("it is not ours").to_string();
    assert!(error.contains("a given cluster is used"), "{error}");
    let path = given.service_account_kubeconfig("default", "default").await?;
    given.client_from(&path).await?.apiserver_version().await?;
    Ok(())
}

#[tokio::test]
async fn a_failing_start_shows_the_log() -> Result<()> {
    let options = Options { apiserver_args: vec!["--no-such-flag".to_owned()], ..Default::default() };
    let Err(error) = Cluster::start(options).await else { panic!("it started") };
    let text = format!("{error:#}");
    assert!(text.contains("kube-apiserver has ended") && text.contains("no-such-flag"), "{text}");
    // The logs are kept for people; this test is not one of them.
    let logs =
        text.split("its logs are in ").nth(1).and_then(|rest| rest.split(": ").next()).context("where the logs are")?;
    let logs = std::path::Path::new(logs);
    assert!(logs.join("kube-apiserver.log").is_file());
    std::fs::remove_dir_all(logs.parent().context("a parent")?)?;
    Ok(())
}
