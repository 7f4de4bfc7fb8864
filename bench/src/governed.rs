//! What a user of Interlock does: one HookPolicy, a new template, and waiting for the end of its run.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::TryStreamExt as _;
use interlock::observe::object::{Object, PolicyKind, RunKind};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::workload;

const POLICY: &str = "bench";

/// A policy for all Deployments of this program in a namespace.
pub(crate) async fn policy(client: &Client, namespace: &str) -> Result<()> {
    let policies: Api<Object<PolicyKind>> = Api::namespaced(client.clone(), namespace);
    let policy = json!({
        "apiVersion": "interlock.dev/v1alpha1", "kind": "HookPolicy",
        "metadata": {"name": POLICY},
        "spec": {"selector": {"matchLabels": {"bench": "true"}}, "settleSeconds": 0, "maxConcurrentUpdates": 10},
    });
    policies.create(&PostParams::default(), &Object::new(policy)).await?;
    Ok(())
}

/// Waits until the controller has seen that the API server holds by the policy.
pub(crate) async fn enforced(client: &Client, namespace: &str) -> Result<()> {
    let policies: Api<Object<PolicyKind>> = Api::namespaced(client.clone(), namespace);
    let end = Instant::now() + Duration::from_mins(1);
    loop {
        let policy = policies.get(POLICY).await?.json;
        let conditions = policy.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        if conditions
            .iter()
            .any(|c| c.get("type") == Some(&json!("Enforced")) && c.get("status") == Some(&json!("True")))
        {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("the policy is not in force after a minute: {conditions:?}");
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// How many pods may be unavailable.
pub(crate) async fn max_unavailable(client: &Client, namespace: &str, value: &str) -> Result<()> {
    let policies: Api<Object<PolicyKind>> = Api::namespaced(client.clone(), namespace);
    let patch = Patch::Merge(json!({"spec": {"update": {"maxUnavailable": value}}}));
    policies.patch(POLICY, &PatchParams::default(), &patch).await?;
    // Written into a run when it begins: the controller has to know of it.
    sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// Changes the image and waits until the run of it has ended well.
pub(crate) async fn update(client: &Client, namespace: &str, name: &str, image: &str) -> Result<()> {
    let runs: Api<Object<RunKind>> = Api::namespaced(client.clone(), namespace);
    let mut version = runs.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
    workload::patch(client, namespace, name, &workload::set_image(image)).await?;
    let wait = async {
        loop {
            let mut events = Box::pin(runs.watch(&WatchParams::default().timeout(290), &version).await?);
            while let Some(event) = events.try_next().await? {
                let run = match event {
                    WatchEvent::Added(run) | WatchEvent::Modified(run) => run,
                    WatchEvent::Deleted(_) => continue,
                    WatchEvent::Bookmark(mark) => {
                        version = mark.metadata.resource_version;
                        continue;
                    }
                    WatchEvent::Error(status) => bail!("the watch of runs ended: {}", status.message),
                };
                version = kube::ResourceExt::resource_version(&run).unwrap_or(version);
                if let Some(done) = ended(&run.json, name, image) {
                    return done;
                }
            }
        }
    };
    timeout(Duration::from_mins(15), wait).await.context("the run did not end in time")?
}

/// `None`: another run, or it goes on.
fn ended(run: &Value, name: &str, image: &str) -> Option<Result<()>> {
    let text = |path: &str| run.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let target = text("/spec/newTemplate/spec/containers/0/image");
    if text("/spec/deployment/name") != name || target != image {
        return None;
    }
    if let Some(stall) = run.pointer("/status/stall").filter(|s| !s.is_null()) {
        return Some(Err(anyhow::anyhow!("the run stalled: {stall}")));
    }
    match text("/status/ended/outcome") {
        "" => None,
        "Succeeded" => Some(Ok(())),
        other => Some(Err(anyhow::anyhow!("the run ended {other}"))),
    }
}
