//! The faults D0 to D16 that a first version of the update step had (docs/design), each as a story.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod sim;

use interlock_core::{
    api::{
        names,
        policy::IntOrPercent,
        run::{Action, Outcome},
    },
    plan::State,
};
use serde_json::json;
use sim::{
    Sim, image_of,
    kubelet::identities,
    stories::{self, governed, scale_and_image, slow_hooks, turns},
    template, template_with,
};

fn images(sim: &Sim) -> Vec<String> {
    let mut all: Vec<String> =
        sim.pods.iter().map(|p| p.pod.containers[0].image.trim_start_matches("app:").to_owned()).collect();
    all.sort();
    all
}

#[test]
fn d0_one_write_from_zero_starts_what_ran_last() {
    stories::one_write_from_zero_starts_what_ran_last();
}

/// Between the copy that is made at 0 replicas and the number that the Deployment controller gives it, one write with a
/// new template and replicas: an undo must still go to what ran last.
#[test]
fn d0_a_copy_that_is_held_before_it_is_numbered_keeps_its_revision() {
    let mut sim = governed(2);
    sim.set_image("app:v2");
    sim.settle();
    sim.scale_to(0);
    sim.until("a copy", |s| s.sets.iter().any(|r| r.copy));
    sim.dc_running = false;
    sim.until("the copy alone", |s| s.sets.iter().filter(|r| image_of(&r.template) == "app:v2").count() == 1);
    scale_and_image(&mut sim, 2, "app:v3");
    sim.dc_running = true;
    sim.settle();
    sim.well();
    let mut revisions: Vec<_> = sim.sets.iter().map(|s| (s.revision(), image_of(&s.template))).collect();
    revisions.sort();
    assert_eq!(revisions, [(1, "app:v1".into()), (2, "app:v2".into()), (3, "app:v3".into())], "{}", sim.story());
    sim.undo();
    sim.settle();
    sim.well();
    assert_eq!(images(&sim), ["v2", "v2"]);
}

#[test]
fn d1_pods_patched_before_a_native_roll_that_is_taken_back() {
    let mut sim = governed(4);
    sim.set_image("app:v2");
    sim.until("two pods are patched", |s| images(s).iter().filter(|i| *i == "v2").count() == 2);
    sim.set_template(template_with("app:bad-pull", &[("K", "1")], &[]));
    sim.until("the roll is stuck", |s| s.sets.len() == 2 && s.pods.len() == 5);
    turns(&mut sim, 30);
    sim.set_template(template("app:v1"));
    sim.settle();
    sim.well();
    assert_eq!(images(&sim), ["v1", "v1", "v1", "v1"]);
}

#[test]
fn d2_marks_that_an_undo_brings_back_hold_nothing() {
    stories::marks_that_an_undo_brings_back_hold_nothing();
}

#[test]
fn d3_an_undo_does_not_drop_the_annotations_that_hold() {
    let mut sim = Sim::running(1, 2, "app:v1", vec![]);
    sim.set_template(template_with("app:v2", &[("K", "1")], &[]));
    sim.settle();
    let hooks = json!([{"name": "own", "phase": "PreUpdate", "http": {"url": "http://hook.test.svc/"}}]).to_string();
    sim.edit(|d| {
        d.annotations.insert(names::HOOKS.into(), hooks);
    });
    sim.settle();
    sim.undo();
    assert!(sim.d.held() && !sim.d.annotations.contains_key(names::HOOKS), "{}", sim.story());
    sim.settle();
    sim.well();
    assert!(sim.d.annotations.contains_key(names::HOOKS), "{}", sim.story());
    assert_eq!(sim.calls.len(), 1);
    assert!(sim.events.iter().any(|(r, _)| r == "AnnotationsRestored"));
    // The next one is held too.
    sim.set_image("app:v5");
    sim.settle();
    sim.well();
    assert_eq!(sim.calls.len(), 2);
}

/// The same when the undo goes back to what still runs beside a roll that got stuck: put back, and told.
#[test]
fn d3_an_undo_back_to_what_runs_tells_what_it_puts_back() {
    let mut sim = Sim::running(1, 4, "app:v1", vec![]);
    let hooks = json!([{"name": "own", "phase": "PreUpdate", "http": {"url": "http://hook.test.svc/"}}]).to_string();
    let old = sim.sets[0].name.clone();
    sim.edit(|d| {
        d.annotations.insert(names::HOOKS.into(), hooks);
        d.template = template_with("app:bad-pull", &[("K", "1")], &[]);
    });
    sim.until("the roll is stuck", |s| s.sets.len() == 2 && s.pods.len() == 5);
    turns(&mut sim, 30);
    sim.undo_to(&old);
    assert!(sim.d.held() && !sim.d.annotations.contains_key(names::HOOKS), "{}", sim.story());
    sim.settle();
    sim.well();
    assert!(sim.d.annotations.contains_key(names::HOOKS), "{}", sim.story());
    assert_eq!(sim.events.iter().filter(|(r, _)| r == "AnnotationsRestored").count(), 1, "{}", sim.story());
}

