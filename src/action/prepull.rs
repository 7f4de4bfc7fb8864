//! The `prePull` hook: on every node that runs pods of the Deployment, one pod of ours with the new images.
//!
//! Nothing of an image is run and nothing is needed inside it: the command of each container is a file that no image has,
//! so its start fails, after the pull. Judged by the pull: a container that was created, or could not be for another
//! reason than its image, has its image on the node.
//!
//! The pods are pinned to their nodes, tolerate everything and ask for next to nothing. Each goes when its node is done,
//! all of them at the end and when the attempt is cancelled. Nodes that appear later are not chased.
//!
//! Reasons: `Pulled`, `InvalidImageName`, `ImagePull` (not pulled in time, and the node said why), `PodRefused`, `Timeout`,
//! `Cancelled`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
};

use futures::{StreamExt as _, stream};
use interlock_core::api::{hook::PrePullHook, names::HOOK_KEY};
use kube::{Api, api::ListParams, core::DynamicObject};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    Attempt, End, TIMEOUT,
    cluster::{Cluster, PODS, Pause, REPLICA_SETS, Seen, Trouble},
    job, names,
};

/// A command that no image has.
const NO_COMMAND: &str = "/interlock-pulls-only";
/// States of a container that is not there because of its image. Every other one comes after the pull.
const PULLING: [&str; 8] = [
    "ContainerCreating",
    "PodInitializing",
    "ErrImagePull",
    "ImagePullBackOff",
    "RegistryUnavailable",
    "SignatureValidationFailed",
    "ImageInspectError",
    // Also said of a pull that failed often. Of a container that was created its imageID tells.
    "CrashLoopBackOff",
];

/// What is pulled, and for whom.
pub(super) struct Pull<'a> {
    pub(super) hook: &'a PrePullHook,
    pub(super) images: &'a BTreeSet<String>,
    pub(super) secrets: &'a BTreeSet<String>,
    pub(super) match_labels: &'a BTreeMap<String, String>,
}

/// Carries out one attempt.
pub(super) async fn attempt(attempt: &Attempt<'_>, pull: &Pull<'_>, stop: &CancellationToken) -> End {
    let told = AtomicBool::new(false);
    let end = tokio::select! {
        biased;
        () = stop.cancelled() => End::cancelled(),
        end = timeout_at(attempt.until, pull_all(attempt, pull, &told)) => match end {
            Ok(end) => end,
            Err(_) => End::timed_out(if told.load(Ordering::Relaxed) { "ImagePull" } else { TIMEOUT }),
        },
    };
    if end.outcome != interlock_core::api::run::StepOutcome::Succeeded {
        remove(attempt.cluster, &attempt.call.namespace, &attempt.call.key).await;
    }
    end
}

/// Takes the pods of an attempt away that does not run here.
pub(super) async fn cancelled(cluster: &Cluster, namespace: &str, key: &str) {
    remove(cluster, namespace, key).await;
}

async fn remove(cluster: &Cluster, namespace: &str, key: &str) {
    let api = cluster.api(namespace, PODS);
    let ours = ListParams::default().labels(&format!("{HOOK_KEY}={}", names::hash(&[key])));
    let mut pause = Pause::default();
    for _ in 0..5 {
        match cluster.list(&api, ours.clone()).await {
            Ok(pods) => {
                // Pods of a Job have the same label, and go with the Job.
                for pod in pods.iter().filter(|pod| pulls(pod)) {
                    cluster.delete_surely(&api, pod).await;
                }
                return;
            }
            Err(Trouble::Refused) => return,
            Err(_) => pause.take().await,
        }
    }
}

fn pulls(pod: &DynamicObject) -> bool {
    pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "HookRun")
}

async fn pull_all(attempt: &Attempt<'_>, pull: &Pull<'_>, told: &AtomicBool) -> End {
    let mut pause = Pause::default();
    let nodes = loop {
        match nodes(attempt, pull).await {
            Ok(nodes) => break nodes,
            Err(_) => pause.take().await,
        }
    };
    let at_once = usize::try_from(pull.hook.max_concurrent).unwrap_or(1).max(1);
    let (nodes, secrets) = nodes;
    let mut running =
        stream::iter(nodes).map(|node| pull_on(attempt, pull, node, &secrets, told)).buffer_unordered(at_once);
    while let Some(done) = running.next().await {
        if let Err(end) = done {
            return end;
        }
    }
    End::succeeded("Pulled")
}

/// The nodes that run pods of the Deployment, and the pull secrets of these pods: admission may have added some.
async fn nodes(attempt: &Attempt<'_>, pull: &Pull<'_>) -> Result<(BTreeSet<String>, BTreeSet<String>), Trouble> {
    let (cluster, call) = (attempt.cluster, attempt.call);
    let labels: Vec<String> = pull.match_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let selected = ListParams::default().labels(&labels.join(","));
    let owned = |object: &DynamicObject, owners: &BTreeSet<String>| {
        object.metadata.owner_references.iter().flatten().any(|o| o.controller == Some(true) && owners.contains(&o.uid))
    };
    let deployment = BTreeSet::from([call.deployment.uid.clone()]);
    let sets = cluster.list(&cluster.api(&call.namespace, REPLICA_SETS), selected.clone()).await?;
    let sets = sets.into_iter().filter(|set| owned(set, &deployment)).filter_map(|set| set.metadata.uid).collect();
    let (mut nodes, mut secrets) = (BTreeSet::new(), pull.secrets.clone());
    for pod in cluster.list(&cluster.api(&call.namespace, PODS), selected).await? {
        let over = pod.data.pointer("/status/phase").is_some_and(|p| p == "Succeeded" || p == "Failed");
        if !owned(&pod, &sets) || over || pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let named = pod.data.pointer("/spec/imagePullSecrets").and_then(Value::as_array).into_iter().flatten();
        secrets.extend(named.filter_map(|s| Some(s.get("name")?.as_str()?.to_owned())));
        nodes.extend(pod.data.pointer("/spec/nodeName").and_then(Value::as_str).map(ToOwned::to_owned));
    }
    Ok((nodes, secrets))
}

