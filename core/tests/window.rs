//! The window of an update (ARCHITECTURE.md, invariants 10 and 12) where pods were down when their hooks began: they are
//! within it without having been let in, and may serve again in the middle of it. `sim/check.rs` counts.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod sim;

use interlock_core::api::{
    hook::Phase,
    run::{Action, StepOutcome},
};
use serde_json::{Value, json};
use sim::{Sim, policy, policy_with, stories::http};

/// Pods with our readiness gate, all of them down; an update with these hooks has begun to see to them.
fn down_at_their_hooks(replicas: i64, hooks: Value) -> Sim {
    let settings = json!({"update": {"maxUnavailable": 1}, "hooks": hooks});
    let mut sim = Sim::new(1, replicas, "app:v1", vec![policy("p", policy_with(settings))]);
    sim.gated = true;
    sim.settle();
    sim.kubelet_running = false;
    for _ in 0..replicas {
        sim.delete_pod(0);
    }
    sim.keeper = Some(("keep".into(), "yes".into()));
    sim.set_image("app:v2");
    let all = usize::try_from(replicas).unwrap();
    sim.until("the hooks of all pods", |s| {
        let run = s.runs.last();
        run.is_some_and(|r| r.status.steps.iter().filter(|step| step.pod.is_some()).count() >= all)
    });
    sim
}

fn gate() -> Value {
    json!({"name": "keep", "phase": "PrePod", "timeoutSeconds": 600,
           "podGate": {"labels": {"keep": "yes"}, "markPodNotReady": true}})
}

fn approval(phase: &str) -> Value {
    json!({"name": "ok", "phase": phase, "approval": {"timeoutSeconds": 600}})
}

/// Whoever approves, approves everything that is asked for.
fn approved(sim: &mut Sim) {
    sim.approver = true;
    sim.kubelet_running = true;
    sim.settle();
    sim.well();
}

/// A gate that takes pods out of service counts how many are: all of these serve again by the time it is their turn.
#[test]
fn gates_shut_no_more_pods_than_may_be_down() {
    let mut sim = down_at_their_hooks(3, json!([approval("PrePod"), gate()]));
    sim.kubelet_running = true;
    sim.until("all pods serve again", |s| s.pods.iter().all(|p| p.pod.ready));
    approved(&mut sim);
}

/// Pods whose hooks are through while others are down go one after the other, whoever serves again meanwhile.
#[test]
fn pods_whose_hooks_are_through_wait_for_those_that_are_down() {
    let mut sim = down_at_their_hooks(3, json!([approval("PrePod"), http("after", "PostPod", 0, "Abort")]));
    sim.kubelet_running = true;
    sim.until("all pods serve again", |s| s.pods.iter().all(|p| p.pod.ready));
    approved(&mut sim);
}

/// One that serves again and is at the hooks after its update still has the part that a pod whose hooks before it are
/// through would need, also where both were down when their hooks began.
#[test]
fn the_next_one_waits_for_the_hooks_after_the_update() {
    let wait =
        |phase: &str, seconds: i64| json!({"name": phase.to_lowercase(), "phase": phase, "wait": {"seconds": seconds}});
    let mut sim = down_at_their_hooks(2, json!([wait("PrePod", 5), wait("PostPod", 60)]));
    sim.kubelet_running = true;
    let updated = |s: &Sim| s.pods.iter().filter(|p| p.pod.containers[0].image == "app:v2").count();
    let after = |s: &Sim| s.runs.last().is_some_and(|r| r.status.steps.iter().any(|s| s.phase == Phase::PostPod));
    sim.until("the first one is updated", |s| updated(s) == 1 && s.pods.iter().all(|p| p.steady()) && after(s));
    let begun = sim.now;
    sim.until("the second one is updated", |s| updated(s) == 2);
    assert!(sim.now.millis_since(begun) >= 59_000, "{}", sim.story());
    sim.settle();
    sim.well();
}

/// Those that are updated and wait for the hooks after it, and those whose hooks before it are through, do not wait for each
/// other.
#[test]
fn nobody_waits_for_the_other_half() {
    for (before, after) in [(approval("PrePod"), http("after", "PostPod", 1, "Abort")), (gate(), approval("PostPod"))] {
        let late = json!({"name": "late", "phase": "PostPod", "wait": {"seconds": 5}});
        let mut sim = down_at_their_hooks(4, json!([before, late, after]));
        approved(&mut sim);
    }
}

/// A pod that is still down from what an earlier update wrote has its part in the next one, before its hooks begin.
#[test]
fn a_pod_that_an_earlier_update_left_down_counts() {
    let hooks = json!([http("before", "PrePod", 0, "Abort"), http("after", "PostPod", 0, "Abort")]);
    let settings = json!({"update": {"maxUnavailable": 1}, "hooks": hooks});
    for stop in 0..60 {
        let mut sim = Sim::new(1, 3, "app:v1", vec![policy("p", policy_with(settings.clone()))]);
        sim.settle();
        sim.set_image("app:v2");
        for _ in 0..stop {
            sim.turn();
            sim.now = sim.now.plus_millis(20);
        }
        sim.kubelet_running = false;
        sim.set_image("app:v3");
        for _ in 0..10 {
            sim.turn();
            sim.now = sim.now.plus_millis(20);
        }
        approved(&mut sim);
    }
}

/// Pods that an earlier run has put to the target serve until it is their turn for the hooks after the update.
#[test]
fn a_gate_after_the_update_takes_nobody_down_before_its_turn() {
    let pre = json!({"name": "pre", "phase": "PreUpdate", "wait": {"seconds": 30}});
    let mut sim = down_at_their_hooks(3, json!([pre, gate(), approval("PostPod")]));
    let image = |p: &sim::kubelet::SimPod| p.pod.containers[0].image.clone();
    sim.until("all pods are written to", |s| s.pods.iter().all(|p| image(p) == "app:v2"));
    sim.set_image("app:v3");
    sim.kubelet_running = true;
    sim.until("they serve again", |s| s.pods.iter().all(|p| p.steady()));
    assert!(sim.pods.iter().all(|p| image(p) == "app:v2"), "{}", sim.story());
    sim.set_image("app:v2");
    approved(&mut sim);
}

/// A failed hook of one pod, made to go on by a person, lets no further pod in.
#[test]
fn a_retry_lets_nobody_in() {
    let mut sim = down_at_their_hooks(3, json!([http("before", "PrePod", 0, "Abort"), approval("PrePod")]));
    sim.script.insert("before".into(), vec![StepOutcome::Failed].into());
    sim.settle();
    sim.decide(Action::Retry, None);
    approved(&mut sim);
}
