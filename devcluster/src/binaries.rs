//! The binaries of a cluster: which there are, where they are cached, and how they are built.
//!
//! They come from the Go module proxy through the `go.mod` files of this crate, which are embedded
//! so that the library works from any folder. A build happens once per machine and per content of
//! those files.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use sha2::{Digest, Sha256};

use crate::builder;
use crate::paths::cache_dir;

/// A Go module: its folder name and its files.
#[derive(Debug)]
pub(crate) struct GoModule {
    pub(crate) name: &'static str,
    pub(crate) go_mod: &'static str,
    pub(crate) go_sum: &'static str,
    /// Our own source files: path and text. Most modules only name others.
    pub(crate) sources: &'static [(&'static str, &'static str)],
    /// Value of `-tags`.
    pub(crate) tags: &'static str,
    /// Value of `-ldflags`. Versions are set here because a plain `go build` leaves them at v0.0.0.
    pub(crate) ldflags: &'static str,
}

pub(crate) const K8S: GoModule = GoModule {
    name: "k8s",
    go_mod: include_str!("../go/k8s/go.mod"),
    go_sum: include_str!("../go/k8s/go.sum"),
    sources: &[],
    tags: "",
    ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2 \
              -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37 \
              -X k8s.io/client-go/pkg/version.gitVersion=v1.37.2",
};

pub(crate) const KWOK: GoModule = GoModule {
    name: "kwok",
    go_mod: include_str!("../go/kwok/go.mod"),
    go_sum: include_str!("../go/kwok/go.sum"),
    sources: &[],
    tags: "",
    ldflags: "-s -w -X sigs.k8s.io/kwok/pkg/consts.Version=v0.8.0",
};

pub(crate) const RUNTIME: GoModule = GoModule {
    name: "runtime",
    go_mod: include_str!("../go/runtime/go.mod"),
    go_sum: include_str!("../go/runtime/go.sum"),
    sources: &[],
    // Snapshotters that need C libraries or are not used.
    tags: "no_btrfs,no_devmapper,no_zfs",
    ldflags: "-s -w -X github.com/containerd/containerd/v2/version.Version=v2.2.9",
};

pub(crate) const NODE: GoModule = GoModule {
    name: "node",
    go_mod: include_str!("../go/node/go.mod"),
    go_sum: "",
    sources: &[
        ("app/main.go", include_str!("../go/node/app/main.go")),
        ("runc-unfiltered/main.go", include_str!("../go/node/runc-unfiltered/main.go")),
    ],
    tags: "",
    ldflags: "-s -w",
};

/// Flags of every build, part of the cache key. `-mod=readonly` keeps a `GOFLAGS` of the user from
/// changing versions; `-buildvcs=false` because the cache folder may lie inside somebody's
/// repository.
pub(crate) const BUILD_FLAGS: [&str; 3] = ["-trimpath", "-buildvcs=false", "-mod=readonly"];

/// A binary that the development cluster can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Binary {
    /// The key-value store.
    Etcd,
    /// The API server.
    KubeApiserver,
    /// The controllers of Kubernetes itself (Deployments, ReplicaSets, service accounts, ...).
    KubeControllerManager,
    /// The scheduler.
    KubeScheduler,
    /// The command line client.
    Kubectl,
    /// The simulator of nodes and pods.
    Kwok,
    /// The agent of a real node.
    Kubelet,
    /// The container runtime of a real node.
    Containerd,
    /// What containerd runs beside every pod.
    ContainerdShim,
    /// What creates containers.
    Runc,
    /// What calls it, see `go/node/runc-unfiltered/main.go`.
    RuncUnfiltered,
    /// The network plugin of a real node.
    CniBridge,
    /// The plugin that gives out the addresses of its pods.
    CniHostLocal,
    /// The program in the images of the registry of a real node.
    App,
}

impl Binary {
    /// What a cluster needs, in the order in which it is built.
    pub const DEFAULT: [Self; 6] =
        [Self::Etcd, Self::KubeApiserver, Self::KubeControllerManager, Self::KubeScheduler, Self::Kubectl, Self::Kwok];

    /// What a real node needs besides.
    pub const REAL_NODE: [Self; 8] = [
        Self::Kubelet,
        Self::Containerd,
        Self::ContainerdShim,
        Self::Runc,
        Self::RuncUnfiltered,
        Self::CniBridge,
        Self::CniHostLocal,
        Self::App,
    ];

