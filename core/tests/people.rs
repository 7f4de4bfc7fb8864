//! What people decide: order, pauses, policies that come and go, ends by force, undo.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod sim;

use std::collections::BTreeMap;

use interlock_core::{
    api::{
        condition, names,
        reference::Reference,
        run::{Action, Outcome, StepOutcome},
    },
    plan::{State, conditions},
    time::Time,
    world::{Component, DeploymentStatus, Predecessor, RunState, Standing},
};
use serde_json::json;
use sim::{
    Sim, policy, policy_with,
    stories::{governed, http, images, outcome, state, turns, waits_for, with},
    template, template_with,
};

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

fn db() -> Reference {
    Reference::deployment("db")
}

fn known(component: Component) -> Option<Predecessor> {
    Some(Predecessor { standing: Standing::Deployment(component), labels: BTreeMap::new(), leaving: 0 })
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
    sim.components.insert(db(), known(busy));
    sim.settle();
    assert!(sim.pods.is_empty());
    sim.components.insert(db(), known(settled()));
    sim.settle();
    sim.well();
}

#[test]
fn an_update_waits_for_its_predecessors_or_for_a_decision() {
    let mut sim = Sim::new(1, 2, "app:v1", ordered());
    sim.components.insert(db(), known(settled()));
    sim.settle();
    sim.components.insert(db(), None);
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(waits_for(&mut sim), "Predecessor");
    assert_eq!(images(&sim), ["app:v1", "app:v1"]);
    sim.decide(Action::Skip, Some("gate/order"));
    sim.settle();
    sim.well();
}

#[test]
fn a_condition_of_an_earlier_write_that_arrives_last_is_put_right() {
    let mut sim = governed(2);
    sim.set_image("app:v2");
    sim.settle();
    let well = sim.d.status.conditions.clone();
    for (type_, status, reason) in [
        (names::CONDITION_SUCCEEDED, condition::Status::Unknown, "InProgress"),
        (names::CONDITION_SUCCEEDED, condition::Status::False, "PodFailing"),
        (names::CONDITION_HELD, condition::Status::True, "Held"),
    ] {
        let late = sim.d.status.conditions.get_mut(type_).unwrap();
        (late.status, late.reason) = (status, reason.to_owned());
        assert_ne!(sim.d.status.conditions, well);
        sim.settle();
        let (is, was) = (&sim.d.status.conditions[type_], &well[type_]);
        assert_eq!((is.status, &is.reason), (was.status, &was.reason), "{type_}");
    }
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
