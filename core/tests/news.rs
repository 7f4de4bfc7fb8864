//! What is not told must not matter: where a change of an object is no news, the plan is the same without it, now and later.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod sim;

use interlock_core::{
    api::names,
    effect::Effect,
    news,
    plan::{Plan, plan},
    world::{ContainerState, Deployment, Pod, ReplicaSet, Resize, Terminated, World},
};
use serde_json::{Value, json};
use sim::{Rng, Sim, policy};

/// What is decided, without the facts that a write repeats: these are those of the plan that makes it.
fn decision(world: &World) -> Plan {
    let mut plan = plan(world);
    for effect in &mut plan.effects {
        if let Effect::PatchPod { patch, .. } = effect {
            *patch = Value::Null;
        }
    }
    plan
}

fn same_whenever(before: &World, after: &World) -> bool {
    [0, 2900, 3100, 5100, 9900, 10_100, 700_000].into_iter().all(|millis| {
        let at = |world: &World| World { now: world.now.plus_millis(millis), ..world.clone() };
        decision(&at(before)) == decision(&at(after))
    })
}

/// Worlds of whole updates: good and bad, without and with hooks of pods and a drain, changed in the middle, put back.
fn worlds() -> Vec<World> {
    let plain = json!({"update": {"maxUnavailable": 2}});
    let revert = json!({"update": {"maxUnavailable": 2, "failure": "Revert", "progressDeadlineSeconds": 20}});
    let hooks = json!({"hooks": [
        {"name": "keep", "phase": "PrePod", "podGate": {"labels": {"keep": "yes"}, "markPodNotReady": true}},
        {"name": "after", "phase": "PostPod", "wait": {"seconds": 1}}],
        "update": {"maxUnavailable": 2, "drain": {"readinessGate": true, "seconds": 1}}});
    let mut all = Vec::new();
    for (spec, images) in [
        (&plain, ["app:v2", "app:v3"]),
        (&plain, ["app:v2", "app:v1"]),
        (&plain, ["app:bad-pull", "app:v2"]),
        (&revert, ["app:bad-crash", "app:v2"]),
        (&revert, ["app:bad-pull", "app:bad-pull"]),
        (&hooks, ["app:v2", "app:v3"]),
        (&hooks, ["app:bad-crash", "app:v2"]),
    ] {
        let mut sim = Sim::new(11, 4, "app:v1", vec![policy("p", sim::policy_with(spec.clone()))]);
        (sim.gated, sim.keeper) = (spec == &hooks, Some(("keep".into(), "yes".into())));
        sim.settle();
        sim.later(60);
        for (image, turns) in images.into_iter().zip([9, 60]) {
            sim.set_image(image);
            for _ in 0..turns {
                sim.turn();
                sim.now = sim.now.plus_millis(70);
                sim.look();
                all.push(sim.world(all.len() % 3 == 0));
            }
        }
    }
    all
}

/// One change of what a kubelet or somebody else may make of a pod.
fn change_pod(pod: &mut Pod, now: interlock_core::time::Time, rng: &mut Rng) {
    let kind = rng.below(22);
    match kind {
        0 => pod.observed_generation = pod.generation,
        1 => pod.observed_generation = pod.generation - 1,
        2..=4 => {
            pod.ready = !pod.ready;
            pod.containers_ready = pod.ready;
            pod.ready_since = Some(now);
        }
        5 => pod.containers_ready = !pod.containers_ready,
        6 => pod.resize = [None, Some(Resize::InProgress), Some(Resize::Infeasible("no".into()))][rng.below(3)].clone(),
        7 => drop(pod.annotations.insert("x".into(), "y".into())),
        8 => pod.gate = [None, Some(true), Some(false)][rng.below(3)],
        9 => pod.baseline = None,
        _ => {
            let was = pod.baseline.as_ref().and_then(|b| b.was.get("app")).cloned();
            let Some(container) = pod.containers.first_mut() else { return };
            let image = container.image.clone();
            let Some(status) = &mut container.status else { return };
            let waiting = |reason: &str, message: String| ContainerState::Waiting { reason: reason.into(), message };
            match kind {
                10 | 11 => status.ready = !status.ready,
                12 => status.state = waiting("", String::new()),
                13 => status.state = waiting("ContainerCreating", String::new()),
                14 => status.state = waiting("ImagePullBackOff", format!("cannot pull {image}")),
                15 => status.state = waiting("CrashLoopBackOff", "back-off".into()),
                16 => status.state = ContainerState::Running { since: Some(now) },
                17 => {
                    let id = was.map_or_else(|| status.id.clone(), |was| was.id);
                    status.state =
                        ContainerState::Terminated(Terminated { id, exit_code: 0, reason: "Completed".into() });
                }
                18 => (status.id, status.image, status.image_id) = ("c://new".into(), image, "sha".into()),
                19 => status.id = was.map_or_else(|| status.id.clone(), |was| was.id),
                20 => status.restarts += [1, 4][rng.below(2)],
                _ => status.last = Some(Terminated { id: "c://crashed".into(), exit_code: 1, reason: "Error".into() }),
            }
        }
    }
}

