//! DESIGN section 4, step by step, in a simulated cluster.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod sim;

use interlock_core::{
    api::{
        condition, names,
        run::{Action, Outcome, StepOutcome},
    },
    plan::{State, conditions},
    time::Time,
    world::{Budget, Component, DeploymentStatus, RunState},
};
use serde_json::{Value, json};
use sim::{Sim, kubelet::identities, plain_policy, policy, policy_with, template, template_with};

fn governed(replicas: i64) -> Sim {
    Sim::running(1, replicas, "app:v1", vec![policy("p", plain_policy())])
}

fn with(replicas: i64, more: Value) -> Sim {
    Sim::running(1, replicas, "app:v1", vec![policy("p", policy_with(more))])
}

fn outcome(sim: &Sim) -> Option<Outcome> {
    sim.runs.iter().max_by_key(|r| r.spec.sequence)?.status.ended.as_ref().map(|e| e.outcome)
}

fn images(sim: &Sim) -> Vec<String> {
    let mut all: Vec<String> = sim.pods.iter().map(|p| p.pod.containers[0].image.clone()).collect();
    all.sort();
    all
}

fn turns(sim: &mut Sim, n: usize) {
    for _ in 0..n {
        sim.turn();
        sim.now = sim.now.plus_millis(20);
    }
}

fn state(sim: &mut Sim) -> State {
    sim.plan_now().report.state
}

fn waits_for(sim: &mut Sim) -> String {
    sim.plan_now().report.waiting_for.map(|w| w.reason).unwrap_or_default()
}

fn http(name: &str, phase: &str, retries: i64, failure: &str) -> Value {
    json!({"name": name, "phase": phase, "http": {"url": "http://hook.test/"}, "retries": retries, "failure": failure})
}

#[test]
fn a_plain_update_goes_in_place() {
    let mut sim = governed(4);
    let before = identities(&sim);
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert_eq!(before, identities(&sim));
    assert_eq!(outcome(&sim), Some(Outcome::Succeeded));
    assert_eq!((sim.created, sim.deleted, sim.refused), (0, 0, 0));
}

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
fn hooks_run_in_order_once_each() {
    let hooks =
        [http("a", "PreUpdate", 3, "Abort"), http("b", "PreUpdate", 3, "Abort"), http("c", "PostUpdate", 3, "Abort")];
    let mut sim = with(2, json!({"hooks": hooks}));
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    let called: Vec<&str> = sim.calls.iter().map(|k| k.split_once('.').unwrap().1).collect();
    assert_eq!(called, ["PreUpdate.a.1", "PreUpdate.b.1", "PostUpdate.c.1"]);
}

#[test]
fn a_failing_hook_is_tried_again_then_stalls_until_a_retry() {
    let mut sim = with(2, json!({"hooks": [http("a", "PreUpdate", 2, "Abort")]}));
    sim.script.insert("a".into(), vec![StepOutcome::Failed; 3].into());
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(state(&mut sim), State::Stalled);
    assert_eq!(sim.calls.len(), 3);
    assert_eq!(images(&sim), ["app:v1", "app:v1"]);
    let run = &sim.runs[0];
    assert!(condition::is_true(&run.status.conditions, conditions::STALLED));
    assert!(sim.d.held() && sim.fixpoint().is_empty());
    sim.decide(Action::Retry, None);
    sim.settle();
    sim.well();
    assert_eq!(sim.calls.len(), 4);
}

#[test]
fn a_hook_that_may_fail_does_not_stop_the_update() {
    let mut sim = with(2, json!({"hooks": [http("a", "PreUpdate", 1, "Continue")]}));
    sim.script.insert("a".into(), vec![StepOutcome::Failed; 9].into());
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert_eq!(sim.calls.len(), 2);
}

