//! Hooks: actions at a phase of an update. A HookPolicy lists them, and so does a Deployment's annotation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod http;

pub use http::{BodyFormat, BodyFrom, Header, HeaderFrom, HttpHook, RepeatUntil, SecretKey, SecretName};

/// An action at a phase of the update.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "[has(self.http), has(self.job), has(self.prePull), has(self.wait), has(self.waitFor), has(self.patch), has(self.podGate), has(self.approval)].filter(x, x).size() == 1",
        "message": "exactly one of http, job, prePull, wait, waitFor, patch, podGate and approval must be given"
    },
    {
        "rule": "!has(self.prePull) || self.phase == 'PreUpdate'",
        "message": "prePull is for phase PreUpdate: later the image is pulled already"
    },
    {
        "rule": "!has(self.podGate) || self.phase == 'PrePod'",
        "message": "podGate is for phase PrePod; it blocks the start there and the end of the same pod by itself"
    },
    {
        "rule": "self.phase != 'OnFailure' || has(self.http) || has(self.job) || has(self.patch)",
        "message": "in phase OnFailure only http, job and patch are allowed: it tells the world and decides nothing"
    },
    {
        "rule": "!has(self.patch) || self.patch.target == 'Deployment' || self.phase in ['PrePod', 'PostPod']",
        "message": "patch.target Pod is for the phases PrePod and PostPod"
    }])))]
pub struct Hook {
    /// Name, unique in the policy.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))
    )]
    pub name: String,
    /// When it runs.
    pub phase: Phase,
    /// An HTTP request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpHook>,
    /// A Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobHook>,
    /// The new images are pulled to every node that runs the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_pull: Option<PrePullHook>,
    /// A pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<WaitHook>,
    /// Another object reaches a state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for: Option<WaitForHook>,
    /// Labels and annotations are changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<PatchHook>,
    /// Labels and finalizers on the pod keep it, until whoever set them takes them away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_gate: Option<PodGateHook>,
    /// A person approves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalHook>,
    /// Seconds that one attempt may take.
    #[serde(default = "sixty")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 86400)))]
    pub timeout_seconds: i64,
    /// Attempts after the first.
    #[serde(default = "three")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub retries: i64,
    /// Seconds before the first retry; doubled each time, with jitter, at most five minutes.
    #[serde(default = "two")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 300)))]
    pub backoff_seconds: i64,
    /// Abort (default): the update fails. Continue: the failure is reported and the update goes on.
    #[serde(default)]
    pub failure: HookFailure,
}

const fn two() -> i64 {
    2
}
const fn three() -> i64 {
    3
}
const fn five() -> i64 {
    5
}
const fn sixty() -> i64 {
    60
}
const fn one_day() -> i64 {
    86_400
}
const fn ten_minutes() -> i64 {
    600
}

