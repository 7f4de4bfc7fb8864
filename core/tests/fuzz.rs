//! Random people, random crashes, lagging controllers; then everybody stops, and all must become well.
//!
//! `SEED=n` tells one story in full, `STORIES=n` tells so many (default 400), from `FIRST=n`.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::panic, clippy::unwrap_used)]

mod sim;

use std::panic;

use interlock_core::{
    api::{
        names,
        policy::IntOrPercent,
        run::{Action, StepOutcome},
    },
    template::Template,
    world::Policy,
};
use serde_json::{Value, json};
use sim::{Rng, Sim, policy, policy_with};

fn random_policies(rng: &mut Rng) -> Vec<Policy> {
    let mut more = json!({"update": {"inPlaceMetadata": ["note"]}});
    match rng.below(4) {
        0 => more["update"]["maxUnavailable"] = json!(1),
        1 => more["update"]["maxUnavailable"] = json!("50%"),
        _ => {}
    }
    match rng.below(8) {
        0 => more["update"]["strategy"] = json!("InPlaceOnly"),
        1 => more["update"]["strategy"] = json!("Native"),
        _ => {}
    }
    if rng.chance(30) {
        more["update"]["failure"] = json!("Revert");
    }
    if rng.chance(30) {
        more["onDelete"] = json!("Release");
    }
    let mut hooks: Vec<Value> = Vec::new();
    if rng.chance(50) {
        hooks.push(json!({"name": "pre", "phase": "PreUpdate", "http": {"url": "http://hook.test/"}, "retries": 1}));
    }
    if rng.chance(20) {
        hooks.push(json!({"name": "pause", "phase": "PreUpdate", "wait": {"seconds": 3}}));
    }
    if rng.chance(40) {
        hooks.push(json!({"name": "post", "phase": "PostUpdate", "http": {"url": "http://hook.test/"}, "retries": 0}));
    }
    if rng.chance(25) {
        hooks.push(json!({"name": "before", "phase": "PrePod", "http": {"url": "http://hook.test/"}, "retries": 1}));
    }
    if rng.chance(25) {
        hooks.push(json!({"name": "after", "phase": "PostPod", "http": {"url": "http://hook.test/"}, "retries": 1}));
    }
    if rng.chance(15) {
        hooks.push(json!({"name": "keep", "phase": "PrePod", "timeoutSeconds": 600,
            "podGate": {"labels": {"keep": "yes"}, "markPodNotReady": rng.chance(50)}}));
    }
    if rng.chance(15) {
        let phase = ["PreUpdate", "PrePod", "PostPod"][rng.below(3)];
        let then = ["Fail", "Approve"][rng.below(2)];
        let approval = json!({"timeoutSeconds": 30, "onTimeout": then});
        hooks.push(json!({"name": "ok", "phase": phase, "approval": approval}));
    }
    if rng.chance(20) {
        hooks.push(json!({"name": "tell", "phase": "OnFailure", "http": {"url": "http://hook.test/"}, "retries": 1}));
    }
    if rng.chance(25) {
        more["update"]["drain"] = json!({"readinessGate": true, "seconds": rng.below(4)});
    }
    rng.shuffle(&mut hooks);
    more["hooks"] = json!(hooks);
    vec![policy("p", policy_with(more))]
}

fn good(rng: &mut Rng) -> String {
    format!("app:v{}", rng.below(4) + 1)
}

