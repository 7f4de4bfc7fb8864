//! The closed vocabulary of what a plan may ask for. Each effect carries the precondition under which it is right;
//! one that lost its precondition is planned again, never written again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{
    api::{
        condition::Status,
        hook::{HttpHook, JobHook, PatchHook, Phase, PrePullHook, WaitForHook},
        run::{HookRunSpec, HookRunStatus, ObjectRef},
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
    /// Set the condition of [`crate::api::names::READINESS_GATE`] in a pod's status (strategic merge, by type).
    /// Precondition: the UID. One that arrives late is put right by the next plan.
    SetReadinessGate {
        /// Name.
        name: String,
        /// UID.
        uid: String,
        /// True: the pod may serve.
        open: bool,
        /// Since when.
        since: Time,
    },
    /// Create an empty or full ReplicaSet. Precondition: no ReplicaSet of this name.
    CreateReplicaSet {
        /// What it is for.
        purpose: ReplicaSetPurpose,
        /// The whole object.
        object: Value,
    },
    /// JSON patch of a ReplicaSet: the commit, the return of a woken one to 0, or the number of replicas that the Deployment
    /// controller left unsaid.
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
    StartHook(Box<HookCall>),
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
            Self::SetReadinessGate { name, .. } => Some(format!("gate/{name}")),
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
    /// A RollingRestart makes its pods anew.
    Restart,
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
    /// Idempotency key: a function of run UID, phase, hook, pod UID (or number of the failure) and attempt.
    pub key: String,
    /// Name of the hook.
    pub hook: String,
    /// Its phase.
    pub phase: Phase,
    /// Namespace of everything that the attempt touches.
    pub namespace: String,
    /// The Deployment.
    pub deployment: ObjectRef,
    /// The attempt, from 1.
    pub attempt: i64,
    /// The run, which owns whatever the attempt makes.
    pub run: ObjectRef,
    /// The pod, in a phase that runs for each pod.
    pub pod: Option<ObjectRef>,
    /// What is done.
    pub call: Call,
    /// Seconds that the attempt may take, from `started_at`.
    pub timeout_seconds: i64,
    /// When the intent was recorded.
    pub started_at: Time,
    /// The facts of the update, as JSON (docs/hooks.md).
    pub facts: Value,
}

/// What an attempt does, complete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// An HTTP request, or several with `repeatUntil`.
    Http(HttpHook),
    /// A Job, made once under a name that is a function of the key, and awaited.
    Job(JobHook),
    /// Pulls images to the nodes that run pods with these labels.
    PrePull {
        /// How.
        hook: PrePullHook,
        /// The images.
        images: BTreeSet<String>,
        /// Names of the pull secrets of the new template.
        pull_secrets: BTreeSet<String>,
        /// `spec.selector.matchLabels` of the Deployment.
        match_labels: BTreeMap<String, String>,
    },
    /// Awaits a state of an object.
    WaitFor(WaitForHook),
    /// Changes labels and annotations, of the Deployment or of `pod`. With `undoOnRevert` what was there before goes into
    /// annotation `interlock.dev/undo` of the object in the same write.
    Patch(PatchHook),
    /// Puts back what a [`Call::Patch`] of the same hook and run replaced, as that annotation says; nothing if it says
    /// nothing, or if the object is gone. The key is not that of the patch.
    Undo(PatchHook),
    /// Awaits that no EndpointSlice shows `pod` as ready, by live reads. Its result is not recorded.
    Drained,
}
