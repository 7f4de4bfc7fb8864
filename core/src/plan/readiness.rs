//! Whether pods serve while we are at them: the readiness gate, and the annotation by which a `podGate` tells what it waits
//! for. What a pod is to show is said anew by every plan; what no plan asks for is put right, whatever state the update is in.

use std::collections::BTreeSet;

use super::{Planner, patches};
use crate::{
    api::{
        hook::Phase,
        names,
        policy::Update,
        run::{ObjectRef, StepOutcome},
    },
    effect::{Call, Effect, HookCall},
    pod::replaced,
    reason::Reason,
    world::{Pod, Run},
};

/// Seconds that one look at the EndpointSlices may take, and after which it is tried again.
const LOOK_SECONDS: i64 = 60;
const AGAIN_SECONDS: i64 = 2;

/// The key by which a look at the EndpointSlices is known in this process. Its result is not stored: after a crash it is looked
/// again, and the seconds are counted anew.
pub fn drain_key(run_uid: &str, pod: &Pod) -> String {
    format!("{run_uid}.Drained.{}.{}", pod.uid, pod.generation)
}

impl<'w> Planner<'w> {
    /// Takes a pod out of service before its containers are replaced. True: they may be now.
    pub(super) fn drained(&mut self, pod: &'w Pod, update: &Update) -> bool {
        let Some(run) = self.run.filter(|r| r.status.ended.is_none()) else { return true };
        // What does not serve anyway need not be drained.
        if !update.drain.readiness_gate || !pod.containers_ready {
            return true;
        }
        let Some(open) = pod.gate else {
            let message = format!(
                "pods without readiness gate {} are updated without being drained first, such as {}",
                names::READINESS_GATE,
                pod.name
            );
            self.limited.get_or_insert((Reason::NoReadinessGate, message));
            return true;
        };
        self.closed.insert(&pod.name);
        let key = drain_key(&run.uid, pod);
        if open {
            if self.w.attempts.contains_key(&key) {
                self.plan.effects.push(Effect::CancelHooks(vec![key])); // from before
            }
            self.set_gate(pod, false);
            return false;
        }
        match self.w.attempts.get(&key) {
            None => self.look_at_endpoints(run, pod, key),
            Some(None) => {}
            Some(Some(result)) if result.outcome == StepOutcome::Succeeded => {
                let due = result.at.plus_seconds(update.drain.seconds);
                if self.now >= due {
                    return true;
                }
                self.unhurried = true;
                self.wake(due);
            }
            Some(Some(result)) => {
                let due = result.at.plus_seconds(AGAIN_SECONDS);
                if self.now >= due {
                    self.plan.effects.push(Effect::CancelHooks(vec![key.clone()]));
                    self.look_at_endpoints(run, pod, key);
                } else {
                    self.wake(due);
                }
            }
        }
        false
    }

    fn look_at_endpoints(&mut self, run: &Run, pod: &Pod, key: String) {
        self.plan.effects.push(Effect::StartHook(Box::new(HookCall {
            key,
            hook: "drain".to_owned(),
            phase: Phase::PrePod,
            namespace: self.d.namespace.clone(),
            deployment: ObjectRef { name: self.d.name.clone(), uid: self.d.uid.clone() },
            attempt: 1,
            run: ObjectRef { name: run.name.clone(), uid: run.uid.clone() },
            pod: Some(ObjectRef { name: pod.name.clone(), uid: pod.uid.clone() }),
            call: Call::Drained,
            timeout_seconds: LOOK_SECONDS,
            started_at: self.now,
            facts: serde_json::Value::Null,
        })));
    }

    pub(super) fn set_gate(&mut self, pod: &Pod, open: bool) {
        let set = |e: &Effect| matches!(e, Effect::SetReadinessGate { name, .. } if *name == pod.name);
        if self.plan.effects.iter().any(set) {
            return; // a gate and the drain both ask for it
        }
        self.plan.effects.push(Effect::SetReadinessGate {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            open,
            since: self.now,
        });
    }

    /// Lets every pod serve that is not kept from it on purpose: new ones, and those whose update is over or was left. Takes away
    /// what no `podGate` says any more. At rest that is one look at each pod.
    pub(super) fn tidy_pods(&mut self) {
        // The end of a hold stands alone.
        if self.d.deleting || self.plan.effects.iter().any(|e| matches!(e, Effect::PatchDeployment { .. })) {
            return;
        }
        let w = self.w;
        let waits =
            |p: &Pod| p.gate == Some(false) && p.containers_ready || p.annotations.contains_key(names::POD_STATE);
        let mut due: Vec<&'w Pod> =
            w.pods.iter().filter(|p| waits(p) || self.states.contains_key(p.name.as_str())).collect();
        if due.is_empty() {
            return;
        }
        due.sort_by(|a, b| a.name.cmp(&b.name));
        let written: BTreeSet<String> = self.plan.effects.iter().filter_map(Effect::subject).collect();
        for pod in due {
            let of = |kind: &str| format!("{kind}/{}", pod.name);
            if ["pod", "gate", "resize"].iter().any(|kind| written.contains(&of(kind))) {
                continue;
            }
            let refused = |kind: &str| w.refusals.contains_key(&of(kind));
            let state = self.states.get(pod.name.as_str()).copied();
            if pod.annotations.get(names::POD_STATE).map(String::as_str) != state && !refused("pod") {
                let patch = patches::pod_state(pod, state);
                self.plan.effects.push(Effect::PatchPod { name: pod.name.clone(), patch });
            }
            let shut = pod.gate == Some(false) && pod.containers_ready && !self.closed.contains(pod.name.as_str());
            if shut && !refused("gate") {
                if replaced(pod, self.now) {
                    self.set_gate(pod, true);
                } else if let Some(at) = crate::pod::folded_at(pod).filter(|at| *at > self.now) {
                    self.wake(at);
                }
            }
        }
    }
}
