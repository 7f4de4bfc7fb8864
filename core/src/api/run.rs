//! `HookRun`: the durable record of one update. Its spec is written by the controller once, except for decisions,
//! which people add in their own name; its status is computed whole by the planner.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    condition::Condition,
    hook::{Hook, Phase},
    policy::{OldPods, OnDelete, OnGateTimeout, Update},
};
use crate::{template::Template, time::Time};

/// Everything about an update that must survive a crash of the controller and changes of its surroundings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookRunSpec {
    /// The Deployment that is updated.
    pub deployment: ObjectRef,
    /// The policy that was in force. Absent: the Deployment's own annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRef>,
    /// The how-manieth run of this Deployment.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub sequence: i64,
    /// Hash of `newTemplate`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63)))]
    pub target: String,
    /// The wanted template, whole.
    pub new_template: Template,
    /// The template that ran, whole. Absent: a birth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_template: Option<Template>,
    /// The ReplicaSet that ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_set: Option<ReplicaSetRef>,
    /// Several ReplicaSets had pods when the run was made: a native roll that got stuck.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub several: bool,
    /// Old templates that earlier, superseded runs deleted or rewrote and have not put back into the history.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32)))]
    pub owed: Vec<Owed>,
    /// What applied when the run was made.
    pub settings: Settings,
    /// What people decided. Only ever added to, each in its author's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"])))]
    pub decisions: Vec<Decision>,
}

/// Name and UID of an object of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ObjectRef {
    /// Name.
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub name: String,
    /// UID.
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub uid: String,
}

/// A policy at one generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PolicyRef {
    /// Name.
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub name: String,
    /// UID.
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub uid: String,
    /// Generation.
    pub generation: i64,
}

/// The ReplicaSet that ran the old template, as far as it is needed to make it again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReplicaSetRef {
    /// Name.
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub name: String,
    /// Its `deployment.kubernetes.io/revision`; 0 if it had none.
    pub revision: i64,
    /// Its annotations except our marks and the Deployment controller's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A revision that has to go back into the history.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Owed {
    /// Its template.
    pub template: Template,
    /// Its revision.
    pub revision: i64,
    /// Its annotations except our marks and the Deployment controller's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The settings that apply to one run, whatever becomes of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Settings {
    /// Audit: the run only reports.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub audit: bool,
    /// How pods are updated.
    #[serde(default)]
    pub update: Update,
    /// Hooks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32)))]
    pub hooks: Vec<Hook>,
    /// Predecessors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64), inner(length(max = 512))))]
    pub after: Vec<String>,
    /// Seconds of quiet that make a predecessor settled.
    pub settle_seconds: i64,
    /// Key of the template label that predecessors must have the same value of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 317)))]
    pub same_release: Option<String>,
    /// Pods of predecessors that are being deleted.
    #[serde(default)]
    pub old_pods: OldPods,
    /// Seconds after which waiting for predecessors ends; 0: never.
    #[serde(default)]
    pub gate_timeout_seconds: i64,
    /// What happens then.
    #[serde(default)]
    pub on_gate_timeout: OnGateTimeout,
    /// Updates of one policy at the same time.
    pub max_concurrent_updates: i64,
    /// Seconds after which being held is a failure; 0: never.
    pub max_hold_seconds: i64,
    /// What becomes of the run when its policy is deleted.
    pub on_delete: OnDelete,
    /// Ended runs that are kept.
    pub history_limit: i64,
    /// `interlock.dev/*` annotations that an undo dropped; put back with the release.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 8)))]
    pub restore: BTreeMap<String, String>,
}

/// What somebody decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Decision {
    /// Unique in the run.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63)))]
    pub id: String,
    /// What to do.
    pub action: Action,
    /// `hook/NAME`, `gate/order`, `gate/budget` or absent: the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub target: Option<String>,
    /// The pod whose hook is meant, by name; absent: every pod's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub pod: Option<String>,
    /// The attempt that is meant; a decision about another one is refused. Absent: whichever there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub attempt: Option<i64>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub reason: Option<String>,
    /// Who: the user name that the API server knows.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 512)))]
    pub by: String,
}

/// What a person can decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Action {
    /// Approve what waits for approval.
    Approve,
    /// Go on without a hook or a gate.
    Skip,
    /// Try again what failed.
    Retry,
    /// End the run where it stands; the Deployment stays held.
    Abort,
    /// Go on after a stall without trying the failed step again from the start.
    Resume,
}

