//! RollingRestart: the Deployments of a namespace made anew one after the other, each only when the one before is settled.
//!
//! Like [`crate::plan`] a function of facts. What must survive a crash is in the request's status: the intent to restart a
//! Deployment is stored before its template is touched, and the mark that is written is a function of the request, so
//! "has it been written?" is read from the template and its ReplicaSets and never remembered.
//!
//! `decisions` takes up what people decide; `start` begins with the next: `order` says who that is, `skip` who is left as it is,
//! `window` when; `one` brings a Deployment to its end by a mark in its template, `sidecars` by patches of its pods; `report`
//! turns it into status.

mod decisions;
mod one;
mod order;
mod reason;
mod report;
mod sidecars;
mod skip;
mod start;
mod window;

use std::collections::BTreeMap;

pub use self::{reason::Reason, window::check as check_window};
use crate::{
    api::restart::{MOST_TARGETS, Mark, RollingRestartSpec, RollingRestartStatus, Target, TargetState},
    effect::Effect,
    pod::clip,
    select,
    time::Time,
    world::{Budget, Component, Deployment, Pod, Policy, ReplicaSet},
};

/// Everything that [`plan`] may know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartWorld {
    /// The controller's clock.
    pub now: Time,
    /// The request.
    pub restart: Restart,
    /// The Deployments of the namespace, by name.
    pub deployments: BTreeMap<String, Subject>,
    /// The HookPolicies of the namespace.
    pub policies: Vec<Policy>,
    /// What the API server refused for good, by Deployment.
    pub refusals: BTreeMap<String, String>,
}

/// A RollingRestart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
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
    /// When it was created; whole seconds.
    pub created: Time,
    /// Its spec, or why it cannot be read.
    pub spec: Result<RollingRestartSpec, String>,
    /// Its status.
    pub status: RollingRestartStatus,
}

/// A Deployment with what a restart has to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The Deployment.
    pub deployment: Deployment,
    /// Kind and name of the object that controls it, such as `etcdcluster/main`.
    pub controller: Option<String>,
    /// Is it settled?
    pub component: Component,
    /// Its ReplicaSets.
    pub replica_sets: Vec<ReplicaSet>,
    /// Their pods, those being deleted or finished left out.
    pub pods: Vec<Pod>,
    /// PodDisruptionBudgets that cover pods of it.
    pub budgets: Vec<Budget>,
}

/// What a plan asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartPlan {
    /// Writes to Deployments and pods, each with the name and UID of the Deployment. The first that fails ends the pass.
    pub effects: Vec<(String, String, Effect)>,
    /// What to tell people, as events on the request.
    pub events: Vec<Told>,
    /// The whole status, if it differs from what is stored. Written after the effects.
    pub status: Option<RollingRestartStatus>,
    /// When to look again, if nothing changes before.
    pub wake: Option<Time>,
}

/// One event on the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Warning or Normal.
    pub warning: bool,
    /// Reason.
    pub reason: Reason,
    /// Message.
    pub message: String,
}

/// The annotation of the pod template by which this request makes pods anew, and its value.
pub fn mark(restart: &Restart, mark: Mark) -> (&'static str, String) {
    use crate::api::names;
    match mark {
        Mark::Interlock => (names::RESTART, restart.uid.clone()),
        Mark::Kubectl => (names::KUBECTL_RESTART, restart.created.to_string()),
    }
}

/// What has to be done now.
pub fn plan(w: &RestartWorld) -> RestartPlan {
    let mut planner =
        Planner { w, now: w.now, status: w.restart.status.clone(), plan: RestartPlan::default(), waits: None };
    match &w.restart.spec {
        Err(why) => planner.invalid(why),
        Ok(_) if w.restart.status.ended_at.is_some() => {}
        Ok(spec) => match crate::validate::restart(spec).first() {
            Some(problem) => planner.invalid(&problem.message),
            None => planner.all(spec),
        },
    }
    planner.finish()
}

struct Planner<'w> {
    w: &'w RestartWorld,
    now: Time,
    /// As this plan leaves it.
    status: RollingRestartStatus,
    plan: RestartPlan,
    /// What is waited for: the first that is said counts.
    waits: Option<(Reason, String)>,
}

impl<'w> Planner<'w> {
    fn all(&mut self, spec: &'w RollingRestartSpec) {
        if self.status.chosen_at.is_none() {
            self.choose(spec);
            return;
        }
        self.decide(spec);
        if self.status.ended_at.is_some() {
            return;
        }
        for index in 0..self.status.targets.len() {
            self.under_way(spec, index);
        }
        self.start(spec);
        if self.status.targets.iter().all(|t| t.state.over()) {
            self.status.ended_at = Some(self.now);
            let count = |state| self.status.targets.iter().filter(|t| t.state == state).count();
            let message = format!("{} done, {} skipped", count(TargetState::Done), count(TargetState::Skipped));
            self.tell(false, Reason::Succeeded, message);
        }
    }