/// What a hook does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// An HTTP request.
    Http(&'a HttpHook),
    /// A Job.
    Job(&'a JobHook),
    /// Images are pulled.
    PrePull(&'a PrePullHook),
    /// A pause.
    Wait(&'a WaitHook),
    /// Another object reaches a state.
    WaitFor(&'a WaitForHook),
    /// Labels and annotations are changed.
    Patch(&'a PatchHook),
    /// Labels and finalizers keep the pod.
    PodGate(&'a PodGateHook),
    /// A person approves.
    Approval(&'a ApprovalHook),
}

impl Hook {
    /// What it does; `None` unless exactly one kind is given.
    pub fn kind(&self) -> Option<Kind<'_>> {
        let all = [
            self.http.as_ref().map(Kind::Http),
            self.job.as_ref().map(Kind::Job),
            self.pre_pull.as_ref().map(Kind::PrePull),
            self.wait.as_ref().map(Kind::Wait),
            self.wait_for.as_ref().map(Kind::WaitFor),
            self.patch.as_ref().map(Kind::Patch),
            self.pod_gate.as_ref().map(Kind::PodGate),
            self.approval.as_ref().map(Kind::Approval),
        ];
        let mut given = all.into_iter().flatten();
        given.next().filter(|_| given.next().is_none())
    }
}

/// When a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Phase {
    /// Before anything of the update starts.
    PreUpdate,
    /// Before a pod is updated in place, inside maxUnavailable.
    PrePod,
    /// After a pod runs the new template and is available, before it counts as done.
    PostPod,
    /// After every pod runs the new template.
    PostUpdate,
    /// Once for each failure of the update. Tells the world and decides nothing.
    OnFailure,
}

impl Phase {
    /// The word as the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PreUpdate => "PreUpdate",
            Self::PrePod => "PrePod",
            Self::PostPod => "PostPod",
            Self::PostUpdate => "PostUpdate",
            Self::OnFailure => "OnFailure",
        }
    }

    /// Does it run once for each pod?
    pub const fn of_pod(self) -> bool {
        matches!(self, Self::PrePod | Self::PostPod)
    }
}

/// What a failed hook means for its update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum HookFailure {
    /// The update fails.
    #[default]
    Abort,
    /// Reported, and the update goes on.
    Continue,
}

/// A Job. Only its condition `Complete` is success. It ends at `timeoutSeconds` at the latest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobHook {
    /// Service account of its pods, in the policy's namespace. Its token is mounted only if `mountToken` is true.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))
    )]
    pub service_account_name: String,
    /// Mount the service account's token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mount_token: bool,
    /// Template of its pods: `metadata` (labels, annotations) and `spec`. `restartPolicy` is Never if absent. What Pod Security
    /// `restricted` asks for is filled in where it is absent.
    pub template: Raw,
    /// Retries of the Job's own (`backoffLimit`) within one attempt.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub backoff_limit: i64,
    /// Seconds that the Job is kept after its result is stored.
    #[serde(default = "ten_minutes")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 31_536_000)))]
    pub ttl_seconds_after_result: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference
const fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// An object of another API, kept as it was written: the API server judges it when it is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Raw(pub serde_json::Map<String, serde_json::Value>);

impl Raw {
    fn text(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }
}

impl std::hash::Hash for Raw {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text().hash(state);
    }
}

impl Ord for Raw {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text().cmp(&other.text())
    }
}

impl PartialOrd for Raw {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Raw {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Raw".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
    }
    fn inline_schema() -> bool {
        true
    }
}

/// Pulls the new images to every node that runs pods of the Deployment, before anything is touched. Nothing is needed inside
/// the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrePullHook {
    /// How many nodes pull at the same time.
    #[serde(default = "five")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub max_concurrent: i64,
}

/// A pause of fixed length.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitHook {
    /// How long.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 86400)))]
    pub seconds: i64,
}

/// Waits until an object of the same namespace is in a state. Several parts must all hold. It is not there: waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.condition) || has(self.label) || has(self.expression)",
    "message": "at least one of condition, label and expression must be given"}])))]
pub struct WaitForHook {
    /// Which kind of object. There is no other: Secrets cannot be looked at.
    pub kind: WaitForKind,
    /// Its name.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))
    )]
    pub name: String,
    /// A condition of its status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<WaitForCondition>,
    /// A label of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<WaitForLabel>,
    /// A CEL expression over `object` that is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub expression: Option<String>,
}

/// Kinds that a hook can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum WaitForKind {
    /// `apps/v1`.
    Deployment,
    /// `apps/v1`.
    StatefulSet,
    /// `apps/v1`.
    DaemonSet,
    /// `batch/v1`.
    Job,
    /// `v1`.
    Pod,
    /// `v1`.
    Service,
    /// `discovery.k8s.io/v1`.
    EndpointSlice,
    /// `v1`.
    ConfigMap,
}

