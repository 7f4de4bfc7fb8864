//! Invariants.

use interlock_core::{
    api::{
        hook::{Hook, Phase},
        names,
        run::{Outcome, Step, StepOutcome, WayKind},
    },
    plan::{hook_passed, pod_mark},
    template::Template,
    world::{ReplicaSet, Run},
};
use serde_json::Value;

use super::{Sim, SimPod};

impl Sim {
    pub fn violation(&mut self, text: String) {
        self.note(format!("VIOLATION {text}"));
        self.violations.push(text);
    }

    /// No image in a pod before its hooks are through.
    pub(super) fn check_patch(&mut self, index: usize, json: &Value) {
        let p = &self.pods[index];
        let mut after = p.clone();
        after.take(json);
        let changes_image = p.pod.containers.iter().zip(&after.pod.containers).any(|(a, b)| a.image != b.image);
        if !changes_image {
            return;
        }
        if let Some(hash) = after.pod.baseline.as_ref().map(|b| b.target.clone())
            && !self.authorised.contains(&hash)
            && self.ours.d.template == self.d.template
        {
            let text = format!("gate: pod {} is put to {:?} before its hooks are through", p.pod.name, image(&after));
            self.violation(text);
        }
    }

    /// Never more pods down because of our writes than may be, by what we could know: those that were well when we changed
    /// them and have not been since.
    pub(super) fn check_budget(&mut self, index: usize, json: &Value) {
        let mut after = self.pods[index].clone();
        after.take(json);
        if after.steady() || !self.pods[index].steady() || !self.available(&self.pods[index]) {
            return;
        }
        self.down(index);
    }

    /// The same for one that is taken out of service.
    pub(super) fn check_down(&mut self, index: usize) {
        if self.pods[index].steady() && self.available(&self.pods[index]) {
            self.down(index);
        }
    }

    fn most_down(&self) -> i64 {
        let run = self.runs.iter().max_by_key(|r| r.spec.sequence);
        let own = run.and_then(|r| r.spec.settings.update.max_unavailable.clone()).or(self.d.max_unavailable.clone());
        let replicas = self.planned_replicas;
        own.and_then(|m| m.of(replicas)).unwrap_or(replicas / 4).max(1)
    }

    fn down(&mut self, index: usize) {
        // What we have not seen to be well needs no part of what may be down.
        let name = &self.pods[index].pod.name;
        if self.ours.pods.iter().any(|p| p.pod.name == *name && !p.steady()) {
            return;
        }
        let most = self.most_down();
        self.pods[index].taken = true;
        let down = self.pods.iter().filter(|p| p.taken).count();
        if i64::try_from(down).unwrap() > most {
            let text =
                format!("budget: {down} pods are down after patching {}: most {most}", self.pods[index].pod.name);
            self.violation(text);
        }
    }