fn user(sim: &mut Sim, policies: &[Policy]) {
    let mut rng = sim.rng.clone();
    let pick = rng.below(100);
    let image = good(&mut rng);
    match pick {
        0..=24 => sim.set_image(&image),
        25..=30 => {
            let bad = ["app:bad-pull", "app:bad-crash", "app:bad-ready"][rng.below(3)];
            sim.set_image(bad);
        }
        31..=38 => {
            let value = rng.below(3).to_string();
            sim.set_template(sim::template_with(&image, &[("K", &value)], &[]));
        }
        39..=48 => {
            let replicas = [0, 0, 1, 2, 3, 4, 5][rng.below(7)];
            sim.scale_to(replicas);
        }
        49..=54 => {
            let replicas = [0, 1, 3, 4][rng.below(4)];
            let json = sim::user::with_image(sim.d.template.json(), &image);
            sim.edit(|d| {
                d.replicas = replicas;
                d.template = Template::new(json);
            });
        }
        55..=57 => sim.pause(),
        58..=61 => sim.resume(),
        62..=68 => {
            let n = rng.below(sim.sets.len().max(1));
            if let Some(name) = sim.sets.get(n).map(|s| s.name.clone()) {
                sim.undo_to(&name);
            }
        }
        69..=74 => {
            let n = rng.below(sim.pods.len().max(1));
            sim.delete_pod(n);
        }
        75..=78 => {
            let n = rng.below(sim.sets.len().max(1));
            if let Some(name) = sim.sets.get(n).map(|s| s.name.clone()) {
                sim.delete_set(&name);
            }
        }
        79..=81 => {
            let limit = [0, 1, 2, 10][rng.below(4)];
            sim.edit(|d| d.history_limit = limit);
        }
        82 => sim.edit(|d| {
            d.labels.insert("x".into(), image);
        }),
        83..=84 => {
            if sim.policies.is_empty() {
                sim.policies = policies.to_vec();
                sim.next += 1;
            } else {
                sim.delete_policies();
            }
        }
        85..=86 => {
            sim.quota = if sim.quota.is_some() { None } else { Some(i64::try_from(rng.below(5)).unwrap()) };
            let text = format!("USER sets quota {:?}", sim.quota);
            sim.note(text);
        }
        87..=90 => {
            let action = [Action::Retry, Action::Skip, Action::Resume, Action::Abort, Action::Approve][rng.below(5)];
            sim.decide(action, None);
        }
        91..=93 => {
            let value = rng.below(3).to_string();
            sim.set_template(sim::template_with(&image, &[], &[("note", &value)]));
        }
        94 => {
            if sim.d.held() {
                sim.break_glass();
            }
        }
        95 => {
            let most = [None, Some(IntOrPercent::Int(0)), Some(IntOrPercent::Int(2))][rng.below(3)].clone();
            sim.edit(|d| d.max_unavailable = most);
        }
        _ => {
            let hook = ["pre", "post", "before", "after", "tell"][rng.below(5)];
            let outcomes = (0..=rng.below(3)).map(|_| StepOutcome::Failed).collect();
            sim.script.insert(hook.into(), outcomes);
        }
    }
    sim.rng = Rng(sim.rng.next() ^ rng.next());
}

/// Somebody does something, with whatever he has seen.
fn random_turn(sim: &mut Sim) {
    let mut rng = Rng(sim.rng.next());
    match rng.below(10) {
        0..=3 => {
            if rng.chance(60) {
                sim.ours.d = sim.d.clone();
            }
            if rng.chance(60) {
                sim.ours.sets = sim.sets.clone();
            }
            if rng.chance(60) {
                sim.ours.pods = sim.pods.clone();
            }
            if rng.chance(60) {
                sim.ours.runs = sim.runs.clone();
            }
            if rng.chance(12) {
                sim.crash_after = Some(rng.below(4));
            }
            sim.reconcile();
        }
        4..=5 => {
            if rng.chance(60) {
                sim.dc_sets = sim.sets.clone();
            }
            sim.deployment_controller();
            sim.remember_what_ran();
        }
        6..=7 => {
            if rng.chance(70) {
                sim.rsc_sets = sim.sets.clone();
            }
            sim.replica_set_controller();
        }
        8 => {
            for _ in 0..4 {
                let i = rng.below(sim.pods.len().max(1));
                sim.kubelet(i);
            }
        }
        _ => {
            sim.hook_receivers();
            sim.keep();
            let millis = [10, 50, 500, 1500, 5000][rng.below(5)];
            sim.now = sim.now.plus_millis(millis);
        }
    }
}

