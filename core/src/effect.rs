//! The closed vocabulary of what a plan may ask for. Each effect carries the precondition under which it is right;
//! one that lost its precondition is planned again, never written again.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    api::{
        condition::Status,
        policy::Phase,
        run::{HookRunSpec, HookRunStatus},
    },
    time::Time,
};

/// One thing to do. The executor has one function for each and makes no choice of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Create a HookRun, owned by the Deployment. Precondition: no run of this name.
    CreateRun {
        /// Its name, which is a function of Deployment UID, target and sequence.
        name: String,
        /// Its spec.
        spec: Box<HookRunSpec>,
    },
    /// Replace the status of a run. Precondition: its resourceVersion.
    RecordStatus {
        /// Name of the run.
        run: String,
        /// Its resourceVersion.
        resource_version: String,
        /// The whole status.
        status: Box<HookRunStatus>,
    },
    /// Delete a run that is beyond the history limit. Precondition: UID.
    DeleteRun {
        /// Name.
        name: String,
        /// UID.
        uid: String,
    },
    /// JSON patch of a pod. Its own `test` operations are the precondition.
    PatchPod {
        /// Name.
        name: String,
        /// Operations.
        patch: Value,
    },
    /// JSON patch of a pod's `resize` subresource. Its own `test` operations are the precondition.
    ResizePod {
        /// Name.
        name: String,
        /// Operations.
        patch: Value,
    },
    /// Create an empty or full ReplicaSet. Precondition: no ReplicaSet of this name.
    CreateReplicaSet {
        /// What it is for.
        purpose: ReplicaSetPurpose,
        /// The whole object.
        object: Value,
    },
    /// JSON patch of a ReplicaSet: the commit, or the return of a woken one to 0.
    PatchReplicaSet {
        /// Name.
        name: String,
        /// Operations, with `test` on what they replace.
        patch: Value,
    },
    /// Delete an empty ReplicaSet. Preconditions: UID and resourceVersion.
    DeleteReplicaSet {
        /// Name.
        name: String,
        /// UID.
        uid: String,
        /// resourceVersion.
        resource_version: String,
    },
    /// JSON merge patch of the Deployment: release, freeze of a native roll, clearing of copied marks.
    /// Precondition: `metadata.resourceVersion` inside the patch.
    PatchDeployment {
        /// What it is for.
        purpose: DeploymentPurpose,
        /// The merge patch.
        patch: Value,
    },
    /// Set conditions of ours in the Deployment's status (strategic merge, by type). Precondition: the UID. Not the
    /// resourceVersion: the Deployment controller writes the status in the same moments. One that arrives late is put
    /// right by the next plan.
    MirrorConditions {
        /// Conditions by type.
        conditions: BTreeMap<String, Mirror>,
    },
    /// Start one attempt of a hook, unless one with this key runs.
    StartHook(HookCall),
    /// Stop the attempts of these keys that still run.
    CancelHooks(Vec<String>),
    /// Tell people.
    Event {
        /// Normal or Warning.
        warning: bool,
        /// Reason, CamelCase.
        reason: String,
        /// Message.
        message: String,
    },
}

impl Effect {
    /// What is written, as [`crate::world::World::refusals`] names it. `None`: nothing depends on it, or nothing is
    /// written.
    pub fn subject(&self) -> Option<String> {
        match self {
            Self::CreateRun { name, .. } | Self::DeleteRun { name, .. } => Some(format!("run/{name}")),
            Self::RecordStatus { run, .. } => Some(format!("status/{run}")),
            Self::PatchPod { name, .. } => Some(format!("pod/{name}")),
            Self::ResizePod { name, .. } => Some(format!("resize/{name}")),
            Self::CreateReplicaSet { object, .. } => {
                let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                Some(format!("replicaset/{name}"))
            }
            Self::PatchReplicaSet { name, .. } | Self::DeleteReplicaSet { name, .. } => {
                Some(format!("replicaset/{name}"))
            }
            Self::PatchDeployment { .. } => Some("deployment".to_owned()),
            Self::MirrorConditions { .. } => Some("conditions".to_owned()),
            Self::StartHook(_) | Self::CancelHooks(_) | Self::Event { .. } => None,
        }
    }
}

/// Why a ReplicaSet is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaSetPurpose {
    /// The one that runs was deleted while held.
    Remake,
    /// An empty copy that keeps the template that ran last the youngest.
    Copy,
    /// An old revision goes back into the history.
    History,
}

/// Why the Deployment is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeploymentPurpose {
    /// The hold ends.
    Release,
    /// A native roll failed: it is paused, with the marks of a hold.
    Freeze,
    /// Marks on a Deployment that is not held are copies; they go.
    ClearMarks,
}

/// A condition to mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Status.
    pub status: Status,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
    /// Since when.
    pub since: Time,
}

/// One attempt of a hook, complete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HookCall {
    /// Idempotency key: a function of run UID, phase, hook and attempt.
    pub key: String,
    /// Name of the hook.
    pub hook: String,
    /// Its phase.
    pub phase: Phase,
    /// The attempt, from 1.
    pub attempt: i64,
    /// Absolute URL.
    pub url: String,
    /// Seconds that the attempt may take.
    pub timeout_seconds: i64,
    /// The facts of the update, as JSON.
    pub body: Value,
}