    /// Hooks of single pods take up the part of a pod that is down, and all of them are through before the end.
    pub(super) fn check_steps(&mut self, run: &Run) {
        let hooks = |phase| run.spec.settings.hooks.iter().filter(move |h| h.phase == phase);
        let status = &run.status;
        let last = |hook: &str, phase: Phase, uid: &str| {
            let of_it = |s: &&Step| s.hook == hook && s.phase == phase && s.pod_uid.as_deref() == Some(uid);
            status.steps.iter().rev().find(of_it)
        };
        let marked = |uid: &str| status.pod_hooks_done.contains(&pod_mark(uid));
        if status.ended.as_ref().is_some_and(|e| e.outcome == Outcome::Succeeded) {
            for p in self.pods.iter().filter(|p| !marked(&p.pod.uid)) {
                let pod = &p.pod;
                let begun = status.steps.iter().any(|s| s.pod_uid.as_deref() == Some(pod.uid.as_str()));
                for hook in hooks(Phase::PostPod).filter(|_| begun) {
                    if !last(&hook.name, Phase::PostPod, &pod.uid).is_some_and(|s| hook_passed(hook, s)) {
                        let text =
                            format!("hook: {} ended before {} of pod {} was through", run.name, hook.name, pod.name);
                        return self.violation(text);
                    }
                }
            }
            return;
        }
        // Pods that were well when their hooks began, and have not been through them since. One that a run before this has put
        // to the target is not updated again: only what comes after its update runs, and with that it is through. A gate
        // comes after it too, when it takes hold again.
        let open = |uid: &str| {
            let passed = |h: &Hook, phase| last(&h.name, phase, uid).is_some_and(|s| hook_passed(h, s));
            let of_it = |s: &&Step| s.pod_uid.as_deref() == Some(uid);
            let pre = hooks(Phase::PrePod).all(|h| passed(h, Phase::PrePod));
            let gates = hooks(Phase::PrePod).filter(|h| h.pod_gate.is_some());
            let post = gates.chain(hooks(Phase::PostPod)).all(|h| passed(h, Phase::PostPod));
            let late = status.steps.iter().filter(of_it).any(|s| s.phase == Phase::PostPod);
            status.steps.iter().any(|s| of_it(&s)) && !(post && (pre || late))
        };
        if status.stall.is_some() || status.ended.is_some() {
            return;
        }
        let most = self.most_down();
        let at_hooks: Vec<bool> = self.pods.iter().map(|p| !marked(&p.pod.uid) && open(&p.pod.uid)).collect();
        for (i, at) in at_hooks.into_iter().enumerate() {
            let name = &self.pods[i].pod.name;
            let seen = self.ours.pods.iter().all(|p| p.pod.name != *name || p.steady());
            let well = self.pods[i].taken || seen && self.pods[i].steady() && self.available(&self.pods[i]);
            let p = &mut self.pods[i];
            p.hooked = at.then(|| p.hooked.unwrap_or(well));
        }
        let busy = self.pods.iter().any(|p| p.hooked == Some(true));
        let down = self.pods.iter().filter(|p| p.taken || p.hooked == Some(true)).count();
        // What has begun cannot be taken back when fewer pods are wanted, and so fewer may be down: but no further one may join. One
        // at its hooks has joined, also if it was down when they began and so is not counted.
        let mut joined = false;
        for p in &mut self.pods {
            let counts = p.taken || p.hooked == Some(true);
            joined |= counts && !p.counted;
            p.counted = counts || p.hooked.is_some();
        }
        if busy && joined && i64::try_from(down).unwrap() > most && self.planned_replicas == self.d.replicas {
            let text = format!("budget: {down} pods are down or at their hooks: most {most}");
            self.violation(text);
        }
    }

    /// A run that ends well leaves no pod on another template.
    pub(super) fn check_end(&mut self, run: &Run) {
        if run.status.ended.as_ref().is_none_or(|e| e.outcome != Outcome::Succeeded)
            || run.spec.target != self.d.template.hash()
        {
            return;
        }
        let wanted = super::image_of(&self.d.template);
        let equal = |p: &SimPod| self.sets.iter().any(|s| s.uid == p.pod.owner && s.template == self.d.template);
        let right = |i: &String| *i == wanted || *i == format!("mirror.test/{wanted}");
        let left: Vec<String> = (self.pods.iter().filter(|p| equal(p)))
            .filter(|p| p.pod.containers.iter().any(|c| c.name == "app" && !right(&c.image)))
            .map(|p| p.pod.name.clone())
            .collect();
        if !left.is_empty() {
            self.violation(format!("left old: run {} succeeded with {left:?}", run.name));
        }
    }

    /// In place, the hold ends only when both controllers work by the new template.
    pub(super) fn check_release(&mut self) {
        let Some(run) = self.runs.iter().max_by_key(|r| r.spec.sequence) else { return };
        let in_place = run.status.way.as_ref().is_some_and(|w| w.kind == WayKind::InPlace);
        // With all of them deleted by somebody it goes natively, which is stored only after the release.
        let none = self.sets.iter().all(|s| s.template != self.d.template);
        if !in_place || none || run.status.ended.is_some() || run.spec.target != self.d.template.hash() {
            return;
        }
        let sees = |view: &[ReplicaSet]| {
            let equal = self.sets.iter().filter(|s| s.template == self.d.template);
            equal.clone().any(|s| view.iter().any(|v| v.uid == s.uid && v.template == s.template))
        };
        let blind = [("Deployment", sees(&self.dc_sets)), ("ReplicaSet", sees(&self.rsc_sets))];
        for (who, _) in blind.into_iter().filter(|(_, sees)| !sees) {
            self.violation(format!("barrier: the hold ends before the {who} controller has seen the commit"));
        }
    }

