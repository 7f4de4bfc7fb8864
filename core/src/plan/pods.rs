//! The sliding window: which pods change now. The next pod starts the moment one is done.

use std::collections::BTreeMap;

use super::{
    Flow, GO, Planner, State,
    hooks::Wait,
    patches,
    podhooks::{At, Outlook},
    running::pods_of,
    steps::{MOST_PODS, PodHooks, pod_mark},
    window::{Window, available},
};
use crate::{
    api::{
        policy::{DisruptionBudgets, Update},
        run::{PodCounts, Progress},
    },
    budgets::Budgets,
    effect::Effect,
    pod::{Difference, Stage, Target, serves, stage},
    reason::Reason,
    template::Template,
    time::Time,
    world::{Pod, ReplicaSet},
};

/// So often the same change is written into a pod that somebody else changes back; then it is a fight.
const MOST_TRIES: i64 = 5;

/// One plan writes to at most so many pods: more would only wait for their turn while the world moves on.
const MOST_WRITES: usize = 32;

/// Why pods are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Forward, to the wanted template, judged by deadline and tolerance.
    Update,
    /// To what their own ReplicaSet says; nothing to judge.
    Repair,
}

/// One pod with what is to be said of it.
pub(super) struct Seen<'w> {
    pub pod: &'w Pod,
    /// Most pods have none: boxed, a thousand of these are no memory that the system has to be asked for.
    difference: Option<Box<Difference>>,
    pub stage: Stage,
}

static NOTHING: Difference =
    Difference { images: Vec::new(), labels: BTreeMap::new(), annotations: BTreeMap::new(), resources: Vec::new() };

impl Seen<'_> {
    fn difference(&self) -> &Difference {
        self.difference.as_deref().unwrap_or(&NOTHING)
    }
}

/// The pods, counted. One that is at its hooks is in one of two states: before its update it is `begun`, after it `late`.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    total: i64,
    /// On the new template, available, hooks through.
    done: i64,
    moving: i64,
    begun: i64,
    late: i64,
    /// Whatever the template.
    available: i64,
}

impl Tally {
    fn of(seen: &[Seen<'_>], places: &[At]) -> Self {
        let mut all = Self::default();
        for (s, at) in seen.iter().zip(places) {
            all.total += 1;
            all.available += i64::from(available(&s.stage));
            match &s.stage {
                Stage::Done if *at == At::Due || at.at_hooks() => all.late += 1,
                Stage::Done => all.done += 1,
                Stage::Moving { .. } => all.moving += 1,
                Stage::Old { .. } => all.begun += i64::from(at.at_hooks()),
            }
        }
        all
    }

    /// Changing, or at their hooks.
    const fn under_way(&self) -> i64 {
        self.moving + self.begun + self.late
    }
}

/// How many pods may be unavailable, or why it is not done in place.
pub(crate) fn max_unavailable(update: &Update, own: Option<&crate::api::policy::IntOrPercent>, replicas: i64) -> i64 {
    let wanted = update.max_unavailable.as_ref().or(own).and_then(|m| m.of(replicas));
    // The Deployment's default is 25% (Kubernetes, DeploymentSpec); rounded down, but an update has to move.
    wanted.unwrap_or(replicas / 4).max(1)
}

impl<'w> Planner<'w> {
    /// The target that pods are compared with.
    fn target(&self, goal: &Template, set: &ReplicaSet, update: &Update) -> Target {
        let runs =
            self.w.runs.iter().flat_map(|r| std::iter::once(&r.spec.new_template).chain(r.spec.old_template.as_ref()));
        let others = self.w.replica_sets.iter().map(|s| &s.template).chain(runs);
        let before = self.run.and_then(|r| r.spec.old_template.as_ref()).unwrap_or(&set.template);
        Target::new(goal, Some(before), others, &update.in_place_metadata)
    }

    /// Does any pod of this ReplicaSet that we have touched show something else than `goal`?
    pub(super) fn touched_and_wrong(&self, goal: &Template, set: &ReplicaSet, update: &Update) -> bool {
        let target = self.target(goal, set, update);
        pods_of(self.w, set)
            .into_iter()
            .any(|p| p.baseline.as_ref().is_some_and(|b| b.target != target.hash) && !target.difference(p).is_empty())
    }

