//! The simulated cluster (`tests/sim`) as a state machine: each of its parts one step at a time, in any order.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashSet, VecDeque},
    hash::{Hash, Hasher},
    sync::Mutex,
};

use interlock_core::{
    effect::Effect,
    plan::{Plan, State as Stage, StatusWrite},
    template::Template,
    world::Policy,
};
use stateright::{Model, Property};

use crate::{
    canon, rules,
    sim::{Sim, executor::Ended, plain_policy, policy},
};

/// What a person does; each list in its order, at any moment.
#[derive(Clone, Debug, Default)]
pub struct People {
    /// Templates that are written, one after the other.
    pub templates: Vec<Template>,
    /// Replicas that are written, one after the other.
    pub scales: Vec<i64>,
    /// So many pods are deleted.
    pub deletions: usize,
    /// So often our process dies.
    pub crashes: usize,
}

/// A cluster, and what may happen to it.
pub struct Cluster {
    pub replicas: i64,
    pub policies: Vec<Policy>,
    pub people: People,
    /// Everything that people do is such that pods keep their place: at most one ReplicaSet ever has pods.
    pub in_place: bool,
    /// Our views of Deployment, ReplicaSets, pods and runs lag one by one; otherwise all together.
    pub views: bool,
    /// The ReplicaSet controller's view of ReplicaSets lags too.
    pub replica_set_controller_lags: bool,
    /// Conditions of the Deployment are a write of their own; otherwise they go with the next one.
    pub conditions: bool,
    /// Each thing that people do comes a second after the one before; otherwise all within one second.
    pub seconds: bool,
    /// States that end well when everybody is left alone.
    pub well: Mutex<HashSet<u64>>,
}

impl Cluster {
    pub fn small() -> Self {
        Self {
            replicas: 2,
            policies: vec![policy("p", plain_policy())],
            people: People::default(),
            in_place: true,
            views: false,
            replica_set_controller_lags: false,
            conditions: false,
            seconds: true,
            well: Mutex::default(),
        }
    }
}

/// What is left of a plan that is being carried out.
#[derive(Clone, Debug)]
pub struct Pending {
    pub effects: VecDeque<Effect>,
    pub status: Option<StatusWrite>,
}

/// What people have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Done {
    pub templates: usize,
    pub scales: usize,
    pub deletions: usize,
    pub crashes: usize,
}

#[derive(Clone)]
pub struct State {
    pub sim: Sim,
    pub pending: Option<Pending>,
    pub done: Done,
    /// Stands for all but `done`.
    pub print: u64,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.print, self.done).hash(hasher);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        (self.print, self.done) == (other.print, other.done)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.sim.picture())
    }
}

impl State {
    /// A copy, to take a step.
    fn begun(&self) -> Self {
        let mut state = self.clone();
        state.sim.log.clear();
        state.sim.events.clear();
        state
    }

    fn key(&self) -> (u64, Done) {
        (self.print, self.done)
    }
}

// What `actions` has tried is what `next_state` is asked for next.
std::thread_local!(static TRIED: RefCell<Option<Tried>> = const { RefCell::new(None) });

/// The state that was tried, and the steps that change it.
type Tried = ((u64, Done), Vec<(Step, State)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Our views arrive.
    SeeDeployment,
    SeeSets,
    SeePods,
    SeeRuns,
    SeeAll,
    /// We plan, and make the first write at once where nothing can happen in between.
    Plan,
    /// We make the next write of the plan.
    Write,
    /// Our process dies and starts again.
    Crash,
    DeploymentControllerSees,
    DeploymentController,
    ReplicaSetControllerSees,
    ReplicaSetController,
    Kubelet(usize),
    HookReceiver,
    /// Nothing else is to be done: the clock goes on to what is waited for.
    Clock,
    WriteTemplate,
    Scale,
    DeletePod(usize),
}