#[test]
fn a_pod_of_which_nothing_is_told_changes_no_plan() {
    let tally = tally::Tally::new("changes of pods that are no news");
    let (mut rng, mut silent, mut told, mut mattered) = (Rng(5), 0, 0, 0);
    for world in worlds().iter().filter(|w| !w.pods.is_empty()) {
        tally.points(1);
        for _ in 0..12 {
            let mut before = world.clone();
            let which = rng.below(before.pods.len());
            for _ in 0..rng.below(3) {
                change_pod(&mut before.pods[which], world.now, &mut rng);
            }
            let mut after = before.clone();
            after.pods[which].resource_version = "next".into();
            for _ in 0..rng.below(4) {
                change_pod(&mut after.pods[which], world.now, &mut rng);
            }
            let heading = news::heading(&world.deployment, world.runs.iter());
            if news::of_pod(&before.pods[which], &after.pods[which], heading) {
                told += 1;
                mattered += usize::from(told % 4 == 0 && !same_whenever(&before, &after));
                continue;
            }
            tally.checks(1);
            silent += usize::from(before.pods[which].containers != after.pods[which].containers);
            assert!(
                same_whenever(&before, &after),
                "{:#?}\n{:#?}\n{:#?}\n{:#?}",
                before.pods[which],
                after.pods[which],
                decision(&before),
                decision(&after)
            );
        }
    }
    let counts =
        format!("{silent} silent changes of containers, {told} told, {mattered} of a quarter of them mattered");
    assert!(silent > 50 && told > 1000 && mattered > 100, "{counts}: too few to mean anything");
}

fn change_set(set: &mut ReplicaSet, rng: &mut Rng) {
    match rng.below(8) {
        0..=3 => set.available = i64::try_from(rng.below(5)).unwrap(),
        4 => set.status_replicas = i64::try_from(rng.below(5)).unwrap(),
        5 => set.observed_generation = set.generation - 1,
        6 => drop(set.annotations.insert(names::HELD_BY.into(), "p".into())),
        _ => set.failure = Some("exceeded quota".into()),
    }
}

fn change_deployment(d: &mut Deployment, rng: &mut Rng) {
    let number = i64::try_from(rng.below(6)).unwrap();
    match rng.below(9) {
        0 | 1 => d.status.available = number,
        2 => d.status.updated = number,
        3 => d.status.replicas = number,
        4 => d.status.terminating = number,
        5 => d.status.observed_generation = d.generation - 1,
        6 => d.replicas = number,
        7 => d.paused = !d.paused,
        _ => d.status.replica_failure = Some("exceeded quota".into()),
    }
}

#[test]
fn counts_of_which_nothing_is_told_change_no_plan() {
    let tally = tally::Tally::new("changes of counts that are no news");
    let (mut rng, mut silent, mut told, mut mattered) = (Rng(6), 0, 0, 0);
    for world in worlds().iter().filter(|w| !w.replica_sets.is_empty()) {
        tally.points(1);
        for _ in 0..8 {
            let mut after = world.clone();
            let news = if rng.chance(50) {
                let which = rng.below(after.replica_sets.len());
                change_set(&mut after.replica_sets[which], &mut rng);
                news::of_replica_set(&world.replica_sets[which], &after.replica_sets[which], &world.deployment)
            } else {
                change_deployment(&mut after.deployment, &mut rng);
                news::of_deployment(&world.deployment, &after.deployment)
            };
            if news {
                told += 1;
                mattered += usize::from(told % 4 == 0 && !same_whenever(world, &after));
                continue;
            }
            tally.checks(1);
            silent += usize::from(*world != after);
            assert!(same_whenever(world, &after), "{:#?}\n{:#?}", decision(world), decision(&after));
        }
    }
    let counts = format!("{silent} silent, {told} told, {mattered} of a quarter of them mattered");
    assert!(silent > 100 && told > 100 && mattered > 20, "{counts}: too few to mean anything");
}
