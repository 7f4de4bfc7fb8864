//! Failures, deadlines, history, crashes, and what it costs.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod sim;

use interlock_core::{api::run::Outcome, plan::State};
use serde_json::json;
use sim::{
    kubelet::identities,
    stories::{governed, http, images, outcome, state, turns, with},
    template, template_with,
};

#[test]
fn a_large_update_costs_one_write_per_pod_and_a_constant() {
    let mut sim = with(100, json!({"update": {"maxUnavailable": 100}}));
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert_eq!(sim.refused, 0);
    let urgent = sim.writes - 100;
    assert!(urgent < 30, "{urgent} writes beside those of the pods: {}", sim.story());
}

#[test]
fn a_crash_loop_that_flaps_is_not_progress() {
    let mut sim = governed(4);
    sim.set_image("app:bad-crash");
    sim.settle();
    let run = &sim.runs[0];
    assert_eq!(run.status.stall.as_ref().map(|s| s.reason.as_str()), Some("PodFailing"), "{}", sim.story());
    assert!(sim.now.0 - 1_800_000_000_000 < 120_000, "long before the deadline");
}

#[test]
fn a_pod_that_is_never_ready_ends_at_the_deadline() {
    let mut sim = with(2, json!({"update": {"progressDeadlineSeconds": 100}}));
    sim.set_image("app:bad-ready");
    sim.settle();
    let since =
        sim.runs[0].status.stall.as_ref().map(|s| (s.reason.clone(), s.since.millis_since(sim.runs[0].created)));
    let (reason, millis) = since.unwrap();
    assert_eq!(reason, "DeadlineExceeded");
    assert!((99_000..103_000).contains(&millis), "{millis}");
}

#[test]
fn min_ready_seconds_are_waited_for() {
    let mut sim = governed(3);
    sim.edit(|d| d.min_ready_seconds = 30);
    sim.settle();
    let begun = sim.now;
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert!(sim.now.millis_since(begun) >= 87_000, "one after the other: {}", sim.story());
}

#[test]
fn ended_runs_beyond_the_limit_go() {
    let mut sim = with(1, json!({"historyLimit": 2}));
    for n in 2..8 {
        sim.set_image(&format!("app:v{n}"));
        sim.settle();
    }
    sim.well();
    assert!(sim.runs.len() <= 3, "{}", sim.runs.len());
}

#[test]
fn the_history_can_be_gone_back_in_place() {
    let mut sim = governed(2);
    let before = identities(&sim);
    for n in 2..5 {
        sim.set_image(&format!("app:v{n}"));
        sim.settle();
    }
    assert_eq!(sim.sets.len(), 4);
    for _ in 0..3 {
        sim.undo();
        sim.settle();
        sim.well();
    }
    assert_eq!(before, identities(&sim));
    assert_eq!(sim.sets.len(), 4, "{}", sim.story());
}

#[test]
fn the_history_limit_is_kept() {
    let mut sim = governed(2);
    sim.edit(|d| d.history_limit = 2);
    for n in 2..8 {
        sim.set_image(&format!("app:v{n}"));
        sim.settle();
        sim.well();
    }
    let mut all: Vec<String> = sim.sets.iter().map(|s| sim::image_of(&s.template)).collect();
    all.sort();
    assert_eq!(all, ["app:v5", "app:v6", "app:v7"]);
}

#[test]
fn pods_that_come_and_go_at_any_step_end_up_right() {
    for when in 0..60 {
        for replicas in [0, 2, 7] {
            let mut sim = governed(3);
            sim.set_image("app:v2");
            turns(&mut sim, when);
            sim.delete_pod(when % 3);
            sim.scale_to(replicas);
            sim.settle();
            sim.well();
        }
    }
}

#[test]
fn a_crash_before_any_write_costs_nothing_but_time() {
    let hooks = [http("a", "PreUpdate", 3, "Abort"), http("c", "PostUpdate", 3, "Abort")];
    for replicas in [0, 3] {
        for after in 0..40 {
            let mut sim = with(replicas, json!({"hooks": hooks}));
            let before = identities(&sim);
            sim.set_image("app:v2");
            sim.crash_after = Some(after);
            sim.settle();
            sim.well();
            assert_eq!(before, identities(&sim));
        }
    }
}

#[test]
fn at_rest_nothing_is_written() {
    let mut sim = governed(3);
    sim.set_image("app:v2");
    sim.settle();
    let writes = sim.writes;
    for _ in 0..50 {
        sim.later(1000);
        sim.turn();
    }
    assert_eq!(writes, sim.writes);
    let plan = sim.plan_now();
    assert_eq!(plan.wake, None, "nothing ticks");
    assert_eq!(plan.report.state, State::AtRest);
}

#[test]
fn scaling_to_zero_costs_two_writes() {
    let mut sim = governed(3);
    sim.set_image("app:v2");
    sim.settle();
    let writes = sim.writes;
    sim.scale_to(0);
    sim.settle();
    sim.well();
    assert!(sim.writes - writes <= 2, "{}", sim.story());
    sim.scale_to(3);
    sim.settle();
    sim.well();
    assert!(sim.writes - writes <= 2, "{}", sim.story());
}

#[test]
fn a_frozen_roll_stays_frozen_although_some_of_its_pods_are_available() {
    let mut sim = governed(4);
    sim.set_template(template_with("app:v2", &[("K", "1")], &[]));
    sim.until("one of the new ones", |s| s.sets.iter().any(|r| r.template == s.d.template && r.available > 0));
    sim.kubelet_running = false;
    sim.settle();
    assert!(sim.d.held(), "{}", sim.story());
    assert_eq!(state(&mut sim), State::Stalled);
    let writes = sim.writes;
    turns(&mut sim, 20);
    assert!(sim.d.held() && sim.writes == writes, "{}", sim.story());
    sim.kubelet_running = true;
    sim.set_template(template("app:v1"));
    sim.settle();
    sim.well();
}

#[test]
fn away_and_back_during_a_native_roll_goes_on_with_the_same_run() {
    let hooks = [http("a", "PreUpdate", 0, "Abort"), http("b", "PostUpdate", 0, "Abort")];
    let mut sim = with(3, json!({"hooks": hooks}));
    let wanted = template_with("app:v2", &[("K", "1")], &[]);
    sim.set_template(wanted.clone());
    sim.until("one of the new ones", |s| s.sets.iter().any(|r| r.template == s.d.template && r.available > 0));
    // Our controller does not look in between.
    sim.set_image("app:v9");
    sim.set_template(wanted);
    sim.settle();
    sim.well();
    assert_eq!(sim.calls.len(), 2, "{}", sim.story());
    assert_eq!(outcome(&sim), Some(Outcome::Succeeded));
}

/// A ReplicaSet was given 2 of 3 replicas, then 2 are wanted and another template: the Deployment controller takes the number
/// that the ReplicaSet was given them for as a change of scale, finds nothing to scale, and never begins.
#[test]
fn a_replica_set_that_was_scaled_for_another_number_wedges_no_native_roll() {
    let mut sim = governed(2);
    sim.sets[0].annotations.insert("deployment.kubernetes.io/desired-replicas".into(), "3".into());
    sim.set_template(template_with("app:v2", &[("K", "v")], &[]));
    sim.settle();
    assert_eq!(outcome(&sim), Some(Outcome::Succeeded));
    assert_eq!(images(&sim), ["app:v2", "app:v2"]);
    sim.well();
}