impl Model for Cluster {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut sim = Sim::running(1, self.replicas, "app:v1", self.policies.clone());
        sim.fresh = false;
        sim.shuffled = 0;
        sim.log.clear();
        vec![State { sim, pending: None, done: Done::default(), print: 0 }.canonical()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let (sim, done) = (&state.sim, state.done);
        let stale = state.stale();
        if self.views {
            let each = [Step::SeeDeployment, Step::SeeSets, Step::SeePods, Step::SeeRuns];
            steps.extend(each.into_iter().zip(stale).filter(|(_, stale)| *stale).map(|(step, _)| step));
        } else if stale.contains(&true) {
            steps.push(Step::SeeAll);
        }
        if state.pending.is_some() {
            steps.push(Step::Write);
        }
        if canon::differ(&sim.dc_sets, &sim.sets) {
            steps.push(Step::DeploymentControllerSees);
        }
        if self.replica_set_controller_lags && canon::differ(&sim.rsc_sets, &sim.sets) {
            steps.push(Step::ReplicaSetControllerSees);
        }
        if sim.attempts.values().any(Option::is_none) {
            steps.push(Step::HookReceiver);
        }
        let found = self.tried(state, usize::MAX);
        steps.extend(found.iter().map(|(step, _)| *step));
        TRIED.replace(Some((state.key(), found)));
        if done.crashes < self.people.crashes && (state.pending.is_some() || !sim.attempts.is_empty()) {
            steps.push(Step::Crash);
        }
        if done.templates < self.people.templates.len() {
            steps.push(Step::WriteTemplate);
        }
        if done.scales < self.people.scales.len() {
            steps.push(Step::Scale);
        }
        if done.deletions < self.people.deletions {
            steps.extend((0..sim.pods.len()).map(Step::DeletePod));
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let tried = TRIED.with_borrow_mut(|tried| {
            let (key, found) = tried.as_mut()?;
            let at = found.iter().position(|(s, _)| *key == last.key() && *s == step)?;
            Some(found.swap_remove(at).1)
        });
        if tried.is_some() {
            return tried;
        }
        if step == Step::Clock {
            return self.tried(last, usize::MAX).into_iter().find(|(s, _)| *s == step).map(|(_, state)| state);
        }
        let mut state = last.begun();
        self.take(&mut state, step).then(|| self.over(last, state))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        rules::properties()
    }
}

impl Cluster {
    /// Takes a step. Did it change anything?
    fn take(&self, state: &mut State, step: Step) -> bool {
        let sim = &mut state.sim;
        match step {
            Step::SeeDeployment => sim.ours.d = sim.d.clone(),
            Step::SeeSets => sim.ours.sets = sim.sets.clone(),
            Step::SeePods => sim.ours.pods = sim.pods.clone(),
            Step::SeeRuns => sim.ours.runs = sim.runs.clone(),
            Step::SeeAll => sim.look(),
            Step::Plan => return self.plan(state),
            Step::Write => self.write(state),
            Step::Crash => {
                sim.die();
                state.pending = None;
                state.done.crashes += 1;
            }
            Step::DeploymentControllerSees => sim.dc_sets = sim.sets.clone(),
            Step::DeploymentController => return sim.deployment_controller(),
            Step::ReplicaSetControllerSees => sim.rsc_sets = sim.sets.clone(),
            Step::ReplicaSetController => {
                if !self.replica_set_controller_lags {
                    sim.rsc_sets = sim.sets.clone();
                }
                return sim.replica_set_controller();
            }
            Step::Kubelet(pod) => return sim.kubelet(pod),
            Step::HookReceiver => return sim.hook_receivers(),
            Step::Clock => return false, // see `tried`
            Step::WriteTemplate => {
                let template = self.people.templates[state.done.templates].clone();
                state.done.templates += 1;
                self.second(&mut state.sim);
                state.sim.edit(|d| d.template = template);
            }
            Step::Scale => {
                let replicas = self.people.scales[state.done.scales];
                state.done.scales += 1;
                self.second(&mut state.sim);
                state.sim.edit(|d| d.replicas = replicas);
            }
            Step::DeletePod(pod) => {
                state.done.deletions += 1;
                sim.delete_pod(pod);
            }
        }
        true
    }

    fn second(&self, sim: &mut Sim) {
        if self.seconds {
            sim.now = sim.now.plus_seconds(1);
        }
    }

    fn plan(&self, state: &mut State) -> bool {
        let sim = &mut state.sim;
        let before = (sim.rested, sim.violations.len());
        let mut plan = sim.planned(false);
        let live = plan.look_live;
        if live {
            plan = sim.planned(true);
        }
        sim.notice_rest(&plan);
        let Plan { effects, status, .. } = plan;
        if effects.is_empty() && status.is_none() {
            return (sim.rested, sim.violations.len()) != before;
        }
        state.pending = Some(Pending { effects: effects.into(), status });
        // What was planned on what we have seen may as well have been planned just before the write. What was read live
        // may have changed by then.
        if !live {
            self.write(state);
        }
        true
    }

    /// Is this carried out together with the write that follows?
    fn minor(&self, effect: &Effect) -> bool {
        match effect {
            Effect::Event { .. } | Effect::CancelHooks(_) => true,
            Effect::MirrorConditions { .. } => !self.conditions,
            _ => false,
        }
    }

