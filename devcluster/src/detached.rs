//! Clusters that live on after the command that started them, each under a name.
//!
//! A background process (`devcluster serve`) owns the cluster. It holds a lock for as long as it
//! lives and writes a state file once the cluster is ready, so a state file without a held lock is
//! a leftover of a killed process.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, setsid, test_kill_process};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::binaries::{Binaries, Binary};
use crate::cluster::Cluster;
use crate::component::Component;
use crate::kubeconfig::write_private;
use crate::options::Options;
use crate::paths::cache_dir;
use crate::process::tail;
use crate::real_node::can_run_real_node;

/// How often a state is looked at.
const POLL: Duration = Duration::from_millis(50);

/// What the state file says about a running cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The name it was started under.
    pub name: String,
    /// The process that owns it; the cluster ends with it.
    pub pid: u32,
    /// The process ids of the components.
    pub components: std::collections::BTreeMap<String, u32>,
    /// Address of the API server.
    pub server: String,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// The API server's audit log.
    pub audit_log: PathBuf,
    /// A log per component.
    pub log_dir: PathBuf,
    /// The `kubectl` of the same version.
    pub kubectl: PathBuf,
    /// What the API server says, for example `v1.37.2`.
    pub version: String,
    /// Versions of etcd and KWOK as they are built; a binary given by the user may have another.
    pub pinned: std::collections::BTreeMap<String, String>,
}

/// What [`Named::up`] starts.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// How many simulated nodes.
    pub nodes: usize,
    /// Whether there is a real node.
    pub real_node: bool,
    /// The cluster ends when this process ends.
    pub for_pid: Option<u32>,
}

/// A cluster by name, running or not.
#[derive(Clone, Debug)]
pub struct Named {
    name: String,
    dir: PathBuf,
}