    /// Once a hook has succeeded, no other attempt of it is accepted.
    pub(super) fn check_accepted(&mut self, key: &str) {
        let hook = |key: &str| key.rsplit_once('.').map(|(hook, _)| hook.to_owned());
        let again = |(k, o): (&String, &StepOutcome)| *k != key && hook(k) == hook(key) && *o == StepOutcome::Succeeded;
        if self.accepted.iter().any(again) {
            self.violation(format!("hook: {key} is accepted although it has succeeded before"));
        }
    }

    pub(super) fn check_delete(&mut self, name: &str) {
        let Some(set) = self.sets.iter().find(|s| s.name == name) else { return };
        let pods = self.pods.iter().filter(|p| p.pod.owner == set.uid).count();
        if pods > 0 || set.replicas > 0 {
            let text = format!("own: deleted ReplicaSet {name} with {pods} pods");
            self.violation(text);
        }
    }

    /// What must be true at the end of a story in which all is well.
    pub fn well(&mut self) {
        let faults = self.faults();
        assert!(faults.is_empty(), "{faults:#?}\n{}", self.story());
    }

    /// What is not as it must be when all is over and well.
    pub fn faults(&mut self) -> Vec<String> {
        let wanted = self.d.template.clone();
        let mut faults = std::mem::take(&mut self.violations);
        for p in &self.pods {
            if !shows(p, &wanted) {
                faults.push(format!("pod {} shows {:?}", p.pod.name, image(p)));
            }
        }
        if self.d.held() || self.d.paused {
            faults.push("held or paused for ever".into());
        }
        if !self.complete() {
            faults.push("not complete".into());
        }
        let with_pods = self.sets.iter().filter(|s| self.pods.iter().any(|p| p.pod.owner == s.uid)).count();
        if with_pods > 1 {
            faults.push("two ReplicaSets have pods".into());
        }
        if i64::try_from(self.pods.len()).unwrap() != self.d.replicas {
            faults.push(format!("{} pods of {}", self.pods.len(), self.d.replicas));
        }
        for r in &self.runs {
            if r.status.ended.is_none() {
                faults.push(format!("run {} has not ended", r.name));
            }
        }
        // The Deployment controller takes the oldest.
        let equal: Vec<_> = self.sets.iter().filter(|s| s.template == wanted).collect();
        if let Some(oldest) = equal.iter().min_by_key(|s| (s.created, &s.name))
            && equal.iter().any(|s| s.replicas > 0)
            && oldest.replicas == 0
        {
            faults.push(format!("{} is older than the main one, equal and empty", oldest.name));
        }
        for (i, a) in self.sets.iter().enumerate() {
            // What the Deployment controller numbered without having seen the other one is its own affair.
            let blind = |s: &ReplicaSet| self.numbered_blindly.contains(&s.uid);
            let same = |b: &&ReplicaSet| b.revision() == a.revision() && b.template != a.template && !blind(b);
            if blind(a) {
                continue;
            }
            if self.sets.iter().skip(i + 1).any(|b| same(&b)) {
                faults.push(format!("revision {} twice", a.revision()));
            }
        }
        if self.d.annotations.contains_key(names::HELD_BY) {
            faults.push("a mark is left".into());
        }
        if self.d.replicas == 0
            && !self.policies.is_empty()
            && let Some(youngest) = self.sets.iter().max_by_key(|s| (s.created.0 / 1000, s.name.clone()))
            && youngest.template != wanted
        {
            faults.push(format!("at 0 replicas {} is the youngest", youngest.name));
        }
        faults.extend(self.fixpoint());
        faults
    }

    /// Nothing left to do.
    pub fn fixpoint(&mut self) -> Vec<String> {
        let plan = self.plan_now();
        let mut faults = Vec::new();
        if !plan.effects.is_empty() || plan.status.is_some() {
            faults.push(format!("not at rest: {:?} {:?}", plan.effects, plan.status));
        }
        faults
    }

    /// For stories that end standing still.
    pub fn no_violation(&self) {
        assert!(self.violations.is_empty(), "{:#?}\n{}", self.violations, self.story());
    }
}

pub fn shows(p: &SimPod, template: &Template) -> bool {
    let wanted = super::image_of(template);
    p.pod.containers.iter().filter(|c| c.name == "app").all(|c| {
        (c.image == wanted || c.image == format!("mirror.test/{wanted}")) && p.started.get(&c.name) == Some(&c.image)
    })
}

fn image(p: &SimPod) -> Vec<&str> {
    p.pod.containers.iter().map(|c| c.image.as_str()).collect()
}
