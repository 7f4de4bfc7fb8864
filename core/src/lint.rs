//! What is wrong with a plan, whatever the world: an effect without its precondition, two that contradict each other, one
//! before its turn. Pure, so that every plan of every test can be looked at.
//!
//! It knows nothing of the steps that made the plan and repeats none of their choices.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    api::{
        hook::Phase,
        names,
        run::{HookRunStatus, Step, WayKind},
    },
    effect::{Call, DeploymentPurpose, Effect, HookCall},
    plan::{Plan, hook_key, hook_passed, pod_mark},
    template::Template,
    world::{Pod, ReplicaSet, Run, World},
};

/// Everything that is wrong with this plan for this world, a sentence each. Names and UIDs of the world must be unique.
pub fn lint(world: &World, plan: &Plan) -> Vec<String> {
    let mut lint = Lint { w: world, plan, found: Vec::new() };
    lint.whole();
    for effect in &plan.effects {
        lint.effect(effect);
    }
    lint.found
}

struct Lint<'a> {
    w: &'a World,
    plan: &'a Plan,
    found: Vec<String>,
}

impl<'a> Lint<'a> {
    fn check(&mut self, right: bool, what: impl FnOnce() -> String) {
        if !right {
            self.found.push(what());
        }
    }

    /// Rules for a plan as a whole.
    fn whole(&mut self) {
        let Plan { look_live, effects, status, wake, report: _ } = self.plan;
        self.check(!look_live || !self.w.live, || "a live look is asked for although the facts are live".to_owned());
        self.check(!look_live || effects.is_empty() && status.is_none(), || {
            "a plan that asks for a live look does something".to_owned()
        });
        self.check(wake.is_none_or(|at| at.0 > self.w.now.0.min(i64::MAX - 1)), || "it wakes in the past".to_owned());
        let mut subjects: BTreeSet<String> = status.iter().map(|s| format!("status/{}", s.run)).collect();
        for effect in effects {
            if let Some(subject) = effect.subject() {
                self.check(!subjects.contains(&subject), || format!("{subject} is written twice"));
                subjects.insert(subject);
            }
        }
        // What a pod or a ReplicaSet is to be like is decided under the hold, so its end stands alone.
        let ends = |e: &Effect| matches!(e, Effect::PatchDeployment { purpose: DeploymentPurpose::Release, .. });
        let moves = |e: &Effect| {
            matches!(e, Effect::PatchPod { .. } | Effect::ResizePod { .. } | Effect::PatchReplicaSet { .. })
                || matches!(e, Effect::CreateReplicaSet { .. } | Effect::DeleteReplicaSet { .. })
                || matches!(e, Effect::CreateRun { .. })
                || matches!(e, Effect::StartHook(call) if call.phase != Phase::OnFailure)
        };
        self.check(!effects.iter().any(ends) || !effects.iter().any(moves), || {
            "the hold ends in the plan of another step".to_owned()
        });
        if let Some(write) = status {
            let stored = self.w.runs.iter().find(|r| r.name == write.run);
            self.check(stored.is_some_and(|r| r.resource_version == write.resource_version), || {
                format!("the status of run {} is not written over the one that was read", write.run)
            });
            self.check(stored.is_some_and(|r| r.status != write.status), || "a status without a change".to_owned());
            self.ended(&write.run, &write.status);
        }
    }

    fn ended(&mut self, run: &str, status: &HookRunStatus) {
        if status.ended.is_none() {
            return;
        }
        self.check(status.waiting_for.is_none(), || format!("run {run} has ended and waits"));
        self.check(status.steps.iter().all(|s| s.outcome.is_some()), || {
            format!("run {run} has ended with a hook that is open")
        });
    }

