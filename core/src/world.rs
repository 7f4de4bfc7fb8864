//! What is known of one Deployment and its surroundings, in small types that can be compared, hashed and enumerated.
//!
//! The planner reads only this. `observe` in the controller fills it from watches or, where the plan asks for it,
//! from live lists.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    api::{
        hook::Hook,
        names,
        policy::HookPolicySpec,
        reference::Reference,
        run::{HookRunSpec, HookRunStatus, StepOutcome},
    },
    template::Template,
    time::Time,
};

/// Everything that [`crate::plan::plan`] may know.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct World {
    /// The controller's clock.
    pub now: Time,
    /// Were Deployment, ReplicaSets and pods read live, after everything that an earlier plan of this pass has seen?
    pub live: bool,
    /// The Deployment.
    pub deployment: Deployment,
    /// Its ReplicaSets, those being deleted left out.
    pub replica_sets: Vec<ReplicaSet>,
    /// The pods of these ReplicaSets, those being deleted or finished left out.
    pub pods: Vec<Pod>,
    /// The HookPolicies of the namespace.
    pub policies: Vec<Policy>,
    /// The runs of this Deployment (by UID).
    pub runs: Vec<Run>,
    /// What is known of what this Deployment may have to wait for. `None`: there is none.
    pub components: BTreeMap<Reference, Option<Predecessor>>,
    /// Names of Deployments that wait for each other by any orders and annotations, this one among them: a path that ends
    /// where it began. Empty: there is no such circle.
    pub cycle: Vec<String>,
    /// PodDisruptionBudgets that cover pods of this Deployment.
    pub budgets: Vec<Budget>,
    /// Updates of other Deployments that hold a slot now, by policy name.
    pub busy: BTreeMap<String, i64>,
    /// Results of hook attempts that the controller carried out, by key. `None`: still running.
    pub attempts: BTreeMap<String, Option<AttemptResult>>,
    /// What the API server refused for good (not a lost race), by what was asked, such as `resize/POD`.
    pub refusals: BTreeMap<String, String>,
}

impl World {
    /// The latest run, ended or not.
    pub fn latest_run(&self) -> Option<&Run> {
        self.runs.iter().max_by_key(|r| (r.spec.sequence, &r.name))
    }
}

/// The result of one attempt of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptResult {
    /// Succeeded, Failed or TimedOut.
    pub outcome: StepOutcome,
    /// One word, such as `Http503`.
    pub reason: String,
    /// When it ended.
    pub at: Time,
}

/// A Deployment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Deployment {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// When it was created.
    pub created: Time,
    /// Is it being deleted?
    pub deleting: bool,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations, without kubectl's copy of what was applied.
    pub annotations: BTreeMap<String, String>,
    /// Annotation [`names::HOOKS`], parsed, or why it does not parse.
    pub own_hooks: Option<Result<Vec<Hook>, String>>,
    /// Annotation [`names::AFTER`], parsed.
    pub own_after: Option<Vec<String>>,
    /// `spec.replicas`.
    pub replicas: i64,
    /// `spec.paused`.
    pub paused: bool,
    /// `spec.template`.
    pub template: Template,
    /// `spec.selector.matchLabels`; with expressions as well the ReplicaSets made by us would not match.
    pub match_labels: BTreeMap<String, String>,
    /// `spec.minReadySeconds`.
    pub min_ready_seconds: i64,
    /// `spec.revisionHistoryLimit`.
    pub history_limit: i64,
    /// Is `spec.strategy.type` Recreate?
    pub recreate: bool,
    /// `spec.strategy.rollingUpdate.maxUnavailable` as written, such as `25%` or `1`.
    pub max_unavailable: Option<crate::api::policy::IntOrPercent>,
    /// `spec.strategy.rollingUpdate.maxSurge` as written.
    pub max_surge: Option<crate::api::policy::IntOrPercent>,
    /// Status.
    pub status: DeploymentStatus,
}

