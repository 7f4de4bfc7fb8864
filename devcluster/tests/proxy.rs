//! A proxy spoils the watches of one resource of one client and nothing else.

mod common;

use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use common::{deployment, pods, ready_pods, until};
use devcluster::{Cluster, Component, Options, WatchFault, WatchProxy};
use futures::{Stream, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Resource;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(10);
const LATE: Duration = Duration::from_millis(1500);

/// A proxy to the shared cluster, a client through it, and one that goes straight there.
async fn through() -> Result<(WatchProxy, Client, Client)> {
    let cluster = Cluster::shared().await?;
    let proxy = WatchProxy::start(cluster.config().await?).await?;
    let mut config = kube::Config::new(proxy.url().parse()?);
    config.default_retry = false;
    Ok((proxy, Client::try_from(config)?, cluster.client().await?))
}

type Events<K> = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<K>>>>>;

/// A watch from now on.
async fn watch<K>(client: &Client) -> Result<Events<K>>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
    K: 'static,
{
    let api: Api<K> = Api::namespaced(client.clone(), "default");
    let version = api.list(&ListParams::default()).await?.metadata.resource_version.context("a version")?;
    Ok(Box::pin(api.watch(&WatchParams::default(), &version).await?))
}

async fn config_map(client: &Client, name: &str) -> Result<()> {
    let object: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
    Api::namespaced(client.clone(), "default").create(&PostParams::default(), &object).await?;
    Ok(())
}

async fn secret(client: &Client, name: &str) -> Result<()> {
    let object: Secret = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
    Api::namespaced(client.clone(), "default").create(&PostParams::default(), &object).await?;
    Ok(())
}

/// Waits until the object with this name shows up.
async fn seen<K: kube::ResourceExt + Clone>(events: &mut Events<K>, name: &str) -> Result<()> {
    let search = async {
        while let Some(event) = events.try_next().await? {
            if let WatchEvent::Added(object) = event
                && object.name_any() == name
            {
                return anyhow::Ok(());
            }
        }
        anyhow::bail!("the watch ended")
    };
    timeout(SOON, search).await.context("not seen in time")?
}

#[tokio::test]
async fn one_resource_is_late_in_order_and_the_others_are_not() -> Result<()> {
    let (proxy, client, straight) = through().await?;
    let (mut maps, mut secrets) = (watch::<ConfigMap>(&client).await?, watch::<Secret>(&client).await?);
    config_map(&client, "late-0").await?;
    seen(&mut maps, "late-0").await?;
    // A watch that runs already takes part.
    proxy.set("configmaps", WatchFault::Delay(LATE));
    let start = Instant::now();
    config_map(&straight, "late-1").await?;
    config_map(&straight, "late-2").await?;
    secret(&straight, "not-late").await?;
    seen(&mut secrets, "not-late").await?;
    assert!(timeout(Duration::from_millis(200), maps.try_next()).await.is_err(), "nothing comes yet");
    seen(&mut maps, "late-1").await?;
    seen(&mut maps, "late-2").await?;
    assert!(start.elapsed() >= LATE, "{:?}", start.elapsed());
    proxy.set("configmaps", WatchFault::None);
    config_map(&straight, "late-3").await?;
    seen(&mut maps, "late-3").await?;
    assert_eq!((proxy.begun("configmaps"), proxy.begun("secrets"), proxy.begun("pods")), (1, 1, 0));
    assert_eq!((proxy.running("configmaps"), proxy.running("secrets"), proxy.running("pods")), (1, 1, 0));
    drop(maps);
    until("the end is noticed", async || Ok((proxy.running("configmaps") == 0).then_some(()))).await?;
    Ok(())
}

#[tokio::test]
async fn a_cut_ends_what_runs_and_a_black_hole_swallows_it_for_good() -> Result<()> {
    let (proxy, client, straight) = through().await?;
    let mut cut = watch::<ConfigMap>(&client).await?;
    proxy.cut("configmaps");
    let end = timeout(SOON, cut.try_next()).await?;
    ensure!(!matches!(end, Ok(Some(_))), "{end:?}");

    let mut caught = watch::<ConfigMap>(&client).await?;
    proxy.set("configmaps", WatchFault::BlackHole);
    assert!(timeout(LATE, watch::<ConfigMap>(&client)).await.is_err(), "a new one gets no answer");
    proxy.set("configmaps", WatchFault::None);
    let mut new = watch::<ConfigMap>(&client).await?;
    config_map(&straight, "unseen").await?;
    seen(&mut new, "unseen").await?;
    assert!(timeout(Duration::from_millis(300), caught.try_next()).await.is_err(), "caught for good");
    assert_eq!(proxy.begun("configmaps"), 4);
    timeout(SOON, proxy.more_than("configmaps", 3)).await?;
    Ok(())
}

#[tokio::test]
async fn what_goes_on_from_a_version_is_told_that_it_is_gone() -> Result<()> {
    let (proxy, client, _) = through().await?;
    let mut running = watch::<ConfigMap>(&client).await?;
    proxy.set("configmaps", WatchFault::Gone);
    assert!(!matches!(timeout(SOON, running.try_next()).await?, Ok(Some(_))), "it was cut");
    let Err(error) = watch::<ConfigMap>(&client).await else { panic!("it began") };
    assert!(matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 410), "{error:?}");
    proxy.set("configmaps", WatchFault::Expired);
    let event = timeout(SOON, watch::<ConfigMap>(&client).await?.try_next()).await??;
    assert!(matches!(&event, Some(WatchEvent::Error(status)) if status.code == 410), "{event:?}");
    let all = WatchParams::default().initial_events();
    let mut begins = Box::pin(Api::<ConfigMap>::namespaced(client, "default").watch(&all, "0").await?);
    assert!(
        matches!(timeout(SOON, begins.try_next()).await??, Some(WatchEvent::Added(_))),
        "one from the start passes"
    );
    Ok(())
}

