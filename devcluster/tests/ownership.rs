//! No process of a cluster outlives its owner, and clusters do not get in each other's way.

mod common;

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use common::{alive, until};
use devcluster::{Binaries, Binary, Cluster, Component, Options, State};
use rustix::process::{Pid, Signal, kill_process};

const COMPONENTS: [Component; 5] =
    [Component::Etcd, Component::ApiServer, Component::ControllerManager, Component::Scheduler, Component::Kwok];

fn pids(cluster: &Cluster) -> Result<Vec<u32>> {
    COMPONENTS.into_iter().map(|component| cluster.pid(component)).collect()
}

#[tokio::test]
async fn two_clusters_at_once_and_nothing_left_of_a_dropped_one() -> Result<()> {
    let (one, two) = tokio::try_join!(Cluster::start(Options::default()), Cluster::start(Options::default()))?;
    assert_ne!(one.server()?, two.server()?);
    let (first, second) = (pids(&one)?, pids(&two)?);
    let logs = one.log_dir()?;
    drop(one);
    assert!(!first.into_iter().any(alive), "a process is left");
    assert!(!logs.exists(), "data is left");
    assert!(second.into_iter().all(alive), "the other cluster lives on");
    two.client().await?.apiserver_version().await?;
    Ok(())
}

/// The command line with a cache of its own, so that it sees no clusters of the user.
struct CommandLine(tempfile::TempDir);

impl CommandLine {
    async fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let built = tokio::task::spawn_blocking(|| Binaries::ensure(&Binary::DEFAULT)).await??;
        for (binary, path) in built.iter() {
            std::os::unix::fs::symlink(path, dir.path().join(binary.name()))?;
        }
        Ok(Self(dir))
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        let output = Command::new(env!("CARGO_BIN_EXE_devcluster"))
            .args(args)
            .env("INTERLOCK_CACHE", self.0.path().join("cache"))
            .env("DEVCLUSTER_BIN", self.0.path())
            .env_remove("DEVCLUSTER_NAME")
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{args:?} failed: {error}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn state(&self) -> Result<State> {
        Ok(serde_json::from_str(&self.run(&["status", "-o", "json"])?)?)
    }
}

#[tokio::test]
async fn a_killed_owner_takes_its_processes_along() -> Result<()> {
    let cli = CommandLine::new().await?;
    cli.run(&["up"])?;
    let state = cli.state()?;
    assert_eq!(state.components.len(), COMPONENTS.len());
    assert!(state.components.values().copied().all(alive));
    assert!(cli.run(&["list"])?.starts_with("default\t"));

    let owner = i32::try_from(state.pid).ok().and_then(Pid::from_raw).context("pid")?;
    kill_process(owner, Signal::KILL)?;
    until("the processes to end", async || Ok((!state.components.values().copied().any(alive)).then_some(()))).await?;

    // Its lock is freed a moment after its processes have ended.
    let error = until("its end to show", async || Ok(cli.run(&["status"]).err().map(|e| e.to_string()))).await?;
    assert!(error.contains("does not run"), "{error}");
    cli.run(&["down"])?;
    Ok(())
}

#[tokio::test]
async fn the_command_line_starts_uses_and_ends_a_cluster() -> Result<()> {
    let cli = CommandLine::new().await?;
    // It ends with this process if the test fails before `down`.
    let me = std::process::id().to_string();
    cli.run(&["up", "--nodes", "3", "--for-pid", &me])?;
    cli.run(&["up"])?;
    assert_eq!(cli.run(&["kubectl", "get", "nodes", "-o", "name"])?.lines().count(), 3);
    let env = cli.run(&["env"])?;
    let script = format!("{env}\nkubectl version -o json");
    let output = Command::new("sh").args(["-c", &script]).output()?;
    let version: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(version["serverVersion"]["gitVersion"], version["clientVersion"]["gitVersion"]);

    let state = cli.state()?;
    cli.run(&["down"])?;
    assert!(!state.components.values().copied().any(alive), "a process is left");
    assert!(!state.kubeconfig.exists());
    Ok(())
}

#[tokio::test]
async fn a_cluster_ends_with_the_process_it_was_started_for() -> Result<()> {
    let cli = CommandLine::new().await?;
    let mut owner = Command::new("sleep").arg("600").spawn()?;
    cli.run(&["up", "--for-pid", &owner.id().to_string()])?;
    let state = cli.state()?;
    owner.kill()?;
    owner.wait()?;
    until("the cluster to end", async || Ok((!alive(state.pid)).then_some(()))).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!state.components.values().copied().any(alive), "a process is left");
    Ok(())
}