/// Pulls on one node. Returns when its images are there and our pod is gone.
async fn pull_on(
    attempt: &Attempt<'_>,
    pull: &Pull<'_>,
    node: String,
    secrets: &BTreeSet<String>,
    told: &AtomicBool,
) -> Result<(), End> {
    let (cluster, call) = (attempt.cluster, attempt.call);
    let api = cluster.api(&call.namespace, PODS);
    let images: Vec<&str> = pull.images.iter().map(String::as_str).collect();
    let name = name(&call.key, &node, &images);
    let mut pause = Pause::default();
    loop {
        let Some(pod) = make(attempt, &api, &name, &node, &images, secrets).await? else {
            pause.take().await;
            continue;
        };
        let uid = pod.metadata.uid.clone();
        let mut follow = cluster.follow(&api, &name);
        let pulled = loop {
            match follow.next().await {
                Seen::There(pod) if pod.metadata.uid == uid => {
                    if let Some(pulled) = judge(&pod, images.len(), told) {
                        break pulled;
                    }
                }
                Seen::There(_) | Seen::Deleted(_) | Seen::Missing => break Pulled::Gone,
            }
        };
        match pulled {
            Pulled::All => {
                cluster.delete_surely(&api, &pod).await;
                return Ok(());
            }
            Pulled::Invalid => return Err(End::failed("InvalidImageName")),
            // The kubelet did not take it (no room), or it was evicted: another try.
            Pulled::Rejected => cluster.delete_surely(&api, &pod).await,
            // Somebody took it away. With its node?
            Pulled::Gone => {
                if nodes(attempt, pull).await.is_ok_and(|(nodes, _)| !nodes.contains(&node)) {
                    return Ok(());
                }
            }
        }
        pause.take().await;
    }
}

fn name(key: &str, node: &str, images: &[&str]) -> String {
    let parts: Vec<&str> = [key, node].into_iter().chain(images.iter().copied()).collect();
    names::name("interlock-pull", &parts)
}

/// The pod on this node: the one that is there, or a new one. `None`: not now.
async fn make(
    attempt: &Attempt<'_>,
    api: &Api<DynamicObject>,
    name: &str,
    node: &str,
    images: &[&str],
    secrets: &BTreeSet<String>,
) -> Result<Option<DynamicObject>, End> {
    let (cluster, call) = (attempt.cluster, attempt.call);
    match cluster.get(api, name).await {
        Ok(pod) if pulls(&pod) => return Ok(Some(pod)),
        Ok(_) => return Err(End::failed("NameTaken")),
        Err(Trouble::Missing) => {}
        Err(Trouble::Refused) => return Err(End::failed("PodRefused")),
        Err(_) => return Ok(None),
    }
    let seconds = attempt.until.saturating_duration_since(Instant::now()).as_secs().max(1);
    let containers: Vec<Value> = images
        .iter()
        .enumerate()
        .map(|(number, image)| {
            json!({
                "name": format!("image-{number}"),
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": [NO_COMMAND],
                "resources": {
                    "requests": {"cpu": "1m", "memory": "1Mi"},
                    "limits": {"cpu": "10m", "memory": "16Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
            })
        })
        .collect();
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": job::metadata(call, name),
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": seconds,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": secrets,
            "securityContext": {
                "runAsNonRoot": true,
                // An image that runs as root could not be pulled otherwise.
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": containers,
        },
    });
    match cluster.create(api, pod).await {
        Ok(pod) => Ok(Some(pod)),
        Err(Trouble::Refused | Trouble::Missing) => Err(End::failed("PodRefused")),
        Err(Trouble::Exists | Trouble::Lost | Trouble::Quota | Trouble::Unknown) => Ok(None),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pulled {
    All,
    Invalid,
    Rejected,
    Gone,
}

fn judge(pod: &DynamicObject, images: usize, told: &AtomicBool) -> Option<Pulled> {
    let statuses = pod.data.pointer("/status/containerStatuses").and_then(Value::as_array);
    let statuses: Vec<&Value> = statuses.into_iter().flatten().collect();
    let waiting =
        |status: &&&Value| status.pointer("/state/waiting/reason").and_then(Value::as_str).map(ToOwned::to_owned);
    let reasons: Vec<String> = statuses.iter().filter_map(|status| waiting(&status)).collect();
    if reasons.iter().any(|reason| reason == "InvalidImageName") {
        return Some(Pulled::Invalid);
    }
    if reasons.iter().any(|reason| PULLING.iter().skip(2).any(|p| p == reason)) {
        told.store(true, Ordering::Relaxed);
    }
    if statuses.iter().filter(|status| pulled(status)).count() >= images {
        return Some(Pulled::All);
    }
    let phase = pod.data.pointer("/status/phase").and_then(Value::as_str);
    if pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Failed" | "Succeeded")) {
        return Some(Pulled::Rejected);
    }
    None
}

/// Is the image of this container on the node?
fn pulled(status: &Value) -> bool {
    let has = |path: &str| status.pointer(path).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    if has("/imageID") || has("/containerID") || status.pointer("/state/running").is_some() {
        return true;
    }
    let waiting = status.pointer("/state/waiting/reason").and_then(Value::as_str);
    waiting.is_some_and(|reason| {
        !PULLING.contains(&reason) && reason != "InvalidImageName" && reason != "ErrImageNeverPull"
    })
}

#[cfg(test)]
mod tests;
