//! Components in order on the real control plane: what the first pod of each waits for, told by every event of the namespace.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{Env, objects};

const FOUR: [&str; 4] = ["etcd", "mds", "chunkserver", "snapshotclone"];

/// A policy of an order only.
fn policy(order: &[(&str, &[&str])], more: Value) -> Value {
    let order: Vec<Value> = order.iter().map(|(name, after)| json!({"name": name, "after": after})).collect();
    let mut spec = json!({"order": order, "settleSeconds": 1, "maxConcurrentUpdates": 100});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"apiVersion": "interlock.dev/v1alpha1", "kind": "HookPolicy", "metadata": {"name": "order"}, "spec": spec})
}

fn chain() -> Value {
    policy(
        &[("etcd", &[]), ("mds", &["etcd"]), ("chunkserver", &["mds"]), ("snapshotclone", &["chunkserver"])],
        json!({}),
    )
}

/// A Deployment with this image, whose pods have these annotations for the simulated kubelet.
fn component(name: &str, replicas: i64, version: &str, annotations: Value) -> Value {
    let mut deployment = objects::deployment(name, replicas);
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = json!(objects::image(version));
    deployment["spec"]["template"]["metadata"]["annotations"] = annotations;
    deployment
}

async fn create(env: &Env, deployment: Value) {
    env.deployments().create(&PostParams::default(), &serde_json::from_value(deployment).unwrap()).await.unwrap();
}

/// Pods of an app that were ready, and not on their way out, when an object had this resourceVersion.
fn ready_at(env: &Env, app: &str, image: &str, version: u64) -> usize {
    let mut pods: BTreeMap<String, bool> = BTreeMap::new();
    for sight in env.observer.all().into_iter().filter(|s| s.app == app && s.version < version) {
        let counts = sight.ready && !sight.deleted && !sight.deleting && sight.image == image;
        pods.insert(sight.uid, counts);
    }
    pods.values().filter(|ready| **ready).count()
}

/// The first pod of `app` was created when each predecessor had all its pods ready.
fn assert_after(env: &Env, app: &str, predecessors: &[(&str, usize)], version: &str) {
    let image = objects::image(version);
    let first = env.observer.first_seen(app, &image).unwrap_or_else(|| panic!("{app} has never run {version}"));
    for (name, pods) in predecessors {
        let ready = ready_at(env, name, &image, first.version);
        assert_eq!(ready, *pods, "{}: {app} began with {ready} of {pods} pods of {name} ready", env.namespace);
    }
}

async fn waits_for(env: &Env, name: &str, said: &str) {
    env.until(&format!("{name} waits, and says: {said}"), 20, || async {
        let waiting = env.run(name).await["status"]["waitingFor"].clone();
        waiting["reason"] == "Predecessor" && waiting["what"].as_str().is_some_and(|what| what.contains(said))
    })
    .await;
    assert!(env.pods(name).await.is_empty(), "{name} has pods while it waits");
}

async fn ordered(name: &str, policy: Value) -> Env {
    let mut env = Env::new(name).await;
    env.policy(policy).await;
    env.start().await;
    env
}

/// opencurve/curve-operator (regression 25): its waiting accepted one pod of many. The stack that it starts, with a predecessor
/// that gets ready late.
#[tokio::test]
async fn regression_25_four_components_start_each_after_all_pods_of_the_one_before() {
    let env = ordered("order-four", chain()).await;
    for name in FOUR.iter().rev() {
        let late = if *name == "mds" { json!({"sim/ready-delay": "2s"}) } else { json!({}) };
        create(&env, component(name, 3, "v1", late)).await;
    }
    for name in FOUR {
        env.all_well(name).await;
    }
    for pair in FOUR.windows(2) {
        assert_after(&env, pair[1], &[(pair[0], 3)], "v1");
    }
    assert!(env.observer.sets("mds").len() == 1 && env.observer.sets("snapshotclone").len() == 1);
}

