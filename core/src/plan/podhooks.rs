//! Hooks of single pods: which pods are at which of them. A pod whose hooks run takes up its part of maxUnavailable, like one
//! whose containers change.

use std::collections::BTreeSet;

use super::{
    Flow, GO, Planner,
    hooks::{Standing, Wait},
    pods::Seen,
    steps::{Part, PodHooks, pod_mark},
    window::Window,
};
use crate::{
    api::{
        hook::Phase,
        names,
        run::{HookRunStatus, StepOutcome},
    },
    pod::{Stage, replaced},
    reason::Reason,
    world::Pod,
};

/// By this the owner of a gate's handlers knows that it is his turn.
const PREPARING: &str = "PreparingUpdate";

/// Where a pod is with its hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// None are to run, or they have not begun.
    Nothing,
    /// Those before its update.
    Before,
    /// They are through, by what is stored: it may be updated.
    Ready,
    /// Its update is over, without a hook of its own so far. Those after it have yet to begin, when it may join the window.
    Due,
    /// Those after it.
    After,
    /// All are through.
    Through,
}

impl At {
    /// Do its hooks keep it within the window?
    pub(super) const fn at_hooks(self) -> bool {
        matches!(self, Self::Before | Self::Ready | Self::After)
    }
}

/// What is waited for, and what has failed for good.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    pub waits: Option<Wait>,
    pub failed: Option<String>,
}

impl Outlook {
    /// Takes up where one hook stands. Is it through?
    fn see(&mut self, standing: Standing) -> bool {
        match standing {
            Standing::Through => return true,
            Standing::Waits(wait) => {
                // A person is the last that should be forgotten.
                if self.waits.as_ref().is_none_or(|w| w.reason != Reason::Approval && wait.reason == Reason::Approval) {
                    self.waits = Some(wait);
                }
            }
            Standing::Failed(why) => drop(self.failed.get_or_insert(why)),
        }
        false
    }
}

