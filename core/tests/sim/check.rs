//! Invariants.

use interlock_core::{api::names, template::Template};
use serde_json::Value;

use super::{Sim, SimPod};

impl Sim {
    pub fn violation(&mut self, text: String) {
        self.note(format!("VIOLATION {text}"));
        self.violations.push(text);
    }

    /// Never more pods down than allowed because of our writes.
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
            let text = format!("pod {} is put to {:?} before its hooks are through", p.pod.name, image(&after));
            self.violation(text);
        }
        let p = &self.pods[index];
        let same_view = self.ours.d.replicas == self.d.replicas
            && self.ours.pods.len() == self.pods.len()
            && self.ours.pods.iter().all(|o| self.pods.iter().any(|p| p.pod == o.pod));
        if p.steady() && self.available(p) && same_view {
            let left = self.pods.iter().filter(|q| q.steady() && self.available(q)).count();
            let left = i64::try_from(left).unwrap() - 1;
            let run = self.runs.iter().max_by_key(|r| r.spec.sequence);
            let own =
                run.and_then(|r| r.spec.settings.update.max_unavailable.clone()).or(self.d.max_unavailable.clone());
            let most = own.and_then(|m| m.of(self.d.replicas)).unwrap_or(self.d.replicas / 4).max(1);
            if left < self.d.replicas - most {
                let text = format!("{left} available pods after patching {}: most {most}", p.pod.name);
                self.violation(text);
            }
        }
    }

    pub(super) fn check_delete(&mut self, name: &str) {
        let Some(set) = self.sets.iter().find(|s| s.name == name) else { return };
        let pods = self.pods.iter().filter(|p| p.pod.owner == set.uid).count();
        if pods > 0 || set.replicas > 0 {
            let text = format!("deleted ReplicaSet {name} with {pods} pods");
            self.violation(text);
        }
    }

    /// What must be true at the end of a story in which all is well.
    pub fn well(&mut self) {
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
            let ours = a.template == wanted;
            if self.sets.iter().skip(i + 1).any(|b| b.revision() == a.revision() && (ours || b.template == wanted)) {
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
        assert!(faults.is_empty(), "{faults:#?}\n{}", self.story());
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
