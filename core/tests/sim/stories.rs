//! What the stories share, and those that are told twice: as they are, and with a planted fault.

use interlock_core::{
    api::run::{Action, Outcome},
    plan::State,
    template::Template,
};
use serde_json::{Value, json};

use super::{Sim, image_of, kubelet::identities, plain_policy, policy, policy_with, template, template_with, user};

pub fn governed(replicas: i64) -> Sim {
    Sim::running(1, replicas, "app:v1", vec![policy("p", plain_policy())])
}

pub fn with(replicas: i64, more: Value) -> Sim {
    Sim::running(1, replicas, "app:v1", vec![policy("p", policy_with(more))])
}

pub fn outcome(sim: &Sim) -> Option<Outcome> {
    sim.runs.iter().max_by_key(|r| r.spec.sequence)?.status.ended.as_ref().map(|e| e.outcome)
}

pub fn images(sim: &Sim) -> Vec<String> {
    let mut all: Vec<String> = sim.pods.iter().map(|p| p.pod.containers[0].image.clone()).collect();
    all.sort();
    all
}

pub fn turns(sim: &mut Sim, n: usize) {
    for _ in 0..n {
        sim.turn();
        sim.now = sim.now.plus_millis(20);
    }
}

pub fn state(sim: &mut Sim) -> State {
    sim.plan_now().report.state
}

pub fn waits_for(sim: &mut Sim) -> String {
    sim.plan_now().report.waiting_for.map(|w| w.reason).unwrap_or_default()
}

pub fn http(name: &str, phase: &str, retries: i64, failure: &str) -> Value {
    json!({"name": name, "phase": phase, "http": {"url": "http://hook.test/"}, "retries": retries, "failure": failure})
}

/// A policy whose hook takes ten minutes.
pub fn slow_hooks(replicas: i64) -> Sim {
    with(replicas, json!({"hooks": [{"name": "wait", "phase": "PreUpdate", "wait": {"seconds": 600}}]}))
}

/// One write: so many replicas, and another image.
pub fn scale_and_image(sim: &mut Sim, replicas: i64, image: &str) {
    let json = user::with_image(sim.d.template.json(), image);
    sim.edit(|d| {
        d.replicas = replicas;
        d.template = Template::new(json);
    });
}

/// D0: asleep at 0, then one write scales up and brings a new image: what ran last starts, nothing else.
pub fn one_write_from_zero_starts_what_ran_last() {
    for undo in [false, true] {
        let mut sim = slow_hooks(3);
        sim.policies = vec![policy("p", plain_policy())];
        sim.set_image("app:v2");
        sim.settle();
        if undo {
            // Without a policy: natively back to v1, so that the youngest is what was rolled back from.
            sim.policies.clear();
            sim.set_template(template_with("app:v3", &[("K", "1")], &[]));
            sim.settle();
            sim.set_image("app:v2");
            sim.undo();
            sim.settle();
        }
        let ran = image_of(&sim.d.template);
        sim.policies = slow_hooks(0).policies;
        sim.scale_to(0);
        sim.settle();
        let writes = sim.writes;
        scale_and_image(&mut sim, 3, "app:v9");
        turns(&mut sim, 10);
        assert!(sim.pods.len() == 3 && images(&sim).iter().all(|i| *i == ran), "{}", sim.story());
        sim.settle();
        sim.well();
        assert!(writes < 40);
    }
}

/// D2: an undo brings back the marks of an earlier hold, with somebody's old pause.
pub fn marks_that_an_undo_brings_back_hold_nothing() {
    let mut sim = governed(2);
    sim.pause();
    sim.set_image("app:v2");
    sim.set_image("app:v1");
    sim.dc_sets = sim.sets.clone();
    sim.deployment_controller(); // copies the marks to the ReplicaSet that runs
    turns(&mut sim, 3);
    let policies = std::mem::take(&mut sim.policies);
    sim.resume();
    sim.settle();
    sim.well();
    sim.policies = policies;
    sim.set_template(template_with("app:v2", &[("K", "1")], &[]));
    sim.settle();
    sim.undo();
    sim.settle();
    sim.well();
    // With the policy gone an undo must not leave a mark either.
    sim.delete_policies();
    sim.undo();
    sim.settle();
    sim.edit(|d| {
        d.labels.insert("l".into(), "1".into());
    });
    sim.settle();
    sim.well();
}

/// D4: scaled while held, then the main ReplicaSet is deleted: what is made again does not wedge the Deployment.
pub fn a_set_made_again_does_not_wedge() {
    let mut sim = slow_hooks(2);
    sim.set_template(template_with("app:v2", &[("K", "1")], &[]));
    turns(&mut sim, 5);
    sim.scale_to(3);
    turns(&mut sim, 5);
    let main = sim.sets[0].name.clone();
    sim.delete_set(&main);
    turns(&mut sim, 20);
    assert_eq!(images(&sim), ["app:v1"; 3], "{}", sim.story());
    sim.settle();
    sim.well();
    sim.scale_to(4);
    sim.settle();
    sim.well();
}

