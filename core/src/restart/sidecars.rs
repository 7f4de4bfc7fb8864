//! Sidecars that are in no template: their image is changed in the running pods, which keep their names, nodes and addresses.

use serde_json::json;

use super::{Planner, Reason, Subject, skip};
use crate::{
    api::{policy::DisruptionBudgets, restart::RollingRestartSpec},
    budgets::Budgets,
    effect::Effect,
    plan::patches,
    pod::{Difference, Stage, Target, quiet, serves, stage},
    template::Template,
    world::{Pod, RunState},
};

/// So often the same image is written into a pod that somebody else changes back; then it is a fight.
const MOST_TRIES: i64 = 5;

/// What the pods are to show: these containers, and whatever else they have.
fn target(spec: &RollingRestartSpec) -> Target {
    let containers: Vec<_> = spec.sidecars.iter().map(|s| json!({"name": s.name, "image": s.image})).collect();
    Target::new(&Template::new(json!({"spec": {"containers": containers}})), None, std::iter::empty(), &[])
}

struct Seen<'w> {
    pod: &'w Pod,
    difference: Difference,
    stage: Stage,
}

impl<'w> Planner<'w> {
    /// Brings the pods of one Deployment to the wanted images. Those that an injector makes meanwhile are looked at like all.
    pub(super) fn sidecars(&mut self, spec: &'w RollingRestartSpec, index: usize, subject: &'w Subject, stored: bool) {
        let d = &subject.deployment;
        if subject.component.held || subject.component.run == Some(RunState::InProgress) {
            // An update that began meanwhile has the pods for itself.
            return self.settle(spec, index, subject);
        }
        let target = target(spec);
        let tolerance = crate::api::policy::Tolerance::default();
        let seen: Vec<Seen<'w>> = subject
            .pods
            .iter()
            .map(|pod| {
                // Only the images of these containers, whatever the API server has made of their resources.
                let difference = Difference { images: target.difference(pod).images, ..Difference::default() };
                let stage = stage(pod, !difference.is_empty(), d.min_ready_seconds, &tolerance, self.now);
                Seen { pod, difference, stage }
            })
            .collect();
        for s in &seen {
            if let Stage::Moving { failing: Some(why), .. } = &s.stage {
                return self.failed(index, Reason::PodFailing, format!("pod {}: {why}", s.pod.name));
            }
            if let Stage::Moving { wake: Some(at), .. } = &s.stage {
                self.wake(*at);
            }
            let tries = s.pod.baseline.as_ref().filter(|b| b.target == target.hash).map_or(0, |b| b.tries);
            if !s.difference.is_empty() && tries >= MOST_TRIES {
                let message = format!("somebody else changes pod {} back; find out who and stop it", s.pod.name);
                return self.failed(index, Reason::Conflicting, message);
            }
        }
        if seen.iter().all(|s| s.stage == Stage::Done) {
            return self.settle(spec, index, subject);
        }
        self.progress(spec, index, &seen, d.replicas);
        if stored
            && self.status.targets.get(index).is_some_and(|t| t.state == crate::api::restart::TargetState::Restarting)
        {
            self.change(spec, subject, &target, &seen);
        }
    }

    fn progress(&mut self, spec: &RollingRestartSpec, index: usize, seen: &[Seen<'w>], replicas: i64) {
        let now = self.now;
        let done = i64::try_from(seen.iter().filter(|s| s.stage == Stage::Done).count()).unwrap_or(i64::MAX);
        let Some(target) = self.status.targets.get_mut(index) else { return };
        if target.best.is_none_or(|best| done > best) {
            (target.best, target.best_at) = (Some(done), Some(now));
        }
        let until = target.best_at.unwrap_or(now).plus_seconds(spec.progress_deadline_seconds);
        let what = format!("{done} of {replicas} pods of {} have the new sidecar", target.name);
        if until <= now {
            let message = format!("no progress for {} seconds: {what}", spec.progress_deadline_seconds);
            return self.failed(index, Reason::DeadlineExceeded, message);
        }
        self.wake(until);
        self.wait(Reason::Settling, what);
    }

    /// As many pods as may be down. Those that do not serve go first and take nothing from it.
    fn change(&mut self, spec: &RollingRestartSpec, subject: &'w Subject, target: &Target, seen: &[Seen<'w>]) {
        let d = &subject.deployment;
        let count = |test: &dyn Fn(&Seen<'_>) -> bool| {
            i64::try_from(seen.iter().filter(|s| test(s)).count()).unwrap_or(i64::MAX)
        };
        let down = |s: &Seen<'_>| matches!(s.stage, Stage::Moving { .. } | Stage::Old { available: false });
        let missing = d.replicas.saturating_sub(count(&|_| true)).max(0);
        let mut free = skip::most(d).saturating_sub(missing.saturating_add(count(&down))).max(0);
        let steady = seen.iter().filter(|s| !down(s)).map(|s| s.pod.name.as_str()).collect();
        let respected: &[_] =
            if spec.disruption_budgets == DisruptionBudgets::Respect { &subject.budgets } else { &[] };
        let mut budgets = Budgets::new(respected, &steady);
        let mut blocked = None;
        for s in seen.iter().filter(|s| matches!(s.stage, Stage::Old { .. })) {
            let serving = s.stage == Stage::Old { available: true } || serves(s.pod);
            if serving {
                if free <= 0 {
                    continue;
                }
                if let Err(name) = budgets.take(&s.pod.name) {
                    blocked = Some(name);
                    continue;
                }
                free -= 1;
            }
            let patch = patches::pod(s.pod, &s.difference, &target.hash, self.now, quiet(s.pod, self.now), None);
            let effect = Effect::PatchPod { name: s.pod.name.clone(), patch };
            self.plan.effects.push((d.name.clone(), d.uid.clone(), effect));
        }
        if let Some(name) = blocked {
            self.wait(Reason::Budget, format!("PodDisruptionBudget {name} allows no pod of {} to be down now", d.name));
        }
    }
}
