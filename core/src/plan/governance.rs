//! Who governs the Deployment, and which settings apply to a new run.

use std::collections::BTreeMap;

use super::Planner;
use crate::{
    api::{
        names,
        policy::{Enforcement, HookPolicySpec, OldPods, OnDelete, OnGateTimeout},
        reference::Reference,
        run::{PolicyRef, Settings},
    },
    order::graph,
    reason::Reason,
    select, validate,
    world::{Policy, ReplicaSet},
};

/// The rules that apply to an update.
#[derive(Clone, Debug)]
pub(super) struct Governor<'w> {
    /// The policy, if it is one.
    pub policy: Option<&'w Policy>,
    /// Its name, or `annotation`, or the mark that nothing explains.
    pub name: String,
    /// Settings for a new run.
    pub settings: Settings,
}

/// Why an update stays held without a run.
#[derive(Clone, Debug)]
pub(super) struct Invalid {
    pub reason: Reason,
    pub message: String,
}

impl<'w> Planner<'w> {
    /// Policies that select the Deployment by what it is now, the smallest name first. Off does not count.
    pub(super) fn selecting(&self) -> Vec<&'w Policy> {
        let meta = select::Meta { labels: &self.d.labels, annotations: &self.d.annotations };
        let mut all: Vec<&Policy> = self
            .w
            .policies
            .iter()
            .filter(|p| {
                p.spec.as_ref().is_ok_and(|spec| {
                    spec.enforcement != Enforcement::Off
                        && select::selects(&p.name, spec, &self.d.namespace, &self.d.name, None, meta)
                })
            })
            .collect();
        // Those that hold before those that audit, as admission does it.
        all.sort_by_key(|p| (p.spec.as_ref().is_ok_and(|s| s.enforcement != Enforcement::Hold), &p.name));
        all
    }

    /// Who governs it: the policy that its mark names, else the smallest that selects it, else its own annotations
    /// (or those that an undo has just dropped, which its ReplicaSet still shows).
    pub(super) fn governor(&mut self, main: Option<&'w ReplicaSet>) -> Result<Option<Governor<'w>>, Invalid> {
        let selecting = self.selecting();
        let mark = if self.d.held() { self.d.annotation(names::HELD_BY) } else { None };
        let named = mark.and_then(|m| self.w.policies.iter().find(|p| p.name == m));
        let policy = named.or_else(|| selecting.first().copied());
        self.plan.report.conflicts = selecting
            .iter()
            .filter(|p| policy.is_none_or(|winner| p.name != winner.name))
            .map(|p| p.name.clone())
            .collect();
        let restore = self.dropped_annotations(main, mark);
        // Held by annotations, and none is left: the held write dropped them. If one is left, what the others were is
        // not known: the ReplicaSet also shows what was taken away long ago, since nothing is ever removed there.
        let bare = self.d.own_hooks.is_none() && self.d.own_after.is_none();
        let dropped = mark == Some(names::BY_ANNOTATION) && bare;
        let own_hooks = match &self.d.own_hooks {
            Some(own) => Some(own),
            None if restore.contains_key(names::HOOKS) || dropped => main.and_then(|m| m.own_hooks.as_ref()),
            None => None,
        };
        let own_hooks = match own_hooks {
            Some(Ok(hooks)) => hooks.clone(),
            Some(Err(message)) => return Err(annotation_invalid(names::HOOKS, message)),
            None => Vec::new(),
        };
        if let Some(problem) = validate::own_hooks(&own_hooks, &self.d.namespace).into_iter().next() {
            return Err(annotation_invalid(names::HOOKS, &problem.message));
        }
        let own_after = match &self.d.own_after {
            Some(after) => after.clone(),
            None if restore.contains_key(names::AFTER) || dropped => {
                main.and_then(|m| m.own_after.clone()).unwrap_or_default()
            }
            None => Vec::new(),
        };
        let own =
            !own_hooks.is_empty() || !own_after.is_empty() || self.d.own_hooks.is_some() || self.d.own_after.is_some();
        let (name, spec) = match policy {
            Some(policy) => (policy.name.clone(), Some(self.valid(policy)?)),
            None if own => (names::BY_ANNOTATION.to_owned(), None),
            None => match mark {
                Some(mark) => (mark.to_owned(), None),
                None => return Ok(None),
            },
        };
        let mut settings = settings(spec, &self.d.name);
        settings.hooks.extend(
            own_hooks.into_iter().filter(|own| spec.is_none_or(|s| s.hooks.iter().all(|h| h.name != own.name))),
        );
        settings.after.extend(own_after);
        settings.restore = restore;
        let mut after = Vec::new();
        for text in &settings.after {
            match text.parse::<Reference>() {
                Ok(reference) => after.push(reference.to_string()),
                // Those of a policy have been looked at.
                Err(why) => return Err(annotation_invalid(names::AFTER, &why)),
            }
        }
        after.sort();
        after.dedup();
        settings.after = after;
        if settings.after.contains(&self.d.name) {
            let message =
                format!("{} is to start after itself; correct the order or annotation {}", self.d.name, names::AFTER);
            return Err(Invalid { reason: Reason::OrderCycle, message });
        }
        if !self.w.cycle.is_empty() {
            let message = format!(
                "{} wait for each other; take one `after` away from the orders or from annotation {} of these Deployments",
                self.w.cycle.join(" -> "),
                names::AFTER
            );
            return Err(Invalid { reason: Reason::OrderCycle, message });
        }
        self.plan.report.governed_by = Some(name.clone());
        Ok(Some(Governor { policy, name, settings }))
    }

    fn valid(&self, policy: &'w Policy) -> Result<&'w HookPolicySpec, Invalid> {
        let spec = policy.spec.as_ref().map_err(|message| Invalid {
            reason: Reason::PolicyInvalid,
            message: format!("HookPolicy {}: {message}; correct the policy, nothing else is needed", policy.name),
        })?;
        // Only the members of a circle wait for each other; everybody else's order is sound.
        let cycle = graph::cycles(&spec.order).into_iter().find(|path| path.contains(&self.d.name));
        if let Some(path) = cycle {
            let message = format!(
                "HookPolicy {}: spec.order: {} wait for each other; take one `after` away",
                policy.name,
                path.join(" -> ")
            );
            return Err(Invalid { reason: Reason::OrderCycle, message });
        }
        let problems = validate::policy(spec).into_iter().filter(|p| p.reason != validate::Reason::OrderCycle);
        match problems.map(|p| p.message).chain(policy.problem.clone()).next() {
            None => Ok(spec),
            Some(problem) => Err(Invalid {
                reason: Reason::PolicyInvalid,
                message: format!("HookPolicy {}: {problem}", policy.name),
            }),
        }
    }

    /// Our annotations that the write which is held dropped although it only went back to an older template: that is
    /// `kubectl rollout undo`, which replaces a Deployment's annotations by its ReplicaSet's. The ReplicaSet that
    /// runs still shows them, since the Deployment controller copies every annotation there.
    fn dropped_annotations(&self, main: Option<&ReplicaSet>, mark: Option<&str>) -> BTreeMap<String, String> {
        let undo = mark.is_some()
            && self
                .w
                .replica_sets
                .iter()
                .any(|r| main.is_none_or(|m| m.name != r.name) && r.template == self.d.template)
            || self.run.is_some_and(|r| !r.spec.settings.restore.is_empty());
        let Some(main) = main.filter(|_| undo) else { return BTreeMap::new() };
        [names::HOOKS, names::AFTER, names::POLICY]
            .into_iter()
            .filter(|key| !self.d.annotations.contains_key(*key))
            .filter_map(|key| Some((key.to_owned(), main.annotations.get(key)?.clone())))
            .collect()
    }
}

fn annotation_invalid(annotation: &str, message: &str) -> Invalid {
    let message = format!("annotation {annotation}: {message}; correct the annotation, nothing else is needed");
    Invalid { reason: Reason::AnnotationInvalid, message }
}

/// The settings of a run under this policy; without one, those of a policy that says nothing.
pub(super) fn settings(spec: Option<&HookPolicySpec>, name: &str) -> Settings {
    let Some(spec) = spec else {
        return Settings {
            audit: false,
            update: crate::api::policy::Update::default(),
            hooks: Vec::new(),
            after: Vec::new(),
            settle_seconds: 2,
            same_release: None,
            old_pods: OldPods::Ignore,
            gate_timeout_seconds: 0,
            on_gate_timeout: OnGateTimeout::Stall,
            max_concurrent_updates: 1,
            max_hold_seconds: 0,
            on_delete: OnDelete::Hold,
            history_limit: 10,
            restore: BTreeMap::new(),
        };
    };
    Settings {
        audit: spec.enforcement == Enforcement::Audit,
        update: spec.update.clone(),
        hooks: spec.hooks.clone(),
        after: spec.order.iter().filter(|c| c.name == name).flat_map(|c| c.after.iter().cloned()).collect(),
        settle_seconds: spec.settle_seconds,
        same_release: spec.same_release.clone(),
        old_pods: spec.old_pods,
        gate_timeout_seconds: spec.gate_timeout_seconds,
        on_gate_timeout: spec.on_gate_timeout,
        max_concurrent_updates: spec.max_concurrent_updates,
        max_hold_seconds: spec.max_hold_seconds,
        on_delete: spec.on_delete,
        history_limit: spec.history_limit,
        restore: BTreeMap::new(),
    }
}

/// A policy as a run refers to it.
pub(super) fn reference(policy: &Policy) -> PolicyRef {
    PolicyRef { name: policy.name.clone(), uid: policy.uid.clone(), generation: policy.generation }
}