    fn effect(&mut self, effect: &'a Effect) {
        match effect {
            Effect::CreateRun { name, spec } => {
                self.check(self.w.runs.iter().all(|r| r.name != *name), || format!("run {name} is there already"));
                self.check(
                    spec.target == spec.new_template.hash() && spec.new_template == self.w.deployment.template,
                    || format!("run {name} is for another template than the Deployment's"),
                );
                self.check(spec.deployment.uid == self.w.deployment.uid, || {
                    format!("run {name} of another Deployment")
                });
            }
            Effect::RecordStatus { run, resource_version, status } => {
                let stored = self.w.runs.iter().find(|r| r.name == *run);
                self.check(stored.is_some_and(|r| r.resource_version == *resource_version), || {
                    format!("the status of run {run} is not written over the one that was read")
                });
                self.ended(run, status);
            }
            Effect::DeleteRun { name, uid } => {
                let stored = self.w.runs.iter().find(|r| r.name == *name && r.uid == *uid);
                self.check(stored.is_some_and(|r| r.status.ended.is_some()), || format!("run {name} has not ended"));
            }
            Effect::PatchPod { name, patch } => self.pod(name, patch, &["/metadata/", "/spec/"]),
            Effect::ResizePod { name, patch } => self.pod(name, patch, &["/spec/"]),
            Effect::SetReadinessGate { name, uid, open, since: _ } => {
                let pod = self.w.pods.iter().find(|p| p.name == *name && p.uid == *uid);
                self.check(pod.is_some_and(|p| p.gate == Some(!open)), || {
                    format!("pod {name}: its readiness gate is not there, or says this already")
                });
                self.check(!open || pod.is_some_and(|p| p.containers_ready), || {
                    format!("pod {name} serves before its containers are ready")
                });
            }
            Effect::CreateReplicaSet { object, purpose: _ } => self.made(object),
            Effect::PatchReplicaSet { name, patch } => self.replica_set(name, patch),
            Effect::DeleteReplicaSet { name, uid, resource_version } => self.deleted(name, uid, resource_version),
            Effect::PatchDeployment { purpose, patch } => self.deployment(*purpose, patch),
            Effect::StartHook(call) => self.hook(call),
            Effect::MirrorConditions { conditions } => {
                let own = conditions.keys().all(|t| t.starts_with(&format!("{}/", names::GROUP)));
                self.check(own, || "conditions that are not ours".to_owned());
            }
            Effect::CancelHooks(_) | Effect::Event { .. } => {}
        }
    }

    /// A patch of a pod finds that pod and no other, and tests whatever it replaces.
    fn pod(&mut self, name: &str, patch: &'a Value, within: &[&str]) {
        let Some(pod) = self.w.pods.iter().find(|p| p.name == name) else {
            self.found.push(format!("pod {name} is not known"));
            return;
        };
        self.tested(name, patch, &pod.uid, within, |path| known_in_pod(pod, path));
        let restarts = operations(patch).any(|o| op(o) != "test" && path(o).ends_with("/image"));
        let generation = operations(patch)
            .any(|o| op(o) == "test" && path(o) == "/metadata/generation" && o["value"] == pod.generation);
        self.check(!restarts || generation, || format!("pod {name}: a restart without a test of its generation"));
        if restarts {
            self.prepared(pod, patch);
        }
    }

    /// No container of a pod is replaced before its hooks are through, by what is stored, and it has been taken out of service
    /// where that is asked for.
    fn prepared(&mut self, pod: &Pod, patch: &Value) {
        let Some(run) = self.active().filter(|r| self.d().held() && r.status.ended.is_none()) else { return };
        let record = operations(patch).find(|o| path(o).ends_with("/interlock.dev~1update"));
        let record = record.and_then(|o| serde_json::from_str::<crate::world::Baseline>(o["value"].as_str()?).ok());
        let runs_it = self.w.replica_sets.iter().any(|s| s.uid == pod.owner && s.template == run.spec.new_template);
        if record.is_none_or(|b| b.target != run.spec.target) || runs_it && run.status.commit.is_none() {
            return;
        }
        let update = &run.spec.settings.update;
        self.check(!(update.drain.readiness_gate && pod.containers_ready) || pod.gate != Some(true), || {
            format!("pod {}: a restart while it serves", pod.name)
        });
        let marked = run.status.pod_hooks_done.contains(&pod_mark(&pod.uid));
        for hook in run.spec.settings.hooks.iter().filter(|h| h.phase == Phase::PrePod && !marked) {
            let of_it =
                |s: &&Step| s.hook == hook.name && s.phase == hook.phase && s.pod_uid.as_ref() == Some(&pod.uid);
            let last = run.status.steps.iter().rev().find(of_it);
            self.check(last.is_some_and(|s| hook_passed(hook, s)), || {
                format!("pod {}: a restart before hook {} is through", pod.name, hook.name)
            });
        }
    }