    /// Every binary.
    pub const ALL: [Self; 14] = [
        Self::Etcd,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::KubeScheduler,
        Self::Kubectl,
        Self::Kwok,
        Self::Kubelet,
        Self::Containerd,
        Self::ContainerdShim,
        Self::Runc,
        Self::RuncUnfiltered,
        Self::CniBridge,
        Self::CniHostLocal,
        Self::App,
    ];

    /// The file name, for example `kube-apiserver`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
            Self::Kwok => "kwok",
            Self::Kubelet => "kubelet",
            Self::Containerd => "containerd",
            Self::ContainerdShim => "containerd-shim-runc-v2",
            Self::Runc => "runc",
            Self::RuncUnfiltered => "runc-unfiltered",
            Self::CniBridge => "bridge",
            Self::CniHostLocal => "host-local",
            Self::App => "node-app",
        }
    }

    /// The binary of this file name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|binary| binary.name() == name)
    }

    pub(crate) fn module(self) -> &'static GoModule {
        match self {
            Self::Kwok => &KWOK,
            Self::Containerd | Self::ContainerdShim | Self::Runc | Self::CniBridge | Self::CniHostLocal => &RUNTIME,
            Self::App | Self::RuncUnfiltered => &NODE,
            _ => &K8S,
        }
    }

    /// Whether it has parts in C: runc must enter namespaces before the Go runtime starts threads.
    pub(crate) fn needs_c(self) -> bool {
        self == Self::Runc
    }

    /// The Go package that is built.
    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::KubeApiserver => "k8s.io/kubernetes/cmd/kube-apiserver",
            Self::KubeControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
            Self::KubeScheduler => "k8s.io/kubernetes/cmd/kube-scheduler",
            Self::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Self::Kwok => "sigs.k8s.io/kwok/cmd/kwok",
            Self::Kubelet => "k8s.io/kubernetes/cmd/kubelet",
            Self::Containerd => "github.com/containerd/containerd/v2/cmd/containerd",
            Self::ContainerdShim => "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            Self::Runc => "github.com/opencontainers/runc",
            Self::CniBridge => "github.com/containernetworking/plugins/plugins/main/bridge",
            Self::CniHostLocal => "github.com/containernetworking/plugins/plugins/ipam/host-local",
            Self::RuncUnfiltered => "interlock.invalid/devcluster/node/runc-unfiltered",
            Self::App => "interlock.invalid/devcluster/node/app",
        }
    }

    /// How long a first build takes on two cores after the builds before it, as measured; shown to
    /// whoever waits.
    pub(crate) fn first_build(self) -> Duration {
        match self {
            Self::Etcd => Duration::from_mins(1),
            Self::KubeApiserver => Duration::from_mins(6),
            Self::KubeControllerManager | Self::Kwok | Self::Containerd => Duration::from_mins(2),
            Self::Kubectl | Self::Kubelet | Self::Runc => Duration::from_secs(30),
            Self::KubeScheduler
            | Self::ContainerdShim
            | Self::CniBridge
            | Self::CniHostLocal
            | Self::App
            | Self::RuncUnfiltered => Duration::from_secs(10),
        }
    }

    /// The version that a build of this crate gives, from `go.mod`.
    pub fn pinned_version(self) -> &'static str {
        let module = match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3 ",
            Self::Kwok => "sigs.k8s.io/kwok ",
            Self::Containerd | Self::ContainerdShim => "github.com/containerd/containerd/v2 ",
            Self::Runc => "github.com/opencontainers/runc ",
            Self::CniBridge | Self::CniHostLocal => "github.com/containernetworking/plugins ",
            Self::App | Self::RuncUnfiltered => return "of this repository",
            _ => "k8s.io/kubernetes ",
        };
        self.module()
            .go_mod
            .lines()
            .find_map(|line| line.trim().trim_start_matches("require ").strip_prefix(module))
            .and_then(|rest| rest.split_whitespace().next())
            .unwrap_or("unknown")
    }
}

/// Where binaries are on this machine. Get one from [`Binaries::ensure`].
#[derive(Clone, Debug)]
pub struct Binaries {
    paths: BTreeMap<Binary, PathBuf>,
}