#[test]
fn a_failing_post_hook_touches_nothing_and_is_not_succeeded() {
    let mut sim = with(2, json!({"hooks": [http("a", "PostUpdate", 0, "Abort")]}));
    sim.script.insert("a".into(), vec![StepOutcome::Failed].into());
    sim.set_image("app:v2");
    sim.settle();
    assert!(!sim.d.held() && sim.complete());
    assert_eq!(outcome(&sim), None);
    assert!(condition::is_true(&sim.runs[0].status.conditions, conditions::STALLED));
    assert!(condition::is_true(&sim.runs[0].status.conditions, conditions::UPDATED));
    sim.decide(Action::Skip, None);
    sim.settle();
    sim.well();
}

#[test]
fn a_newer_template_replaces_the_update_at_once() {
    let mut sim = with(4, json!({"hooks": [http("a", "PreUpdate", 0, "Abort")]}));
    let before = identities(&sim);
    sim.set_image("app:v2");
    sim.until("one pod", |s| images(s).contains(&"app:v2".to_owned()));
    sim.set_image("app:v3");
    sim.settle();
    sim.well();
    assert_eq!(before, identities(&sim));
    assert_eq!(sim.calls.len(), 2);
    assert_eq!(sim.runs[0].status.ended.as_ref().unwrap().outcome, Outcome::Superseded);
}

#[test]
fn back_to_what_runs_ends_without_hooks() {
    let mut sim = with(4, json!({"hooks": [http("a", "PreUpdate", 0, "Abort")]}));
    let before = identities(&sim);
    sim.set_image("app:v2");
    sim.until("one pod", |s| images(s).contains(&"app:v2".to_owned()));
    sim.set_image("app:v1");
    sim.settle();
    sim.well();
    assert_eq!(before, identities(&sim));
    assert_eq!(sim.calls.len(), 1);
    assert_eq!(outcome(&sim), Some(Outcome::Returned));
}

#[test]
fn what_cannot_go_in_place_goes_the_native_way_after_its_hooks() {
    let mut sim = with(3, json!({"hooks": [http("a", "PreUpdate", 0, "Abort"), http("b", "PostUpdate", 0, "Abort")]}));
    sim.set_template(template_with("app:v2", &[("K", "1")], &[]));
    sim.settle();
    sim.well();
    assert_eq!((sim.created, sim.calls.len()), (3, 2));
}

#[test]
fn in_place_only_stays_held_and_says_why() {
    let mut sim = with(2, json!({"update": {"strategy": "InPlaceOnly"}}));
    sim.set_template(template_with("app:v2", &[("K", "1")], &[]));
    sim.settle();
    assert_eq!(state(&mut sim), State::Stalled);
    assert!(sim.runs[0].status.stall.as_ref().is_some_and(|s| s.reason == "NotInPlace" && s.message.contains("env")));
    sim.set_template(template("app:v2"));
    sim.settle();
    sim.well();
    assert_eq!(sim.created, 0);
}

#[test]
fn listed_metadata_goes_in_place() {
    let mut sim = with(2, json!({"update": {"inPlaceMetadata": ["note"]}}));
    sim.set_template(template_with("app:v1", &[], &[("note", "1")]));
    sim.settle();
    sim.set_template(template_with("app:v2", &[], &[("note", "2")]));
    sim.settle();
    sim.set_template(template_with("app:v2", &[], &[]));
    sim.settle();
    sim.well();
    assert_eq!(sim.created, 0);
    assert!(sim.pods.iter().all(|p| p.pod.annotations.is_empty()));
}

#[test]
fn admission_that_rewrites_images_is_no_endless_difference() {
    let mut sim = governed(3);
    sim.mirror = true;
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert_eq!(sim.runs[0].status.ended.as_ref().unwrap().outcome, Outcome::Succeeded);
    sim.set_image("app:v3");
    sim.settle();
    sim.well();
}