#[test]
fn d4_a_set_made_again_does_not_wedge() {
    stories::a_set_made_again_does_not_wedge();
}

#[test]
fn d5_no_fight_over_the_main_set_at_history_limit_zero() {
    let mut sim = slow_hooks(2);
    sim.edit(|d| d.history_limit = 0);
    sim.settle();
    sim.set_image("app:v2");
    sim.scale_to(0);
    turns(&mut sim, 40);
    let writes = sim.writes;
    turns(&mut sim, 100);
    assert!(sim.writes <= writes + 2, "{}", sim.story());
    sim.scale_to(3);
    sim.settle();
    sim.well();
}

#[test]
fn d6_the_history_is_not_woken_at_zero() {
    let mut sim = governed(0);
    sim.set_image("app:v2");
    sim.until("the history is there", |s| s.sets.iter().any(|r| r.history));
    sim.policies = slow_hooks(0).policies;
    scale_and_image(&mut sim, 2, "app:v3");
    turns(&mut sim, 10);
    assert!(images(&sim).iter().all(|i| i == "v2"), "{}", sim.story());
    sim.settle();
    sim.well();
}

#[test]
fn d7_the_barrier_needs_neither_history_nor_pods() {
    for (replicas, limit, quota) in [(0, 10, None), (2, 0, None), (2, 10, Some(2)), (0, 0, None)] {
        let mut sim = governed(replicas);
        sim.edit(|d| d.history_limit = limit);
        sim.settle();
        sim.quota = quota;
        let before = identities(&sim);
        sim.set_image("app:v2");
        sim.settle();
        sim.well();
        assert_eq!(before, identities(&sim));
        assert!(sim.now.0 - 1_800_000_000_000 < 70_000, "{}", sim.story());
    }
}

#[test]
fn d7_never_released_before_the_controller_has_seen_the_commit() {
    stories::never_released_before_the_deployment_controller_has_seen_the_commit();
    stories::never_over_before_the_replica_set_controller_has_seen_the_commit();
}

/// The Deployment controller has copied the marks of the hold to the ReplicaSet since we looked (the template went back to
/// what runs, and away again): the commit takes them away all the same, so that they acknowledge nothing.
#[test]
fn d7_marks_that_were_copied_since_we_looked_acknowledge_nothing() {
    let mut sim = governed(2);
    sim.set_image("app:v2");
    sim.until("the commit is intended", |s| s.runs.last().is_some_and(|r| r.status.commit.is_some()));
    assert_eq!(image_of(&sim.sets[0].template), "app:v1", "{}", sim.story());
    sim.dc_running = false;
    sim.fresh = false;
    for mark in [names::HELD_BY, names::HELD_AT] {
        let value = sim.d.annotations[mark].clone();
        sim.sets[0].annotations.insert(mark.into(), value);
    }
    sim.sets[0].resource_version = sim.fresh_rv();
    sim.reconcile();
    assert_eq!(image_of(&sim.sets[0].template), "app:v2", "{}", sim.story());
    sim.fresh = true;
    turns(&mut sim, 20);
    assert!(sim.d.held(), "{}", sim.story());
    sim.dc_running = true;
    sim.settle();
    sim.well();
}

#[test]
fn d8_the_main_set_is_deleted_while_held() {
    let mut sim = governed(3);
    sim.set_template(template_with("app:v2", &[("K", "1")], &[]));
    sim.settle();
    sim.policies = slow_hooks(0).policies;
    sim.set_template(template_with("app:v3", &[("K", "1")], &[]));
    turns(&mut sim, 5);
    let main = sim.sets.iter().find(|s| s.replicas > 0).unwrap().name.clone();
    sim.delete_set(&main);
    turns(&mut sim, 60);
    assert!(sim.d.held());
    assert_eq!(images(&sim), ["v2", "v2", "v2"], "{}", sim.story());
    assert!(sim.events.iter().any(|(r, _)| r == "ReplicaSetDeleted"));
    sim.settle();
    sim.well();
}