/// What the controller reports of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookRunStatus {
    /// The generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Held, PreHooksSucceeded, Updated, PostHooksSucceeded, Succeeded, Reconciling, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])))]
    pub conditions: Vec<Condition>,
    /// How the run ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// Why it stands still, while it does. Left by a decision or by a new template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// InPlace or Native, once that is known, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<Way>,
    /// Attempts of hooks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 256)))]
    pub steps: Vec<Step>,
    /// Pods whose hooks are all through and whose steps had to make room: the first 12 hexadecimal digits of the SHA-256
    /// of each pod's UID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 10_000), inner(length(max = 12))))]
    pub pod_hooks_done: Vec<String>,
    /// How often the run has come to a standstill by failure.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: i64,
    /// Pods, counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// What the run waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// Progress as far as the deadline is concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// How far the change of the ReplicaSet is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// The order gate was passed (or skipped); it is not asked again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub order_passed: bool,
    /// The hold was ended by our release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Time>,
    /// Revisions that this run deleted or rewrote and has to put back, beside those of its spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32)))]
    pub owed: Vec<Owed>,
    /// PodDisruptionBudgets are not waited for, by decision.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub budget_skipped: bool,
    /// When somebody last made the run go on; failures are judged from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_at: Option<Time>,
    /// Ids of the decisions that were used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64), inner(length(max = 63))))]
    pub decisions_used: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference
const fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ended {
    /// When.
    pub at: Time,
    /// How.
    pub outcome: Outcome,
    /// Superseded while nothing was held: somebody else had ended the hold, so that other templates may have run since,
    /// of which no run speaks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unheld: bool,
}

/// How a run can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Outcome {
    /// Every pod runs the new template and all hooks are through.
    Succeeded,
    /// A newer template replaced it.
    Superseded,
    /// The template went back to what runs.
    Returned,
    /// Somebody ended it. The Deployment stays held until a new template comes.
    Aborted,
    /// The policy only audits.
    Audited,
}

/// A standstill that only a person or a new template ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stall {
    /// Since when.
    pub since: Time,
    /// One word for programs.
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub reason: String,
    /// A sentence for people.
    #[cfg_attr(feature = "schema", schemars(length(max = 2048)))]
    pub message: String,
    /// Pods that were changed have been put back (failure Revert).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reverting: bool,
}

/// The way of the update.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Way {
    /// InPlace or Native.
    pub kind: WayKind,
    /// Why it is not in place: paths and causes, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), inner(length(max = 512))))]
    pub because: Vec<String>,
}

/// In place or native.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum WayKind {
    /// Containers are replaced inside their pods.
    InPlace,
    /// The Deployment controller recreates the pods.
    Native,
}

/// One attempt of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Step {
    /// Name of the hook.
    #[cfg_attr(feature = "schema", schemars(length(max = 63)))]
    pub hook: String,
    /// Its phase.
    pub phase: Phase,
    /// Name of the pod, in a phase that runs for each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub pod: Option<String>,
    /// UID of that pod.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "podUID")]
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub pod_uid: Option<String>,
    /// The how-manieth failure of the run it tells of, in phase OnFailure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<i64>,
    /// The how-manieth attempt, from 1.
    pub attempt: i64,
    /// When it was decided to act. Recorded before acting.
    pub started_at: Time,
    /// When the result was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// The result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<StepOutcome>,
    /// One word for programs, such as `Http503`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub reason: String,
    /// What this `patch` replaced is back, by a Revert.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undone: bool,
}

/// Result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum StepOutcome {
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// It did not end in time.
    TimedOut,
    /// Somebody skipped it.
    Skipped,
    /// The run was aborted or its template taken back meanwhile.
    Cancelled,
    /// A newer template replaced the run meanwhile.
    Superseded,
}

/// Pods, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PodCounts {
    /// Desired.
    pub desired: i64,
    /// Run the new template and are available.
    pub updated: i64,
    /// Are changing now.
    pub in_flight: i64,
    /// Are available.
    pub available: i64,
    /// Names of pods that fail, at most 10, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 10), inner(length(max = 512))))]
    pub failing: Vec<String>,
}

/// What a run waits for and how to go on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitingFor {
    /// One word for programs, such as `Predecessor`.
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub reason: String,
    /// What, for people.
    #[cfg_attr(feature = "schema", schemars(length(max = 2048)))]
    pub what: String,
    /// Since when.
    pub since: Time,
    /// Until when at the latest, where there is an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// How a person can make it go on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub how: String,
}

/// The most that was reached, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    /// Most updated, available pods so far.
    pub best: i64,
    /// When that was first seen, or the clock was started again.
    pub at: Time,
}

/// How far the change of the ReplicaSet's template is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Commit {
    /// The intent was recorded; the write follows.
    pub intended_at: Time,
    /// Both halves of the barrier were passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub acknowledged: bool,
    /// The history is complete, as far as it can be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub history: bool,
}
