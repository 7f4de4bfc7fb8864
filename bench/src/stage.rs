//! A cluster with Interlock installed by its own program, and a controller as a process of its own, run by its own
//! service account.

use std::{
    collections::BTreeMap,
    fs::File,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use devcluster::{Cluster, Component, Event, Mark, Options};
use interlock::install::{InstallOptions, manifests};
use kube::Client;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use crate::process::Process;

/// Where Interlock lives, and its service account.
const SYSTEM: &str = "interlock-system";
const ACCOUNT: &str = "interlock";
/// The service account as the API server names it.
const USER: &str = "system:serviceaccount:interlock-system:interlock";
/// Each node takes 5000 pods; a native rolling update needs room for its surge.
const NODES: usize = 4;

/// Fields are dropped in this order.
pub(crate) struct Stage {
    pub(crate) client: Client,
    pub(crate) cluster: Cluster,
    interlock: PathBuf,
    dir: TempDir,
}

/// A running controller.
pub(crate) struct Controller {
    child: Child,
    address: SocketAddr,
    /// The process.
    pub(crate) process: Process,
}

/// The variables that the shipped Deployment sets to a value: how memory is taken and given back is among them.
fn shipped_env() -> Result<Vec<(String, String)>> {
    let options = InstallOptions { image: Some("interlock".to_owned()), ..InstallOptions::default() };
    let objects = manifests(&options)?;
    let lists = objects.iter().filter_map(|o| o.pointer("/spec/template/spec/containers/0/env")?.as_array());
    let value = |variable: &serde_json::Value| {
        let text = |field: &str| variable.get(field)?.as_str().map(str::to_owned);
        Some((text("name")?, text("value")?))
    };
    Ok(lists.flatten().filter_map(value).collect())
}

impl Stage {
    /// A new cluster with Interlock installed.
    pub(crate) async fn open() -> Result<Self> {
        let own = std::env::current_exe().context("cannot tell where this program is")?;
        let interlock = own.with_file_name("interlock");
        if !interlock.is_file() {
            bail!("{} is missing; `cargo build --release --workspace --bins` makes it", interlock.display());
        }
        let dir = tempfile::Builder::new().prefix("interlock-bench-").tempdir().context("no temporary folder")?;
        let cluster = Cluster::start(Options { nodes: NODES, ..Options::default() }).await?;
        let client = cluster.client_with_agent("interlock-bench").await?;
        let install = Command::new(&interlock)
            .arg("install")
            .env("KUBECONFIG", cluster.kubeconfig_path())
            .stdin(Stdio::null())
            .output()
            .await?;
        if !install.status.success() {
            bail!("interlock install: {}", String::from_utf8_lossy(&install.stderr).trim());
        }
        Ok(Self { client, cluster, interlock, dir })
    }

    /// The version of the API server.
    pub(crate) async fn version(&self) -> Result<String> {
        Ok(self.client.apiserver_version().await?.git_version)
    }

    /// Starts a controller for this namespace, or for all, without waiting for it.
    pub(crate) async fn start(&self, namespace: Option<&str>) -> Result<Controller> {
        let kubeconfig = self.cluster.service_account_kubeconfig(SYSTEM, ACCOUNT).await?;
        let address = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr())?;
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new(&self.interlock);
        command.args(["run", "--lease-namespace", SYSTEM, "--listen", &address.to_string()]);
        if let Some(namespace) = namespace {
            command.args(["--namespace", namespace]);
        }
        command
            .envs(shipped_env()?)
            .env("KUBECONFIG", &kubeconfig)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.kill_on_drop(true).spawn().context("interlock run cannot be started")?;
        let process = Process(child.id().context("the controller ended at once")?);
        Ok(Controller { child, address, process })
    }

    /// The controllers' log.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.path().join("controller.log")
    }

    /// The API server.
    pub(crate) fn api_server(&self) -> Result<Process> {
        Ok(Process(self.cluster.pid(Component::ApiServer)?))
    }

    /// Every request since `mark`, answered by now. Ours, and how many of its own, are told by [`is_ours`].
    pub(crate) async fn requests(&self, mark: Mark) -> Result<Vec<Event>> {
        // Entries are written a moment after their answer.
        self.cluster.audit_mark().await?;
        self.cluster.audit()?.since(mark)
    }

    /// Ends it. `keep`: the controllers' log stays.
    pub(crate) async fn close(self, keep: bool) {
        let Self { client, cluster, interlock: _, dir } = self;
        drop(client);
        // Its processes are waited for, which would hold up the runtime.
        let _ = tokio::task::spawn_blocking(move || drop(cluster)).await;
        if keep {
            eprintln!("kept for a look at the cause: {}", dir.keep().display());
        }
    }
}

/// A request of the controller, its Lease left out: that is renewed whatever happens.
pub(crate) fn is_ours(event: &Event) -> bool {
    event.user == USER && event.is_complete() && event.resource != "leases"
}

/// The same with the Lease, and with watches counted when they begin.
pub(crate) fn is_any_of_ours(event: &Event) -> bool {
    event.user == USER && (event.verb == "watch") != event.is_complete()
}

impl Controller {
    /// Waits until it says that it is ready.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let end = Instant::now() + Duration::from_mins(1);
        while !self.get("/readyz").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            if let Some(status) = self.child.try_wait()? {
                bail!("the controller ended: {status}");
            }
            if Instant::now() > end {
                bail!("the controller is not ready after a minute");
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Its metrics: value by series, as in the text.
    pub(crate) async fn metrics(&self) -> Result<BTreeMap<String, f64>> {
        let answer = self.get("/metrics").await?;
        let lines = answer.lines().filter(|line| !line.starts_with('#'));
        let pair = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        };
        Ok(lines.filter_map(pair).collect())
    }

    async fn get(&self, path: &str) -> Result<String> {
        let ask = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        Ok(timeout(Duration::from_secs(5), ask).await??)
    }

    /// Ends it as an operator would, so that its Lease is free for the next one.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.process.0).ok().and_then(Pid::from_raw).context("no such process")?;
        kill_process(pid, Signal::TERM)?;
        let status = timeout(Duration::from_secs(30), self.child.wait()).await.context("it did not end")??;
        if !status.success() {
            bail!("the controller ended: {status}");
        }
        Ok(())
    }
}
