//! `RollingRestart`: the Deployments of a namespace restarted one after the other, or a sidecar of theirs upgraded in place.

use serde::{Deserialize, Serialize};

use super::{
    condition::Condition,
    policy::{DisruptionBudgets, Selector},
};
use crate::time::Time;

/// Most Deployments that one request can have.
pub const MOST_TARGETS: usize = 2000;

/// What a RollingRestart asks for. Nothing of it but `decisions` can be changed later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.sidecars) || size(self.sidecars) == 0 || !has(self.mark)",
     "message": "sidecars are changed in the running pods, without a restart mark; take out `mark` or `sidecars`"}])))]
pub struct RollingRestartSpec {
    /// Which Deployments of this namespace. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Instead of a restart: containers whose image is changed in the running pods, without a new pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])))]
    pub sidecars: Vec<ContainerImage>,
    /// A Deployment is skipped when every running pod of it has all of these containers with these images, injected ones
    /// included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])))]
    pub skip_when: Vec<ContainerImage>,
    /// By which annotation of the pod template pods are made anew. Absent: Interlock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
    /// Restart also those whose strategy leaves no ready pod meanwhile (Recreate, or one replica without surge).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_downtime: bool,
    /// Whether PodDisruptionBudgets are waited for.
    #[serde(default)]
    pub disruption_budgets: DisruptionBudgets,
    /// Seconds between the end of one Deployment and the start of the next.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 86400)))]
    pub pause_seconds: i64,
    /// How many Deployments may be under way at the same time. Orders of HookPolicies are kept whatever it is.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub max_concurrent: i64,
    /// A Deployment must have been quiet for this many seconds to count as settled.
    #[serde(default = "two")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 86400)))]
    pub settle_seconds: i64,
    /// Seconds without a new maximum of updated, available pods after which a Deployment has failed.
    #[serde(default = "ten_minutes")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 86400)))]
    pub progress_deadline_seconds: i64,
    /// When Deployments may be started. One that is under way goes on to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Only report what would happen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// What people decide while it stands still, each used once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"])))]
    pub decisions: Vec<RestartDecision>,
}

const fn one() -> i64 {
    1
}
const fn two() -> i64 {
    2
}
const fn ten_minutes() -> i64 {
    600
}

/// A container and its image.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerImage {
    /// Name of the container.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))
    )]
    pub name: String,
    /// Its image.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024), regex(pattern = r"^\S+$")))]
    pub image: String,
}

/// The annotation of the pod template by which pods are made anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Mark {
    /// `interlock.dev/restart`, with the UID of the request: no other tool knows it, so none takes it away.
    #[default]
    Interlock,
    /// `kubectl.kubernetes.io/restartedAt`, as `kubectl rollout restart` writes it, with the time of the request.
    Kubectl,
}

/// When Deployments may be started.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Window {
    /// When it opens: minute, hour, day of month, month, day of week, as cron has them, such as `0 2 * * 1-5`.
    #[cfg_attr(feature = "schema", schemars(length(min = 9, max = 128)))]
    pub schedule: String,
    /// Seconds for which it stays open.
    #[cfg_attr(feature = "schema", schemars(range(min = 60, max = 604_800)))]
    pub duration_seconds: i64,
    /// Name of the time zone that the schedule is in, such as `Europe/Berlin`.
    #[serde(default = "utc")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 64)))]
    pub time_zone: String,
}

fn utc() -> String {
    "Etc/UTC".to_owned()
}

/// What people can decide about a request that stands still, or goes on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RestartDecision {
    /// Any text that no other decision of this request has.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63)))]
    pub id: String,
    /// What is decided.
    pub action: RestartAction,
    /// Name of the Deployment that it is about. Absent: all that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
    pub target: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub reason: String,
    /// Who decided: one's own user name, which the API server checks.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 512)))]
    pub by: String,
}

/// What can be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RestartAction {
    /// What failed is judged again, and the request goes on. Nothing is restarted a second time.
    Resume,
    /// A Deployment is left as it is, and the request goes on with the next.
    Skip,
    /// The request ends. What is under way is left to its controller.
    Abort,
}

/// What the controller reports of a RollingRestart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RollingRestartStatus {
    /// The generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Reconciling, Stalled, Succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])))]
    pub conditions: Vec<Condition>,
    /// The Deployments, in their order, as they were chosen when the request was first seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = MOST_TARGETS), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])))]
    pub targets: Vec<Target>,
    /// When they were chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_at: Option<Time>,
    /// When the request ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// Did somebody end it?
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aborted: bool,
    /// How many of `targets` are over: done or skipped. For tables.
    #[serde(default)]
    pub finished: i64,
    /// How many there are.
    #[serde(default)]
    pub total: i64,
    /// What is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<RestartWait>,
    /// IDs of decisions that were taken up, or refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 256), inner(length(max = 63))))]
    pub decisions_used: Vec<String>,
}

/// What a request waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RestartWait {
    /// One word for programs.
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub reason: String,
    /// A sentence.
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub what: String,
    /// Since when.
    pub since: Time,
}

/// One Deployment of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Target {
    /// Its name.
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub name: String,
    /// Its UID: one that was made anew under the name is another one.
    #[serde(rename = "uid")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub uid: String,
    /// How far it is.
    pub state: TargetState,
    /// Why it was skipped or failed, in one word; in a dry run why it would be skipped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub reason: String,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub message: String,
    /// When the intent to restart it was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Was its mark seen, so that it is never written again?
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub marked: bool,
    /// The most updated, available pods that were seen, and when: the deadline counts from then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<i64>,
    /// When that many were first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_at: Option<Time>,
}

/// How far a Deployment of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TargetState {
    /// It is not its turn yet.
    Pending,
    /// The intent is stored; it is being restarted, or its sidecars are being changed.
    Restarting,
    /// Restarted and settled.
    Done,
    /// Left as it is, for `reason`.
    Skipped,
    /// It failed, and nothing after it is started.
    Failed,
}

impl TargetState {
    /// Is it over, and well?
    pub const fn over(self) -> bool {
        matches!(self, Self::Done | Self::Skipped)
    }

    /// The word as the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Restarting => "Restarting",
            Self::Done => "Done",
            Self::Skipped => "Skipped",
            Self::Failed => "Failed",
        }
    }
}