    /// Every path that is changed lies within what may be changed and, where it is there already, is tested first.
    fn tested(&mut self, name: &str, patch: &'a Value, uid: &str, within: &[&str], known: impl Fn(&str) -> bool) {
        let mut tests = BTreeSet::new();
        let mut own = false;
        for operation in operations(patch) {
            let at = path(operation);
            if op(operation) == "test" {
                own |= at == "/metadata/uid" && operation["value"] == uid;
                tests.insert(at);
                continue;
            }
            self.check(within.iter().any(|w| at.starts_with(w)), || format!("{name}: {at} is not ours to change"));
            let parts = ["", "/spec", "/metadata/labels", "/metadata/annotations"];
            let tested = parts.iter().any(|part| tests.contains(format!("{at}{part}").as_str()));
            self.check(tested || !known(at), || format!("{name}: {at} is changed and not tested"));
        }
        self.check(own, || format!("{name}: the patch does not test the UID"));
    }

    fn made(&mut self, object: &Value) {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        self.check(!name.is_empty() && self.w.replica_sets.iter().all(|s| s.name != name), || {
            format!("ReplicaSet {name} is there already")
        });
        let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
        for key in annotations.into_iter().flat_map(serde_json::Map::keys) {
            let its = key.starts_with(names::DEPLOYMENT_PREFIX) && key != names::REVISION;
            self.check(!its && !names::is_mark(key), || format!("ReplicaSet {name} is made with annotation {key}"));
        }
        let owner = object.pointer("/metadata/ownerReferences/0/uid").and_then(Value::as_str);
        self.check(owner == Some(self.w.deployment.uid.as_str()), || format!("ReplicaSet {name} has another owner"));
        let replicas = object.pointer("/spec/replicas").and_then(Value::as_i64);
        let empty = self.w.replica_sets.iter().all(|s| s.replicas == 0);
        self.check(replicas == Some(0) || replicas == Some(self.w.deployment.replicas) && empty, || {
            format!("ReplicaSet {name} is made with {replicas:?} replicas beside others")
        });
    }

    /// The commit, whose intent is stored, or the return of a woken one to 0.
    fn replica_set(&mut self, name: &str, patch: &'a Value) {
        let Some(set) = self.w.replica_sets.iter().find(|s| s.name == name) else {
            self.found.push(format!("ReplicaSet {name} is not known"));
            return;
        };
        let to_zero = operations(patch).any(|o| op(o) == "replace" && path(o) == "/spec/replicas");
        if to_zero {
            let right = operations(patch).all(|o| path(o) == "/spec/replicas")
                && operations(patch).any(|o| op(o) == "test" && o["value"] == set.replicas)
                && operations(patch).all(|o| op(o) == "test" || o["value"] == 0);
            self.check(right, || format!("ReplicaSet {name} is scaled by us"));
            self.check(set.template != self.d().template, || format!("ReplicaSet {name} is wanted, and goes to sleep"));
            return;
        }
        let desired = "/metadata/annotations/deployment.kubernetes.io~1desired-replicas";
        if operations(patch).any(|o| op(o) == "replace" && path(o) == desired) {
            self.tested(name, patch, &set.uid, &[desired], |path| path == desired);
            self.check(!self.d().held() && set.replicas == self.d().replicas, || {
                format!("ReplicaSet {name} is told another number than it has")
            });
            return;
        }
        let revision = "/metadata/annotations/deployment.kubernetes.io~1revision";
        let within = ["/spec/template", "/metadata/annotations/interlock.dev~1", revision];
        // Marks are removed without a test: which one it is does not matter.
        self.tested(name, patch, &set.uid, &within, |path| path.starts_with("/spec") || path == revision);
        let new = operations(patch).find(|o| op(o) == "replace" && path(o) == "/spec/template");
        let new = new.map(|o| Template::new(o["value"].clone()));
        self.check(new.as_ref() == Some(&self.d().template), || {
            format!("ReplicaSet {name} takes a template nobody wants")
        });
        let intended =
            self.active().is_some_and(|r| r.status.commit.is_some() && Some(&r.spec.new_template) == new.as_ref());
        self.check(intended, || format!("ReplicaSet {name} is committed before the intent is stored"));
        self.check(self.d().held(), || "a commit without a hold".to_owned());
    }

