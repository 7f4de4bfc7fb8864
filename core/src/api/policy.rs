//! `HookPolicy`: which updates are held, what runs before and after, how pods are updated, and in which order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use super::reference;
use super::{condition::Condition, hook::Hook};

/// What a HookPolicy asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookPolicySpec {
    /// Hold (default): updates are held until hooks and gates let them go. Audit: nothing is held, runs report what
    /// would have happened. Off: nothing. Counts for new updates; what is held ends as it began.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// Which Deployments of this namespace. A Deployment named in `order`, or that names this policy in its
    /// annotation `interlock.dev/policy`, is selected too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Which template changes count. Absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// How pods are updated.
    #[serde(default)]
    pub update: Update,
    /// Actions before and after, in list order inside a phase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])))]
    pub hooks: Vec<Hook>,
    /// Components and what each waits for, on creation and on update.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])))]
    pub order: Vec<Component>,
    /// A predecessor must have been quiet for this many seconds before it counts as settled.
    #[serde(default = "two")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 86400)))]
    pub settle_seconds: i64,
    /// Key of a template label, such as `app.kubernetes.io/version`. A component then also waits until each predecessor
    /// has settled on a template with the same value of it, so that all manifests can be written at once in any order. A
    /// component whose own template lacks the label waits for no release; a predecessor that lacks it is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(
            length(min = 1, max = 317),
            regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
        )
    )]
    pub same_release: Option<String>,
    /// Pods of a predecessor that are being deleted. Ignore (default): they do not count. Wait: it has settled when they
    /// are gone.
    #[serde(default)]
    pub old_pods: OldPods,
    /// After this many seconds of waiting for predecessors `onGateTimeout` counts. 0: no limit.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 31_536_000)))]
    pub gate_timeout_seconds: i64,
    /// What happens when predecessors have not settled within `gateTimeoutSeconds`.
    #[serde(default)]
    pub on_gate_timeout: OnGateTimeout,
    /// How many Deployments of this policy may be updated at the same time. A stalled or waiting run keeps no slot.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub max_concurrent_updates: i64,
    /// After this many seconds of being held, before its update begins, the run stalls as HoldTooLong. 0: no limit.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 31_536_000)))]
    pub max_hold_seconds: i64,
    /// What becomes of a held update when this policy is deleted. Hold: it goes on to its end as it began.
    /// Release: it is released at once, the native way.
    #[serde(default)]
    pub on_delete: OnDelete,
    /// How many ended runs are kept per Deployment.
    #[serde(default = "ten")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub history_limit: i64,
}

const fn one() -> i64 {
    1
}
const fn two() -> i64 {
    2
}
const fn ten() -> i64 {
    10
}

/// Whether updates are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Enforcement {
    /// Held.
    #[default]
    Hold,
    /// Reported only.
    Audit,
    /// Ignored.
    Off,
}

/// What happens to what is held when its policy is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OnDelete {
    /// The run goes on to its end from its own snapshot; nothing is let go because the policy went.
    #[default]
    Hold,
    /// Released at once, the native way.
    Release,
}

/// Pods of a predecessor that are being deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OldPods {
    /// They do not count.
    #[default]
    Ignore,
    /// A predecessor has settled only when none is left.
    Wait,
}

/// What happens when predecessors have not settled in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OnGateTimeout {
    /// The run stalls as GateTimeout. It goes on by itself when the predecessors have settled after all, or by decision.
    #[default]
    Stall,
    /// It goes on without them, with an event.
    Proceed,
}

/// Selects Deployments. All parts that are present must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("minProperties" = 1)))]
pub struct Selector {
    /// Terms on `metadata.name` and `metadata.namespace` with `=`, `==` or `!=`, separated by commas: the fields
    /// that the API server itself can select Deployments by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(
            length(max = 512),
            regex(
                pattern = r"^metadata\.(name|namespace)\s*(==|=|!=)\s*[a-z0-9]([-a-z0-9.]*[a-z0-9])?(\s*,\s*metadata\.(name|namespace)\s*(==|=|!=)\s*[a-z0-9]([-a-z0-9.]*[a-z0-9])?)*$"
            )
        )
    )]
    pub field_selector: Option<String>,
    /// Labels of the Deployment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 32, "additionalProperties" = {"type": "string", "maxLength": 63})))]
    pub match_labels: BTreeMap<String, String>,
    /// Set-based requirements on labels of the Deployment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub match_expressions: Vec<Requirement>,
}

/// One set-based label requirement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) || size(self.values) == 0 : has(self.values) && size(self.values) > 0",
    "message": "values are required for In and NotIn and forbidden for Exists and DoesNotExist"}])))]
pub struct Requirement {
    /// Label key.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 317)))]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    pub operator: Operator,
    /// Values for In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32), inner(length(max = 63))))]
    pub values: Vec<String>,
}

/// Operator of a label requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Operator {
    /// The label is one of the values.
    In,
    /// The label is absent or none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// Which template changes start an update under this policy. Any one of the parts is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("minProperties" = 1)))]
