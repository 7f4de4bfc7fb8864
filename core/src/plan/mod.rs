//! From facts to a plan. Total: no content of the world makes it panic, and equal worlds give equal plans.
//!
//! The order of the steps is the order of the files below; the first step that blocks wins and says why:
//! `held` (what a held Deployment goes through) calls `replicasets`, `gates`, `hooks`, `pods`, `commit`, `history` in this
//! order; `running` says which ReplicaSet it is all about;
//! `finish` follows after the release; `rest` looks after Deployments that nothing happens to. `status` turns the
//! outcome into conditions. Nothing here may know of a client, a clock or a file.

mod commit;
mod decisions;
mod finish;
mod gates;
mod governance;
mod held;
mod history;
mod hooks;
pub(crate) mod patches;
mod podhooks;
mod pods;
mod readiness;
mod replicasets;
mod rest;
mod running;
mod status;
mod steps;
mod undo;
mod window;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use crate::{
    api::run::{HookRunStatus, Outcome, WaitingFor, Way},
    effect::Effect,
    pod::clip,
    reason::Reason,
    time::Time,
    world::{Deployment, Run, World},
};

pub use hooks::fact_names;
pub use patches::release_at;
pub(crate) use pods::max_unavailable;
pub use readiness::drain_key;
pub use status::{SLOT_REASONS, conditions};
pub use steps::{key as hook_key, passed as hook_passed, pod_mark};

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

/// Where an update stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub enum State {
    /// Nothing is held, nothing is going on.
    #[default]
    AtRest,
    /// Held, and nothing is decided yet.
    Held,
    /// The user's own pause.
    UserPaused,
    /// A predecessor or another update goes first.
    Gate,
    /// PreUpdate hooks.
    PreHooks,
    /// Pods change.
    Updating,
    /// The ReplicaSet's template changes, and its controller acknowledges it.
    Committing,
    /// The hold ends.
    Releasing,
    /// The Deployment controller finishes.
    Finishing,
    /// PostUpdate hooks.
    PostHooks,
    /// It stands still until somebody decides.
    Stalled,
    /// It has ended.
    Ended,
}

/// What the planner decided, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Where the update stands.
    pub state: State,
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
pub fn plan(world: &World) -> Plan {
    let mut planner = Planner::new(world);
    let _ = planner.decide();
    planner.finished()
}

/// Go on with the next step, or stop here: the plan says why.
type Flow = ControlFlow<()>;
const GO: Flow = ControlFlow::Continue(());
const STOP: Flow = ControlFlow::Break(());

/// The plan in the making.
struct Planner<'w> {
    w: &'w World,
    d: &'w Deployment,
    now: Time,
    /// The run of the update towards the Deployment's present template.
    run: Option<&'w Run>,
    /// Its status as it is going to be.
    status: HookRunStatus,
    plan: Plan,
    /// An update that slipped past the hold.
    missed: Option<String>,
    /// Keys of the attempts whose intent is stored and that have no result there.
    stored: BTreeSet<String>,
    /// Names of pods that are not to serve now, because we are at them.
    closed: BTreeSet<&'w str>,
    /// What annotation [`crate::api::names::POD_STATE`] is to say, by name of the pod; it is on no other pod.
    states: BTreeMap<&'w str, &'static str>,
    /// What this way of the update cannot do.
    limited: Option<(Reason, String)>,
    /// A hook, a pause or a person is waited for: no pod is late.
    unhurried: bool,
}

impl<'w> Planner<'w> {
    fn new(w: &'w World) -> Self {
        let target = w.deployment.template.hash();
        // Only the latest run can be active: an older one of the same target belongs to an update that has ended.
        let run = w.latest_run().filter(|r| {
            r.spec.target == target
                && matches!(r.status.ended.as_ref().map(|e| e.outcome), None | Some(Outcome::Aborted))
        });
        let status = run.map(|r| r.status.clone()).unwrap_or_default();
        Self::of(w, run, status)
    }

