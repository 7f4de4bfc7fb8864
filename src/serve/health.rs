//! What `/healthz` and `/readyz` answer.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::lease::Fence;

/// A controller loop that was not heard of for so long is dead. Its own heartbeat comes every few seconds.
pub const SILENCE: Duration = Duration::from_mins(1);

/// State of the process, shared between the controller, which reports, and the server, which answers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fence: Fence,
    beat: Mutex<Instant>,
    synced: AtomicBool,
    running: AtomicBool,
    stopping: AtomicBool,
}

impl Health {
    /// Just started: alive, not ready.
    pub fn new(fence: Fence) -> Self {
        Self(Arc::new(Inner {
            fence,
            beat: Mutex::new(Instant::now()),
            synced: AtomicBool::new(false),
            running: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        }))
    }

    /// The controller loop has come round, idle or not. To be called at least every few seconds.
    pub fn beat(&self) {
        *self.0.beat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Are the caches complete?
    pub fn synced(&self, synced: bool) {
        self.0.synced.store(synced, Ordering::Relaxed);
    }

    /// Does the controller act (as the leader)?
    pub fn running(&self, running: bool) {
        self.0.running.store(running, Ordering::Relaxed);
    }

    /// The process is shutting down: no longer ready.
    pub fn stopping(&self) {
        self.0.stopping.store(true, Ordering::Relaxed);
    }

    /// May this process write now?
    pub fn leads(&self) -> bool {
        self.0.fence.holds()
    }

    /// Is the controller loop alive? If not, why.
    pub fn alive(&self) -> Result<(), String> {
        let silent = self.0.beat.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        if silent < SILENCE {
            return Ok(());
        }
        Err(format!("the controller loop has not come round for {} s", silent.as_secs()))
    }

    /// Caches complete, and the leader acts; a follower with complete caches is ready to take over. If not, why.
    pub fn ready(&self) -> Result<(), String> {
        self.alive()?;
        if self.0.stopping.load(Ordering::Relaxed) {
            return Err("shutting down".into());
        }
        if !self.0.synced.load(Ordering::Relaxed) {
            return Err("the caches are not complete yet".into());
        }
        if self.0.fence.holds() && !self.0.running.load(Ordering::Relaxed) {
            return Err("this process leads and has not started to act yet".into());
        }
        Ok(())
    }
}
