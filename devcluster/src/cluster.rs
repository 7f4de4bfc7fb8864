//! A running cluster and what a test can do with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use kube::{Client, Config};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::audit::{AuditReader, Mark};
use crate::binaries::{Binaries, Binary};
use crate::certs::Authority;
use crate::component::{Component, Layout};
use crate::datadir::DataDir;
use crate::kubeconfig;
use crate::options::Options;
use crate::process::{Process, find_in_path};
use crate::proxy::WatchProxy;
use crate::real_node::{RealNode, Registry};
use crate::start;

/// A control plane on 127.0.0.1 with simulated nodes. Dropping it ends all its processes and
/// deletes its data; the processes also end if this process is killed.
///
/// Nothing in it belongs to an async runtime, so it may be shared between tests that each have
/// their own.
pub struct Cluster {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Owned(Box<Owned>),
    /// Somebody else's cluster, with a folder for kubeconfig files made for it.
    Attached(TempDir),
}

/// A cluster of our own. The fields are dropped in this order: processes end before their data
/// goes.
pub(crate) struct Owned {
    pub(crate) processes: Mutex<BTreeMap<Component, Process>>,
    /// Components whose requests go through another address than the API server's own.
    pub(crate) routes: Mutex<BTreeMap<Component, String>>,
    pub(crate) layout: Layout,
    /// The API server's port on 127.0.0.1.
    pub(crate) port: u16,
    pub(crate) options: Options,
    pub(crate) binaries: Binaries,
    pub(crate) authority: Authority,
    pub(crate) real_node: Option<RealNode>,
    pub(crate) dir: DataDir,
}

impl Owned {
    /// The processes. A panic of another thread while it held the lock leaves them as usable as
    /// they were.
    pub(crate) fn processes(&self) -> MutexGuard<'_, BTreeMap<Component, Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of the API server.
    pub(crate) fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub(crate) fn routes(&self) -> MutexGuard<'_, BTreeMap<Component, String>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut processes = self.processes();
        // All at once, then each is waited for.
        processes.values_mut().for_each(Process::start_kill);
        processes.clear();
    }
}

impl Cluster {
    /// Starts a cluster and waits until pods can run in the namespace `default`; takes a few
    /// seconds once the binaries are built, see [`Binaries::ensure`].
    ///
    /// # Errors
    /// When a binary cannot be built or a component does not start. The error then shows the end of
    /// the component's log and says where the logs are.
    pub async fn start(options: Options) -> Result<Self> {
        start::start(options).await
    }