#[tokio::test]
async fn who_brings_a_token_keeps_it_and_others_get_the_proxys_credentials() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let (proxy, client, straight) = through().await?;
    let account: ServiceAccount = serde_json::from_value(json!({ "metadata": { "name": "through-proxy" } }))?;
    Api::namespaced(straight, "default").create(&PostParams::default(), &account).await?;
    let path = cluster.service_account_kubeconfig("default", "through-proxy").await?;
    let mut config =
        kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await?;
    config.cluster_url = proxy.url().parse()?;
    let who = async |client: Client| {
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&review)?)?;
        let answer: serde_json::Value = client.request(request).await?;
        anyhow::Ok(answer["status"]["userInfo"]["username"].clone())
    };
    assert_eq!(who(client).await?, "admin");
    assert_eq!(who(Client::try_from(config)?).await?, "system:serviceaccount:default:through-proxy");
    Ok(())
}

#[tokio::test]
async fn the_controllers_of_deployments_and_replica_sets_are_spoiled_one_by_one() -> Result<()> {
    let cluster = Cluster::start(Options { separate_controllers: true, ..Options::default() }).await?;
    let client = cluster.client().await?;
    for component in [Component::DeploymentController, Component::ReplicaSetController] {
        let name = component.to_string();
        let proxy = cluster.proxy(component).await?;
        cluster.route(component, Some(&proxy.url())).await?;
        let watched =
            if component == Component::DeploymentController { "deployments.apps" } else { "replicasets.apps" };
        timeout(SOON * 3, proxy.more_than(watched, 0)).await.with_context(|| format!("{name} watches"))?;
        deployment(&client, &format!("{name}-before"), 1).await?;
        ready_pods(&client, &format!("{name}-before"), 1).await?;
        proxy.set(watched, WatchFault::BlackHole);
        deployment(&client, &format!("{name}-after"), 1).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(pods(&client, &format!("{name}-after")).await?.is_empty(), "{name} is blind");
        drop(proxy);
        cluster.route(component, None).await?;
        ready_pods(&client, &format!("{name}-after"), 1).await?;
    }
    Ok(())
}