/// `status` of a Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeploymentStatus {
    /// `observedGeneration`.
    pub observed_generation: i64,
    /// `replicas`.
    pub replicas: i64,
    /// `updatedReplicas`.
    pub updated: i64,
    /// `availableReplicas`.
    pub available: i64,
    /// `terminatingReplicas`, 0 where it is not served.
    pub terminating: i64,
    /// Message of condition `ReplicaFailure`, such as an exceeded quota.
    pub replica_failure: Option<String>,
    /// Our own conditions (type begins with `interlock.dev/`): type, status, reason, message.
    pub conditions: BTreeMap<String, MirroredCondition>,
}

/// A condition of ours in a Deployment's status. Deployment conditions have no observedGeneration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MirroredCondition {
    /// Status.
    pub status: crate::api::condition::Status,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
}

impl Deployment {
    /// An annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// Held: paused, with our mark. A mark on one that runs is a copy (DESIGN section 2).
    pub fn held(&self) -> bool {
        self.paused && self.annotations.contains_key(names::HELD_BY)
    }

    /// Is the pause also the user's own?
    pub fn user_paused(&self) -> bool {
        self.held() && self.annotation(names::RESUME) == Some("false")
    }
}

/// A ReplicaSet of the Deployment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaSet {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// When it was created; whole seconds.
    pub created: Time,
    /// Its `pod-template-hash` label.
    pub hash_label: String,
    /// Made by us for the history.
    pub history: bool,
    /// An empty copy made by us.
    pub copy: bool,
    /// Annotations, without kubectl's copy of what was applied.
    pub annotations: BTreeMap<String, String>,
    /// The Deployment's annotation [`names::HOOKS`] as its controller copied it here, parsed.
    pub own_hooks: Option<Result<Vec<Hook>, String>>,
    /// The same for [`names::AFTER`].
    pub own_after: Option<Vec<String>>,
    /// `spec.replicas`.
    pub replicas: i64,
    /// `spec.template`.
    pub template: Template,
    /// `status.observedGeneration`.
    pub observed_generation: i64,
    /// `status.replicas`.
    pub status_replicas: i64,
    /// `status.availableReplicas`.
    pub available: i64,
    /// Message of condition `ReplicaFailure`.
    pub failure: Option<String>,
}

impl ReplicaSet {
    /// `deployment.kubernetes.io/revision`, 0 where there is none.
    pub fn revision(&self) -> i64 {
        self.annotations.get(names::REVISION).and_then(|r| r.parse().ok()).unwrap_or(0)
    }
}

/// A pod.
#[allow(clippy::struct_excessive_bools)] // facts, not states
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pod {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// UID of the ReplicaSet that owns it.
    pub owner: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `status.observedGeneration`.
    pub observed_generation: i64,
    /// When it was created.
    pub created: Time,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations, without kubectl's copy and our [`names::UPDATE`].
    pub annotations: BTreeMap<String, String>,
    /// Has it any annotation at all? (Where a JSON patch has to make the map first.)
    pub has_annotations: bool,
    /// Our record of the last in-place update, from annotation [`names::UPDATE`].
    pub baseline: Option<Baseline>,
    /// Containers and restartable init containers.
    pub containers: Vec<Container>,
    /// Condition `Ready` is True.
    pub ready: bool,
    /// When `Ready` last flipped.
    pub ready_since: Option<Time>,
    /// Condition `ContainersReady` is True.
    pub containers_ready: bool,
    /// `PodResizePending` (reason) or `PodResizeInProgress`, while one of them is True.
    pub resize: Option<Resize>,
    /// Is it bound to a node?
    pub scheduled: bool,
    /// Name of its node; empty before it has one.
    pub node: String,
    /// Its IP; empty before it has one.
    pub ip: String,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// Has it [`names::READINESS_GATE`] among its readiness gates, and is that condition True?
    pub gate: Option<bool>,
}

/// State of a resize of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resize {
    /// The kubelet is at it.
    InProgress,
    /// It will be tried again.
    Deferred,
    /// This node can never do it.
    Infeasible(String),
}