    /// Puts the pods of a ReplicaSet to a template. Goes on when all that should move have arrived.
    pub(super) fn pods(&mut self, goal: &Template, set: &'w ReplicaSet, update: &Update, purpose: Purpose) -> Flow {
        let target = self.target(goal, set, update);
        let forward = purpose == Purpose::Update;
        let seen: Vec<Seen<'w>> = pods_of(self.w, set)
            .into_iter()
            .map(|pod| {
                let difference = Some(target.difference(pod)).filter(|d| !d.is_empty()).map(Box::new);
                let stage = self.judged(stage(
                    pod,
                    difference.is_some(),
                    self.d.min_ready_seconds,
                    &update.tolerance,
                    self.now,
                ));
                Seen { pod, difference, stage }
            })
            .collect();
        let partition = if forward { self.partition(update) } else { 0 };
        let replicas = self.d.replicas.max(0);
        let hooks = if forward { PodHooks::of(self.run) } else { PodHooks::default() };
        let places = self.places(&hooks, &seen, &target.hash);
        let mut tally = Tally::of(&seen, &places);
        let Tally { done, moving, .. } = tally;
        let missing = (replicas - tally.total).max(0);
        let failing: Vec<String> = seen
            .iter()
            .filter_map(|s| match &s.stage {
                Stage::Moving { failing: Some(why), .. } => Some(format!("{}: {why}", s.pod.name)),
                Stage::Moving { .. } | Stage::Old { .. } | Stage::Done => None,
            })
            .collect();
        for s in &seen {
            if let Stage::Moving { wake: Some(wake), .. } = &s.stage {
                self.wake(*wake);
            }
        }
        let most = max_unavailable(update, self.d.max_unavailable.as_ref(), replicas);
        let mut window = Window::of(&seen, &places, missing, most);
        let mut outlook = Outlook::default();
        if forward {
            self.status.pods = Some(PodCounts {
                desired: replicas,
                updated: done,
                in_flight: tally.under_way(),
                available: tally.available,
                failing: failing.iter().take(10).map(|f| crate::pod::clip(f, 400)).collect(),
            });
            if let Some(first) = failing.first() {
                self.advance(done);
                return self.stall(Reason::PodFailing, format!("pod {first}"));
            }
            if let Some((reason, message)) = self.hopeless(&seen, &target.hash) {
                return self.stall(reason, message);
            }
            self.cancel_gone(&seen)?;
            outlook = self.pod_hooks(&hooks, &seen, &places, &mut window);
            if let Some(why) = outlook.failed {
                return self.stall(Reason::HookFailed, why);
            }
        }

        // Pods that are not ready anyway go first and use no budget of their own; they count as unavailable. So do
        // those that are ready but not available (minReadySeconds, an earlier write of ours still to come), but these
        // may serve: they only go while no more than may are unavailable.
        let may_move = (replicas - partition - done - tally.under_way()).max(0);
        let ignored = update.disruption_budgets == DisruptionBudgets::Ignore || self.status.budget_skipped;
        let respected: &[_] = if ignored { &[] } else { &self.w.budgets };
        let steady = |s: &&Seen<'_>| matches!(s.stage, Stage::Done | Stage::Old { available: true });
        let mut budgets = Budgets::new(respected, &seen.iter().filter(steady).map(|s| s.pod.name.as_str()).collect());
        let mut blocked: Option<String> = None;
        let mut chosen: Vec<(&Seen<'w>, At)> = Vec::new();
        // Those whose hooks are through go as soon as they may be down.
        for (s, at) in seen.iter().zip(&places).filter(|(_, at)| matches!(at, At::Before | At::Ready)) {
            let steady = s.stage == Stage::Old { available: true };
            match if steady { budgets.take(&s.pod.name) } else { Ok(()) } {
                Ok(()) if *at == At::Ready && window.take_down(s, *at) => chosen.push((s, *at)),
                Ok(()) => {}
                Err(name) => blocked = Some(name),
            }
        }
        let (mut bad, good): (Vec<&Seen<'w>>, Vec<&Seen<'w>>) = seen
            .iter()
            .zip(&places)
            .filter(|(s, at)| matches!(s.stage, Stage::Old { .. }) && matches!(at, At::Nothing | At::Through))
            .map(|(s, _)| s)
            .partition(|s| {
                s.stage == Stage::Old { available: false } && (!serves(s.pod) || window.kept())
                    || !s.difference().restarts() && hooks.is_empty()
            });
        // What we have taken out of service already goes before all others.
        bad.sort_by_key(|s| !(s.pod.gate == Some(false) && s.pod.containers_ready));
        let room = if hooks.is_empty() {
            i64::MAX
        } else {
            let most = i64::try_from(hooks.most(&self.status)).unwrap_or(i64::MAX);
            (most - tally.under_way()).max(0)
        };
        let mut left = may_move.min(room);
        for s in bad.into_iter().take(usize::try_from(left).unwrap_or(0)) {
            chosen.push((s, At::Nothing));
            left -= 1;
        }
        for s in good {
            if left <= 0 || window.free() == 0 || chosen.len() >= MOST_WRITES {
                break;
            }
            if let Err(name) = budgets.take(&s.pod.name) {
                blocked = Some(name);
                continue;
            }
            window.join(At::Nothing);
            if hooks.pre.is_empty() || self.marked_through(s.pod) {
                window.take_down(s, At::Nothing); // written to in this plan
            }
            chosen.push((s, At::Nothing));
            left -= 1;
        }
        let chosen_any = !chosen.is_empty();
        let mut writes = 0;
        for (s, at) in chosen {
            if at == At::Nothing && !hooks.pre.is_empty() && !self.marked_through(s.pod) {
                self.before(&hooks, (s, at), &mut window, &mut outlook);
                tally.begun += 1;
                continue;
            }
            if writes < MOST_WRITES && (!s.difference().restarts() || self.drained(s.pod, update)) {
                self.write_pod(s, &target.hash, &hooks);
                writes += 1;
            }
        }
        self.unhurried |= outlook.waits.is_some();
        if forward {
            if self.unhurried {
                self.status.progress = None;
            } else {
                self.advance(done);
            }
        }
        let mut what = format!("{done} of {replicas} pods run the new template, {} are changing", tally.under_way());
        if let Some(wait) = outlook.waits {
            if moving == 0 && writes == 0 {
                let Wait { reason, what: waits, until, how } = wait;
                return self.wait(State::Updating, reason, format!("{what}; {waits}"), until, &how);
            }
            if let Some(until) = wait.until {
                self.wake(until);
            }
            what = format!("{what}; {}", wait.what);
            return self.wait_for_pods(what, forward, update);
        }
        if chosen_any {
            return self.wait_for_pods(what, forward, update);
        }
        if done >= replicas - partition && tally.under_way() == 0 && (partition > 0 || done >= tally.total) {
            if hooks.is_empty() || self.run.is_none_or(|r| r.status.steps == self.status.steps) {
                return GO;
            }
            return self.report(State::Updating, "the results of the hooks are stored".to_owned());
        }
        if let Some(name) = blocked.filter(|_| moving == 0) {
            return self.budget_wait(&name, &budgets, update, forward);
        }
        if room == 0 && tally.under_way() == 0 {
            let message =
                format!("hooks of single pods cannot be recorded for more than {MOST_PODS} pods of one update");
            return self.stall(Reason::TooManyPods, message);
        }
        if missing > 0 {
            let quota = set.failure.as_deref().or(self.d.status.replica_failure.as_deref());
            what = match quota {
                Some(message) => format!("{what}, {missing} are missing: {message}"),
                None => format!("{what}, {missing} are missing"),
            };
            if quota.is_some_and(|m| m.contains("quota")) && moving == 0 {
                self.deadline(update, forward, Reason::QuotaExceeded, &what)?;
                return self.wait(
                    State::Updating,
                    Reason::QuotaExceeded,
                    what,
                    None,
                    "raise the quota or lower the replicas",
                );
            }
        }
        self.wait_for_pods(what, forward, update)
    }

    fn marked_through(&self, pod: &Pod) -> bool {
        !self.status.pod_hooks_done.is_empty() && self.status.pod_hooks_done.contains(&pod_mark(&pod.uid))
    }

    /// What no patience helps against.
    fn hopeless(&self, seen: &[Seen<'w>], hash: &str) -> Option<(Reason, String)> {
        let fought = seen.iter().find(|s| {
            !s.difference().images.is_empty()
                && s.pod.baseline.as_ref().is_some_and(|b| {
                    let anew = self.status.resumed_at.is_some_and(|at| at >= b.at);
                    b.target == hash && b.tries >= MOST_TRIES && !anew
                })
        });
        if let Some(s) = fought {
            let message = format!(
                "somebody else has changed pod {} back {MOST_TRIES} times; find out who and stop it, then retry",
                s.pod.name
            );
            return Some((Reason::Conflicting, message));
        }
        self.resize_refused(seen).map(|message| (Reason::ResizeRefused, message))
    }

    fn wait_for_pods(&mut self, what: String, forward: bool, update: &Update) -> Flow {
        self.deadline(update, forward, Reason::DeadlineExceeded, &what)?;
        let until = self.deadline_at(update, forward);
        self.wait(State::Updating, Reason::Updating, what, until, "")
    }

    /// A new maximum is progress; a flapping count is not.
    pub(super) fn advance(&mut self, done: i64) {
        let better = self.status.progress.as_ref().is_none_or(|p| done > p.best);
        if better {
            self.status.progress = Some(Progress { best: done, at: self.now });
        }
    }

    /// When the update has failed if nothing more progresses; a repair is not judged.
    pub(super) fn deadline_at(&self, update: &Update, forward: bool) -> Option<Time> {
        self.status.progress.as_ref().filter(|_| forward).map(|p| p.at.plus_seconds(update.progress_deadline_seconds))
    }

    /// Stalls when the deadline has passed without progress.
    pub(super) fn deadline(&mut self, update: &Update, forward: bool, reason: Reason, what: &str) -> Flow {
        if self.deadline_at(update, forward).is_none_or(|at| self.now < at) {
            return GO;
        }
        self.stall(reason, format!("no progress for {} seconds: {what}", update.progress_deadline_seconds))
    }

    /// After somebody made it go on, failures are believed only once the tolerance has passed again.
    pub(super) fn judged(&self, stage: Stage) -> Stage {
        let Some(resumed) = self.status.resumed_at else { return stage };
        let tolerance = self.run.map_or(0, |r| r.spec.settings.update.tolerance.seconds);
        let until = resumed.plus_seconds(tolerance.max(1));
        match stage {
            Stage::Moving { failing: Some(_), .. } if self.now < until => {
                Stage::Moving { wake: Some(until), failing: None }
            }
            other => other,
        }
    }

    /// Pods that stay old. The policy as it is now counts: lowering it is how a canary goes on.
    fn partition(&self, update: &Update) -> i64 {
        let now = self.own_policy().and_then(|p| p.spec.as_ref().ok()).map_or(update.partition, |s| s.update.partition);
        now.clamp(0, self.d.replicas.max(0))
    }

    /// Is the update at its partition, with pods that stay old?
    pub(super) fn partitioned(&mut self, goal: &Template, set: &'w ReplicaSet, update: &Update) -> Flow {
        let partition = self.partition(update);
        let target = self.target(goal, set, update);
        let old = pods_of(self.w, set).into_iter().filter(|p| !target.difference(p).is_empty()).count();
        if partition == 0 || old == 0 {
            return GO;
        }
        self.status.progress = None;
        let what = format!("{old} pods stay on the old template because update.partition is {partition}");
        self.wait(State::Updating, Reason::Partitioned, what, None, "lower spec.update.partition of the policy")
    }

    fn resize_refused(&self, seen: &[Seen<'_>]) -> Option<String> {
        if self.w.refusals.is_empty() {
            return None;
        }
        seen.iter().find_map(|s| {
            self.w
                .refusals
                .get(&format!("resize/{}", s.pod.name))
                .map(|message| format!("pod {} cannot be resized: {message}", s.pod.name))
        })
    }

    fn write_pod(&mut self, seen: &Seen<'_>, hash: &str, hooks: &PodHooks<'_>) {
        let pod = seen.pod;
        let quiet = crate::pod::quiet(pod, self.now);
        let Difference { images, labels, annotations, resources } = seen.difference();
        let only_resize = images.is_empty() && labels.is_empty() && annotations.is_empty();
        let recorded = pod.baseline.as_ref().is_some_and(|b| b.target == hash);
        if !(only_resize && recorded) {
            let state = (!hooks.gates.is_empty()).then_some("Updating");
            let patch = patches::pod(pod, seen.difference(), hash, self.now, quiet, state);
            self.plan.effects.push(Effect::PatchPod { name: pod.name.clone(), patch });
        }
        if !resources.is_empty() {
            self.plan
                .effects
                .push(Effect::ResizePod { name: pod.name.clone(), patch: patches::resize(pod, seen.difference()) });
        }
    }

    fn budget_wait(&mut self, name: &str, budgets: &Budgets<'_>, update: &Update, forward: bool) -> Flow {
        let how = format!("go on without budgets: kubectl interlock skip deploy/{} --gate budget", self.d.name);
        if budgets.impossible(name) {
            let what =
                format!("PodDisruptionBudget {name} can never allow a pod to be unavailable; change it, or {how}");
            return if forward {
                self.stall(Reason::BudgetImpossible, what)
            } else {
                self.wait(State::Updating, Reason::BudgetImpossible, what, None, &how)
            };
        }
        let what = format!("PodDisruptionBudget {name} allows no pod to be unavailable now");
        self.deadline(update, forward, Reason::Budget, &what)?;
        let until = self.deadline_at(update, forward);
        self.wait(State::Updating, Reason::Budget, what, until, &how)
    }
}