/// A predecessor whose readiness comes and goes has not settled; then it has been quiet for as long as the policy says.
#[tokio::test]
async fn a_predecessor_that_flaps_is_waited_for_until_it_is_quiet() {
    let quiet = 6;
    let order = policy(&[("etcd", &[]), ("mds", &["etcd"])], json!({"settleSeconds": quiet}));
    let env = ordered("order-flaps", order).await;
    create(&env, component("mds", 1, "v1", json!({}))).await;
    create(&env, component("etcd", 1, "v1", json!({}))).await;
    let ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|c| c["type"] == "Ready")
    };
    let is_ready = || async {
        let pods = env.pods("etcd").await;
        pods.first().and_then(ready).is_some_and(|c| c["status"] == "True")
    };
    for _ in 0..4 {
        env.until("etcd is ready", 20, is_ready).await;
        assert!(env.pods("mds").await.is_empty(), "etcd has not been quiet");
        let name = env.pods("etcd").await[0]["metadata"]["name"].as_str().unwrap().to_owned();
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::now());
        let condition = json!({"type": "Ready", "status": "False", "lastTransitionTime": now, "reason": "Test"});
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        kube::Api::<k8s_openapi::api::core::v1::Pod>::namespaced(env.admin.clone(), &env.namespace)
            .patch_status(&name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    env.all_well("mds").await;
    let time = |value: &Value| value.as_str().unwrap().parse::<interlock_core::time::Time>().unwrap();
    let settled = time(&ready(&env.pods("etcd").await[0]).unwrap()["lastTransitionTime"]);
    let born = time(&env.pods("mds").await[0]["metadata"]["creationTimestamp"]);
    assert!(born >= settled.plus_seconds(quiet), "mds was born at {born:?}, etcd was last ready since {settled:?}");
}

/// grafana/rollout-operator#339 (regression 28): the fix cannot replace crash-looping pods because "not all are Ready".
#[tokio::test]
async fn regression_28_a_predecessor_that_fails_is_waited_for_and_its_fix_is_blocked_by_nobody() {
    let env = ordered("order-fails", chain()).await;
    create(&env, component("mds", 2, "v2", json!({}))).await;
    create(&env, component("etcd", 2, "bad-crash1", json!({}))).await;
    waits_for(&env, "mds", "etcd ").await;
    env.until("etcd crashes", 30, || async {
        let pods = env.pods("etcd").await;
        pods.iter().any(|p| p["status"]["containerStatuses"][0]["restartCount"].as_i64() > Some(0))
    })
    .await;
    waits_for(&env, "mds", "etcd ").await;
    env.patch("etcd", objects::set_image("v2")).await;
    for name in ["etcd", "mds"] {
        env.all_well(name).await;
    }
    assert_after(&env, "mds", &[("etcd", 2)], "v2");
}

#[tokio::test]
async fn a_predecessor_that_is_scaled_to_0_is_settled() {
    let env = ordered("order-zero", chain()).await;
    create(&env, component("mds", 1, "v1", json!({}))).await;
    create(&env, component("etcd", 2, "bad-ready1", json!({}))).await;
    env.until("etcd has its pods", 20, || async { env.pods("etcd").await.len() == 2 }).await;
    waits_for(&env, "mds", "etcd ").await;
    env.scale("etcd", 0).await;
    env.all_well("mds").await;
    assert!(env.pods("etcd").await.is_empty());
}

#[tokio::test]
async fn a_predecessor_that_is_deleted_and_made_again_is_waited_for_by_its_name() {
    let env = ordered("order-again", chain()).await;
    create(&env, component("mds", 1, "v1", json!({}))).await;
    waits_for(&env, "mds", "etcd does not exist").await;
    create(&env, component("etcd", 2, "bad-ready1", json!({}))).await;
    waits_for(&env, "mds", "etcd has ").await;
    env.deployments().delete("etcd", &DeleteParams::foreground()).await.unwrap();
    waits_for(&env, "mds", "etcd does not exist").await;
    create(&env, component("etcd", 2, "v1", json!({}))).await;
    env.all_well("mds").await;
    assert_after(&env, "mds", &[("etcd", 2)], "v1");
}