/// A container or a restartable init container of a pod: what its spec wants and what its status says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Container {
    /// Name.
    pub name: String,
    /// Is it a restartable init container?
    pub init: bool,
    /// Its index in `spec.containers` or `spec.initContainers`, for JSON patches.
    pub index: usize,
    /// `image` of its spec.
    pub image: String,
    /// `resources` of its spec, cpu and memory only: canonical JSON of `{limits, requests}`.
    pub resources: Resources,
    /// `resources` of its status, where the kubelet reports them.
    pub status_resources: Option<Resources>,
    /// What the kubelet reports; `None` before it has.
    pub status: Option<ContainerStatus>,
}

/// cpu and memory, requests and limits, as quantities written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resources {
    /// Requests by name (`cpu`, `memory`).
    pub requests: BTreeMap<String, String>,
    /// Limits by name (`cpu`, `memory`).
    pub limits: BTreeMap<String, String>,
}

/// Status of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerStatus {
    /// `containerID`, empty before the first start.
    pub id: String,
    /// `image`.
    pub image: String,
    /// `imageID`.
    pub image_id: String,
    /// `ready`.
    pub ready: bool,
    /// `restartCount`.
    pub restarts: i64,
    /// `state`.
    pub state: ContainerState,
    /// `lastState.terminated.containerID` and `exitCode`.
    pub last: Option<Terminated>,
}

/// `state` of a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ContainerState {
    /// Waiting, with reason and message.
    Waiting {
        /// Reason, such as `ImagePullBackOff`.
        reason: String,
        /// Message.
        message: String,
    },
    /// Running.
    Running {
        /// `startedAt`.
        since: Option<Time>,
    },
    /// Terminated.
    Terminated(Terminated),
}

impl Default for ContainerState {
    fn default() -> Self {
        Self::Waiting { reason: String::new(), message: String::new() }
    }
}

/// A container that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Terminated {
    /// `containerID`.
    pub id: String,
    /// `exitCode`.
    pub exit_code: i64,
    /// `reason`, such as `OOMKilled`.
    pub reason: String,
}

/// What an in-place write recorded in the pod, in the same write (annotation [`names::UPDATE`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Baseline {
    /// Hash of the template that the pod was put to.
    pub target: String,
    /// The pod's generation before the write.
    #[serde(rename = "gen")]
    pub generation: i64,
    /// When we wrote, by our clock.
    pub at: Time,
    /// How often we have written this target into this pod.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub tries: i64,
    /// No earlier change of this pod was in flight.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quiet: bool,
    /// Per changed container: what was there before. Boxed, since a map makes room for eleven at once.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub was: BTreeMap<String, Box<Was>>,
}

const fn once() -> i64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference
const fn is_once(tries: &i64) -> bool {
    *tries == 1
}

/// One changed container as it was before the write.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Was {
    /// `image` of its spec.
    pub spec: String,
    /// `containerID`.
    pub id: String,
    /// `image` of its status.
    pub image: String,
    /// `imageID` of its status.
    #[serde(rename = "imageID")]
    pub image_id: String,
    /// `restartCount`.
    pub restarts: i64,
}

/// A HookPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Policy {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// When it was created.
    pub created: Time,
    /// Its spec, or why it cannot be read.
    pub spec: Result<HookPolicySpec, String>,
    /// What is wrong with its hooks that only those can tell who carry them out: an expression, a template, a URL.
    pub problem: Option<String>,
}

/// A HookRun.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// When it was created.
    pub created: Time,
    /// Spec.
    pub spec: HookRunSpec,
    /// Status.
    pub status: HookRunStatus,
}

/// What is known of another Deployment that a gate may wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Component {
    /// Is it held?
    pub held: bool,
    /// Is it being deleted?
    pub deleting: bool,
    /// `metadata.generation`.
    pub generation: i64,
    /// `spec.replicas`.
    pub replicas: i64,
    /// Status.
    pub status: DeploymentStatus,
    /// Pods of ReplicaSets other than the one that equals its template.
    pub old_pods: i64,
    /// State of its latest run: `None` if it has none.
    pub run: Option<RunState>,
    /// The last visible change: readiness of a pod, a container's start, the end of a run.
    pub changed: Option<Time>,
}

