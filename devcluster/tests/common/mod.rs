//! What several tests need.
#![allow(dead_code, unreachable_pub, reason = "every test file uses another part of this")]

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

/// Whether this process runs. A zombie does not: it only waits for somebody to collect its status.
pub fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z')))
}

/// Waits for a condition, at most a minute.
pub async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        if let Some(value) = check().await? {
            return Ok(value);
        }
        if Instant::now() > deadline {
            bail!("waited a minute for {what}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Creates a Deployment with a readiness probe.
pub async fn deployment(client: &Client, name: &str, replicas: i32) -> Result<()> {
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{
                    "name": "app",
                    "image": "r.test/app:v1",
                    "readinessProbe": { "httpGet": { "port": 80 } },
                }] },
            },
        },
    }))?;
    Api::namespaced(client.clone(), "default").create(&PostParams::default(), &deployment).await?;
    Ok(())
}

/// The pods of a Deployment.
pub async fn pods(client: &Client, name: &str) -> Result<Vec<Pod>> {
    let params = ListParams::default().labels(&format!("app={name}"));
    Ok(Api::<Pod>::namespaced(client.clone(), "default").list(&params).await?.items)
}

/// Waits until a Deployment has this many ready pods and returns them.
pub async fn ready_pods(client: &Client, name: &str, count: usize) -> Result<Vec<Pod>> {
    until("ready pods", async || {
        let pods = pods(client, name).await?;
        Ok((pods.len() == count && pods.iter().all(is_ready)).then_some(pods))
    })
    .await
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
