//! A real Kubernetes control plane for development and tests, from ordinary packages and without a
//! container engine: etcd, API server, controller manager and scheduler, with nodes and pods
//! simulated by KWOK, and on request a real node with real containers. A [`WatchProxy`] delays, cuts,
//! black-holes or answers with 410 the watches of one resource of one client; with
//! [`Options::separate_controllers`] the Deployment controller and the ReplicaSet controller are such
//! clients of their own.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use devcluster::{Cluster, Component, Options};
//!
//! let cluster = Cluster::start(Options::default()).await?;
//! let client = cluster.client().await?;
//! let mark = cluster.audit_mark().await?;
//! // ... work with the client ...
//! let writes = cluster.audit()?.writes_since(mark)?;
//! cluster.restart(Component::ApiServer).await?;
//! # Ok(())
//! # }
//! ```

mod access;
mod audit;
mod binaries;
mod builder;
mod certs;
mod cluster;
mod component;
mod datadir;
mod detached;
mod kubeconfig;
mod nodes;
mod options;
mod paths;
mod process;
mod proxy;
mod real_node;
mod start;

pub use audit::{AuditReader, Event, Mark, Stage};
pub use binaries::{Binaries, Binary, build_dir};
pub use cluster::Cluster;
pub use component::Component;
pub use detached::{Named, State, Wanted};
pub use options::Options;
pub use paths::cache_dir;
pub use proxy::{WatchFault, WatchProxy};
pub use real_node::{Registry, can_run_real_node};