/// Five that wait for nothing, and nine layers on top: a join of two in each, so that branches go on by themselves.
#[tokio::test]
async fn fifty_components_in_one_graph_start_as_soon_as_their_own_predecessors_have_settled() {
    let name = |n: usize| format!("c{n:02}");
    let after: Vec<Vec<String>> = (0..50)
        .map(|n: usize| {
            if n < 5 {
                Vec::new()
            } else {
                BTreeSet::from([name(n - 5), name((n - 5).saturating_sub(n % 2))]).into_iter().collect()
            }
        })
        .collect();
    let order: Vec<Value> =
        after.iter().enumerate().map(|(n, after)| json!({"name": name(n), "after": after})).collect();
    let mut policy = policy(&[], json!({"settleSeconds": 0}));
    policy["spec"]["order"] = json!(order);
    let env = ordered("order-fifty", policy).await;
    for n in (0..50).rev() {
        create(&env, component(&name(n), 1, "v1", json!({"sim/ready-delay": "500ms"}))).await;
    }
    for n in 0..50 {
        env.all_well(&name(n)).await;
    }
    for (n, after) in after.iter().enumerate() {
        let predecessors: Vec<(&str, usize)> = after.iter().map(|a| (a.as_str(), 1)).collect();
        assert_after(&env, &name(n), &predecessors, "v1");
    }
    // Independent branches go at the same time: when the last of the first five was born, none of them was ready for long
    // enough to be waited for.
    let image = objects::image("v1");
    let together = (0..50).map(|n| env.observer.first_seen(&name(n), &image).unwrap()).filter(|first| {
        let others = (0..50).map(|n| env.observer.first_seen(&name(n), &image).unwrap());
        let before = others.filter(|o| o.version < first.version).count();
        let ready: usize = (0..50).map(|n| ready_at(&env, &name(n), &image, first.version)).sum();
        before > ready
    });
    assert!(together.count() > 10, "branches waited for each other");
}

fn release(name: &str, version: &str) -> Value {
    let mut deployment = component(name, 2, version, json!({}));
    deployment["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/version"] = json!(version);
    deployment
}

/// A tool that writes all manifests at once, in the worst order, twice.
#[tokio::test]
async fn all_manifests_in_reverse_order_twice_go_in_order_with_the_same_release() {
    let mut policy = chain();
    policy["spec"]["sameRelease"] = json!("app.kubernetes.io/version");
    policy["spec"]["update"] = json!({"inPlaceMetadata": ["app.kubernetes.io/version"]});
    let env = ordered("order-release", policy).await;
    for version in ["v1", "v2", "v3"] {
        for name in FOUR.iter().rev() {
            env.apply(release(name, version)).await;
        }
        for name in FOUR {
            env.until(&format!("{name} runs {version}"), 90, || async {
                let pods = env.pods(name).await;
                let here = |p: &Value| p["spec"]["containers"][0]["image"] == objects::image(version);
                pods.len() == 2 && pods.iter().all(here) && !env.held(name).await
            })
            .await;
            env.all_well(name).await;
        }
        for pair in FOUR.windows(2) {
            assert_after(&env, pair[1], &[(pair[0], 2)], version);
        }
    }
}

/// Without the option a successor goes when its predecessor is settled on what it was told so far; the option is what waits for
/// a release that is still to be written.
#[tokio::test]
async fn without_the_same_release_a_successor_that_is_written_first_goes_first() {
    let env = ordered("order-any", chain()).await;
    for version in ["v1", "v2", "v3"] {
        for name in FOUR.iter().rev() {
            let runs = env.runs(name).await.len();
            env.apply(release(name, version)).await;
            if version != "v1" {
                // The run of before has succeeded, too.
                env.until("a run begins", 20, || async { env.runs(name).await.len() > runs }).await;
                env.ended(name, "Succeeded").await;
            }
        }
        for name in FOUR {
            env.all_well(name).await;
        }
        for pair in FOUR.windows(2) {
            if version == "v1" {
                assert_after(&env, pair[1], &[(pair[0], 2)], version);
            } else {
                let image = objects::image(version);
                let first = env.observer.first_seen(pair[1], &image).unwrap();
                assert_eq!(ready_at(&env, pair[0], &image, first.version), 0);
            }
        }
    }
    // With it, the one that is written first says what it waits for.
    let mut policy = chain();
    policy["spec"]["sameRelease"] = json!("app.kubernetes.io/version");
    env.apply(policy).await;
    env.apply(release("mds", "v4")).await;
    env.until("mds waits for the release", 20, || async {
        let run = env.run("mds").await;
        let what = run["status"]["waitingFor"]["what"].as_str().unwrap_or_default().to_owned();
        what.contains("etcd is of another release, app.kubernetes.io/version is v3 and not v4")
    })
    .await;
    env.decide("mds", "Skip", Some("gate/order")).await;
    env.ended("mds", "Succeeded").await;
}
