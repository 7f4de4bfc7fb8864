//! DESIGN section 4, step by step, in a simulated cluster.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod sim;

use interlock_core::{
    api::{
        condition,
        run::{Action, Outcome, StepOutcome},
    },
    plan::{State, conditions},
    world::Budget,
};
use serde_json::json;
use sim::{
    kubelet::identities,
    plain_policy,
    stories::{self, governed, http, images, outcome, state, waits_for, with},
    template, template_with,
};

#[test]
fn a_plain_update_goes_in_place() {
    stories::a_plain_update_goes_in_place();
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
fn in_place_only_does_not_hold_what_has_nothing_left_to_keep() {
    let mut sim = with(3, json!({"update": {"strategy": "InPlaceOnly"}}));
    sim.set_image("app:v2");
    sim.until("the commit", |s| s.sets[0].template == s.d.template);
    let main = sim.sets[0].name.clone();
    sim.delete_set(&main);
    sim.settle();
    sim.well();
}