    fn deleted(&mut self, name: &str, uid: &str, resource_version: &str) {
        let found = self.w.replica_sets.iter().find(|s| s.name == name);
        let Some(set) = found.filter(|s| s.uid == uid && s.resource_version == resource_version) else {
            self.found.push(format!("ReplicaSet {name} is deleted as another one than was read"));
            return;
        };
        let pods = self.w.pods.iter().any(|p| p.owner == set.uid);
        self.check(set.replicas == 0 && set.status_replicas == 0 && !pods, || {
            format!("ReplicaSet {name} is not empty")
        });
        let shown = |s: &ReplicaSet| s.name != set.name && s.template == set.template;
        let noted = |r: &Run| r.spec.owed.iter().chain(&r.status.owed).any(|o| o.template == set.template);
        let full = |r: &Run| r.status.owed.len() >= 10;
        let kept =
            set.copy || self.w.replica_sets.iter().any(shown) || self.active().is_some_and(|r| noted(r) || full(r));
        self.check(kept, || format!("ReplicaSet {name} is deleted, and its revision is noted nowhere"));
    }

    /// Our annotations and the pause, nothing else, over exactly what was read.
    fn deployment(&mut self, purpose: DeploymentPurpose, patch: &Value) {
        let d = self.d();
        let version = patch.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        self.check(version == Some(d.resource_version.as_str()), || {
            "the Deployment is not the one that was read".to_owned()
        });
        let keys = |at: &str| -> Vec<String> {
            patch.pointer(at).and_then(Value::as_object).into_iter().flat_map(|m| m.keys().cloned()).collect()
        };
        let strange: Vec<String> = (keys("").into_iter().filter(|k| k != "metadata" && k != "spec"))
            .chain(keys("/metadata").into_iter().filter(|k| k != "resourceVersion" && k != "annotations"))
            .chain(keys("/metadata/annotations").into_iter().filter(|k| !k.starts_with("interlock.dev/")))
            .chain(keys("/spec").into_iter().filter(|k| k != "paused"))
            .collect();
        self.check(strange.is_empty(), || format!("{strange:?} of the Deployment are not ours"));
        let pauses = patch.pointer("/spec/paused").is_some_and(|p| *p == true);
        match purpose {
            DeploymentPurpose::Release => {
                self.check(self.w.live, || "the hold ends on facts that are not live".to_owned());
                self.check(d.held(), || "an end of a hold that is not there".to_owned());
                self.check(pauses == d.user_paused(), || "the user's pause is not theirs".to_owned());
                let mark = patch.pointer("/metadata/annotations").and_then(|a| a.get(names::RELEASE));
                self.check(mark.and_then(Value::as_str) == version, || {
                    "the release does not name what it replaces".to_owned()
                });
                self.released();
            }
            DeploymentPurpose::Freeze => self.check(pauses && !d.held(), || "a freeze of what is held".to_owned()),
            DeploymentPurpose::Restart => self.check(false, || "only a RollingRestart restarts".to_owned()),
            DeploymentPurpose::ClearMarks => {
                self.check(!d.paused && patch.get("spec").is_none(), || "marks of a hold are cleared".to_owned());
            }
        }
    }

