//! What must be true in every state, and what must be reachable so that the rest means something.

use interlock_core::effect::Effect;
use stateright::Property;

use crate::cluster::{Cluster, Done, State};
use crate::sim::Sim;

/// Is it so in this state?
type Condition = fn(&Cluster, &State) -> bool;

const fn rule(name: &'static str, condition: Condition) -> (&'static str, Condition) {
    (name, condition)
}

/// Has the simulated cluster noticed no fault of this kind?
fn clean(state: &State, word: &str) -> bool {
    state.sim.violations.iter().all(|v| !v.starts_with(word))
}

/// Rules for every state.
pub const RULES: [(&str, Condition); 12] = [
    rule("every plan is sound by itself", |_, s| clean(s, "lint:")),
    rule("no image in a pod before its hooks are through", |_, s| clean(s, "gate:")),
    rule("never more pods down because of us than may be", |_, s| clean(s, "budget:")),
    rule("in place, the hold never ends before both halves of the barrier", |_, s| clean(s, "barrier:")),
    rule("a run that succeeds leaves no pod on an old template", |_, s| clean(s, "left old:")),
    rule("no attempt of a hook after one that succeeded", |_, s| clean(s, "hook:")),
    rule("without a crash each attempt is called once", |_, s| clean(s, "call:")),
    rule("what is not ours is left alone", |_, s| clean(s, "own:")),
    rule("what a run remembers as its old template is what ran", |_, s| clean(s, "old:")),
    rule("in place, at most one ReplicaSet has pods", |c, s| !c.in_place || with_pods(&s.sim) <= 1),
    rule("in place, pods are only made for people", |c, s| !c.in_place || clean(s, "made:")),
    rule("left alone, everything ends well", |c, s| c.left_alone(s).is_ok()),
];

fn with_pods(sim: &Sim) -> usize {
    sim.sets.iter().filter(|s| sim.pods.iter().any(|p| p.pod.owner == s.uid)).count()
}

pub fn properties() -> Vec<Property<Cluster>> {
    let mut all: Vec<Property<Cluster>> =
        RULES.iter().map(|(name, condition)| Property::always(name, *condition)).collect();
    all.push(Property::sometimes("the end of all that people do", |c: &Cluster, s: &State| {
        let Done { templates, scales, deletions, crashes } = s.done;
        let most = (c.people.templates.len(), c.people.scales.len(), c.people.deletions, c.people.crashes);
        let over = s.sim.complete() && !s.sim.d.held() && s.sim.runs.iter().all(|r| r.status.ended.is_some());
        over && !s.sim.runs.is_empty() && (templates, scales, deletions, crashes) == most
    }));
    all
}

/// Looked at before one of our writes.
pub fn before(sim: &mut Sim, effect: &Effect, done: Done) {
    match effect {
        Effect::StartHook(call) if done.crashes == 0 && sim.accepted.contains_key(&call.key) => {
            sim.violation(format!("call: {} again", call.key));
        }
        Effect::CreateRun { name, spec } => {
            let active: Vec<_> = sim.sets.iter().filter(|s| sim.pods.iter().any(|p| p.pod.owner == s.uid)).collect();
            if let [only] = active.as_slice()
                && sim.ours.sets == sim.sets
                && spec.old_template.as_ref() != Some(&only.template)
            {
                sim.violation(format!("old: run {name} takes another template for what ran"));
            }
        }
        _ => {}
    }
}

/// Looked at after every step.
pub fn after(cluster: &Cluster, last: &State, state: &mut State) {
    if !cluster.in_place {
        return;
    }
    // Every pod that is made replaces one that people deleted, or was asked for by scaling.
    let pods = |s: &State| s.sim.pods.len();
    let asked = cluster.people.scales.iter().take(state.done.scales).chain([&cluster.replicas]).max();
    let asked = asked.map_or(0, |most| usize::try_from(*most).unwrap());
    if pods(state) > pods(last) && pods(state) > asked {
        let text = format!("made: {} pods of {asked}", pods(state));
        state.sim.violation(text);
    }
    state.sim.created = 0;
    state.sim.deleted = 0;
}