impl WaitForKind {
    /// Group, version, kind and plural, as the API server knows them.
    pub const fn resource(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::Deployment => ("apps", "v1", "Deployment", "deployments"),
            Self::StatefulSet => ("apps", "v1", "StatefulSet", "statefulsets"),
            Self::DaemonSet => ("apps", "v1", "DaemonSet", "daemonsets"),
            Self::Job => ("batch", "v1", "Job", "jobs"),
            Self::Pod => ("", "v1", "Pod", "pods"),
            Self::Service => ("", "v1", "Service", "services"),
            Self::EndpointSlice => ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
            Self::ConfigMap => ("", "v1", "ConfigMap", "configmaps"),
        }
    }
}

/// A condition to wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitForCondition {
    /// Its type, such as `Available`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 316)))]
    pub type_: String,
    /// Its status; True if absent.
    #[serde(default)]
    pub status: ConditionStatus,
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ConditionStatus {
    /// It holds.
    #[default]
    True,
    /// It does not.
    False,
    /// Nobody knows.
    Unknown,
}

impl ConditionStatus {
    /// The word as the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A label to wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitForLabel {
    /// Its key.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 317)))]
    pub key: String,
    /// Its value; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 63)))]
    pub value: Option<String>,
}

/// Changes labels and annotations. Never those of Interlock, nor labels that the Deployment selects its pods by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{
    "rule": "(!has(self.labels) || self.labels.all(k, !k.startsWith('interlock.dev/'))) && (!has(self.annotations) || self.annotations.all(k, !k.startsWith('interlock.dev/'))) && (!has(self.remove) || self.remove.all(k, !k.startsWith('interlock.dev/')))",
    "message": "labels and annotations of interlock.dev belong to the controller"},
    {
    "rule": "has(self.labels) && size(self.labels) > 0 || has(self.annotations) && size(self.annotations) > 0 || has(self.remove) && size(self.remove) > 0",
    "message": "at least one of labels, annotations and remove must be given"}])))]
pub struct PatchHook {
    /// What is changed.
    #[serde(default)]
    pub target: PatchTarget,
    /// Labels to set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 16, "additionalProperties" = {"type": "string", "maxLength": 63})))]
    pub labels: BTreeMap<String, String>,
    /// Annotations to set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 16, "additionalProperties" = {"type": "string", "maxLength": 4096})))]
    pub annotations: BTreeMap<String, String>,
    /// Keys of labels and annotations to take away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), inner(length(min = 1, max = 317))))]
    pub remove: Vec<String>,
    /// When the update is reverted, what was there before comes back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undo_on_revert: bool,
}

/// What a `patch` changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PatchTarget {
    /// The Deployment (its metadata, never its template).
    #[default]
    Deployment,
    /// The pod that is updated.
    Pod,
}

/// The meaning of OpenKruise's in-place handlers: while the pod carries any of these, its update does not start; after the
/// update the pod counts as done when it carries all of them again. The pod's annotation `interlock.dev/state` tells whoever
/// sets them what it is waited for: PreparingUpdate, Updating, Updated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.labels) && size(self.labels) > 0 || has(self.finalizers) && size(self.finalizers) > 0",
    "message": "at least one label or finalizer must be given"}])))]
pub struct PodGateHook {
    /// Labels with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 8, "additionalProperties" = {"type": "string", "maxLength": 63})))]
    pub labels: BTreeMap<String, String>,
    /// Finalizers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 8), inner(length(min = 1, max = 253))))]
    pub finalizers: Vec<String>,
    /// From the moment its update is wanted until it is done the pod is not ready, by our readiness gate, if it has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mark_pod_not_ready: bool,
}

/// Waits until somebody approves, in their own name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ApprovalHook {
    /// Seconds to wait, in place of the hook's own `timeoutSeconds`.
    #[serde(default = "one_day")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 31_536_000)))]
    pub timeout_seconds: i64,
    /// What then.
    #[serde(default)]
    pub on_timeout: OnTimeout,
}

/// What becomes of an approval that nobody gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OnTimeout {
    /// The hook has failed for good, as if all its attempts had; its `failure` says what that means.
    #[default]
    Fail,
    /// It counts as approved.
    Approve,
}