    /// In place, never un-paused before both halves of the barrier.
    fn released(&mut self) {
        let d = self.d();
        let way = self.plan.status.as_ref().and_then(|s| s.status.way.as_ref());
        let Some(run) = self.active() else { return };
        if run.status.ended.is_some() || way.or(run.status.way.as_ref()).is_none_or(|w| w.kind != WayKind::InPlace) {
            return;
        }
        let acknowledged = self.w.replica_sets.iter().filter(|s| s.template == d.template).any(|s| {
            s.observed_generation >= s.generation
                && [names::HELD_BY, names::HELD_AT].iter().all(|m| s.annotations.get(*m) == d.annotations.get(*m))
        });
        self.check(acknowledged && d.status.observed_generation >= d.generation, || {
            "the hold ends before both halves of the barrier".to_owned()
        });
    }

    /// The intent is stored before the call.
    fn hook(&mut self, call: &HookCall) {
        if call.call == Call::Drained {
            let pod = self.w.pods.iter().find(|p| call.pod.as_ref().is_some_and(|c| c.uid == p.uid));
            self.check(pod.is_some_and(|p| p.gate == Some(false)), || format!("{} awaits a pod that serves", call.key));
            let forgotten = self.plan.effects.contains(&Effect::CancelHooks(vec![call.key.clone()]));
            self.check(forgotten || !self.w.attempts.contains_key(&call.key), || format!("{} again", call.key));
            return;
        }
        if call.key.rsplit_once('.').is_some_and(|(_, last)| last == "undo") {
            let reverting = self.active().is_some_and(|r| r.status.stall.as_ref().is_some_and(|s| s.reverting));
            self.check(reverting, || format!("{} without a revert", call.key));
            return;
        }
        let open = self.active().is_some_and(|run| {
            run.status
                .steps
                .iter()
                .any(|s| s.outcome.is_none() && hook_key(&run.uid, s) == call.key && s.hook == call.hook)
        });
        self.check(open, || format!("hook {} is called before its intent is stored", call.key));
        self.check(!self.w.attempts.contains_key(&call.key), || format!("hook {} is called again", call.key));
    }

    fn d(&self) -> &'a crate::world::Deployment {
        &self.w.deployment
    }

    /// The run of the update towards the present template, as it is stored.
    fn active(&self) -> Option<&'a Run> {
        self.w.latest_run().filter(|r| r.spec.target == self.w.deployment.template.hash())
    }
}

/// Is there something at this path that a patch would replace, as far as the facts tell?
fn known_in_pod(pod: &Pod, path: &str) -> bool {
    let key = |rest: &str| rest.replace("~1", "/").replace("~0", "~");
    if let Some(rest) = path.strip_prefix("/metadata/labels/") {
        return pod.labels.contains_key(&key(rest));
    }
    if let Some(rest) = path.strip_prefix("/metadata/annotations/") {
        return pod.annotations.contains_key(&key(rest));
    }
    if path == "/metadata/annotations" {
        return pod.has_annotations;
    }
    if let Some((container, rest)) = pod.containers.iter().find_map(|c| {
        let list = if c.init { "initContainers" } else { "containers" };
        path.strip_prefix(&format!("/spec/{list}/{}/", c.index)).map(|rest| (c, rest))
    }) {
        let resources = &container.resources;
        return match rest.split('/').collect::<Vec<_>>().as_slice() {
            ["resources", "requests", name] => resources.requests.contains_key(*name),
            ["resources", "limits", name] => resources.limits.contains_key(*name),
            ["resources", "requests"] => !resources.requests.is_empty(),
            ["resources", "limits"] => !resources.limits.is_empty(),
            _ => true,
        };
    }
    true
}

fn operations(patch: &Value) -> impl Iterator<Item = &Value> {
    patch.as_array().into_iter().flatten()
}

fn op(operation: &Value) -> &str {
    operation.get("op").and_then(Value::as_str).unwrap_or_default()
}

fn path(operation: &Value) -> &str {
    operation.get("path").and_then(Value::as_str).unwrap_or_default()
}