pub struct Trigger {
    /// Keys of template labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16), inner(length(min = 1, max = 317))))]
    pub labels: Vec<String>,
    /// Keys of template annotations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16), inner(length(min = 1, max = 317))))]
    pub annotations: Vec<String>,
    /// Names of containers or init containers: any change of one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16), inner(length(min = 1, max = 63))))]
    pub containers: Vec<String>,
}

/// How pods are updated.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Update {
    /// InPlaceIfPossible (default), InPlaceOnly (what cannot go in place stays held) or Native (always recreate).
    pub strategy: Strategy,
    /// How many pods may be unavailable at the same time: a number or a percentage of the replicas, rounded down,
    /// never below 1. Absent: the Deployment's own; its explicit 0, or type Recreate, goes the native way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrPercent>,
    /// How many pods stay on the old template until this is lowered.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100_000)))]
    pub partition: i64,
    /// Keys of template labels and annotations that may change in place; a trailing `*` matches any rest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32), inner(length(min = 1, max = 317))))]
    pub in_place_metadata: Vec<String>,
    /// What happens to a pod before its containers are replaced.
    pub drain: Drain,
    /// Respect (default) or Ignore PodDisruptionBudgets.
    pub disruption_budgets: DisruptionBudgets,
    /// Seconds without a new maximum of updated, available pods after which the update has failed.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 31_536_000)))]
    pub progress_deadline_seconds: i64,
    /// How much evidence a failing container needs before the update stops ahead of the deadline.
    pub tolerance: Tolerance,
    /// Freeze (default): stop, change nothing. Revert: put changed pods back to the old template.
    pub failure: Failure,
}

impl Default for Update {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            max_unavailable: None,
            partition: 0,
            in_place_metadata: Vec::new(),
            drain: Drain::default(),
            disruption_budgets: DisruptionBudgets::default(),
            progress_deadline_seconds: 600,
            tolerance: Tolerance::default(),
            failure: Failure::default(),
        }
    }
}

/// How traffic leaves a pod before its containers are replaced. It needs our readiness gate in the pod
/// ([`super::names::READINESS_GATE`]); a pod without it is updated without, and a condition says so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Drain {
    /// Seconds to wait after every EndpointSlice shows the pod not ready.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 3600)))]
    pub seconds: i64,
    /// Take the pod out of the EndpointSlices first. Pods that are made from now on get the gate by admission, once that
    /// is installed.
    pub readiness_gate: bool,
}

/// When a failing container is believed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tolerance {
    /// Seconds after the update of a pod during which its container may fail to start.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 86400)))]
    pub seconds: i64,
    /// Crashes of the new container that are forgiven.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1000)))]
    pub restarts: i64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { seconds: 10, restarts: 2 }
    }
}

/// Whether containers are replaced inside their pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Strategy {
    /// In place where the change allows it, else the native way.
    #[default]
    InPlaceIfPossible,
    /// What cannot go in place stays held.
    InPlaceOnly,
    /// Always the Deployment controller's own rolling update.
    Native,
}

/// PodDisruptionBudgets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum DisruptionBudgets {
    /// A pod is only taken down when every budget that covers it allows it.
    #[default]
    Respect,
    /// Not looked at.
    Ignore,
}

/// What a failed update does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Failure {
    /// Stop and change nothing.
    #[default]
    Freeze,
    /// Put changed pods back to the template that ran. The Deployment's template is not touched.
    Revert,
}

/// An absolute number or a percentage.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrPercent {
    /// So many.
    Int(i64),
    /// So many percent of the replicas, as `"25%"`.
    Percent(String),
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for IntOrPercent {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "IntOrPercent".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": r"^(100|[1-9]?[0-9])%$",
            "maxLength": 4,
            "minimum": 1,
            "maximum": 100_000,
        })
    }
    fn inline_schema() -> bool {
        true
    }
}

impl IntOrPercent {
    /// The number of pods for so many replicas, percentages rounded down. `None` if it does not parse or is negative.
    pub fn of(&self, replicas: i64) -> Option<i64> {
        match self {
            Self::Int(n) => (*n >= 0).then_some(*n),
            Self::Percent(text) => {
                let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
                (percent >= 0).then(|| replicas.saturating_mul(percent) / 100)
            }
        }
    }
}

/// One component of an order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.after) || !(self.name in self.after || 'deployment/' + self.name in self.after)",
    "message": "a component cannot wait for itself; take its own name out of `after`"}])))]
pub struct Component {
    /// Name of a Deployment of this namespace.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))
    )]
    pub name: String,
    /// What must have settled first: NAME or deployment/NAME, statefulset/NAME, daemonset/NAME, job/NAME,
    /// pods/KEY=VALUE (more labels after &) or pods/owner=KIND/NAME.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(max = 16), inner(length(min = 1, max = 512), regex(pattern = reference::PATTERN)))
    )]
    pub after: Vec<String>,
}

/// What the controller reports of a HookPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookPolicyStatus {
    /// The generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Enforced, Progressing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])))]
    pub conditions: Vec<Condition>,
    /// How many Deployments are selected.
    #[serde(default)]
    pub selected: i64,
    /// Names of selected Deployments, at most 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 50), inner(length(max = 253))))]
    pub targets: Vec<String>,
}