/// What is known of something that a gate may wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Predecessor {
    /// How it stands.
    pub standing: Standing,
    /// Labels of its template; of pods those that all of them have.
    pub labels: BTreeMap<String, String>,
    /// Pods of it that are being deleted and are not gone yet.
    pub leaving: i64,
}

/// How something stands that a gate may wait for, by kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Standing {
    /// A Deployment.
    Deployment(Component),
    /// A StatefulSet.
    StatefulSet(StatefulSet),
    /// A DaemonSet.
    DaemonSet(DaemonSet),
    /// A Job.
    Job(Job),
    /// Pods by label or owner.
    Pods(Pods),
    /// Objects of its kind have not been listed yet.
    Unread,
}

/// A StatefulSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StatefulSet {
    /// Is it being deleted?
    pub deleting: bool,
    /// `metadata.generation`.
    pub generation: i64,
    /// `status.observedGeneration`.
    pub observed_generation: i64,
    /// `spec.replicas`.
    pub replicas: i64,
    /// Is `spec.updateStrategy.type` OnDelete?
    pub on_delete: bool,
    /// `spec.updateStrategy.rollingUpdate.partition`.
    pub partition: i64,
    /// `spec.minReadySeconds`.
    pub min_ready_seconds: i64,
    /// `status.readyReplicas`.
    pub ready: i64,
    /// `status.availableReplicas`.
    pub available: i64,
    /// `status.updatedReplicas`.
    pub updated: i64,
    /// `status.currentRevision`.
    pub current_revision: String,
    /// `status.updateRevision`.
    pub update_revision: String,
    /// When readiness of one of its pods last flipped.
    pub changed: Option<Time>,
}

/// A DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DaemonSet {
    /// Is it being deleted?
    pub deleting: bool,
    /// `metadata.generation`.
    pub generation: i64,
    /// `status.observedGeneration`.
    pub observed_generation: i64,
    /// Is `spec.updateStrategy.type` OnDelete?
    pub on_delete: bool,
    /// `status.desiredNumberScheduled`.
    pub desired: i64,
    /// `status.updatedNumberScheduled`.
    pub updated: i64,
    /// `status.numberAvailable`.
    pub available: i64,
    /// When readiness of one of its pods last flipped.
    pub changed: Option<Time>,
}

/// A Job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Job {
    /// Is it being deleted?
    pub deleting: bool,
    /// Is `spec.suspend` set?
    pub suspended: bool,
    /// Is condition `Complete` True?
    pub complete: bool,
    /// Reason and message of condition `Failed`, while it is True.
    pub failed: Option<String>,
    /// `status.succeeded`.
    pub succeeded: i64,
    /// `spec.completions`, 1 where it is absent.
    pub completions: i64,
    /// When condition `Complete` became True.
    pub changed: Option<Time>,
}

/// Pods by label or owner; those that are being deleted or have finished are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pods {
    /// How many there are.
    pub total: i64,
    /// How many of them are ready.
    pub ready: i64,
    /// The first by name that is not.
    pub not_ready: Option<String>,
    /// When readiness of one of them last flipped.
    pub changed: Option<Time>,
}

/// State of a run in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RunState {
    /// Not ended.
    InProgress,
    /// Stalled or aborted.
    Failed,
    /// Ended well, or replaced.
    Over,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Budget {
    /// Name.
    pub name: String,
    /// Names of the pods of this Deployment that it covers.
    pub pods: BTreeSet<String>,
    /// Ready pods of others that it covers, from our own view.
    pub others_ready: i64,
    /// `status.desiredHealthy`.
    pub desired_healthy: i64,
    /// `status.expectedPods`.
    pub expected: i64,
    /// `status.disruptionsAllowed`.
    pub allowed: i64,
    /// Has its status caught up with its spec?
    pub current: bool,
}
