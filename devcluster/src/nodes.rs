//! The Node objects that KWOK brings to life.

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::binaries::Binary;

/// Creates nodes `node-0`, `node-1`, ... with room for thousands of pods.
pub(crate) async fn create(client: &Client, count: usize) -> Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    for index in 0..count {
        let name = format!("node-{index}");
        // The API server refuses to resize a pod above what its node allows, so all of it is large.
        let room = json!({ "cpu": "1000", "memory": "1000Gi", "ephemeral-storage": "1000Gi", "pods": "5000" });
        let node: Node = serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    "type": "kwok",
                },
            },
            "status": {
                "capacity": room,
                "allocatable": room,
                "nodeInfo": {
                    "architecture": "amd64",
                    "bootID": "",
                    "containerRuntimeVersion": "containerd://simulated",
                    "kernelVersion": "",
                    "kubeProxyVersion": "",
                    "kubeletVersion": Binary::Kubelet.pinned_version(),
                    "machineID": "",
                    "operatingSystem": "linux",
                    "osImage": "simulated",
                    "systemUUID": "",
                },
            },
        }))?;
        api.create(&PostParams::default(), &node).await.with_context(|| format!("cannot create {name}"))?;
    }
    Ok(())
}

/// Whether pods can run: there are so many nodes of a type (`kwok`, `real`), all Ready and without taints.
pub(crate) async fn ready(client: &Client, kind: &str, count: usize) -> Result<bool> {
    let of_kind = ListParams::default().labels(&format!("type={kind}"));
    let nodes = Api::<Node>::all(client.clone()).list(&of_kind).await?;
    let usable = nodes.items.iter().filter(|node| {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let tainted =
            node.spec.as_ref().is_some_and(|spec| spec.taints.as_ref().is_some_and(|taints| !taints.is_empty()));
        ready && !tainted
    });
    Ok(usable.count() >= count)
}

/// Whether pods can be created in the namespace `default`: its service account is there.
pub(crate) async fn default_account(client: &Client) -> Result<bool> {
    Ok(Api::<ServiceAccount>::namespaced(client.clone(), "default").get_opt("default").await?.is_some())
}

/// Deletes the leases of all nodes. A new KWOK process takes over at once then; otherwise it waits
/// until they expire (40 s).
pub(crate) async fn delete_leases(client: &Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    leases.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    Ok(())
}

/// Whether KWOK holds the leases of all nodes, which means that it looks after them.
pub(crate) async fn leased(client: &Client) -> Result<bool> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?.items.len();
    Ok(leases.list(&ListParams::default()).await?.items.len() >= nodes)
}