    /// One cluster with default options for the whole process, for tests that do not disturb each
    /// other. The first call starts it; it ends with the process. The same rules as for
    /// [`Cluster::from_env_or_start`] hold.
    ///
    /// # Errors
    /// As for [`Cluster::from_env_or_start`]. The next call tries again.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::from_env_or_start(Options::default())).await
    }

    /// With `DEVCLUSTER_USE_KUBECONFIG=1` the cluster that `KUBECONFIG` names, else a new one.
    ///
    /// In somebody else's cluster `options` have no effect; everything that needs its processes or
    /// files (pause, kill, client certificates, logs) is an error. Its audit log can be read if
    /// `DEVCLUSTER_AUDIT_LOG` names it.
    ///
    /// # Errors
    /// When the named cluster does not answer, or as for [`Cluster::start`].
    pub async fn from_env_or_start(options: Options) -> Result<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if set("DEVCLUSTER_USE_KUBECONFIG").is_none_or(|value| value == "0") {
            return Self::start(options).await;
        }
        let kubeconfig = set("KUBECONFIG").context("DEVCLUSTER_USE_KUBECONFIG is set, but KUBECONFIG is not")?;
        Self::attach(PathBuf::from(kubeconfig)).await
    }

    /// Uses the running cluster of this kubeconfig, for example one made by `devcluster up`.
    ///
    /// # Errors
    /// When the file cannot be read or the cluster does not answer.
    pub async fn attach(kubeconfig: PathBuf) -> Result<Self> {
        let cluster = Self { kubeconfig, kind: Kind::Attached(tempfile::tempdir()?) };
        cluster
            .client()
            .await?
            .apiserver_version()
            .await
            .with_context(|| format!("the cluster of {} does not answer", cluster.kubeconfig.display()))?;
        Ok(cluster)
    }

    /// The processes, for what only a cluster of our own can do.
    pub(crate) fn owned(&self) -> Result<&Owned> {
        match &self.kind {
            Kind::Owned(owned) => Ok(owned),
            Kind::Attached(_) => bail!("this needs a cluster started by this process, but a given cluster is used"),
        }
    }

    /// Whether this process started the cluster, so that it can pause, kill and restart its
    /// components.
    pub fn is_owned(&self) -> bool {
        matches!(self.kind, Kind::Owned(_))
    }

    /// The kubeconfig of the administrator (group `system:masters`).
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig
    }

    /// The address of the API server, `https://127.0.0.1:PORT`.
    ///
    /// # Errors
    /// When the cluster is not our own.
    pub fn server(&self) -> Result<String> {
        Ok(self.owned()?.server())
    }

    /// The folder with a log per component, and the audit log.
    ///
    /// # Errors
    /// When the cluster is not our own.
    pub fn log_dir(&self) -> Result<PathBuf> {
        Ok(self.owned()?.layout.logs())
    }

    /// Where a binary is: one that the cluster runs on, or `kubectl`. For a given cluster it is
    /// looked up in PATH.
    ///
    /// # Errors
    /// When there is none.
    pub fn bin(&self, binary: Binary) -> Result<PathBuf> {
        match &self.kind {
            Kind::Owned(owned) => owned.binaries.path(binary).map(Path::to_owned),
            Kind::Attached(_) => find_in_path(binary.name()).with_context(|| format!("no {} in PATH", binary.name())),
        }
    }

    /// The administrator's client configuration, to be changed before it becomes a client.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn config(&self) -> Result<Config> {
        kubeconfig::config(&self.kubeconfig).await
    }

    /// A client with the administrator's rights. It belongs to the async runtime that it is made
    /// in: every test makes its own.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client(&self) -> Result<Client> {
        self.client_with_agent("devcluster").await
    }

    /// An administrator's client with another user agent, by which its requests are found in the
    /// audit log.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read, or `agent` cannot be sent as a header.
    pub async fn client_with_agent(&self, agent: &str) -> Result<Client> {
        kubeconfig::client(self.config().await?, agent)
    }

    /// A client that acts as another user by impersonation. `system:authenticated` is added to the
    /// groups, as for a real user.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client_as(&self, user: &str, groups: &[&str]) -> Result<Client> {
        let mut config = self.config().await?;
        let groups = groups.iter().copied().chain(["system:authenticated"]).map(str::to_owned);
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(groups.collect());
        kubeconfig::client(config, "devcluster")
    }

    /// A client for a kubeconfig file, for example one of [`Cluster::issue_client_cert`].
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn client_from(&self, kubeconfig: &Path) -> Result<Client> {
        kubeconfig::client(kubeconfig::config(kubeconfig).await?, "devcluster")
    }

    /// Makes a client certificate for a user with at most two groups and returns a kubeconfig with
    /// it.
    ///
    /// # Errors
    /// When the cluster is not our own, there are more groups, or the file cannot be written.
    pub fn issue_client_cert(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        let owned = self.owned()?;
        let identity = owned.authority.client(user, groups)?;
        let path = owned.layout.file(&format!("user-{}.kubeconfig", file_name(user)));
        let server = owned.server();
        kubeconfig::write(&path, &server, &owned.authority.pem(), &identity)?;
        Ok(path)
    }

    /// Makes a token for an existing service account, valid for a day, and returns a kubeconfig
    /// with it.
    ///
    /// # Errors
    /// When there is no such service account, or the file cannot be written.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = crate::access::token(self.client().await?, namespace, name).await?;
        let file = format!("serviceaccount-{}-{}.kubeconfig", file_name(namespace), file_name(name));
        let path = match &self.kind {
            Kind::Owned(owned) => owned.layout.file(&file),
            Kind::Attached(dir) => dir.path().join(file),
        };
        crate::access::with_token(&self.kubeconfig, &token, &path)?;
        Ok(path)
    }

    /// The audit log.
    ///
    /// # Errors
    /// When the cluster was started without one, or is not our own and `DEVCLUSTER_AUDIT_LOG` names
    /// none.
    pub fn audit(&self) -> Result<AuditReader> {
        match &self.kind {
            Kind::Owned(owned) if owned.options.audit => Ok(AuditReader::new(owned.layout.audit_log())),
            Kind::Owned(_) => bail!("the cluster was started without an audit log"),
            Kind::Attached(_) => match std::env::var_os("DEVCLUSTER_AUDIT_LOG") {
                Some(path) if !path.is_empty() => Ok(AuditReader::new(PathBuf::from(path))),
                _ => bail!("the audit log of the given cluster is not known; DEVCLUSTER_AUDIT_LOG may name it"),
            },
        }
    }

    /// A position in the audit log behind everything that was answered before this call.
    ///
    /// Entries are written a moment after their answer. So this sends a request of its own and
    /// waits for its entry.
    ///
    /// # Errors
    /// When there is no audit log, or the API server does not answer.
    pub async fn audit_mark(&self) -> Result<Mark> {
        crate::access::audit_mark(self.client().await?, &self.audit()?).await
    }

    /// The image registry of the real node.
    ///
    /// # Errors
    /// When there is no real node, or the cluster is not our own.
    pub fn registry(&self) -> Result<&Registry> {
        let node = self.owned()?.real_node.as_ref();
        node.map(|node| &node.registry).context("the cluster was started without a real node")
    }

    /// The process id of a component.
    ///
    /// # Errors
    /// When it does not run, or the cluster is not our own.
    pub fn pid(&self, component: Component) -> Result<u32> {
        self.with(component, |process| Ok(process.pid()))
    }

    /// Freezes a component (SIGSTOP): its connections stay open, nothing answers.
    ///
    /// # Errors
    /// When it does not run, or the cluster is not our own.
    pub fn pause(&self, component: Component) -> Result<()> {
        self.with(component, |process| process.signal(Signal::STOP))
    }

    /// Lets a paused component go on (SIGCONT).
    ///
    /// # Errors
    /// When it does not run, or the cluster is not our own.
    pub fn resume(&self, component: Component) -> Result<()> {
        self.with(component, |process| process.signal(Signal::CONT))
    }

    /// Kills a component (SIGKILL), as a crash would, and waits for its end. [`Cluster::restart`]
    /// brings it back.
    ///
    /// # Errors
    /// When it does not run, or the cluster is not our own.
    pub fn kill(&self, component: Component) -> Result<()> {
        let process = self.owned()?.processes().remove(&component);
        match process {
            Some(mut process) => process.kill(),
            None => bail!("{component} does not run"),
        }
        Ok(())
    }

    /// Kills a component if it runs and starts it again with the same data and port; waits until it
    /// works again.
    ///
    /// Simulated pods may share an address after a restart of KWOK, because it starts its address
    /// pools afresh.
    ///
    /// # Errors
    /// When it does not start, or the cluster is not our own.
    pub async fn restart(&self, component: Component) -> Result<()> {
        start::restart(self, self.owned()?, component).await
    }

    /// Restarts a client component with another API server address, for example that of a proxy
    /// which spoils watches ([`Cluster::proxy`]); `None` goes back to the API server.
    ///
    /// With an `http://` address the component sends no client certificate: the proxy has to add
    /// credentials to requests without an `Authorization` header (those of
    /// [`Cluster::component_kubeconfig`]), and must pass the others on as they are, because the
    /// controller manager uses tokens of its controllers' service accounts.
    ///
    /// # Errors
    /// When the component is no client, does not start, or the cluster is not our own.
    pub async fn route(&self, component: Component, server: Option<&str>) -> Result<()> {
        let owned = self.owned()?;
        if component.identity().is_none() {
            bail!("{component} is no client of the API server");
        }
        match server {
            Some(server) => owned.routes().insert(component, server.to_owned()),
            None => owned.routes().remove(&component),
        };
        start::write_kubeconfig(owned, component)?;
        self.restart(component).await
    }

    /// A kubeconfig with the identity of a client component (controller manager, scheduler, KWOK)
    /// and the API server's own address, whatever [`Cluster::route`] says.
    ///
    /// # Errors
    /// When the component is no client, or the cluster is not our own.
    pub fn component_kubeconfig(&self, component: Component) -> Result<PathBuf> {
        match component.identity() {
            Some((user, groups)) => self.issue_client_cert(user, groups),
            None => bail!("{component} is no client of the API server"),
        }
    }

    /// A proxy for a client component, with its credentials; [`Cluster::route`] then leads the
    /// component through it. It passes everything until it is told otherwise.
    ///
    /// # Errors
    /// When the component is no client, or the cluster is not our own.
    pub async fn proxy(&self, component: Component) -> Result<WatchProxy> {
        WatchProxy::start(kubeconfig::config(&self.component_kubeconfig(component)?).await?).await
    }

    fn with<T>(&self, component: Component, act: impl FnOnce(&mut Process) -> Result<T>) -> Result<T> {
        match self.owned()?.processes().get_mut(&component) {
            Some(process) => act(process).with_context(|| component.to_string()),
            None => bail!("{component} does not run"),
        }
    }
}

/// A user name as part of a file name.
fn file_name(user: &str) -> String {
    user.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}
