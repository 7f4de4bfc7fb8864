//! The real planner in every state that a small cluster can get into: two pods, templates that change, caches that lag,
//! controllers and kubelet one step at a time, a process that dies between any two writes, and people in the middle of it.
//!
//! The smallest model is gone through state by state. The larger ones are walked through at random, `INTERLOCK_LONG=1` eighty
//! times as far: every state of one of them took more than 22 GiB.
//! `MODEL=word` checks only those with this word in their name.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::panic, clippy::unwrap_used, clippy::indexing_slicing, unreachable_pub, missing_docs)]

mod canon;
mod cluster;
mod rules;
#[path = "../sim/mod.rs"]
mod sim;

use cluster::{Cluster, People};
use interlock_core::template::Template;
use rules::RULES;
use serde_json::json;
use sim::{policy, policy_with, template, template_with};
use stateright::{Checker, HasDiscoveries, Model, UniformChooser};

fn hook(phase: &str) -> serde_json::Value {
    json!({"name": phase.to_lowercase(), "phase": phase, "http": {"url": "http://hook.test/"}, "retries": 1})
}

/// How much of a model is looked at.
enum Depth {
    /// Every state.
    All,
    /// So many states on random ways through it, each way to its end; in the long form [`LONGER`] times as many.
    Some(usize),
}

const LONGER: usize = 80;

fn check(name: &'static str, depth: &Depth, cluster: Cluster) {
    if std::env::var("MODEL").is_ok_and(|only| !name.contains(&only)) {
        return;
    }
    let tally = tally::Tally::new(name);
    let longer = if std::env::var_os("INTERLOCK_LONG").is_some() { LONGER } else { 1 };
    let builder = cluster.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    match depth {
        Depth::All => over(name, &tally, &builder.spawn_bfs().join()),
        Depth::Some(states) => {
            let states = states.saturating_mul(longer);
            over(name, &tally, &builder.target_state_count(states).spawn_simulation(1, UniformChooser).join());
        }
    }
}

/// What was found.
fn over(name: &str, tally: &tally::Tally, checker: &impl Checker<Cluster>) {
    let states = checker.unique_state_count();
    tally.points(states);
    tally.checks(states * RULES.len());
    println!("{name}: {states} states, {} steps, depth {}", checker.state_count(), checker.max_depth());
    for (rule, path) in checker.discoveries() {
        if !RULES.iter().any(|(broken, _)| *broken == rule) {
            continue;
        }
        tally.failure();
        let last = path.last_state().clone();
        for (state, step) in path.into_vec() {
            for line in &state.sim.log {
                println!("    {line}");
            }
            println!("{step:?}");
        }
        let why = checker.model().left_alone(&last).err().unwrap_or_default();
        panic!("{name}: {rule}\n{why}\n{:#?}\n{}", last.sim.violations, last.sim.picture());
    }
    checker.assert_properties();
}

/// States that are looked at of each of the larger models.
const SOME: usize = 2_500;

fn people(templates: &[Template]) -> People {
    People { templates: templates.to_vec(), ..People::default() }
}

fn native() -> Template {
    template_with("app:v2", &[("K", "1")], &[])
}

#[test]
fn a_crash_between_any_two_writes() {
    let policies = vec![policy("p", policy_with(json!({"hooks": [hook("PreUpdate"), hook("PostUpdate")]})))];
    let people = People { crashes: 1, ..people(&[template("app:v2")]) };
    check("model: a crash between any two writes", &Depth::All, Cluster { policies, people, ..Cluster::small() });
}

#[test]
fn a_pod_is_deleted_in_the_middle() {
    let people = People { deletions: 1, ..people(&[template("app:v2")]) };
    let cluster = Cluster { people, replica_set_controller_lags: true, ..Cluster::small() };
    check("model: a pod is deleted in the middle", &Depth::Some(SOME), cluster);
}

#[test]
fn it_is_scaled_in_the_middle() {
    for (name, to) in [
        ("model: scaled down in the middle", 1),
        ("model: scaled up in the middle", 3),
        ("model: scaled to 0 in the middle", 0),
    ] {
        let people = People { scales: vec![to], ..people(&[template("app:v2")]) };
        check(name, &Depth::Some(SOME), Cluster { people, ..Cluster::small() });
    }
}

#[test]
fn back_to_what_ran() {
    let people = people(&[template("app:v2"), template("app:v1")]);
    check("model: back to what ran", &Depth::Some(SOME), Cluster { people, ..Cluster::small() });
}

#[test]
fn another_one_instead() {
    let people = people(&[template("app:v2"), template("app:v3")]);
    check("model: another template instead", &Depth::Some(SOME), Cluster { people, ..Cluster::small() });
}

#[test]
fn a_native_one_instead() {
    let people = people(&[template("app:v2"), native()]);
    check(
        "model: a native update instead",
        &Depth::Some(SOME),
        Cluster { people, in_place: false, ..Cluster::small() },
    );
}

/// Everything at once: each of our views lags by itself, both controllers lag, conditions are writes of their own.
#[test]
fn everything_lags() {
    let people = People { crashes: 1, deletions: 1, scales: vec![1], ..people(&[template("app:v2")]) };
    let cluster =
        Cluster { people, views: true, replica_set_controller_lags: true, conditions: true, ..Cluster::small() };
    check("model: everything lags, and people do everything", &Depth::Some(SOME), cluster);
}