    fn of(w: &'w World, run: Option<&'w Run>, status: HookRunStatus) -> Self {
        Self {
            w,
            d: &w.deployment,
            now: w.now,
            run,
            status,
            plan: Plan::default(),
            missed: None,
            stored: run.map(steps::open_keys).unwrap_or_default().into_iter().collect(),
            closed: BTreeSet::new(),
            states: BTreeMap::new(),
            limited: None,
            unhurried: false,
        }
    }

    fn decide(&mut self) -> Flow {
        if self.d.deleting {
            return self.report(State::AtRest, "the Deployment is being deleted".to_owned());
        }
        self.supersede();
        self.prune();
        if self.d.held() {
            self.held()
        } else if self.run.is_some_and(|r| r.status.ended.is_none()) {
            self.finish()
        } else {
            self.rest()
        }
    }

    /// A run towards another template than the Deployment's has ended: superseded, or returned when what is wanted
    /// now is what it started from.
    fn supersede(&mut self) {
        let mut runs: Vec<&Run> = self.w.runs.iter().collect();
        runs.sort_by_key(|r| (r.spec.sequence, &r.name));
        for run in runs {
            if run.status.ended.is_some() || self.run.is_some_and(|active| active.name == run.name) {
                continue;
            }
            let returned = run.spec.old_template.as_ref() == Some(&self.d.template);
            let outcome = if returned { Outcome::Returned } else { Outcome::Superseded };
            let status = self.ended_status(run, outcome);
            let keys = steps::open_keys(run);
            if !keys.is_empty() {
                self.plan.effects.push(Effect::CancelHooks(keys));
            }
            self.plan.effects.push(Effect::RecordStatus {
                run: run.name.clone(),
                resource_version: run.resource_version.clone(),
                status: Box::new(status),
            });
        }
    }

    /// Ended runs beyond the history limit go, oldest first; the latest always stays.
    fn prune(&mut self) {
        let limit = self.w.latest_run().map_or(10, |r| r.spec.settings.history_limit.max(1));
        let mut ended: Vec<&Run> = self.w.runs.iter().filter(|r| r.status.ended.is_some()).collect();
        ended.sort_by_key(|r| std::cmp::Reverse(r.spec.sequence));
        for run in ended.into_iter().skip(usize::try_from(limit).unwrap_or(usize::MAX)) {
            self.plan.effects.push(Effect::DeleteRun { name: run.name.clone(), uid: run.uid.clone() });
        }
    }

    fn report(&mut self, state: State, message: String) -> Flow {
        self.plan.report.state = state;
        self.plan.report.message = message;
        STOP
    }

    /// Since when it has been waiting for this reason; from now on, if it has not.
    fn waiting_since(&self, reason: Reason) -> Time {
        self.status.waiting_for.as_ref().filter(|w| w.reason == reason.as_str()).map_or(self.now, |w| w.since)
    }

    /// Stop here and wait. `since` is kept while the reason stays the same.
    fn wait(&mut self, state: State, reason: Reason, what: String, until: Option<Time>, how: &str) -> Flow {
        let what = clip(what, 1000);
        let since = self.waiting_since(reason);
        let waiting =
            WaitingFor { reason: reason.as_str().to_owned(), what: what.clone(), since, until, how: how.to_owned() };
        self.status.waiting_for = Some(waiting);
        if let Some(until) = until {
            self.wake(until);
        }
        self.report(state, what)
    }

    /// Look again at this point at the latest.
    fn wake(&mut self, at: Time) {
        let at = at.max(self.now.plus_millis(1));
        self.plan.wake = Some(self.plan.wake.map_or(at, |w| w.min(at)));
    }

    /// The next step needs facts that were read live after those that led here.
    fn need_live(&mut self) -> Flow {
        if self.w.live {
            return GO;
        }
        self.plan.look_live = true;
        STOP
    }

    fn effect(&mut self, effect: Effect) -> Flow {
        self.plan.effects.push(effect);
        STOP
    }

    fn event(&mut self, warning: bool, reason: Reason, message: String) {
        self.plan.effects.push(Effect::Event {
            warning,
            reason: reason.as_str().to_owned(),
            message: clip(message, 1000),
        });
    }
}
