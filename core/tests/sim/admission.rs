//! What the admission policies of deploy/ do to a write of the Deployment. Selection and trigger through the core.

use std::collections::BTreeSet;

use interlock_core::{
    api::names,
    planted::{Bug, planted},
    select::{self, Meta, Side},
    world::{Deployment, ReplicaSet},
};

use super::Sim;

fn side(d: &Deployment) -> Side<'_> {
    Side { meta: Meta { labels: &d.labels, annotations: &d.annotations }, paused: d.paused, template: &d.template }
}

fn text(d: &Deployment, key: &str) -> Option<String> {
    d.annotations.get(key).cloned()
}

impl Sim {
    /// The first write of the Deployment.
    pub(super) fn birth(&mut self) {
        self.reparse();
        let mut new = self.d.clone();
        self.admit(None, &mut new, false);
        self.d = new;
        self.dc_sets = vec![];
        self.look();
        if !self.d.held() {
            self.authorised.insert(self.d.template.hash().to_owned());
        }
    }

    /// Writes the Deployment. `by_us`: its author has verb `release`.
    pub fn write(&mut self, mut new: Deployment, by_us: bool) -> Result<(), String> {
        let old = self.d.clone();
        if new.resource_version != old.resource_version {
            return Err(format!("409: {} is not {}", new.resource_version, old.resource_version));
        }
        (new.own_hooks, new.own_after) = (
            new.annotations.get(names::HOOKS).map(|t| super::parse_hooks(t)),
            new.annotations.get(names::AFTER).map(|t| select::parse_after(t)),
        );
        self.admit(Some(&old), &mut new, by_us);
        if new == old {
            return Ok(());
        }
        let spec_changed = new.replicas != old.replicas
            || new.paused != old.paused
            || new.template != old.template
            || new.min_ready_seconds != old.min_ready_seconds
            || new.history_limit != old.history_limit
            || new.recreate != old.recreate
            || new.max_unavailable != old.max_unavailable;
        if spec_changed {
            new.generation += 1;
        }
        new.resource_version = self.fresh_rv();
        self.d = new;
        self.reparse();
        self.account(&old);
        Ok(())
    }

    /// Which templates may appear in pods from now on.
    fn account(&mut self, old: &Deployment) {
        let hash = self.d.template.hash().to_owned();
        let rested = std::mem::replace(&mut self.rested, false);
        let active = |s: &&ReplicaSet| s.replicas > 0 || s.status_replicas > 0;
        let active: BTreeSet<_> = self.sets.iter().filter(active).map(|s| s.template.hash().to_owned()).collect();
        if !active.is_empty() {
            self.last_active = active;
        }
        if !self.d.held() {
            if !self.d.paused && (old.held() || old.template != self.d.template || old.paused) {
                self.authorised.insert(hash);
            }
            return;
        }
        if old.template != self.d.template || !old.held() {
            let none_active = self.sets.iter().all(|s| s.replicas == 0);
            if none_active && !rested && !old.held() {
                // What comes before our controller could look is not its fault.
                self.pardoned.extend(self.sets.iter().map(|s| s.template.hash().to_owned()));
            }
            if none_active && self.sets.iter().any(|s| s.template == self.d.template) {
                // Nobody can prevent that the Deployment controller starts an old one that equals the target, when one
                // write goes back to it and scales up from 0.
                self.pardoned.insert(hash);
            }
            self.authorised = self
                .last_active
                .iter()
                .cloned()
                .chain(self.rsc_sets.iter().filter(|s| s.replicas > 0).map(|s| s.template.hash().to_owned()))
                .chain([self.last_ran.clone()])
                .chain(self.pardoned.clone())
                .chain(
                    self.runs
                        .iter()
                        .filter(|r| r.status.ended.is_none() && super::executor::through(r, &r.status))
                        .map(|r| r.spec.target.clone()),
                )
                .collect();
        }
    }

    fn admit(&self, old: Option<&Deployment>, new: &mut Deployment, by_us: bool) {
        let specs: Vec<_> =
            self.policies.iter().filter_map(|p| Some((p.name.as_str(), p.spec.as_ref().ok()?))).collect();
        let released = by_us
            && old.is_some_and(|o| {
                text(new, names::RELEASE).as_deref() == Some(o.resource_version.as_str()) && o.template == new.template
            });
        let verdict = select::verdict(specs.iter().copied(), "test", "web", old.map(side), side(new), released);
        let Some(by) = verdict else { return };
        let at = old.map_or(0, |o| o.generation).to_string();
        let was = old.filter(|o| o.held());
        if let Some(was) = was {
            // interlock-sticky alone: what is held already is no business of the hold.
            let was_resume = text(was, names::RESUME).unwrap_or_else(|| "true".into());
            let held_at = text(was, names::HELD_AT);
            let (paused, same) = (new.paused, text(new, names::HELD_AT) == held_at);
            let resume = if !paused && was_resume == "false" {
                "true".to_owned()
            } else if same {
                text(new, names::RESUME).unwrap_or(was_resume)
            } else {
                was_resume
            };
            new.annotations.insert(names::HELD_BY.into(), by);
            new.annotations.insert(names::HELD_AT.into(), held_at.unwrap_or_else(|| "0".into()));
            new.annotations.insert(names::RESUME.into(), resume);
        } else {
            let made_on = text(new, names::HELD_AT);
            let fresh =
                made_on.as_deref() == Some(at.as_str()) || made_on.is_some() && planted(Bug::MarksOfAnyGeneration);
            let cur = if fresh { text(new, names::HELD_BY).unwrap_or_default() } else { String::new() };
            let by = if cur.is_empty() || by < cur { by } else { cur };
            let resume = if fresh {
                text(new, names::RESUME).unwrap_or_else(|| "true".into())
            } else {
                (!new.paused).to_string()
            };
            new.annotations.insert(names::HELD_BY.into(), by);
            new.annotations.insert(names::HELD_AT.into(), at);
            new.annotations.insert(names::RESUME.into(), resume);
        }
        new.paused = true;
    }
}