impl Binaries {
    /// Finds the given binaries and builds those that are missing, with progress on standard error.
    ///
    /// Looked up in this order: the folder `DEVCLUSTER_BIN`, the folder `KUBEBUILDER_ASSETS`, the
    /// cache. A first build of all takes about ten minutes on two cores and needs Go and a Go
    /// module proxy; processes that need the same binaries at the same time wait for each other.
    /// This call blocks: from async code use `spawn_blocking`.
    ///
    /// # Errors
    /// When Go is missing, a build fails (its output is shown) or the cache folder cannot be
    /// written.
    pub fn ensure(wanted: &[Binary]) -> Result<Self> {
        let mut paths = BTreeMap::new();
        let mut missing: BTreeMap<PathBuf, Vec<Binary>> = BTreeMap::new();
        for &binary in wanted {
            let dir = build_dir(binary)?;
            match given(binary)?.or_else(|| Some(dir.join(binary.name())).filter(|path| path.is_file())) {
                Some(path) => _ = paths.insert(binary, path),
                None => missing.entry(dir).or_default().push(binary),
            }
        }
        for (dir, missing) in missing {
            builder::build(&dir, &missing)?;
            paths.extend(missing.into_iter().map(|binary| (binary, dir.join(binary.name()))));
        }
        Ok(Self { paths })
    }

    /// Where this binary is.
    ///
    /// # Errors
    /// When it was not among the binaries that [`Binaries::ensure`] was asked for.
    pub fn path(&self, binary: Binary) -> Result<&Path> {
        match self.paths.get(&binary) {
            Some(path) => Ok(path),
            None => bail!("{} was not asked for when the binaries were looked up", binary.name()),
        }
    }

    /// All binaries with their paths.
    pub fn iter(&self) -> impl Iterator<Item = (Binary, &Path)> {
        self.paths.iter().map(|(binary, path)| (*binary, path.as_path()))
    }
}

/// The cache folder of a binary, by the module files and build flags that it is built from. The
/// control plane and the real node have one each, so that a change of one does not build the other.
///
/// # Errors
/// When there is no cache folder, see [`cache_dir`].
pub fn build_dir(binary: Binary) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    let of_node = [RUNTIME.name, NODE.name].contains(&binary.module().name);
    let modules = if of_node { [&RUNTIME, &NODE] } else { [&K8S, &KWOK] };
    for module in modules {
        let files = [module.go_mod, module.go_sum, module.tags, module.ldflags];
        for text in files.into_iter().chain(module.sources.iter().map(|(_, text)| *text)) {
            if !text.is_empty() {
                // With its length, so that text moved from one file to the next gives another key.
                hash.update((text.len() as u64).to_be_bytes());
                hash.update(text.as_bytes());
            }
        }
    }
    hash.update(BUILD_FLAGS.join(" ").as_bytes());
    let mut key = String::new();
    for byte in hash.finalize().iter().take(8) {
        write!(key, "{byte:02x}")?;
    }
    Ok(cache_dir()?.join(key))
}

/// The binary in a folder that the user names, if it is there.
fn given(binary: Binary) -> Result<Option<PathBuf>> {
    for variable in ["DEVCLUSTER_BIN", "KUBEBUILDER_ASSETS"] {
        let Some(dir) = env::var_os(variable).filter(|value| !value.is_empty()) else { continue };
        let dir = std::path::absolute(dir)?;
        if !dir.is_dir() {
            bail!("{variable} names {}, which is not a folder", dir.display());
        }
        let path = dir.join(binary.name());
        if fs::metadata(&path).is_ok_and(|meta| meta.is_file()) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_module_files() {
        assert_eq!(Binary::KubeApiserver.pinned_version(), "v1.37.2");
        assert_eq!(Binary::Kwok.pinned_version(), "v0.8.0");
        assert!(Binary::Etcd.pinned_version().starts_with("v3."));
        // The version that a binary reports is set by a flag: it must be the version that is built.
        assert!(K8S.ldflags.contains(&format!("gitVersion={}", Binary::KubeApiserver.pinned_version())));
        assert!(KWOK.ldflags.contains(&format!("Version={}", Binary::Kwok.pinned_version())));
        assert!(RUNTIME.ldflags.contains(&format!("Version={}", Binary::Containerd.pinned_version())));
        assert!(Binary::Runc.pinned_version().starts_with("v1."));
    }

    #[test]
    fn every_binary_is_a_tool_of_its_module() {
        for binary in Binary::ALL {
            let module = binary.module();
            let named = match binary.package().strip_prefix("interlock.invalid/devcluster/node/") {
                Some(folder) => module.sources.iter().any(|(path, _)| path.starts_with(folder)),
                None => module.go_mod.contains(binary.package()),
            };
            assert!(named, "{}", binary.name());
            assert_eq!(Binary::from_name(binary.name()), Some(binary));
        }
    }
}
