//! What people do.

use std::collections::BTreeMap;

use interlock_core::{
    api::{
        names,
        run::{Action, Decision},
    },
    template::Template,
    world::Deployment,
};
use serde_json::{Value, json};

use super::Sim;

const SKIPPED_BY_UNDO: [&str; 2] = [names::DEPLOYMENT_PREFIX, names::LAST_APPLIED];

impl Sim {
    /// One write of the Deployment by somebody without verb `release`.
    pub fn edit(&mut self, change: impl FnOnce(&mut Deployment)) {
        let mut new = self.d.clone();
        change(&mut new);
        self.write(new, false).unwrap();
        self.note(format!(
            "USER writes: {} replicas {} paused {} held {}",
            super::image_of(&self.d.template),
            self.d.replicas,
            self.d.paused,
            self.d.held()
        ));
    }

    pub fn set_template(&mut self, template: Template) {
        self.edit(|d| d.template = template);
    }

    pub fn set_image(&mut self, image: &str) {
        let json = with_image(self.d.template.json(), image);
        self.edit(|d| d.template = Template::new(json));
    }

    pub fn scale_to(&mut self, replicas: i64) {
        self.edit(|d| d.replicas = replicas);
    }

    pub fn pause(&mut self) {
        self.edit(|d| d.paused = true);
    }

    pub fn resume(&mut self) {
        self.edit(|d| d.paused = false);
    }

    /// `kubectl rollout undo --to-revision`: the template and the annotations of the ReplicaSet.
    pub fn undo_to(&mut self, set: &str) {
        let Some(set) = self.sets.iter().find(|s| s.name == set).cloned() else { return };
        self.edit(|d| {
            let skipped = |k: &str| SKIPPED_BY_UNDO.iter().any(|s| k.starts_with(s));
            let mut annotations: BTreeMap<String, String> =
                d.annotations.iter().filter(|(k, _)| skipped(k)).map(|(k, v)| (k.clone(), v.clone())).collect();
            annotations.extend(set.annotations.into_iter().filter(|(k, _)| !skipped(k)));
            d.annotations = annotations;
            d.template = set.template;
        });
    }

    /// `kubectl rollout undo`: to the second highest revision.
    pub fn undo(&mut self) {
        let mut sets: Vec<_> = self.sets.iter().map(|s| (s.revision(), s.name.clone())).collect();
        sets.sort();
        if sets.len() >= 2 {
            let name = sets[sets.len() - 2].1.clone();
            self.undo_to(&name);
        }
    }

    pub fn delete_pod(&mut self, index: usize) {
        if let Some(name) = self.pods.get(index).map(|p| p.pod.name.clone()) {
            self.note(format!("USER deletes pod {name}"));
            self.remove_pod(&name);
        }
    }

    pub fn delete_set(&mut self, name: &str) {
        self.note(format!("USER deletes set {name}"));
        // What has pods runs, and may be made again.
        let ran = self.sets.iter().filter(|s| s.name == name && s.replicas > 0);
        self.authorised.extend(ran.clone().map(|s| s.template.hash().to_owned()));
        self.pardoned.extend(ran.map(|s| s.template.hash().to_owned()));
        self.sets.retain(|s| s.name != name);
        self.fresh_rv();
        // Nobody can prevent that an older one is woken now.
        let all: Vec<String> = self.sets.iter().map(|s| s.template.hash().to_owned()).collect();
        self.authorised.extend(all.clone());
        self.pardoned.extend(all);
    }

    pub fn decide(&mut self, action: Action, target: Option<&str>) {
        let rv = self.fresh_rv();
        let id = format!("d{}", self.next);
        let Some(run) = self.runs.iter_mut().max_by_key(|r| r.spec.sequence) else { return };
        run.spec.decisions.push(Decision {
            id,
            action,
            target: target.map(str::to_owned),
            pod: None,
            attempt: None,
            reason: None,
            by: "somebody".into(),
        });
        run.generation += 1;
        run.resource_version = rv;
        self.note(format!("USER decides {action:?} {target:?}"));
    }

    /// An administrator ends the hold by hand.
    pub fn break_glass(&mut self) {
        let mut new = self.d.clone();
        for mark in [names::HELD_BY, names::HELD_AT, names::RESUME] {
            new.annotations.remove(mark);
        }
        new.annotations.insert(names::RELEASE.into(), new.resource_version.clone());
        new.paused = false;
        self.write(new, true).unwrap();
        self.note("ADMIN breaks the glass".into());
    }

    pub fn delete_policies(&mut self) {
        self.policies.clear();
        self.next += 1;
        self.note("USER deletes the policies".into());
    }
}

pub fn with_image(template: &Value, image: &str) -> Value {
    let mut json = template.clone();
    json["spec"]["containers"][0]["image"] = json!(image);
    json
}
