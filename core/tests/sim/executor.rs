//! Our controller's shell: gathers, plans, applies effects with their preconditions, stores the status last.

use interlock_core::{
    api::{
        hook::{HookFailure, Phase},
        names,
        run::{HookRunSpec, HookRunStatus, StepOutcome},
    },
    effect::{DeploymentPurpose, Effect},
    lint::lint,
    plan::{self, Plan},
    template::Template,
    time::Time,
    world::{MirroredCondition, ReplicaSet, Run, World},
};
use serde_json::{Value, json};

use super::Sim;

/// Why a pass ended early.
#[derive(Debug)]
pub enum Ended {
    Crash,
    Refused(String),
}

impl Sim {
    /// What our controller would do now, with fresh facts.
    pub fn plan_now(&mut self) -> Plan {
        self.look();
        let plan = self.planned(false);
        if plan.look_live { self.planned(true) } else { plan }
    }

    /// What our controller would do now, by what it has seen, or by what is there.
    pub fn planned(&mut self, live: bool) -> Plan {
        let world = self.world(live);
        self.planned_replicas = world.deployment.replicas;
        let plan = plan::plan(&world);
        for wrong in lint(&world, &plan) {
            self.violation(format!("lint: {wrong}"));
        }
        if self.shuffled > 0 && self.rng.chance(self.shuffled) {
            self.same_in_any_order(&world, &plan);
        }
        plan
    }

    fn same_in_any_order(&mut self, world: &World, plan: &Plan) {
        let mut other = world.clone();
        let rng = &mut self.rng;
        rng.shuffle(&mut other.pods);
        rng.shuffle(&mut other.replica_sets);
        rng.shuffle(&mut other.runs);
        rng.shuffle(&mut other.policies);
        if plan::plan(&other) != *plan {
            let text = format!("order: the plan depends on an order:\n{plan:?}\n{:?}", plan::plan(&other));
            self.violation(text);
        }
    }

    /// One pass. Did it write anything, or lose a race?
    pub fn reconcile(&mut self) -> bool {
        let mut plan = self.planned(false);
        if plan.look_live {
            plan = self.planned(true);
            assert!(!plan.look_live, "a live look is not enough");
        }
        self.last_plan = Some(plan.clone());
        let before = self.writes + self.refused;
        self.notice_rest(&plan);
        match self.execute(&plan) {
            Ok(()) => {}
            Err(Ended::Crash) => {
                self.die();
                return true;
            }
            Err(Ended::Refused(why)) => {
                self.refused += 1;
                self.note(format!("our write was refused: {why}"));
            }
        }
        self.writes + self.refused != before
    }

    /// Did our controller look at everything as it is, and find nothing to do?
    pub fn notice_rest(&mut self, plan: &Plan) {
        let nothing = plan.effects.is_empty() && plan.status.is_none() && plan.wake.is_none();
        let fresh = self.ours.d == self.d && self.ours.sets == self.sets && self.ours.pods.len() == self.pods.len();
        self.rested |= nothing && fresh && !self.d.held();
    }

    /// Our process dies and is started again: it forgets what it remembered, and lists everything anew.
    pub fn die(&mut self) {
        self.note("CRASH".into());
        self.crash_after = None;
        self.attempts.clear();
        self.look();
    }

    fn may_write(&mut self) -> Result<(), Ended> {
        if let Some(left) = &mut self.crash_after {
            if *left == 0 {
                return Err(Ended::Crash);
            }
            *left -= 1;
        }
        self.writes += 1;
        Ok(())
    }

    fn execute(&mut self, plan: &Plan) -> Result<(), Ended> {
        for effect in &plan.effects {
            self.apply(effect)?;
        }
        if let Some(write) = &plan.status {
            self.may_write()?;
            self.store(&write.run, &write.resource_version, &write.status)?;
        }
        Ok(())
    }