impl Named {
    /// The cluster of this name.
    ///
    /// # Errors
    /// When the name is not made of letters, digits, `-` and `_`, or there is no cache folder.
    pub fn new(name: &str) -> Result<Self> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        ensure!(
            !name.is_empty() && name.len() <= 60 && name.chars().all(fits),
            "cluster name {name:?}: use up to 60 letters, digits, `-` and `_`"
        );
        Ok(Self { name: name.to_owned(), dir: clusters_dir()?.join(name) })
    }

    /// All names that were ever used and not removed by [`Named::down`].
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn all() -> Result<Vec<Self>> {
        let dir = clusters_dir()?;
        if !dir.exists() {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for entry in fs::read_dir(dir)? {
            all.extend(entry?.file_name().to_str().and_then(|name| Self::new(name).ok()));
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The running cluster, if it runs and is ready.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub fn state(&self) -> Result<Option<State>> {
        if !self.is_owned()? {
            return Ok(None);
        }
        match fs::read_to_string(self.state_file()) {
            Ok(text) => {
                let text = serde_json::from_str(&text);
                text.map(Some).with_context(|| format!("cannot read {}", self.state_file().display()))
            }
            Err(_) => Ok(None),
        }
    }

    /// The running cluster.
    ///
    /// # Errors
    /// When it does not run or is not ready yet.
    pub fn running(&self) -> Result<State> {
        let Some(state) = self.state()? else {
            bail!("cluster {:?} does not run; start it with `devcluster up --name {}`", self.name, self.name);
        };
        Ok(state)
    }

    /// Starts the cluster unless it runs, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not start, or runs without the real node that is wanted; the error shows why.
    pub async fn up(&self, wanted: Wanted) -> Result<State> {
        if let Some(state) = self.state()? {
            let real = state.components.contains_key(&Component::RealNode.to_string());
            ensure!(
                real || !wanted.real_node,
                "cluster {:?} runs already, without a real node; end it first",
                self.name
            );
            eprintln!("devcluster: cluster {:?} runs already", self.name);
            return Ok(state);
        }
        // Here and not in the background process, so that whoever waits sees the progress.
        tokio::task::spawn_blocking(move || {
            let mut binaries = Binary::DEFAULT.to_vec();
            if wanted.real_node {
                can_run_real_node().context("this machine cannot run a real node")?;
                binaries.extend(Binary::REAL_NODE);
            }
            Binaries::ensure(&binaries)
        })
        .await??;
        fs::create_dir_all(&self.dir).with_context(|| format!("cannot create {}", self.dir.display()))?;
        // Of a process that was killed. The new one removes it too, but only after it is visible as
        // the owner.
        let _ = fs::remove_file(self.state_file());
        let log_path = self.dir.join("serve.log");
        let log = File::create(&log_path)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--name", &self.name, "--nodes", &wanted.nodes.to_string()]);
        if wanted.real_node {
            command.arg("--real-node");
        }
        if let Some(pid) = wanted.for_pid {
            command.args(["--for-pid", &pid.to_string()]);
        }
        let mut child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        loop {
            if let Some(state) = self.state()? {
                return Ok(state);
            }
            // Another `up` of the same name may have been first; then its cluster is waited for.
            if let Some(status) = child.try_wait()?
                && !self.is_owned()?
            {
                bail!("cluster {:?} did not start ({status}):\n{}", self.name, tail(&log_path, 60));
            }
            sleep(POLL).await;
        }
    }

    /// Ends the cluster and deletes its data; `false` if it did not run.
    ///
    /// # Errors
    /// When it does not end within 20 seconds.
    pub fn down(&self) -> Result<bool> {
        let ran = self.is_owned()?;
        if ran {
            let pid = fs::read_to_string(self.pid_file()).ok().and_then(|text| text.trim().parse().ok());
            let pid = pid.and_then(Pid::from_raw).context("the owner of the cluster is starting; try again")?;
            // The lock is held, so this is the process that holds it and not a later one with the
            // same number.
            kill_process(pid, Signal::TERM)?;
            let started = Instant::now();
            while self.is_owned()? {
                if started.elapsed() > Duration::from_secs(20) {
                    bail!(
                        "process {} does not end; its log is {}",
                        pid.as_raw_nonzero(),
                        self.dir.join("serve.log").display()
                    );
                }
                std::thread::sleep(POLL);
            }
        }
        if self.dir.exists() {
            fs::remove_dir_all(&self.dir).with_context(|| format!("cannot remove {}", self.dir.display()))?;
        }
        Ok(ran)
    }

    /// Owns the cluster until SIGTERM, SIGINT, or the end of the process that it was started for. For the background process.
    ///
    /// # Errors
    /// When the cluster runs already or does not start.
    pub async fn serve(&self, wanted: Wanted) -> Result<()> {
        // Out of the terminal's session: its end, or Ctrl-C in it, is none of this process's
        // business. An error means that this process leads a group, as one started by hand from a
        // shell does; then it is already apart.
        let _ = setsid();
        fs::create_dir_all(&self.dir)?;
        let lock = File::create(self.lock_file())?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("cluster {:?} runs already", self.name),
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the cluster's folder"),
        }
        let _ = fs::remove_file(self.state_file());
        fs::write(self.pid_file(), std::process::id().to_string())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let owner_gone = async {
            match wanted.for_pid {
                Some(pid) => gone(pid).await,
                None => std::future::pending().await,
            }
        };
        let work = async {
            let dir = Some(self.dir.join("cluster"));
            let Wanted { nodes, real_node, .. } = wanted;
            let kwok = nodes > 0 || !real_node;
            let cluster = Cluster::start(Options { nodes, kwok, real_node, dir, ..Options::default() }).await?;
            self.write_state(&cluster).await?;
            std::future::pending::<Result<()>>().await
        };
        let result = tokio::select! {
            result = work => result,
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            () = owner_gone => Ok(()),
        };
        let _ = fs::remove_file(self.state_file());
        drop(lock);
        result
    }

    async fn write_state(&self, cluster: &Cluster) -> Result<()> {
        let running = Component::ALL.into_iter().filter_map(|c| Some((c.to_string(), cluster.pid(c).ok()?)));
        let components = running.collect();
        let pinned = [Binary::KubeApiserver, Binary::Etcd, Binary::Kwok];
        let state = State {
            name: self.name.clone(),
            pid: std::process::id(),
            components,
            server: cluster.server()?,
            kubeconfig: cluster.kubeconfig_path().to_owned(),
            audit_log: cluster.audit()?.path().to_owned(),
            log_dir: cluster.log_dir()?,
            kubectl: cluster.bin(Binary::Kubectl)?,
            version: cluster.client().await?.apiserver_version().await?.git_version,
            pinned: pinned.map(|binary| (binary.name().to_owned(), binary.pinned_version().to_owned())).into(),
        };
        write_private(&self.state_file(), &serde_json::to_string_pretty(&state)?)
    }

    /// Whether a living process owns the cluster: it is starting or running.
    fn is_owned(&self) -> Result<bool> {
        let Ok(lock) = File::open(self.lock_file()) else { return Ok(false) };
        match lock.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error).context("cannot look at the cluster's lock"),
        }
    }

    fn lock_file(&self) -> PathBuf {
        self.dir.join("lock")
    }

    fn pid_file(&self) -> PathBuf {
        self.dir.join("pid")
    }

    fn state_file(&self) -> PathBuf {
        self.dir.join("state.json")
    }

    /// The folder of this name.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn clusters_dir() -> Result<PathBuf> {
    Ok(cache_dir()?.join("clusters"))
}

/// Returns when no process has this number any more.
async fn gone(pid: u32) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    while test_kill_process(pid) != Err(Errno::SRCH) {
        sleep(Duration::from_millis(300)).await;
    }
}
