//! The controllers of the control plane and the kubelets, each a task with a view of its own that can lag behind.

mod deployment;
mod garbage;
mod job;
mod kubelet;
mod replicaset;
mod view;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet};

use self::view::View;
use crate::{Server, Store};

/// How late a view is, in milliseconds. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Lag(Arc<AtomicU64>);

impl Lag {
    pub fn set(&self, millis: u64) {
        self.0.store(millis, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// Everything that runs beside the API server. Ends when it is dropped.
pub struct ControlPlane {
    /// How late the Deployment controller's view is.
    pub deployments_lag: Lag,
    /// How late the ReplicaSet controller's view is.
    pub replica_sets_lag: Lag,
    manager: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl ControlPlane {
    /// Starts the controllers and the kubelets of a server.
    pub fn start(server: &Server) -> Self {
        let store = || Arc::clone(&server.store);
        let (deployments_lag, replica_sets_lag) = (Lag::default(), Lag::default());
        let (manager, running) = watch::channel(true);
        let mut tasks = JoinSet::new();
        tasks.spawn(deployment::run(store(), deployments_lag.clone(), running.clone()));
        tasks.spawn(replicaset::run(store(), replica_sets_lag.clone(), running.clone()));
        tasks.spawn(garbage::run(store(), running.clone()));
        tasks.spawn(job::run(store(), running));
        tasks.spawn(kubelet::run(store()));
        Self { deployments_lag, replica_sets_lag, manager, _tasks: tasks }
    }

    /// Stops the controllers where they stand; kubelets go on.
    pub fn freeze(&self) {
        self.manager.send_replace(false);
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        self.manager.send_replace(true);
    }
}

/// Waits until the switch is on.
async fn on(switch: &mut watch::Receiver<bool>) {
    if switch.wait_for(|on| *on).await.is_err() {
        std::future::pending().await
    }
}

/// The time that a controller takes before it acts: some milliseconds, by the seed.
async fn think(store: &Store) {
    tokio::time::sleep(Duration::from_millis(1) + store.jitter(6)).await;
}