/// At 0 replicas and history limit 0 the Deployment controller may delete the last ReplicaSet before a run records it.
/// What comes then is an update, not a birth: its hooks run first.
#[test]
fn d8_nothing_is_left_of_what_ran_and_the_hooks_run_all_the_same() {
    let mut sim = slow_hooks(2);
    sim.edit(|d| d.history_limit = 0);
    sim.scale_to(0);
    sim.settle();
    sim.set_image("app:v2");
    let last = sim.sets[0].name.clone();
    sim.delete_set(&last);
    sim.scale_to(2);
    turns(&mut sim, 60);
    assert!(sim.d.held() && sim.pods.is_empty(), "{}", sim.story());
    sim.settle();
    sim.well();
    assert_eq!(images(&sim), ["v2", "v2"]);
}

/// The ReplicaSet that runs is deleted and the hold is ended by hand: what the Deployment controller makes then is
/// numbered from the start, as if it were old. It runs by right all the same, and the next hold keeps it.
#[test]
fn d8_a_release_by_other_hands_is_not_one_that_was_woken() {
    for (seen, later) in [(true, 0), (true, 10), (false, 10)] {
        let mut sim = governed(2);
        sim.policies = slow_hooks(0).policies;
        sim.set_image("app:v2");
        sim.until("a run", |s| !s.runs.is_empty());
        sim.now = sim.now.plus_millis(later * 1000);
        let main = sim.sets[0].name.clone();
        sim.delete_set(&main);
        sim.set_template(template_with("app:v3", &[("K", "1")], &[]));
        sim.break_glass();
        if seen {
            turns(&mut sim, 30);
        } else {
            for _ in 0..10 {
                (sim.dc_sets, sim.rsc_sets) = (sim.sets.clone(), sim.sets.clone());
                sim.deployment_controller();
                sim.replica_set_controller();
            }
        }
        let created = sim.created;
        sim.set_image("app:v4");
        turns(&mut sim, 60);
        assert!(sim.d.held(), "{}", sim.story());
        assert_eq!((images(&sim), sim.created), (vec!["v3".to_owned(); 2], created), "{}", sim.story());
    }
}

#[test]
fn d9_revisions_are_not_given_twice() {
    let mut sim = governed(2);
    for n in 2..7 {
        sim.set_image(&format!("app:v{n}"));
        sim.until("a commit", |s| s.sets.iter().any(|r| r.template == s.d.template));
    }
    sim.settle();
    sim.well();
    let mut revisions: Vec<i64> = sim.sets.iter().map(interlock_core::world::ReplicaSet::revision).collect();
    revisions.sort_unstable();
    let count = revisions.len();
    revisions.dedup();
    assert_eq!(revisions.len(), count, "{}", sim.story());
}

