//! A Deployment that is not held and has no active run: nearly always nothing to do.

use super::{Flow, GO, Planner, State, governance, patches, pods::Purpose};
use crate::{
    api::{
        names,
        policy::Enforcement,
        run::{HookRunSpec, ObjectRef, Outcome, Way, WayKind},
    },
    classify::{self, Class},
    effect::{DeploymentPurpose, Effect},
    reason::Reason,
    select,
    world::ReplicaSet,
};

impl<'w> Planner<'w> {
    pub(super) fn rest(&mut self) -> Flow {
        self.plan.report.state = State::AtRest;
        "nothing is held, nothing is going on".clone_into(&mut self.plan.report.message);
        if !self.d.paused
            && [names::HELD_BY, names::HELD_AT, names::RESUME].iter().any(|m| self.d.annotations.contains_key(*m))
        {
            self.plan.effects.push(Effect::PatchDeployment {
                purpose: DeploymentPurpose::ClearMarks,
                patch: patches::clear_marks(self.d),
            });
            return self.report(State::AtRest, "copied marks of an earlier hold are removed".to_owned());
        }
        let Some(set) = self.equal_set() else { return GO };
        let governed = matches!(self.governor(Some(set)), Ok(Some(_)));
        let ours = governed || !self.w.runs.is_empty();
        if !ours || self.d.status.observed_generation < self.d.generation {
            return GO;
        }
        let update = self.update_settings(set);
        if self.touched_and_wrong(&self.d.template, set, &update) {
            self.need_live()?;
            return self.pods(&self.d.template.clone(), set, &update, Purpose::Repair);
        }
        if governed {
            self.youngest(set)?; // under the user's own pause too
        }
        if governed && !self.d.paused {
            self.slipped(set)?;
        }
        GO
    }

    /// An update that no run speaks of went through although a policy was there: audited, or missed.
    fn slipped(&mut self, set: &'w ReplicaSet) -> Flow {
        let explained =
            self.w.runs.iter().any(|r| {
                r.spec.new_template == self.d.template || r.spec.old_template.as_ref() == Some(&self.d.template)
            });
        // The release before: the one with the highest revision below.
        let before = self
            .w
            .replica_sets
            .iter()
            .filter(|s| s.name != set.name && s.revision() < set.revision())
            .max_by_key(|s| s.revision());
        let Some(policy) = self.selecting().first().copied() else { return self.slipped_annotation(explained, before) };
        let Ok(spec) = &policy.spec else { return GO };
        let birth = before.is_none();
        let began = if birth { self.d.created } else { set.created };
        if explained || began < policy.created {
            return GO;
        }
        let counts = match before {
            Some(before) => select::triggers(spec, &before.template, &self.d.template),
            None => spec.order.iter().any(|c| c.name == self.d.name && !c.after.is_empty()),
        };
        if !counts {
            return GO;
        }
        match spec.enforcement {
            Enforcement::Audit => {
                let Ok(Some(governor)) = self.governor(Some(set)) else { return GO };
                let sequence = self.w.runs.iter().map(|r| r.spec.sequence).max().unwrap_or(0).saturating_add(1);
                let run = HookRunSpec {
                    deployment: ObjectRef { name: self.d.name.clone(), uid: self.d.uid.clone() },
                    policy: governor.policy.map(governance::reference),
                    sequence,
                    target: self.d.template.hash().to_owned(),
                    new_template: self.d.template.clone(),
                    old_template: before.map(|b| b.template.clone()),
                    replica_set: None,
                    several: false,
                    owed: Vec::new(),
                    settings: governor.settings,
                    decisions: Vec::new(),
                };
                let name = patches::run_name(&self.d.name, &self.d.uid, &run.target, sequence);
                self.effect(Effect::CreateRun { name, spec: Box::new(run) })
            }
            Enforcement::Hold => self.miss(&format!("although HookPolicy {} selects it", policy.name)),
            Enforcement::Off => GO,
        }
    }

    /// The same without a policy: the release before shows that the annotations were there when the update was made.
    fn slipped_annotation(&mut self, explained: bool, before: Option<&ReplicaSet>) -> Flow {
        let annotated = before.is_some_and(|b| b.own_hooks.is_some() || b.own_after.is_some());
        if explained || !annotated || (self.d.own_hooks.is_none() && self.d.own_after.is_none()) {
            return GO;
        }
        self.miss("although its annotations ask for it")
    }

    fn miss(&mut self, although: &str) -> Flow {
        let images: Vec<String> = classify::containers(&self.d.template).into_values().map(|c| c.image).collect();
        let message = format!(
            "the update to {} ({}) was not held, or its hold was ended before the controller saw it, {although}",
            images.join(", "),
            self.d.template.hash()
        );
        let told = self.d.status.conditions.get(names::CONDITION_HELD).is_some_and(|c| c.message == message);
        self.missed = Some(message.clone());
        if !told {
            self.event(true, Reason::MissedHold, message.clone());
        }
        self.report(State::AtRest, message)
    }

    /// The run of an audited update says what would have happened, and ends.
    pub(super) fn audited(&mut self) -> Flow {
        let Some(run) = self.run else { return GO };
        let mut because: Vec<String> = match &run.spec.old_template {
            None => vec!["nothing ran yet".to_owned()],
            Some(old) => classify::classify(old, &run.spec.new_template, &run.spec.settings.update.in_place_metadata)
                .into_iter()
                .filter(|c| c.class == Class::Recreate)
                .map(|c| crate::pod::clip(format!("{}: {}", c.path, c.why), 500))
                .collect(),
        };
        because.truncate(16);
        let kind = if because.is_empty() { WayKind::InPlace } else { WayKind::Native };
        self.status.way = Some(Way { kind, because });
        self.end(Outcome::Audited);
        self.report(State::Ended, "audited: nothing was held".to_owned())
    }
}