#[test]
fn the_partition_stays_until_it_is_lowered() {
    let mut sim = with(4, json!({"update": {"partition": 3}}));
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(images(&sim), ["app:v1", "app:v1", "app:v1", "app:v2"]);
    assert_eq!(waits_for(&mut sim), "Partitioned");
    assert!(sim.fixpoint().is_empty());
    // A pod of the old template that is deleted comes back old.
    sim.delete_pod(3);
    sim.settle();
    assert_eq!(images(&sim).iter().filter(|i| *i == "app:v2").count(), 1);
    let mut lower = plain_policy();
    lower.update.partition = 0;
    sim.policies[0].spec = Ok(lower);
    sim.settle();
    sim.well();
}

fn budget(desired_healthy: i64) -> Budget {
    Budget {
        name: "pdb".into(),
        pods: std::collections::BTreeSet::new(),
        others_ready: 0,
        desired_healthy,
        expected: 0,
        allowed: 0,
        current: true,
    }
}

#[test]
fn budgets_are_respected() {
    let mut sim = with(4, json!({"update": {"maxUnavailable": 4}}));
    sim.budgets = vec![budget(3)];
    sim.set_image("app:v2");
    let mut least = 4;
    for _ in 0..200 {
        sim.turn();
        sim.now = sim.now.plus_millis(20);
        least = least.min(sim.pods.iter().filter(|p| p.pod.ready).count());
    }
    assert_eq!(least, 3, "{}", sim.story());
    sim.settle();
    sim.well();
}

#[test]
fn a_budget_that_can_never_allow_is_no_wait() {
    let mut sim = governed(2);
    sim.budgets = vec![budget(2)];
    sim.set_image("app:v2");
    sim.settle();
    assert!(sim.runs[0].status.stall.as_ref().is_some_and(|s| s.reason == "BudgetImpossible"), "{}", sim.story());
    sim.decide(Action::Skip, Some("gate/budget"));
    sim.settle();
    sim.well();
}

#[test]
fn revert_puts_pods_back_and_stays_held() {
    let mut sim = with(4, json!({"update": {"failure": "Revert"}}));
    let before = identities(&sim);
    sim.set_image("app:bad-pull");
    sim.settle();
    assert_eq!(images(&sim), vec!["app:v1"; 4], "{}", sim.story());
    assert!(sim.d.held() && sim.pods.iter().all(|p| p.pod.ready));
    assert_eq!(state(&mut sim), State::Stalled);
    assert!(sim.fixpoint().is_empty());
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert_eq!(before, identities(&sim));
}

fn settled() -> Component {
    Component {
        held: false,
        deleting: false,
        generation: 1,
        replicas: 1,
        status: DeploymentStatus {
            observed_generation: 1,
            replicas: 1,
            updated: 1,
            available: 1,
            ..Default::default()
        },
        old_pods: 0,
        run: None,
        changed: Some(Time(0)),
    }
}

fn ordered() -> Vec<interlock_core::world::Policy> {
    vec![policy("p", policy_with(json!({"order": [{"name": "db"}, {"name": "web", "after": ["db"]}]})))]
}

#[test]
fn a_birth_waits_for_its_predecessors() {
    let mut sim = Sim::new(1, 2, "app:v1", ordered());
    assert!(sim.d.held());
    sim.settle();
    assert_eq!(waits_for(&mut sim), "Predecessor");
    assert!(sim.pods.is_empty() && sim.sets.is_empty());
    let mut busy = settled();
    busy.run = Some(RunState::InProgress);
    sim.components.insert("db".into(), Some(busy));
    sim.settle();
    assert!(sim.pods.is_empty());
    sim.components.insert("db".into(), Some(settled()));
    sim.settle();
    sim.well();
}

#[test]
fn an_update_waits_for_its_predecessors_or_for_a_decision() {
    let mut sim = Sim::new(1, 2, "app:v1", ordered());
    sim.components.insert("db".into(), Some(settled()));
    sim.settle();
    sim.components.insert("db".into(), None);
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(waits_for(&mut sim), "Predecessor");
    assert_eq!(images(&sim), ["app:v1", "app:v1"]);
    sim.decide(Action::Skip, Some("gate/order"));
    sim.settle();
    sim.well();
}

