//! The Deployments that are updated, and when they are complete.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::TryStreamExt as _;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Namespace};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

/// Longer than anything measured here should take.
const LONGEST: Duration = Duration::from_mins(15);
/// Surge of the native rolling update: the default of Kubernetes.
pub(crate) const MAX_SURGE: &str = "25%";

/// The image of a round.
pub(crate) fn image(round: usize) -> String {
    format!("registry.example/web:v{round}")
}

/// A Deployment with one container and a readiness probe, so that a pod is not ready while its container is replaced.
pub(crate) fn deployment(name: &str, replicas: usize, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": {"bench": "true"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"rollingUpdate": {"maxUnavailable": "25%", "maxSurge": MAX_SURGE}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "web", "image": image,
                        "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}

/// Makes a namespace.
pub(crate) async fn namespace(client: &Client, name: &str) -> Result<()> {
    let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await?;
    // Pods can be made once its service account is there.
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(client.clone(), name);
    let end = Instant::now() + Duration::from_secs(30);
    while accounts.get_opt("default").await?.is_none() {
        if Instant::now() > end {
            bail!("namespace {name} has no service account after 30 s");
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Makes a Deployment.
pub(crate) async fn create(client: &Client, namespace: &str, object: Value) -> Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// A change of a Deployment by a user, as a strategic merge patch.
pub(crate) async fn patch(client: &Client, namespace: &str, name: &str, patch: &Value) -> Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    Ok(())
}

/// The change of an image.
pub(crate) fn set_image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}})
}

/// Waits until the Deployment is complete, by the rule of `kubectl rollout status`.
pub(crate) async fn complete(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(290);
    let wait = async {
        loop {
            let deployment = api.get(name).await?;
            if is_complete(&deployment) {
                return Ok(());
            }
            let version = deployment.resource_version().unwrap_or_default();
            let mut events = Box::pin(api.watch(&params, &version).await?);
            while let Some(event) = events.try_next().await? {
                match event {
                    WatchEvent::Modified(deployment) if is_complete(&deployment) => return Ok(()),
                    WatchEvent::Deleted(_) => bail!("{namespace}/{name} was deleted"),
                    _ => {}
                }
            }
        }
    };
    timeout(LONGEST, wait).await.with_context(|| format!("{namespace}/{name} is not complete in time"))?
}

fn is_complete(deployment: &Deployment) -> bool {
    let want = deployment.spec.replicas.unwrap_or(1);
    let Some(status) = &deployment.status else { return false };
    let is = |count: Option<i32>| count.unwrap_or(0) == want;
    status.observed_generation >= deployment.metadata.generation
        && is(status.updated_replicas)
        && is(status.replicas)
        && is(status.available_replicas)
}

/// How many pods there are in all, and how many of them are available, over the Deployments of a namespace.
pub(crate) async fn available(client: &Client, namespace: &str) -> Result<usize> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let list = api.list(&kube::api::ListParams::default()).await?;
    let available = list.items.iter().filter_map(|d| d.status.as_ref()?.available_replicas).sum::<i32>();
    Ok(usize::try_from(available).unwrap_or(0))
}