fn story(seed: u64) -> Sim {
    let mut rng = Rng(seed);
    let policies = random_policies(&mut rng);
    let replicas = i64::try_from(rng.below(5)).unwrap();
    let mut sim = Sim::new(seed, replicas, "app:v1", policies.clone());
    sim.gated = rng.chance(40);
    sim.keeper = Some(("keep".into(), "yes".into()));
    sim.settle();
    (sim.created, sim.writes) = (0, 0);
    sim.later(60);
    if rng.chance(15) {
        let hooks =
            json!([{"name": "own", "phase": "PreUpdate", "http": {"url": "http://hook.test.svc/"}}]).to_string();
        sim.edit(|d| {
            d.annotations.insert(names::HOOKS.into(), hooks);
        });
    }
    sim.fresh = false;
    let operations = 2 + rng.below(12);
    for _ in 0..operations {
        user(&mut sim, &policies);
        let turns = [0, 1, 3, 10, 30, 100][rng.below(6)];
        for _ in 0..turns {
            random_turn(&mut sim);
        }
    }
    // Everybody stops.
    sim.note("EVERYBODY STOPS".into());
    sim.fresh = true;
    sim.approver = true;
    sim.crash_after = None;
    sim.script.clear();
    sim.quota = None;
    sim.next += 1;
    sim.settle();
    let unwell = |sim: &Sim| {
        sim.d.held() || sim.d.paused || !sim.complete() || sim.runs.iter().any(|r| r.status.ended.is_none())
    };
    if unwell(&sim) {
        let image = format!("app:good{seed}");
        sim.edit(|d| {
            d.paused = false;
            d.template = sim::template(&image);
            d.max_unavailable = None;
        });
        sim.settle();
    }
    let governed = sim.plan_now().report.governed_by.is_some();
    if !governed && !sim.complete() && sim.scales() {
        // A fault of Kubernetes, and the way out of it (docs/limits.md). Where a policy governs we find it ourselves.
        for by in [1, -1] {
            sim.scale_to(sim.d.replicas + by);
            sim.settle();
        }
    }
    if sim.d.held() || sim.d.paused {
        // Under InPlaceOnly a template that cannot go in place stays held for good, and rightly so.
        sim.resume();
        sim.settle();
        let only = sim.policies.iter().any(|p| {
            p.spec.as_ref().is_ok_and(|s| s.update.strategy == interlock_core::api::policy::Strategy::InPlaceOnly)
        });
        if only {
            let plan = sim.plan_now();
            if plan.report.state == interlock_core::plan::State::Stalled {
                sim.break_glass();
            }
        }
        sim.settle();
    }
    sim.well();
    hooks_ran_once(&sim);
    sim
}

/// At-least-once with a key: no attempt of a recorded success is made again under another key.
fn hooks_ran_once(sim: &Sim) {
    for run in &sim.runs {
        let mut good = std::collections::BTreeSet::new();
        for step in run.status.steps.iter().filter(|s| s.outcome == Some(StepOutcome::Succeeded)) {
            let whose = (&step.hook, step.phase, &step.pod_uid, step.failure);
            assert!(good.insert(whose), "hook {whose:?} succeeded twice in {}\n{}", run.name, sim.story());
        }
    }
}

/// What the long form found: stories that ended badly once, by a fault of the planner (a revision given twice, a hold that ended before
/// the barrier, pods whose hooks waited for each other) or by one of the checks.
#[test]
fn stories_that_ended_badly_once_end_well() {
    for seed in [
        1410, 1462, 1713, 2090, 3043, 3094, 3514, 4121, 4574, 5702, 6275, 6652, 6884, 7007, 7098, 7102, 9474, 9724,
        9818, 9881, 11732, 20224, 21438, 21744, 22720, 23783, 23832, 24697, 25151, 26467, 27896, 28251, 28698, 28774,
        30562, 32385, 32628, 39600, 29747, 29926, 40983, 42417, 42596, 44245, 45150, 46741, 47036, 48529, 56169, 57419,
        58845, 68365, 81379, 84792, 88870, 105411, 109790, 111455,
    ] {
        story(seed);
    }
}

#[test]
fn whatever_people_do_it_ends_well() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("SEED") {
        let sim = story(seed);
        println!("{}", sim.story());
        return;
    }
    let stories = number("STORIES").unwrap_or(400);
    let mut bad: Vec<(u64, String)> = Vec::new();
    panic::set_hook(Box::new(|_| {}));
    let first = number("FIRST").unwrap_or(0);
    let tally = tally::Tally::new("random stories, simulated cluster");
    for seed in first..first + stories {
        tally.seeds(1);
        tally.checks(1);
        if let Err(error) = panic::catch_unwind(|| story(seed)) {
            tally.failure();
            let text = error
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| error.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            let text = text.unwrap_or_default();
            let head: String = text.split("the story:").next().unwrap_or_default().chars().take(400).collect();
            bad.push((seed, head));
        }
    }
    let _ = panic::take_hook();
    assert!(bad.is_empty(), "{} of {stories} stories end badly, such as {:#?}", bad.len(), &bad[..bad.len().min(25)]);
}