#[test]
fn a_slot_is_waited_for() {
    let mut sim = governed(2);
    sim.busy.insert("p".into(), 1);
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(waits_for(&mut sim), "Slot");
    assert_eq!(images(&sim), ["app:v1", "app:v1"]);
    sim.busy.clear();
    sim.settle();
    sim.well();
}

#[test]
fn the_users_pause_is_theirs() {
    let mut sim = governed(2);
    sim.pause();
    sim.settle();
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(state(&mut sim), State::UserPaused);
    assert_eq!(images(&sim), ["app:v1", "app:v1"]);
    sim.later(3600);
    sim.resume();
    sim.settle();
    sim.well();
    assert_eq!(sim.created, 0);
}

#[test]
fn the_emergency_stop_stops() {
    let mut sim = governed(4);
    sim.set_image("app:v2");
    sim.until("one pod", |s| images(s).contains(&"app:v2".to_owned()));
    sim.edit(|d| {
        d.annotations.insert(names::RESUME.into(), "false".into());
    });
    let at = images(&sim);
    sim.settle();
    assert_eq!(at, images(&sim));
    sim.edit(|d| {
        d.annotations.insert(names::RESUME.into(), "true".into());
    });
    sim.settle();
    sim.well();
}

#[test]
fn what_does_not_trigger_is_released_at_once() {
    let mut sim = with(2, json!({"trigger": {"containers": ["other"]}}));
    sim.set_image("app:v2");
    assert!(!sim.d.held());
    sim.settle();
    sim.well();
    // Held by a policy that no longer counts the change.
    let mut sim = governed(2);
    sim.set_image("app:v2");
    sim.policies[0].spec = Ok(policy_with(json!({"trigger": {"containers": ["other"]}})));
    sim.settle();
    sim.well();
    assert!(sim.runs.is_empty());
    assert!(sim.events.iter().any(|(r, _)| r == "NotTriggered"));
}

#[test]
fn a_deleted_policy_lets_go_only_if_it_says_so() {
    for (on_delete, recreated) in [("Hold", 0), ("Release", 2)] {
        let mut sim = with(
            2,
            json!({"onDelete": on_delete, "hooks": [{"name": "w", "phase": "PreUpdate", "wait": {"seconds": 600}}]}),
        );
        sim.set_image("app:v2");
        turns(&mut sim, 5);
        let begun = sim.now;
        sim.delete_policies();
        sim.settle();
        sim.well();
        assert_eq!(sim.created, recreated);
        assert_eq!(sim.now.millis_since(begun) >= 500_000, on_delete == "Hold", "{}", sim.story());
    }
}

#[test]
fn an_administrator_can_end_a_hold() {
    let mut sim = with(2, json!({"hooks": [{"name": "w", "phase": "PreUpdate", "wait": {"seconds": 600}}]}));
    sim.set_image("app:v2");
    turns(&mut sim, 5);
    sim.break_glass();
    sim.settle();
    sim.well();
    assert!(sim.events.iter().any(|(r, _)| r == "ReleasedByOther"));
}

#[test]
fn break_glass_after_a_stalled_native_roll_is_not_frozen_again() {
    let mut sim = governed(4);
    sim.set_template(template_with("app:bad-crash", &[("K", "1")], &[]));
    sim.settle();
    assert!(sim.d.held(), "frozen: {}", sim.story());
    assert_eq!(state(&mut sim), State::Stalled);
    assert!(sim.runs.iter().all(|r| condition::is_true(&r.status.conditions, conditions::HELD)));
    sim.break_glass();
    turns(&mut sim, 3);
    assert!(!sim.d.held(), "{}", sim.story());
}

