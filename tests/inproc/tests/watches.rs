//! What happens to each single watch of Interlock: late, cut, too old, or silent. No update ends otherwise for it, and
//! silence is noticed within a minute.

use std::time::Duration;

use apiserver::{objects, watch::Fault};
use inproc::{Env, NAMESPACE, each, story};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tally::Tally;
use tokio::time::Instant;

use crate::{
    crashes::reference,
    scenarios::{Scenario, same},
};

const RESOURCES: [&str; 6] = ["deployments", "replicasets", "pods", "hookruns", "hookpolicies", "poddisruptionbudgets"];
const FAULTS: [Fault; 5] = [
    Fault::Cut,
    Fault::Gone,
    Fault::BlackHole,
    Fault::Delay(Duration::from_secs(1)),
    Fault::Delay(Duration::from_secs(10)),
];
/// Those that end the same whenever a change is seen.
const STORIES: [Scenario; 3] = [Scenario::TwoPods, Scenario::Native, Scenario::Zero];

#[test]
fn no_watch_that_is_late_cut_or_silent_changes_the_end() {
    let tally = Tally::new("late and lost watches, in process");
    let mut points = Vec::new();
    for scenario in STORIES {
        let wanted = reference(scenario).0;
        for resource in RESOURCES {
            points.extend(FAULTS.iter().map(|fault| (scenario, resource, *fault, wanted.clone())));
        }
    }
    tally.points(points.len());
    let faults = each(&points, |(scenario, resource, fault, wanted)| {
        let have = scenario.told(|env| env.server.faults.happens("interlock", resource, *fault));
        same(&tally, wanted, &have)
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The Deployment controller and the ReplicaSet controller see everything so much later.
#[test]
fn no_lag_of_the_other_controllers_changes_the_end() {
    let tally = Tally::new("lagging controllers, in process");
    let mut points = Vec::new();
    for scenario in STORIES {
        let wanted = reference(scenario).0;
        for lags in [(1_000, 0), (10_000, 0), (0, 1_000), (0, 10_000), (1_000, 1_000), (10_000, 10_000)] {
            points.push((scenario, lags, wanted.clone()));
        }
    }
    tally.points(points.len());
    let faults = each(&points, |(scenario, (deployments, sets), wanted)| {
        let have = scenario.told(|env| {
            env.plane.deployments_lag.set(*deployments);
            env.plane.replica_sets_lag.set(*sets);
        });
        same(&tally, wanted, &have)
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

async fn status(env: &Env, plural: &str, name: &str, status: serde_json::Value) {
    let kind = apiserver::kinds::of(plural);
    let set = |old: &serde_json::Value| {
        let mut new = old.clone();
        new["status"] = status;
        Ok(new)
    };
    let by = apiserver::store::Caller::system("test");
    env.server.store.update(by, (kind, NAMESPACE, name), apiserver::store::Part::Status, set).unwrap();
}

/// What can only be seen over one watch happens while that watch is silent. Returns how long it took to be noticed.
async fn noticed(resource: &str) -> Duration {
    let env = Env::with_policy(1);
    if resource == "poddisruptionbudgets" {
        env.put(json!({"kind": "PodDisruptionBudget", "metadata": {"name": "b"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}}));
        let full = json!({"observedGeneration": 1, "desiredHealthy": 2, "expectedPods": 3, "currentHealthy": 2, "disruptionsAllowed": 0});
        status(&env, "poddisruptionbudgets", "b", full).await;
    }
    env.create(objects::deployment("web", 2)).await;
    env.quiet().await;
    let silence = || env.server.faults.happens("interlock", resource, Fault::BlackHole);
    let image_of = |p: &apiserver::Picture, n: usize| p.pods[n]["spec"]["containers"][0]["image"].clone();
    let updated =
        |p: &apiserver::Picture| (0..p.pods.len()).filter(|n| image_of(p, *n) == objects::image("v2")).count();
    let begun;
    match resource {
        "deployments" => {
            silence();
            begun = Instant::now();
            env.patch("web", objects::set_image("v2")).await;
            env.when("a run", "web", |p| !p.runs.is_empty()).await;
        }
        "pods" => {
            env.patch("web", objects::set_image("v2")).await;
            env.when("the first pod is written", "web", |p| updated(p) == 1).await;
            silence();
            begun = Instant::now();
            env.when("the second pod is written", "web", |p| updated(p) == 2).await;
        }
        "replicasets" => {
            env.patch("web", objects::set_image("v2")).await;
            env.when("the first pod is written", "web", |p| updated(p) == 1).await;
            silence();
            begun = Instant::now();
            env.end("web", |p| p.unwell().is_none() && updated(p) == 2).await;
        }
        "hookruns" => {
            env.patch("web", objects::set_image("bad-pull1")).await;
            env.when("it stands still", "web", |p| !p.run()["status"]["stall"].is_null()).await;
            env.quiet().await;
            silence();
            begun = Instant::now();
            env.decide("web", "Abort", None).await;
            env.when("the run has ended", "web", |p| p.run()["status"]["ended"]["outcome"] == "Aborted").await;
        }
        "hookpolicies" => {
            silence();
            begun = Instant::now();
            let patch = json!({"spec": {"enforcement": "Off"}});
            env.policies().patch("p", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
            let is = || {
                let policy = env.server.store.get("hookpolicies", NAMESPACE, "p").unwrap();
                policy["status"]["observedGeneration"] == policy["metadata"]["generation"]
            };
            while !is() && begun.elapsed() < Duration::from_secs(600) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        _ => {
            env.patch("web", objects::set_image("v2")).await;
            env.when("it waits for the budget", "web", |p| p.run()["status"]["waitingFor"]["reason"] == "Budget").await;
            env.quiet().await;
            silence();
            begun = Instant::now();
            let free = json!({"observedGeneration": 1, "desiredHealthy": 1, "expectedPods": 2, "currentHealthy": 2, "disruptionsAllowed": 1});
            status(&env, resource, "b", free).await;
            env.when("a pod is written", "web", |p| updated(p) == 1).await;
        }
    }
    begun.elapsed()
}

#[test]
fn a_silent_watch_is_noticed_within_a_minute() {
    let tally = Tally::new("silent watches, in process");
    tally.points(RESOURCES.len());
    let faults = each(&RESOURCES, |resource| {
        let took = story(noticed(resource));
        tally.checks(1);
        if took <= Duration::from_secs(60) {
            return Ok(());
        }
        tally.failure();
        Err(format!("took {took:?}"))
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