/// Between the commit and the release the number of the old revision is already its own, whatever comes then.
#[test]
fn d9_superseded_by_a_native_template_before_or_after_the_history() {
    for history in [false, true] {
        let mut sim = governed(2);
        sim.set_image("app:v2");
        sim.until("the commit", |s| s.sets.iter().any(|r| r.template == s.d.template));
        if history {
            sim.dc_running = false; // it counts nothing up
            sim.dc_sets = sim.sets.clone();
            sim.deployment_controller();
            sim.until("the history", |s| s.sets.iter().any(|r| r.history));
            sim.dc_running = true;
        }
        sim.set_template(template_with("app:v3", &[("K", "1")], &[]));
        sim.settle();
        sim.well();
        let revisions: Vec<i64> = sim.sets.iter().map(interlock_core::world::ReplicaSet::revision).collect();
        assert_eq!(sim.sets.len(), 3, "{}", sim.story());
        assert_eq!(revisions.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{revisions:?}");
    }
}

#[test]
fn d10_a_revision_that_was_deleted_on_the_way_comes_back() {
    let mut sim = governed(2);
    sim.set_image("app:v2");
    sim.settle();
    sim.policies = slow_hooks(0).policies;
    sim.set_image("app:v1");
    turns(&mut sim, 10);
    assert!(sim.sets.iter().all(|s| s.replicas > 0), "the equal one is deleted: {}", sim.story());
    sim.set_image("app:v3");
    sim.settle();
    sim.well();
    let mut all: Vec<String> = sim.sets.iter().map(|s| image_of(&s.template)).collect();
    all.sort();
    assert_eq!(all, ["app:v1", "app:v2", "app:v3"], "{}", sim.story());
}

#[test]
fn d11_superseded_by_a_native_template_leaves_no_equal_sets() {
    let mut sim = governed(2);
    sim.set_image("app:v2");
    sim.until("a commit", |s| s.sets.iter().any(|r| r.template == s.d.template));
    sim.set_template(template_with("app:v2", &[("K", "1")], &[]));
    sim.settle();
    sim.well();
    for (i, a) in sim.sets.iter().enumerate() {
        assert!(sim.sets.iter().skip(i + 1).all(|b| a.template != b.template), "{}", sim.story());
    }
}

#[test]
fn d12_back_to_what_runs_beside_a_stuck_roll_needs_no_hooks() {
    let mut sim = slow_hooks(4);
    sim.set_template(template_with("app:bad-pull", &[("K", "1")], &[]));
    sim.decide(Action::Skip, None);
    sim.until("the hook", |s| s.runs.iter().any(|r| !r.status.steps.is_empty()));
    sim.decide(Action::Skip, Some("hook/wait"));
    sim.until("the roll is stuck", |s| s.pods.len() == 5);
    let begun = sim.now;
    sim.set_template(template("app:v1"));
    sim.until("the end", |s| s.complete() && !s.d.held() && s.d.template == template("app:v1"));
    assert!(sim.now.millis_since(begun) < 5_000, "{}", sim.story());
    sim.settle();
    sim.well();
}

#[test]
fn d13_never_below_one_and_an_explicit_zero_is_native() {
    let mut sim = governed(3);
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert_eq!(sim.created, 0);
    sim.edit(|d| d.max_unavailable = Some(IntOrPercent::Int(0)));
    sim.set_image("app:v3");
    sim.settle();
    sim.well();
    assert_eq!(sim.created, 3);
}

#[test]
fn d13_missing_pods_use_the_budget_and_say_quota() {
    let mut sim = governed(6);
    sim.edit(|d| d.replicas = 2);
    sim.settle();
    sim.quota = Some(2);
    sim.scale_to(6);
    turns(&mut sim, 5);
    sim.set_image("app:v2");
    turns(&mut sim, 50);
    let plan = sim.plan_now();
    assert_eq!(plan.report.waiting_for.map(|w| w.reason), Some("QuotaExceeded".into()), "{}", sim.story());
    assert_eq!(images(&sim), ["v1", "v1"]);
    sim.quota = None;
    sim.settle();
    sim.well();
}

#[test]
fn d14_the_main_set_goes_before_the_run_exists() {
    let mut sim = governed(2);
    sim.set_image("app:v2");
    sim.settle();
    sim.policies = slow_hooks(0).policies;
    // Our controller is down.
    sim.set_image("app:v3");
    let main = sim.sets.iter().find(|s| s.replicas > 0).unwrap().name.clone();
    sim.delete_set(&main);
    for _ in 0..10 {
        sim.dc_sets = sim.sets.clone();
        sim.rsc_sets = sim.sets.clone();
        sim.deployment_controller();
        sim.replica_set_controller();
    }
    turns(&mut sim, 60);
    assert_eq!(images(&sim), ["v2", "v2"], "{}", sim.story());
    sim.settle();
    sim.well();
}

#[test]
fn d15_no_mark_of_ours_comes_back_from_the_history() {
    let mut sim = governed(2);
    sim.set_image("app:v2");
    sim.settle();
    let history = sim.sets.iter().find(|s| s.history).unwrap();
    assert!(history.annotations.keys().all(|k| !names::is_mark(k) && !k.ends_with("-replicas")));
    let before = identities(&sim);
    sim.undo();
    sim.settle();
    sim.well();
    assert_eq!(before, identities(&sim), "back in place");
}

#[test]
fn d16_an_old_release_mark_releases_nothing() {
    let mut sim = slow_hooks(2);
    sim.set_image("app:v2");
    turns(&mut sim, 3);
    let mut new = sim.d.clone();
    new.annotations.insert(names::RELEASE.into(), "1".into());
    new.paused = false;
    sim.write(new, true).unwrap();
    assert!(sim.d.held());
    sim.settle();
    sim.well();
}

#[test]
fn a_stalled_run_of_every_kind_is_left_by_a_new_template() {
    for bad in ["app:bad-pull", "app:bad-crash", "app:bad-ready"] {
        let mut sim = governed(4);
        sim.set_image(bad);
        sim.settle();
        assert_eq!(sim.plan_now().report.state, State::Stalled, "{bad}: {}", sim.story());
        assert_eq!(images(&sim).iter().filter(|i| *i != "v1").count(), 1, "{}", sim.story());
        sim.set_image("app:v2");
        sim.settle();
        sim.well();
        assert_eq!(
            sim.runs
                .iter()
                .filter(|r| r.status.ended.as_ref().is_some_and(|e| e.outcome == Outcome::Superseded))
                .count(),
            1
        );
    }
}