    /// Which Deployments, in which order. They are stored before anything happens.
    fn choose(&mut self, spec: &'w RollingRestartSpec) {
        let w = self.w;
        let selected = |s: &&Subject| {
            let d = &s.deployment;
            spec.selector.as_ref().is_none_or(|s| select::matches(s, &w.restart.namespace, &d.name, &d.labels))
        };
        let chosen: Vec<&Subject> = w.deployments.values().filter(selected).collect();
        if chosen.len() > MOST_TARGETS {
            let message =
                format!("{} Deployments are selected, {MOST_TARGETS} are possible; narrow spec.selector", chosen.len());
            return self.invalid(&message);
        }
        self.status.chosen_at = Some(self.now);
        self.status.targets = order::ordered(&chosen, &w.policies).into_iter().map(pending).collect();
        if spec.dry_run {
            for index in 0..self.status.targets.len() {
                let Some(subject) = self.subject(index) else { continue };
                if let Some((reason, message)) = skip::why(spec, &w.restart, subject) {
                    self.over(index, TargetState::Skipped, reason, message);
                } else if let Err(unsettled) = crate::order::settled(Some(&subject.component), 0, self.now)
                    && let Some(target) = self.status.targets.get_mut(index)
                {
                    target.message = format!("would be waited for: {}", unsettled.why);
                }
            }
            self.status.ended_at = Some(self.now);
        }
    }

    fn under_way(&mut self, spec: &'w RollingRestartSpec, index: usize) {
        let Some(target) = self.status.targets.get(index).filter(|t| t.state == TargetState::Restarting) else {
            return;
        };
        // The intent is stored before the act.
        let stored = self.w.restart.status.targets.get(index).is_some_and(|s| s.state == TargetState::Restarting);
        let name = target.name.clone();
        let Some(subject) = self.subject(index) else {
            return self.over(
                index,
                TargetState::Skipped,
                Reason::Gone,
                format!("Deployment {name} was deleted or made anew"),
            );
        };
        if let Some(refused) = self.w.refusals.get(&name) {
            return self.failed(index, Reason::Refused, format!("the API server refuses it: {refused}"));
        }
        if spec.sidecars.is_empty() {
            self.restart(spec, index, subject, stored);
        } else {
            self.sidecars(spec, index, subject, stored);
        }
    }

    fn subject(&self, index: usize) -> Option<&'w Subject> {
        let target = self.status.targets.get(index)?;
        self.w.deployments.get(&target.name).filter(|s| s.deployment.uid == target.uid)
    }

    fn over(&mut self, index: usize, state: TargetState, reason: Reason, message: impl Into<String>) {
        let now = self.now;
        if let Some(target) = self.status.targets.get_mut(index) {
            target.state = state;
            target.finished_at = Some(now);
            reason.as_str().clone_into(&mut target.reason);
            target.message = clip(message, 900);
            (target.best, target.best_at) = (None, None);
        }
    }

    fn failed(&mut self, index: usize, reason: Reason, message: impl Into<String>) {
        self.over(index, TargetState::Failed, reason, message);
        if let Some(Target { name, message, .. }) = self.status.targets.get(index) {
            let how = self.exits();
            let message = format!("Deployment {name}: {message}; nothing after it is started. {how}");
            self.tell(true, Reason::RestartFailed, message);
        }
    }

    /// How to go on from a failure.
    fn exits(&self) -> String {
        let name = &self.w.restart.name;
        format!(
            "Repair it and run: kubectl interlock resume restart/{name}; or skip it: kubectl interlock skip restart/{name}; or end it: kubectl interlock abort restart/{name}"
        )
    }

    fn tell(&mut self, warning: bool, reason: Reason, message: impl Into<String>) {
        self.plan.events.push(Told { warning, reason, message: message.into() });
    }

    fn wait(&mut self, reason: Reason, what: String) {
        self.waits.get_or_insert((reason, what));
    }

    fn wake(&mut self, at: Time) {
        self.plan.wake = Some(self.plan.wake.map_or(at, |known| known.min(at)));
    }
}

fn pending(subject: &Subject) -> Target {
    Target {
        name: subject.deployment.name.clone(),
        uid: subject.deployment.uid.clone(),
        state: TargetState::Pending,
        reason: String::new(),
        message: String::new(),
        started_at: None,
        finished_at: None,
        marked: false,
        best: None,
        best_at: None,
    }
}