#[test]
fn abort_of_a_native_roll_freezes_it() {
    let mut sim = governed(4);
    sim.set_template(template_with("app:bad-ready", &[("K", "1")], &[]));
    sim.until("the roll", |s| s.pods.len() == 5);
    sim.decide(Action::Abort, None);
    sim.settle();
    assert!(sim.d.held(), "{}", sim.story());
    assert_eq!(outcome(&sim), Some(Outcome::Aborted));
    assert!(sim.fixpoint().is_empty());
    sim.set_template(template("app:v1"));
    sim.settle();
    sim.well();
}

#[test]
fn abort_keeps_it_held_until_a_new_template() {
    let mut sim = with(2, json!({"hooks": [http("a", "PreUpdate", 0, "Abort")]}));
    sim.script.insert("a".into(), vec![StepOutcome::Failed].into());
    sim.set_image("app:v2");
    sim.settle();
    sim.decide(Action::Abort, None);
    sim.settle();
    assert!(sim.d.held() && sim.fixpoint().is_empty());
    assert_eq!(outcome(&sim), Some(Outcome::Aborted));
    sim.set_image("app:v3");
    sim.settle();
    sim.well();
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
fn recreate_goes_the_native_way_unless_the_policy_says_otherwise() {
    for (more, created) in [(json!({}), 2), (json!({"update": {"maxUnavailable": 1}}), 0)] {
        let mut sim = with(2, more);
        sim.edit(|d| d.recreate = true);
        sim.settle();
        sim.set_image("app:v2");
        sim.settle();
        sim.well();
        assert_eq!(sim.created, created, "{}", sim.story());
    }
}

#[test]
fn too_long_held_is_a_failure() {
    let mut sim = with(
        2,
        json!({"maxHoldSeconds": 50, "hooks": [{"name": "w", "phase": "PreUpdate", "wait": {"seconds": 600}}]}),
    );
    sim.set_image("app:v2");
    sim.settle();
    assert!(sim.runs[0].status.stall.as_ref().is_some_and(|s| s.reason == "HoldTooLong"), "{}", sim.story());
}

#[test]
fn an_annotation_that_does_not_parse_stays_held_until_it_is_mended() {
    let mut sim = Sim::running(1, 2, "app:v1", vec![]);
    sim.edit(|d| {
        d.annotations.insert(names::HOOKS.into(), "[{]".into());
    });
    sim.set_image("app:v2");
    sim.settle();
    assert!(sim.d.held());
    assert_eq!(waits_for(&mut sim), "AnnotationInvalid");
    assert!(sim.fixpoint().is_empty());
    sim.edit(|d| {
        d.annotations.insert(names::HOOKS.into(), "[]".into());
    });
    sim.settle();
    sim.well();
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

#[test]
fn an_undo_at_zero_is_an_update_with_hooks() {
    // Without a record, and with one whose run was replaced after its release.
    for record in [false, true] {
        let hooks = json!([http("a", "PreUpdate", 0, "Abort"), http("c", "PostUpdate", 0, "Abort")]);
        let mut sim = Sim::running(1, 1, "app:v1", vec![]);
        if record {
            sim.policies = vec![policy("p", policy_with(json!({"hooks": hooks})))];
            sim.script.insert("c".into(), vec![StepOutcome::Failed].into());
        }
        sim.set_template(template_with("app:v2", &[("K", "1")], &[]));
        sim.scale_to(0);
        sim.settle();
        sim.policies = vec![policy("p", policy_with(json!({"hooks": hooks})))];
        let calls = sim.calls.len();
        sim.settle();
        sim.undo();
        sim.settle();
        sim.well();
        assert!(sim.calls[calls..].iter().any(|k| k.contains("PreUpdate.a")), "{}", sim.story());
    }
}

#[test]
fn in_place_only_does_not_hold_what_has_nothing_left_to_keep() {
    let mut sim = with(3, json!({"update": {"strategy": "InPlaceOnly"}}));
    sim.set_image("app:v2");
    sim.until("the commit", |s| s.sets[0].template == s.d.template);
    let main = sim.sets[0].name.clone();
    sim.delete_set(&main);
    sim.settle();
    sim.well();
}