    /// Stores the status of a run.
    pub fn store(&mut self, run: &str, rv: &str, status: &HookRunStatus) -> Result<(), Ended> {
        let fresh = self.fresh_rv();
        let Some(real) = self.runs.iter_mut().find(|r| r.name == run) else {
            return Err(Ended::Refused(format!("no run {run}")));
        };
        if real.resource_version != rv {
            return Err(Ended::Refused(format!("409 run {run}")));
        }
        let ends = real.status.ended.is_none();
        real.status = status.clone();
        real.resource_version = fresh;
        let (target, real) = (real.spec.target.clone(), real.clone());
        if ends {
            self.check_end(&real);
        }
        if status.ended.is_none() && through(&real, status) {
            self.authorised.insert(target);
        }
        if status.commit.is_some() {
            self.pardoned.insert(real.spec.target.clone()); // all pods are on it
        }
        let line = format!(
            "WE store {run}: waiting {:?} stall {:?} ended {:?} commit {:?} steps {:?}",
            status.waiting_for.as_ref().map(|w| (&w.reason, &w.what)),
            status.stall.as_ref().map(|s| &s.reason),
            status.ended.as_ref().map(|e| e.outcome),
            status.commit.as_ref().map(|c| (c.acknowledged, c.history)),
            status.steps.iter().map(|s| (&s.hook, &s.pod, s.attempt, s.outcome)).collect::<Vec<_>>()
        );
        self.note(line);
        self.check_steps(&real);
        // Read your own writes.
        if let Some(seen) = self.ours.runs.iter_mut().find(|r| r.name == run) {
            *seen = real;
        }
        Ok(())
    }

