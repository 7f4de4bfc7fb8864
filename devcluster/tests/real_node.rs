//! A real node starts, runs containers and ends without leaving anything on the machine, however its owner ends.
//!
//! Where the machine does not allow a real node, these tests say why and do nothing.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use common::{alive, until};
use devcluster::{Cluster, Component, Named, Options, can_run_real_node};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

fn allowed() -> bool {
    let why_not = can_run_real_node().err();
    if let Some(why) = &why_not {
        eprintln!("real node: SKIPPED because {why:#}");
    }
    why_not.is_none()
}

/// Bridges and control groups of this process's nodes, and kernel settings that a kubelet likes to change.
fn machine(owner: u32) -> Result<(BTreeSet<String>, Vec<String>)> {
    let mut left = BTreeSet::new();
    let mut places = vec![std::path::PathBuf::from("/sys/class/net"), "/sys/fs/cgroup".into()];
    places.extend(std::fs::read_dir("/sys/fs/cgroup")?.flatten().map(|entry| entry.path()));
    for place in places {
        let names = std::fs::read_dir(&place).into_iter().flatten().flatten().map(|entry| entry.path());
        left.extend(names.map(|p| p.display().to_string()).filter(|name| name.contains(&format!("ilk{owner}n"))));
    }
    let settings = ["vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward"];
    let settings = settings.map(|name| std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default());
    Ok((left, settings.into()))
}

async fn running(client: &Client, name: &str, image: &str) -> Result<String> {
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = json!({
        "metadata": { "name": name },
        "spec": {
            // There may be simulated nodes too.
            "nodeSelector": { "type": "real" },
            "automountServiceAccountToken": false,
            "containers": [{ "name": "c", "image": image }],
        },
    });
    api.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    until("the pod runs", async || {
        let status = api.get(name).await?.status.context("status")?;
        Ok(status.pod_ip.filter(|_| status.phase.as_deref() == Some("Running")))
    })
    .await
}

/// What the pod answers, by the simplest of requests.
async fn answer(ip: &str) -> Result<String> {
    let ask = async || -> Result<String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect((ip, 8080)).await?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    };
    until("an answer", async || Ok(ask().await.ok())).await
}

#[tokio::test]
async fn a_real_node_runs_containers_loses_its_power_and_leaves_nothing() -> Result<()> {
    if !allowed() {
        return Ok(());
    }
    let before = machine(std::process::id())?.1;
    let cluster = Cluster::start(Options { nodes: 1, real_node: true, ..Options::default() }).await?;
    let client = cluster.client().await?;
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let ip = running(&client, "real", &cluster.registry()?.image("web", "v1")).await?;
    assert_eq!(api.get("real").await?.spec.and_then(|spec| spec.node_name).as_deref(), Some("real-0"));
    assert!(answer(&ip).await?.ends_with("v1\n"));
    let status = api.get("real").await?.status.and_then(|status| status.container_statuses).context("statuses")?;
    let digest = cluster.registry()?.digest("web", "v1")?;
    assert_eq!(status[0].image_id, format!("registry.test/web@{digest}"));
    let log = api.logs("real", &kube::api::LogParams::default()).await?;
    assert!(log.contains("version v1 serves"), "{log}");

    // A power cut: everything on the node is gone, and it comes back.
    cluster.kill(Component::RealNode)?;
    cluster.restart(Component::RealNode).await?;
    until("the container was started again", async || {
        let status = api.get("real").await?.status.and_then(|status| status.container_statuses).context("statuses")?;
        Ok((status[0].restart_count > 0 && status[0].state.as_ref().is_some_and(|s| s.running.is_some())).then_some(()))
    })
    .await?;

    ensure!(!machine(std::process::id())?.0.is_empty(), "this test looks in the wrong places");
    let pid = cluster.pid(Component::RealNode)?;
    drop(cluster);
    assert!(!alive(pid));
    assert_eq!(machine(std::process::id())?, (BTreeSet::new(), before), "something is left");
    Ok(())
}

#[tokio::test]
async fn up_real_node_works_and_a_killed_owner_leaves_nothing() -> Result<()> {
    if !allowed() {
        return Ok(());
    }
    let name = format!("real-{}", std::process::id());
    let run = |args: &[&str]| -> Result<String> {
        let output =
            Command::new(env!("CARGO_BIN_EXE_devcluster")).args(args).env("DEVCLUSTER_NAME", &name).output()?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let me = std::process::id().to_string();
    run(&["up", "--real-node", "--for-pid", &me])?;
    let state = Named::new(&name)?.running()?;
    let before = machine(state.pid)?.1;
    let cluster = Cluster::attach(state.kubeconfig.clone()).await?;
    let ip = running(&cluster.client().await?, "web", "web:v2").await?;
    assert!(answer(&ip).await?.ends_with("v2\n"));
    assert!(!machine(state.pid)?.0.is_empty());

    let owner = i32::try_from(state.pid).ok().and_then(Pid::from_raw).context("pid")?;
    kill_process(owner, Signal::KILL)?;
    until("nothing is left", async || Ok(machine(state.pid)?.0.is_empty().then_some(()))).await?;
    assert!(!state.components.values().copied().any(alive), "a process is left");
    assert_eq!(machine(state.pid)?.1, before);
    run(&["down"])?;
    Ok(())
}
