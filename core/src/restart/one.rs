//! One Deployment, by a mark in its pod template.

use serde_json::json;

use super::{Planner, Reason, Subject, mark, skip::annotation};
use crate::{
    api::{
        policy::Tolerance,
        restart::{RollingRestartSpec, TargetState},
    },
    effect::{DeploymentPurpose, Effect},
    order::settled,
    pod::{Evidence, failing},
    world::RunState,
};

impl<'w> Planner<'w> {
    /// Brings it to its end. `stored`: the intent is.
    pub(super) fn restart(&mut self, spec: &'w RollingRestartSpec, index: usize, subject: &'w Subject, stored: bool) {
        let (key, value) = mark(&self.w.restart, spec.mark.unwrap_or_default());
        let d = &subject.deployment;
        let in_template = annotation(d, key) == Some(value.as_str());
        // Who took it out again took a restart with it, which its ReplicaSet tells: it is never written twice.
        let seen = in_template
            || subject.replica_sets.iter().any(|s| {
                let annotation = s.template.json().pointer("/metadata/annotations").and_then(|a| a.get(key));
                annotation.and_then(|v| v.as_str()) == Some(value.as_str())
            });
        let Some(target) = self.status.targets.get_mut(index) else { return };
        target.marked |= seen;
        if !target.marked {
            if stored {
                let patch = json!({
                    "metadata": {"uid": d.uid, "resourceVersion": d.resource_version},
                    "spec": {"template": {"metadata": {"annotations": {key: value}}}},
                });
                let effect = Effect::PatchDeployment { purpose: DeploymentPurpose::Restart, patch };
                self.plan.effects.push((d.name.clone(), d.uid.clone(), effect));
            }
            self.wait(Reason::Restarting, format!("{} is being restarted", d.name));
            return;
        }
        if !in_template && target.reason.is_empty() {
            Reason::MarkRemoved.as_str().clone_into(&mut target.reason);
            let message = format!(
                "somebody took annotation {key} out of the template of Deployment {}, which made its pods anew once more; keep that tool from annotations it does not know. It is not written again",
                d.name
            );
            self.tell(true, Reason::MarkRemoved, message);
        }
        self.settle(spec, index, subject);
    }

    /// It is done when it is settled, and has failed when it says so or nothing moves for too long.
    pub(super) fn settle(&mut self, spec: &'w RollingRestartSpec, index: usize, subject: &'w Subject) {
        let d = &subject.deployment;
        let unsettled = match settled(Some(&subject.component), spec.settle_seconds, self.now) {
            Ok(()) => {
                if let Some(target) = self.status.targets.get_mut(index) {
                    target.state = TargetState::Done;
                    target.finished_at = Some(self.now);
                    target.message.clear();
                    (target.best, target.best_at) = (None, None);
                }
                return;
            }
            Err(unsettled) => unsettled,
        };
        if let Some(why) = self.broken(subject) {
            return self.failed(index, Reason::PodFailing, why);
        }
        if let Some(wake) = unsettled.wake {
            self.wake(wake);
        }
        self.wait(Reason::Settling, format!("{} {}", d.name, unsettled.why));
        // While it is held its hooks and gates have deadlines of their own.
        let held = subject.component.held || subject.component.run == Some(RunState::InProgress);
        let count = subject.component.status.updated.min(subject.component.status.available);
        let now = self.now;
        let Some(target) = self.status.targets.get_mut(index) else { return };
        if held {
            (target.best, target.best_at) = (None, None);
            return;
        }
        if target.best.is_none_or(|best| count > best) {
            (target.best, target.best_at) = (Some(count), Some(now));
        }
        let until = target.best_at.unwrap_or(now).plus_seconds(spec.progress_deadline_seconds);
        if until <= now {
            let message = format!("no progress for {} seconds: it {}", spec.progress_deadline_seconds, unsettled.why);
            return self.failed(index, Reason::DeadlineExceeded, message);
        }
        self.wake(until);
    }

    /// What it says of its own failure: its run, or the container's own reason.
    pub(super) fn broken(&mut self, subject: &'w Subject) -> Option<String> {
        let d = &subject.deployment;
        if subject.component.run == Some(RunState::Failed) {
            let told = d.status.conditions.get(crate::api::names::CONDITION_SUCCEEDED);
            let why = told.map(|c| format!(": {}: {}", c.reason, c.message)).unwrap_or_default();
            return Some(format!("its update stands still{why}; see: kubectl interlock explain deploy/{}", d.name));
        }
        let of_template = |owner: &str| subject.replica_sets.iter().any(|s| s.uid == owner && s.template == d.template);
        let tolerance = Tolerance::default();
        for pod in subject.pods.iter().filter(|p| of_template(&p.owner)) {
            match failing(pod, &tolerance, self.now) {
                Evidence::None => {}
                Evidence::Until(at) => self.wake(at),
                Evidence::Believed(why) => return Some(format!("pod {}: {why}", pod.name)),
            }
        }
        subject.component.status.replica_failure.clone().map(|why| format!("pods cannot be made: {why}"))
    }
}