    /// Carries out one effect, if its precondition holds.
    pub fn apply(&mut self, effect: &Effect) -> Result<(), Ended> {
        match effect {
            Effect::Event { warning: _, reason, message } => {
                self.events.push((reason.clone(), message.clone()));
                self.note(format!("WE say {reason}: {message}"));
                return Ok(());
            }
            Effect::StartHook(call) => {
                self.note(format!("WE call {}", call.key));
                self.calls.push(call.key.clone());
                self.facts.push((call.phase, call.facts.clone()));
                self.attempts.entry(call.key.clone()).or_insert(None);
                self.writes += 1;
                return Ok(());
            }
            Effect::CancelHooks(keys) => {
                for key in keys {
                    self.attempts.remove(key);
                }
                return Ok(());
            }
            _ => self.may_write()?,
        }
        let refused = |why: &str| Err(Ended::Refused(why.to_owned()));
        match effect {
            Effect::CreateRun { name, spec } => {
                if self.runs.iter().any(|r| r.name == *name) {
                    return refused("run exists");
                }
                let run = self.made_run(name, spec);
                self.note(format!("WE create run {name} for {}", super::image_of(&spec.new_template)));
                if through(&run, &run.status) {
                    self.authorised.insert(spec.target.clone());
                }
                self.runs.push(run.clone());
                self.ours.runs.push(run);
            }
            Effect::RecordStatus { run, resource_version, status } => self.store(run, resource_version, status)?,
            Effect::DeleteRun { name, uid } => {
                self.runs.retain(|r| !(r.name == *name && r.uid == *uid));
                self.ours.runs.retain(|r| !(r.name == *name && r.uid == *uid));
                self.fresh_rv();
            }
            Effect::PatchPod { name, patch } => self.patch_pod(name, patch)?,
            Effect::ResizePod { name, patch } => self.patch_pod(name, patch)?,
            Effect::SetReadinessGate { name, uid, open, since: _ } => self.set_gate(name, uid, *open)?,
            Effect::CreateReplicaSet { purpose, object } => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                if self.sets.iter().any(|s| s.name == name) {
                    return refused("ReplicaSet exists");
                }
                let set = self.made_set(object);
                self.note(format!(
                    "WE create {name} ({}) with {} for {purpose:?}",
                    super::image_of(&set.template),
                    set.replicas
                ));
                self.sets.push(set.clone());
                self.ours.sets.push(set);
                self.reparse();
            }
            Effect::PatchReplicaSet { name, patch } => self.patch_set(name, patch)?,
            Effect::DeleteReplicaSet { name, uid, resource_version } => {
                let found = self
                    .sets
                    .iter()
                    .any(|s| s.name == *name && s.uid == *uid && s.resource_version == *resource_version);
                if !found {
                    return refused("409 delete ReplicaSet");
                }
                self.note(format!("WE delete {name}"));
                self.check_delete(name);
                self.fresh_rv();
                self.sets.retain(|s| s.name != *name);
                self.ours.sets.retain(|s| s.name != *name);
            }
            Effect::PatchDeployment { purpose, patch } => self.patch_deployment(*purpose, patch)?,
            Effect::MirrorConditions { conditions } => {
                for (type_, c) in conditions {
                    let c =
                        MirroredCondition { status: c.status, reason: c.reason.clone(), message: c.message.clone() };
                    self.d.status.conditions.insert(type_.clone(), c);
                }
                self.d.resource_version = self.fresh_rv();
                self.ours.d = self.d.clone();
            }
            Effect::StartHook(_) | Effect::CancelHooks(_) | Effect::Event { .. } => {}
        }
        Ok(())
    }

    fn made_run(&mut self, name: &str, spec: &HookRunSpec) -> Run {
        // Everything that is stored goes through its JSON form.
        let spec: HookRunSpec = serde_json::from_value(serde_json::to_value(spec).unwrap()).unwrap();
        Run {
            name: name.to_owned(),
            uid: format!("run-{name}"),
            resource_version: self.fresh_rv(),
            generation: 1,
            created: self.now.whole_seconds(),
            spec,
            status: HookRunStatus::default(),
        }
    }

    fn made_set(&mut self, object: &Value) -> ReplicaSet {
        let label = |key: &str| object["metadata"]["labels"].get(key).is_some();
        ReplicaSet {
            name: object["metadata"]["name"].as_str().unwrap().to_owned(),
            uid: self.fresh_uid("rs"),
            resource_version: self.fresh_rv(),
            generation: 1,
            created: self.now.whole_seconds(),
            hash_label: object["metadata"]["labels"][names::POD_TEMPLATE_HASH].as_str().unwrap_or_default().to_owned(),
            history: label(names::HISTORY_LABEL),
            copy: label(names::COPY_LABEL),
            annotations: serde_json::from_value(object["metadata"]["annotations"].clone()).unwrap(),
            own_hooks: None,
            own_after: None,
            replicas: object["spec"]["replicas"].as_i64().unwrap(),
            template: Template::new(object["spec"]["template"].clone()),
            observed_generation: 0,
            status_replicas: 0,
            available: 0,
            failure: None,
        }
    }

    fn patch_pod(&mut self, name: &str, patch: &Value) -> Result<(), Ended> {
        let operations: json_patch::Patch = serde_json::from_value(patch.clone()).expect("a JSON patch");
        let Some(index) = self.pods.iter().position(|p| p.pod.name == name) else {
            return Err(Ended::Refused(format!("404 pod {name}")));
        };
        let mut json = self.pods[index].json();
        if let Err(error) = json_patch::patch(&mut json, &operations) {
            return Err(Ended::Refused(format!("422 pod {name}: {error}")));
        }
        if self.mirror {
            for c in json["spec"]["containers"].as_array_mut().into_iter().flatten() {
                let image = c["image"].as_str().unwrap_or_default().to_owned();
                if !image.starts_with("mirror.test/") {
                    c["image"] = json!(format!("mirror.test/{image}"));
                }
            }
        }
        self.check_patch(index, &json);
        let rv = self.fresh_rv();
        self.check_budget(index, &json);
        let p = &mut self.pods[index];
        p.take(&json);
        p.pod.resource_version = rv;
        let line = format!("WE patch pod {name}: {:?}", p.pod.containers.iter().map(|c| &c.image).collect::<Vec<_>>());
        let copy = p.clone();
        self.note(line);
        if let Some(seen) = self.ours.pods.iter_mut().find(|p| p.pod.name == name) {
            *seen = copy;
        }
        Ok(())
    }

    fn set_gate(&mut self, name: &str, uid: &str, open: bool) -> Result<(), Ended> {
        let Some(index) = self.pods.iter().position(|p| p.pod.name == name && p.pod.uid == uid) else {
            return Err(Ended::Refused(format!("409 gate of pod {name}")));
        };
        if !open {
            self.check_down(index);
        }
        let rv = self.fresh_rv();
        let p = &mut self.pods[index];
        p.pod.gate = Some(open);
        p.taken &= !p.steady();
        p.pod.resource_version = rv;
        let copy = p.clone();
        self.note(format!("WE set gate of pod {name}: {open}"));
        if let Some(seen) = self.ours.pods.iter_mut().find(|p| p.pod.name == name) {
            *seen = copy;
        }
        Ok(())
    }

    fn patch_set(&mut self, name: &str, patch: &Value) -> Result<(), Ended> {
        let operations: json_patch::Patch = serde_json::from_value(patch.clone()).expect("a JSON patch");
        let rv = self.fresh_rv();
        let Some(set) = self.sets.iter_mut().find(|s| s.name == name) else {
            return Err(Ended::Refused(format!("404 set {name}")));
        };
        let mut json = json!({
            "metadata": {"uid": set.uid, "annotations": set.annotations},
            "spec": {"replicas": set.replicas, "template": set.template.with_hash_label(&set.hash_label)},
        });
        let before = json["spec"].clone();
        if let Err(error) = json_patch::patch(&mut json, &operations) {
            return Err(Ended::Refused(format!("422 set {name}: {error}")));
        }
        set.annotations = serde_json::from_value(json["metadata"]["annotations"].clone()).unwrap();
        set.replicas = json["spec"]["replicas"].as_i64().unwrap();
        set.template = Template::new(json["spec"]["template"].clone());
        if json["spec"] != before {
            set.generation += 1;
        }
        set.resource_version = rv;
        let committed = json["spec"]["template"] != before["template"];
        if committed && self.authorised.contains(set.template.hash()) {
            self.last_ran = set.template.hash().to_owned();
        }
        let (line, copy) =
            (format!("WE patch set {name}: {} ({})", set.replicas, super::image_of(&set.template)), set.clone());
        self.note(line);
        self.reparse();
        if let Some(seen) = self.ours.sets.iter_mut().find(|s| s.name == copy.name) {
            *seen = copy;
        }
        Ok(())
    }

    fn patch_deployment(&mut self, purpose: DeploymentPurpose, patch: &Value) -> Result<(), Ended> {
        let mut json = json!({
            "metadata": {"resourceVersion": self.d.resource_version, "annotations": self.d.annotations},
            "spec": {"paused": self.d.paused},
        });
        json_patch::merge(&mut json, patch);
        let mut new = self.d.clone();
        new.resource_version = json["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        new.annotations = serde_json::from_value(json["metadata"]["annotations"].clone()).unwrap();
        new.paused = json["spec"]["paused"].as_bool().unwrap_or(false);
        let held = self.d.held();
        if purpose == DeploymentPurpose::Release && self.run_less(&self.d.template.clone()) {
            self.authorised.insert(self.d.template.hash().to_owned());
        }
        if purpose == DeploymentPurpose::Release && new.resource_version == self.d.resource_version {
            self.check_release();
        }
        self.write(new, true).map_err(Ended::Refused)?;
        if purpose == DeploymentPurpose::Release && !self.d.paused {
            // Both may count as what ran last until the Deployment controller has made its ReplicaSet.
            let before = std::mem::replace(&mut self.last_ran, self.d.template.hash().to_owned());
            self.pardoned.insert(before);
        }
        self.note(format!("WE {purpose:?}: held {held} -> {}", self.d.held()));
        self.ours.d = self.d.clone();
        Ok(())
    }

    fn run_less(&self, template: &Template) -> bool {
        self.runs.iter().all(|r| r.spec.target != template.hash() || r.status.ended.is_some())
    }

    pub fn later(&mut self, seconds: i64) {
        self.now = Time(self.now.0 + seconds * 1000);
    }
}

/// Are all PreUpdate hooks through, by what is stored?
pub(super) fn through(run: &Run, status: &HookRunStatus) -> bool {
    run.spec.old_template.is_none()
        || run.spec.settings.hooks.iter().filter(|h| h.phase == Phase::PreUpdate).all(|h| {
            let last = status.steps.iter().rev().find(|s| s.hook == h.name && s.phase == h.phase);
            last.is_some_and(|s| match s.outcome {
                Some(StepOutcome::Succeeded | StepOutcome::Skipped) => true,
                Some(
                    StepOutcome::Failed | StepOutcome::TimedOut | StepOutcome::Cancelled | StepOutcome::Superseded,
                ) => s.attempt > h.retries && h.failure == HookFailure::Continue,
                None => false,
            })
        })
}
