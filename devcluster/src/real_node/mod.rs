//! A real node: kubelet, containerd and runc, with a bridge network and an image registry of its own.
//!
//! It runs in a mount and a process namespace of its own (boot.sh is its first process): killing one process ends
//! all of it and unmounts everything, as a power cut would. Only a bridge and control groups are outside, see [`host`].

mod config;
mod host;
mod images;
mod preflight;
mod registry;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use host::Host;

use crate::binaries::{Binaries, Binary};
use crate::component::free_port;

pub use preflight::can_run_real_node;
pub use registry::Registry;

/// The name of the node.
pub(crate) const NODE: &str = "real-0";

const BOOT: &str = include_str!("boot.sh");

/// What the node's processes need: files, a bridge, control groups and a registry. Its processes are those of
/// [`crate::Component::RealNode`] and have to end before it is dropped.
pub(crate) struct RealNode {
    pub(crate) registry: Registry,
    host: Host,
    dir: PathBuf,
    kubelet: PathBuf,
    /// Where the node's processes find programs.
    path: String,
}

impl RealNode {
    /// Prepares a node whose files are in the cluster's folder `dir`, which has `ca.crt` and `logs/`.
    pub(crate) fn new(dir: &Path, binaries: &Binaries) -> Result<Self> {
        // The node sees these places empty.
        if let Some(hidden) = ["/run", "/var/log", "/var/lib"].into_iter().find(|place| dir.starts_with(place)) {
            bail!("a real node cannot have its data below {hidden}, but its folder is {}", dir.display());
        }
        let host = Host::new()?;
        let registry = Registry::start(binaries.path(Binary::App)?)?;
        for folder in ["registries/_default", "network"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        for (name, text) in [
            ("boot.sh", BOOT.to_owned()),
            ("kubelet.json", config::kubelet(dir, &host, free_port()?)),
            ("containerd.toml", config::containerd(dir, binaries)?),
            ("registries/_default/hosts.toml", config::registries(registry.port())),
            ("network/10-devcluster.conflist", config::network(dir, &host)),
            ("resolv.conf", "nameserver 127.0.0.1\n".to_owned()),
        ] {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let mut folders = Vec::new();
        for binary in Binary::REAL_NODE {
            folders.extend(binaries.path(binary)?.parent().map(Path::to_owned));
        }
        folders.dedup();
        folders.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
        let path = std::env::join_paths(folders)?.into_string().ok().context("a PATH that is not UTF-8")?;
        let kubelet = binaries.path(Binary::Kubelet)?.to_owned();
        Ok(Self { registry, host, dir: dir.to_owned(), kubelet, path })
    }

    /// The command that is the node: program and arguments.
    pub(crate) fn command(&self, kubeconfig: &Path) -> (PathBuf, Vec<String>) {
        let unshare = ["PATH", "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh"];
        let mut args: Vec<String> = unshare.into_iter().map(str::to_owned).collect();
        if let Some(first) = args.first_mut() {
            *first = format!("PATH={}", self.path);
        }
        args.extend([&self.dir.join("boot.sh"), &self.dir, &self.kubelet].map(|path| path.display().to_string()));
        args.extend(config::kubelet_args(&self.dir, kubeconfig, &self.host));
        (PathBuf::from("env"), args)
    }
}
