//! From facts to a plan. Total: no content of the world makes it panic, and equal worlds give equal plans.

use crate::{
    api::run::{HookRunStatus, WaitingFor, Way},
    effect::Effect,
    time::Time,
    world::World,
};

/// What to do next for one Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The cached facts are not good enough for the next step: read Deployment, ReplicaSets, pods and runs live, and
    /// plan again at once. Nothing else of this plan is to be carried out.
    pub look_live: bool,
    /// What to do, in order. Neighbouring pod writes may go side by side. The first that fails ends the pass, and the
    /// world is planned again.
    pub effects: Vec<Effect>,
    /// The status of the active run, if it differs from what is stored. Written after the effects.
    pub status: Option<StatusWrite>,
    /// When to plan again at the latest, if nothing changes before.
    pub wake: Option<Time>,
    /// The same decision for people.
    pub report: Report,
}

/// A status to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusWrite {
    /// Name of the run.
    pub run: String,
    /// Its resourceVersion, the precondition.
    pub resource_version: String,
    /// The whole status.
    pub status: HookRunStatus,
    /// False: only counters moved; it may wait until a second has passed since the last write.
    pub urgent: bool,
}

/// What the planner decided, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// One word: `AtRest`, `Held`, `Gate`, `PreHooks`, `Updating`, `Committing`, `Releasing`, `Finishing`, `PostHooks`,
    /// `Stalled`, `UserPaused`, `Aborted`.
    pub state: String,
    /// A sentence.
    pub message: String,
    /// Name of the active run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// The way it goes and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<Way>,
    /// Who governs the Deployment: name of a policy, `annotation`, or nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governed_by: Option<String>,
    /// Policies that select it too and do not count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<String>,
}

/// Decides what to do next.
pub fn plan(_world: &World) -> Plan {
    Plan::default()
}