    /// The next write of the plan. One that is refused ends it.
    fn write(&self, state: &mut State) {
        let Some(mut pending) = state.pending.take() else { return };
        let sim = &mut state.sim;
        let mut wrote = false;
        while let Some(effect) = pending.effects.front() {
            let minor = self.minor(effect);
            let rest = pending.effects.iter().all(|e| self.minor(e)) && pending.status.is_none();
            if wrote && !rest {
                break;
            }
            rules::before(sim, effect, state.done);
            let effect = pending.effects.pop_front().unwrap();
            if let Err(ended) = sim.apply(&effect) {
                return refused(sim, ended);
            }
            wrote |= !minor;
        }
        if !wrote
            && let Some(write) = pending.status.take()
            && let Err(ended) = sim.store(&write.run, &write.resource_version, &write.status)
        {
            return refused(sim, ended);
        }
        if !pending.effects.is_empty() || pending.status.is_some() {
            state.pending = Some(pending);
        }
    }

    /// The steps of which only a try can tell whether they change anything: the first so many that do. Those that do not
    /// leave everything as it was, so one copy serves them all.
    fn tried(&self, state: &State, most: usize) -> Vec<(Step, State)> {
        let mut found = Vec::new();
        let mut copy = None;
        let ours = state.pending.is_none().then_some(Step::Plan);
        let others = [Step::DeploymentController, Step::ReplicaSetController];
        let steps = others.into_iter().chain((0..state.sim.pods.len()).map(Step::Kubelet)).chain(ours);
        for step in steps {
            let mut next = copy.take().unwrap_or_else(|| state.begun());
            if self.take(&mut next, step) {
                found.push((step, self.over(state, next)));
                if found.len() >= most {
                    return found;
                }
            } else {
                copy = Some(next);
            }
        }
        // The clock goes on only when nobody has anything to do: time does not heal what is stuck.
        let sim = &state.sim;
        let idle = found.is_empty()
            && !state.stale().contains(&true)
            && !canon::differ(&sim.dc_sets, &sim.sets)
            && !canon::differ(&sim.rsc_sets, &sim.sets)
            && state.pending.is_none()
            && sim.attempts.values().all(Option::is_some);
        if let Some(mut next) = copy.filter(|_| idle)
            && let Some(at) = self.waits_until(&mut next.sim)
        {
            next.sim.now = at;
            found.push((Step::Clock, self.over(state, next)));
        }
        found
    }

    fn waits_until(&self, sim: &mut Sim) -> Option<interlock_core::time::Time> {
        let wake = sim.plan_now().wake;
        [wake, sim.kubelet_wake()].into_iter().flatten().filter(|at| *at > sim.now).min()
    }

    fn over(&self, last: &State, mut state: State) -> State {
        state.sim.remember_what_ran();
        rules::after(self, last, &mut state);
        state.canonical()
    }

    /// What happens if people leave it alone, everybody sees everything, and each does what he has to do.
    pub fn left_alone(&self, state: &State) -> Result<(), String> {
        let mut walk: Vec<u64> = Vec::new();
        let mut here = BTreeSet::new();
        let mut state = state.clone();
        while !self.well.lock().unwrap().contains(&state.print) {
            if !here.insert(state.print) {
                return Err(format!("it goes round in circles\n{}", state.sim.picture()));
            }
            walk.push(state.print);
            match self.by_itself(&state) {
                Some(next) => state = next,
                None => {
                    let mut end = state.sim.clone();
                    let faults = end.faults();
                    let stands = end.plan_now().report.state;
                    if !faults.is_empty() && !matches!(stands, Stage::Stalled | Stage::UserPaused) {
                        return Err(format!("it ends with {faults:#?}\n{}", end.picture()));
                    }
                    break;
                }
            }
        }
        self.well.lock().unwrap().extend(walk);
        Ok(())
    }

    fn by_itself(&self, state: &State) -> Option<State> {
        let sim = &state.sim;
        let known = [
            (state.stale().contains(&true), Step::SeeAll),
            (canon::differ(&sim.dc_sets, &sim.sets), Step::DeploymentControllerSees),
            (canon::differ(&sim.rsc_sets, &sim.sets), Step::ReplicaSetControllerSees),
            (state.pending.is_some(), Step::Write),
            (sim.attempts.values().any(Option::is_none), Step::HookReceiver),
        ];
        match known.into_iter().find(|(may, _)| *may) {
            Some((_, step)) => self.next_state(state, step),
            None => self.tried(state, 1).pop().map(|(_, next)| next),
        }
    }
}

fn refused(sim: &mut Sim, ended: Ended) {
    sim.refused += 1;
    sim.note(format!("our write was refused: {ended:?}"));
}
