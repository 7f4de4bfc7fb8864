//! Faults that tests plant on purpose, to see that a named test catches each (`tests/planted.rs`).
//!
//! Only a build with the feature `planted` contains them, and that feature does not compile without debug assertions, so
//! no release has it. One build serves all of them: a switch per thread says which one is in force. Without the feature
//! [`planted`] is a constant `false`.

#[cfg(all(feature = "planted", not(debug_assertions)))]
compile_error!("the feature `planted` compiles faults in; it is for tests only and never for a release");

/// A fault, by the rule that it takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// The barrier does not wait for the ReplicaSet controller: its half (a).
    BarrierReplicaSetController,
    /// The barrier does not wait for the Deployment controller: its half (b).
    BarrierDeploymentController,
    /// A run ends without a last live list of the pods.
    LastLiveList,
    /// Marks of a hold are believed whatever generation they name. Admission has this rule, so the simulated one has
    /// the fault; for the real one see `tests/admission`.
    MarksOfAnyGeneration,
    /// A ReplicaSet that is made again carries the Deployment controller's `desired-replicas` of before, and nobody puts it right.
    StaleDesiredReplicas,
    /// The patch of a pod tests nothing.
    PodPrecondition,
    /// Older empty ReplicaSets that equal the target stay.
    EqualReplicaSetsStay,
    /// With no pods at all, any ReplicaSet may be the youngest.
    YoungestAtZero,
    /// What is known of a hook's attempt is cleaned up before its result is recorded.
    ResultAfterCleanup,
    /// A pod is done when it shows the generation of the write and `Ready`.
    DoneByGenerationAndReady,
}

#[cfg(feature = "planted")]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    std::thread_local!(static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) });

    /// Is this fault in force on this thread?
    pub fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Does something with a fault in force on this thread.
    pub fn with<T>(bug: Bug, what: impl FnOnce() -> T) -> T {
        struct Cleared;
        impl Drop for Cleared {
            fn drop(&mut self) {
                PLANTED.set(None);
            }
        }
        PLANTED.set(Some(bug));
        let _cleared = Cleared;
        what()
    }
}

#[cfg(feature = "planted")]
pub use switch::{planted, with};

/// Is this fault in force? Never in this build.
#[cfg(not(feature = "planted"))]
pub const fn planted(_: Bug) -> bool {
    false
}
