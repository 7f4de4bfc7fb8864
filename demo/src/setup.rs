//! A cluster with Interlock installed and its controller running, and the end of all that.

use std::{
    fs::{self, File},
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use devcluster::{Binary, Cluster, Options};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, config::Kubeconfig};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Child,
    time::{Instant, sleep, timeout},
};

use crate::{
    programs::{Programs, Show},
    say::Say,
};

/// The namespace of the stack.
pub(crate) const NAMESPACE: &str = "storage-demo";
/// Where Interlock lives, and its service account.
const SYSTEM: &str = "interlock-system";
const ACCOUNT: &str = "interlock";

/// Everything that the steps stand on. Fields are dropped in this order: the controller ends before its cluster.
pub(crate) struct Stage {
    say: Say,
    controller: Option<Child>,
    /// Whether this program installed Interlock, so that it removes it from a given cluster again.
    installed: bool,
    pub(crate) client: Client,
    pub(crate) programs: Programs,
    pub(crate) cluster: Cluster,
    dir: TempDir,
}

impl Stage {
    /// Starts a cluster, or takes the given one.
    ///
    /// # Errors
    /// When there is none that can be used; the message says why.
    pub(crate) async fn open(say: Say) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("interlock-demo-").tempdir().context("no temporary folder")?;
        let cluster = Cluster::from_env_or_start(Options::default()).await?;
        let client = cluster.client_with_agent("interlock-demo").await?;
        let version = client.apiserver_version().await?.git_version;
        let kind = if cluster.is_owned() { "started" } else { "given" };
        say.line(format_args!("Kubernetes {version} is ready ({kind}); files of this run: {}", dir.path().display()));
        let spaces: Api<Namespace> = Api::all(client.clone());
        if spaces.get_opt(NAMESPACE).await?.is_some() {
            bail!("namespace {NAMESPACE} exists already; `kubectl delete namespace {NAMESPACE}` makes room");
        }
        let kubeconfig = dir.path().join("kubeconfig");
        write_kubeconfig(cluster.kubeconfig_path(), &kubeconfig)?;
        let programs = Programs::find(say, cluster.bin(Binary::Kubectl)?, kubeconfig)?;
        Ok(Self { say, controller: None, installed: false, client, programs, cluster, dir })
    }

    /// Installs Interlock unless it is there. Running it again would do no harm, but this program would not know
    /// whether to remove it.
    ///
    /// # Errors
    /// When the installation fails.
    pub(crate) async fn install(&mut self) -> Result<()> {
        let query = "get crd hookpolicies.interlock.dev --ignore-not-found -o name";
        let there = self.programs.kubectl(query, Show::Nothing, Duration::from_secs(30)).await?;
        self.installed = there.stdout.trim().is_empty();
        self.say.command("interlock install");
        let done = self.programs.run_interlock("install", Show::Nothing, Duration::from_mins(2)).await?;
        let lines: Vec<&str> = done.stdout.lines().filter(|line| !line.trim().is_empty()).collect();
        self.say.line(format_args!("it reports {} objects and checks; the last two:", lines.len()));
        for line in lines.iter().rev().take(2).rev() {
            self.say.quote(line);
        }
        Ok(())
    }

    /// Runs the controller as its service account, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub(crate) async fn run_controller(&mut self) -> Result<()> {
        let kubeconfig = self.cluster.service_account_kubeconfig(SYSTEM, ACCOUNT).await?;
        let address = free_address()?;
        let log = self.log();
        let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = self.programs.interlock();
        command.args(["run", "--hook-allow-loopback", "--listen", &address.to_string()]);
        command.env("KUBECONFIG", &kubeconfig).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        self.say.command("interlock run --hook-allow-loopback &");
        self.controller = Some(command.spawn().context("interlock run cannot be started")?);
        self.say.line(format_args!(
            "the controller runs as service account {SYSTEM}/{ACCOUNT}, metrics at http://{address}/metrics, log: {}",
            log.display()
        ));
        let end = Instant::now() + Duration::from_secs(40);
        while !ready(address).await {
            if let Some(status) = self.controller.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                bail!("the controller ended: {status}");
            }
            if Instant::now() > end {
                bail!("the controller is not ready after 40 s (http://{address}/readyz)");
            }
            sleep(Duration::from_millis(50)).await;
        }
        self.say.line("the controller is ready");
        Ok(())
    }

    /// Returns when the controller has ended, which it should not.
    pub(crate) async fn controller_ended(controller: &mut Option<Child>) -> String {
        match controller {
            Some(child) => match child.wait().await {
                Ok(status) => format!("the controller ended: {status}"),
                Err(error) => format!("the controller cannot be waited for: {error}"),
            },
            None => std::future::pending().await,
        }
    }

    /// The controller on its own, so that it can be waited for while the rest is used.
    pub(crate) fn split(&mut self) -> (&mut Option<Child>, Shared<'_>) {
        let Self { controller, client, programs, cluster, say: _, installed: _, dir: _ } = self;
        (controller, Shared { client, programs, cluster })
    }

    /// The controller's log.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.path().join("controller.log")
    }

    /// The last lines of the controller's log.
    pub(crate) fn log_end(&self, lines: usize) -> Vec<String> {
        let text = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all.iter().skip(all.len().saturating_sub(lines)).map(|line| (*line).to_owned()).collect()
    }

    /// Ends the controller as an operator would (SIGTERM), at most `within`.
    async fn stop_controller(&mut self, within: Duration) -> Result<Option<ExitStatus>> {
        let Some(mut child) = self.controller.take() else { return Ok(None) };
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM).context("the controller cannot be told to end")?;
        }
        match timeout(within, child.wait()).await {
            Ok(status) => Ok(Some(status?)),
            Err(_) => bail!("the controller did not end within {} s of SIGTERM", within.as_secs()),
        }
    }

    /// Ends everything. `keep_files`: the log stays, for whoever looks for the cause of a failure.
    pub(crate) async fn close(mut self, keep_files: bool) {
        if !self.cluster.is_owned() {
            self.leave_given_cluster().await;
        }
        match self.stop_controller(Duration::from_secs(25)).await {
            Ok(Some(status)) if !status.success() => self.say.line(format_args!("the controller ended: {status}")),
            Ok(Some(_)) => self.say.line("the controller has ended in good order"),
            Ok(None) => {}
            Err(error) => self.say.line(format_args!("{error:#}")),
        }
        let owned = self.cluster.is_owned();
        let Self { say, controller, installed: _, client, programs, cluster, dir } = self;
        drop((controller, client, programs));
        // Its processes are waited for, which would hold up the runtime.
        let _ = tokio::task::spawn_blocking(move || drop(cluster)).await;
        if owned {
            say.line("the cluster has ended");
        }
        if keep_files {
            say.line(format_args!("kept for a look at the cause: {}", dir.keep().display()));
        }
    }

    /// Leaves somebody else's cluster as it was found. The controller still runs: what is held can end.
    async fn leave_given_cluster(&self) {
        let delete = format!("delete namespace {NAMESPACE} --ignore-not-found");
        if let Err(error) = self.programs.kubectl(&delete, Show::All, Duration::from_mins(1)).await {
            self.say.line(format_args!("{error:#}"));
            self.say.line(format_args!("namespace {NAMESPACE} may still be there; to remove it: kubectl {delete}"));
        }
        if self.installed {
            let line = "uninstall --held=release";
            if let Err(error) = self.programs.run_interlock(line, Show::Command, Duration::from_mins(1)).await {
                self.say.line(format_args!("{error:#}"));
                self.say.line(format_args!("Interlock may still be there; to remove it: interlock {line}"));
            } else {
                self.say.line("nothing of this demo is left in the cluster");
            }
        } else {
            self.say.line("Interlock was there before and stays; its controller, if this was the only one, does not");
        }
    }
}

/// What the steps use.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub(crate) client: &'a Client,
    pub(crate) programs: &'a Programs,
    pub(crate) cluster: &'a Cluster,
}

/// A copy of the kubeconfig in which the current context means our namespace, so that commands are short.
fn write_kubeconfig(from: &Path, to: &Path) -> Result<()> {
    let mut config = Kubeconfig::read_from(from).with_context(|| format!("cannot read {}", from.display()))?;
    for context in config.contexts.iter_mut().filter_map(|named| named.context.as_mut()) {
        context.namespace = Some(NAMESPACE.to_owned());
    }
    // It holds credentials.
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    file.write_all(serde_json::to_string_pretty(&config)?.as_bytes())?;
    Ok(())
}

/// An address that nobody listens on at this moment.
fn free_address() -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?)
}

/// Whether `/readyz` answers 200.
async fn ready(address: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with(b"HTTP/1.1 200"))
    };
    matches!(timeout(Duration::from_secs(2), ask).await, Ok(Ok(true)))
}