/// D7: the Deployment controller's view of ReplicaSets lags behind the commit: no release, no surplus ReplicaSet.
pub fn never_released_before_the_deployment_controller_has_seen_the_commit() {
    let mut sim = governed(3);
    sim.set_image("app:v2");
    sim.until("the commit", |s| s.sets[0].template == s.d.template);
    // Its view of ReplicaSets lags from here on.
    let mut old = sim.dc_sets.clone();
    for set in &mut old {
        set.template = template("app:v1");
    }
    sim.fresh = false;
    for _ in 0..100 {
        sim.dc_sets.clone_from(&old);
        sim.rsc_sets = sim.sets.clone();
        sim.look();
        sim.turn();
        sim.now = sim.now.plus_millis(10);
        assert!(sim.d.held(), "released too early: {}", sim.story());
    }
    sim.fresh = true;
    sim.settle();
    sim.well();
    assert_eq!(sim.created, 0);
}

/// The ReplicaSet controller's view lags behind the commit: it makes pods by the old template for as long. Nor is it over
/// when somebody else has ended the hold by then.
pub fn never_over_before_the_replica_set_controller_has_seen_the_commit() {
    replica_set_controller_lags(false);
    replica_set_controller_lags(true);
}

fn replica_set_controller_lags(somebody_ends_the_hold: bool) {
    let mut sim = governed(3);
    let old = sim.sets.clone();
    sim.fresh = false;
    sim.set_image("app:v2");
    for turn in 0..200 {
        sim.rsc_sets.clone_from(&old);
        sim.dc_sets = sim.sets.clone();
        sim.look();
        if turn == 100 && somebody_ends_the_hold {
            sim.break_glass();
        }
        if turn == 150 {
            assert!(sim.sets[0].template == sim.d.template, "no commit: {}", sim.story());
            sim.delete_pod(0);
        }
        sim.turn();
        sim.now = sim.now.plus_millis(10);
    }
    sim.fresh = true;
    sim.settle();
    sim.well();
}

/// A pod comes up by the old template just before the commit, and somebody else ends the hold before we could look.
pub fn a_pod_that_slipped_in_before_the_commit_is_found_at_the_end() {
    let mut sim = governed(2);
    sim.set_image("app:v2");
    sim.until("the intent", |s| s.runs.iter().any(|r| r.status.commit.is_some()));
    sim.fresh = false;
    sim.look();
    sim.delete_pod(0);
    assert!(sim.reconcile() && sim.sets[0].template == sim.d.template, "no commit: {}", sim.story());
    sim.replica_set_controller();
    assert_eq!(images(&sim), ["app:v1", "app:v2"], "{}", sim.story());
    sim.break_glass();
    sim.fresh = true;
    sim.settle();
    sim.well();
}

/// A leader that was frozen in the middle of an update wakes up long after another one has finished it.
pub fn a_thawed_controller_changes_nothing() {
    let mut sim = governed(2);
    sim.set_image("app:v2");
    let new = |s: &Sim| images(s).iter().filter(|i| *i == "app:v2").count();
    let mut frozen = sim.clone();
    while new(&sim) < 2 {
        frozen = sim.clone();
        turns(&mut sim, 1);
    }
    sim.settle();
    sim.set_image("app:v3");
    sim.settle();
    sim.well();
    let before = (sim.d.clone(), sim.sets.clone(), sim.pods.iter().map(|p| p.pod.clone()).collect::<Vec<_>>());
    frozen.look();
    sim.ours = frozen.ours;
    sim.fresh = false;
    let refused = sim.refused;
    for _ in 0..3 {
        sim.reconcile();
    }
    assert!(sim.refused > refused, "it wanted nothing: {}", sim.story());
    let after = (sim.d.clone(), sim.sets.clone(), sim.pods.iter().map(|p| p.pod.clone()).collect::<Vec<_>>());
    assert!(before == after, "it changed something: {}", sim.story());
}

/// What is wanted equals an old revision whose ReplicaSet is older than the one that runs.
pub fn an_older_equal_set_does_not_take_over() {
    let mut sim = governed(2);
    for next in [template_with("app:v2", &[("K", "1")], &[]), template("app:v3"), template("app:v1")] {
        sim.now = sim.now.plus_seconds(5);
        sim.set_template(next);
        sim.settle();
        sim.well();
    }
    assert_eq!(sim.created, 4, "the last one went in place: {}", sim.story());
}

/// The status of the run is written by somebody else just when a hook's result has come.
pub fn a_result_that_could_not_be_recorded_is_not_asked_for_again() {
    let mut sim = with(2, json!({"hooks": [http("a", "PreUpdate", 0, "Abort")]}));
    sim.set_image("app:v2");
    sim.until("the call", |s| !s.calls.is_empty());
    sim.hook_receivers();
    sim.fresh = false;
    sim.look();
    sim.decide(Action::Resume, None);
    let refused = sim.refused;
    sim.reconcile();
    assert!(sim.refused > refused, "nothing was recorded: {}", sim.story());
    sim.fresh = true;
    sim.settle();
    sim.well();
    assert_eq!(sim.calls.len(), 1, "called again: {}", sim.story());
}

/// One pod after the other, each really done before the next begins.
pub fn a_plain_update_goes_in_place() {
    let mut sim = governed(4);
    let before = identities(&sim);
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert_eq!(before, identities(&sim));
    assert_eq!(outcome(&sim), Some(Outcome::Succeeded));
    assert_eq!((sim.created, sim.deleted, sim.refused), (0, 0, 0));
}