impl<'w> Planner<'w> {
    /// Where each pod is. `target`: hash of the wanted template.
    pub(super) fn places(&self, hooks: &PodHooks<'w>, seen: &[Seen<'w>], target: &str) -> Vec<At> {
        let Some(run) = self.run.filter(|_| !hooks.is_empty()) else { return vec![At::Nothing; seen.len()] };
        let begun: BTreeSet<&str> = self.status.steps.iter().filter_map(|s| s.pod_uid.as_deref()).collect();
        let marks: BTreeSet<&str> = self.status.pod_hooks_done.iter().map(String::as_str).collect();
        // Without hooks before the update a pod is written to in the same plan, which comes before its status: then only what
        // is stored makes room for the next one.
        let judge: &HookRunStatus = if hooks.pre.is_empty() { &run.status } else { &self.status };
        let marked = |pod: &Pod| !marks.is_empty() && marks.contains(pod_mark(&pod.uid).as_str());
        let at = |s: &Seen<'w>| {
            let pod = s.pod;
            let known = begun.contains(pod.uid.as_str());
            if !known && marked(pod) {
                return At::Through;
            }
            match &s.stage {
                Stage::Old { .. } if !known => At::Nothing,
                Stage::Old { .. } if hooks.before(&run.status, pod) => At::Ready,
                Stage::Old { .. } => At::Before,
                Stage::Moving { .. } | Stage::Done => {
                    let ours = known || pod.baseline.as_ref().is_some_and(|b| b.target == target);
                    match (ours, hooks.after(judge, pod)) {
                        (false, _) => At::Nothing,
                        (true, false) if !known && s.stage == Stage::Done => At::Due,
                        (true, false) => At::After,
                        (true, true) => At::Through,
                    }
                }
            }
        };
        seen.iter().map(at).collect()
    }

    /// Attempts for pods that are gone, or that are on the new template already, are of no use.
    pub(super) fn cancel_gone(&mut self, seen: &[Seen<'w>]) -> Flow {
        let present: BTreeSet<&str> = seen.iter().map(|s| s.pod.uid.as_str()).collect();
        let gone = |uid: &Option<String>| uid.as_deref().is_some_and(|uid| !present.contains(uid));
        if self.status.steps.iter().any(|s| s.outcome.is_none() && gone(&s.pod_uid)) {
            self.need_live()?;
            self.cancel_steps(StepOutcome::Cancelled, |s| gone(&s.pod_uid));
        }
        let on_target: BTreeSet<&str> =
            seen.iter().filter(|s| !matches!(s.stage, Stage::Old { .. })).map(|s| s.pod.uid.as_str()).collect();
        let late = |s: &crate::api::run::Step| {
            s.phase == Phase::PrePod && s.pod_uid.as_deref().is_some_and(|uid| on_target.contains(uid))
        };
        self.cancel_steps(StepOutcome::Cancelled, late);
        GO
    }

    /// Brings the hooks of all pods that have begun as far as they go now. Those that are due go before any other pod.
    pub(super) fn pod_hooks(
        &mut self,
        hooks: &PodHooks<'w>,
        seen: &[Seen<'w>],
        places: &[At],
        window: &mut Window<'w>,
    ) -> Outlook {
        let mut outlook = Outlook::default();
        for (s, at) in seen.iter().zip(places) {
            match at {
                At::Before => self.before(hooks, (s, *at), window, &mut outlook),
                At::Ready => self.show(hooks, (s, *at), Some(window), None),
                At::After => self.after(hooks, (s, *at), window, &mut outlook),
                At::Due if window.join(*at) => self.after(hooks, (s, *at), window, &mut outlook),
                At::Due => self.show_done(hooks, (s, *at)),
                At::Nothing | At::Through => {}
            }
        }
        outlook
    }

    /// The hooks before the update of a pod, in order.
    pub(super) fn before(
        &mut self,
        hooks: &PodHooks<'w>,
        (seen, at): (&Seen<'w>, At),
        window: &mut Window<'w>,
        outlook: &mut Outlook,
    ) {
        let Some(run) = self.run else { return };
        let part = Part::of_pod(Phase::PrePod, seen.pod);
        for hook in &hooks.pre {
            let through = outlook.see(self.hook(run, hook, part));
            let stored = part.last(&run.status, &hook.name).is_some();
            if hook.pod_gate.is_some() && stored {
                self.show(hooks, (seen, at), Some(window), (!through).then_some(PREPARING));
            }
            if !through {
                return;
            }
        }
        self.show(hooks, (seen, at), Some(window), None);
    }

    /// The update of this pod is over, and it is not its turn: one that serves goes on serving.
    fn show_done(&mut self, hooks: &PodHooks<'w>, (seen, at): (&Seen<'w>, At)) {
        let said = seen.pod.annotations.get(names::POD_STATE).map(String::as_str);
        self.show(hooks, (seen, at), None, Some(if said == Some("Updated") { "Updated" } else { "Updating" }));
    }

    /// Those after it: gates first, since a pod that they keep from serving is not available before.
    fn after(
        &mut self,
        hooks: &PodHooks<'w>,
        (seen, at): (&Seen<'w>, At),
        window: &mut Window<'w>,
        outlook: &mut Outlook,
    ) {
        let Some(run) = self.run else { return };
        let pod = seen.pod;
        let part = Part::of_pod(Phase::PostPod, pod);
        let done = seen.stage == Stage::Done;
        let arrived = done || pod.gate == Some(false) && pod.containers_ready && replaced(pod, self.now);
        if !hooks.gates.is_empty() && !arrived {
            self.show(hooks, (seen, at), Some(window), Some("Updating"));
            return;
        }
        for hook in &hooks.gates {
            if !outlook.see(self.hook(run, hook, part)) {
                self.show(hooks, (seen, at), Some(window), Some("Updated"));
                return;
            }
        }
        if !done {
            return;
        }
        for hook in &hooks.post {
            if !outlook.see(self.hook(run, hook, part)) {
                return;
            }
        }
    }

    /// What a pod under a gate says and whether it serves. Without a word it keeps what it says. One that serves goes on
    /// serving, and does not ask to be prepared, until it may go down: without a window it may not.
    fn show(
        &mut self,
        hooks: &PodHooks<'w>,
        (seen, at): (&Seen<'w>, At),
        window: Option<&mut Window<'w>>,
        state: Option<&'static str>,
    ) {
        if hooks.gates.is_empty() {
            return;
        }
        let pod = seen.pod;
        let said = pod.annotations.get(names::POD_STATE).map(String::as_str);
        let kept = (said == Some(PREPARING)).then_some(PREPARING);
        let shut = hooks.gates.iter().any(|h| h.pod_gate.as_ref().is_some_and(|g| g.mark_pod_not_ready));
        let gate = pod.gate.filter(|_| shut);
        let serves = gate == Some(true) && pod.containers_ready;
        if serves && !window.is_some_and(|w| w.take_down(seen, at)) {
            if let Some(state) = state.filter(|s| *s != PREPARING).or(kept) {
                self.states.insert(&pod.name, state);
            }
            return;
        }
        if let Some(state) = state.or(kept) {
            self.states.insert(&pod.name, state);
        }
        if gate.is_some() {
            self.closed.insert(&pod.name);
        }
        if serves {
            self.set_gate(pod, false);
        }
    }
}
