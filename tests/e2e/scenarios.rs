//! The faults that a first version of the update step had (D0 to D16), each provoked on the real control plane.

use std::collections::BTreeSet;

use devcluster::Component;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{
    Env, Moment, objects,
    stage::{containers, revision},
};

async fn stopped(
    stops: &mut tokio::sync::mpsc::UnboundedReceiver<crate::harness::gate::Stopped>,
) -> crate::harness::gate::Stopped {
    tokio::time::timeout(std::time::Duration::from_secs(150), stops.recv())
        .await
        .expect("the controller comes to this write")
        .unwrap()
}

/// The image of the first container of a template or pod spec.
fn image_of(spec: &Value) -> String {
    containers(spec).first().map(|c| c.1.clone()).unwrap_or_default()
}

async fn update(env: &Env, version: &str) {
    let runs = env.runs("web").await.len();
    env.patch("web", objects::set_image(version)).await;
    env.until("a run begins", 20, || async { env.runs("web").await.len() > runs }).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}

/// kubectl's undo: the template of a ReplicaSet, and its annotations in place of the Deployment's.
async fn undo(env: &Env, set: &Value) {
    let deployment = env.get("web").await;
    let keep = |key: &str| {
        key.starts_with("deployment.kubernetes.io/") || key == "kubectl.kubernetes.io/last-applied-configuration"
    };
    let mut annotations = serde_json::Map::new();
    for (key, value) in deployment["metadata"]["annotations"].as_object().into_iter().flatten().filter(|(k, _)| keep(k))
    {
        annotations.insert(key.clone(), value.clone());
    }
    for (key, value) in set["metadata"]["annotations"].as_object().into_iter().flatten().filter(|(k, _)| !keep(k)) {
        annotations.insert(key.clone(), value.clone());
    }
    let mut template = set["spec"]["template"].clone();
    template["metadata"]["labels"].as_object_mut().unwrap().remove("pod-template-hash");
    let patch: json_patch::Patch = serde_json::from_value(json!([
        {"op": "replace", "path": "/spec/template", "value": template},
        {"op": "replace", "path": "/metadata/annotations", "value": annotations},
    ]))
    .unwrap();
    env.deployments().patch("web", &PatchParams::default(), &Patch::<()>::Json(patch)).await.unwrap();
}

fn youngest(sets: &[Value]) -> String {
    let age = |s: &Value| {
        (
            s["metadata"]["creationTimestamp"].as_str().unwrap().to_owned(),
            s["metadata"]["name"].as_str().unwrap().to_owned(),
        )
    };
    let set = sets.iter().max_by_key(|s| age(s)).unwrap();
    image_of(&set["spec"]["template"]["spec"])
}

async fn one_write_from_zero(env: &Env, ran_last: &str) {
    env.until("what ran last is the youngest", 20, || async {
        youngest(&env.sets("web").await) == objects::image(ran_last)
    })
    .await;
    let mark = env.observer.mark();
    let mut patch = objects::set_image("v3");
    patch["spec"]["replicas"] = json!(3);
    env.patch("web", patch).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    let seen: BTreeSet<String> =
        env.observer.all()[mark..].iter().filter(|s| s.app == "web").map(|s| s.image.clone()).collect();
    let allowed = BTreeSet::from([objects::image(ran_last), objects::image("v3")]);
    assert!(seen.is_subset(&allowed), "an old release was started: {seen:?}");
}

#[tokio::test]
async fn d0_zero_one_write_does_not_start_an_old_release() {
    let env = Env::with_policy("d0").await;
    env.create(objects::deployment("web", 2)).await;
    update(&env, "v2").await;
    env.scale("web", 0).await;
    one_write_from_zero(&env, "v2").await;
    env.assert_hooks_first("web", &["v1"]);
}

#[tokio::test]
async fn d0_zero_undo_after_a_native_undo_too() {
    let mut env = Env::new("d0u").await;
    env.create(objects::deployment("web", 2)).await;
    env.patch("web", objects::set_image("v2")).await;
    env.complete("web").await;
    undo(&env, &env.sets("web").await[0]).await;
    env.complete("web").await;
    env.policy(objects::policy("p", &env.receiver.url)).await;
    env.start().await;
    env.scale("web", 0).await;
    env.until("no pods", 20, || async { env.pods("web").await.is_empty() }).await;
    one_write_from_zero(&env, "v1").await;
}

#[tokio::test]
async fn d1_mixed_no_wrong_pod_in_a_deployment_that_says_complete() {
    let env = Env::with_policy("d1").await;
    env.create(objects::deployment("web", 4)).await;
    let mut stops = env.gate.stop_at(Moment::Before, "PATCH pods", 3);
    env.patch("web", objects::set_image("v2")).await;
    let stop = stopped(&mut stops).await;
    let mut bad = objects::set_env("e1");
    bad["spec"]["template"]["spec"]["containers"][0]["image"] = json!(objects::image("bad-pull1"));
    env.patch("web", bad).await;
    stop.go_on();
    env.until("the native roll got stuck and is frozen", 60, || async {
        env.held("web").await && env.run("web").await["status"]["stall"]["reason"] == "PodFailing"
    })
    .await;
    env.patch("web", json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": objects::image("v1"), "env": null}]}}}})).await;
    env.all_well("web").await;
    assert!(env.pods("web").await.iter().all(|p| image_of(&p["spec"]) == objects::image("v1")));
}

#[tokio::test]
async fn d2_undo_resume_marks_that_an_undo_brings_back_hold_nothing_for_ever() {
    let env = Env::with_policy("d2").await;
    env.create(objects::deployment("web", 2)).await;
    env.patch("web", json!({"spec": {"paused": true}})).await;
    env.patch("web", objects::set_env("e1")).await;
    env.until("held, with the user's own pause", 20, || async {
        env.get("web").await["metadata"]["annotations"]["interlock.dev/resume"] == "false"
    })
    .await;
    env.patch("web", json!({"spec": {"paused": false}})).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    let sets = env.sets("web").await;
    let old = sets.iter().find(|s| containers(&s["spec"]["template"]["spec"])[0].2.is_empty()).unwrap();
    undo(&env, old).await;
    env.all_well("web").await;
    assert!(containers(&env.get("web").await["spec"]["template"]["spec"])[0].2.is_empty());
    env.until("no marks are left", 20, || async {
        let annotations = env.get("web").await["metadata"]["annotations"].clone();
        annotations["interlock.dev/held-by"].is_null() && annotations["interlock.dev/resume"].is_null()
    })
    .await;
}

#[tokio::test]
async fn d2_undo_nopolicy_no_phantom_hold_without_a_policy() {
    let env = Env::with_policy("d2n").await;
    env.create(objects::deployment("web", 2)).await;
    update(&env, "v2").await;
    env.patch("web", objects::set_env("e1")).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    env.policies().delete("p", &DeleteParams::default()).await.unwrap();
    env.until("the policy is out of force", 10, || async {
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };
        let answer = env.deployments().patch("web", &dry, &Patch::Strategic(objects::set_image("x"))).await.unwrap();
        answer.spec.paused != Some(true)
    })
    .await;
    let sets = env.sets("web").await;
    let v2 = sets
        .iter()
        .find(|s| s["spec"]["replicas"] == 0 && image_of(&s["spec"]["template"]["spec"]) == objects::image("v2"))
        .unwrap();
    undo(&env, v2).await;
    env.complete("web").await;
    env.patch("web", json!({"metadata": {"labels": {"x": "y"}}})).await;
    env.all_well("web").await;
    assert_ne!(env.get("web").await["spec"]["paused"], true);
}

#[tokio::test]
async fn d3_undo_hooks_annotations_that_an_undo_drops_are_put_back() {
    let mut env = Env::new("d3").await;
    env.start().await;
    env.create(objects::deployment("web", 2)).await;
    env.patch("web", objects::set_env("e1")).await;
    env.complete("web").await;
    let hooks = "- {name: w, phase: PreUpdate, wait: {seconds: 0}}";
    env.patch("web", json!({"metadata": {"annotations": {"interlock.dev/hooks": hooks}}})).await;
    env.until("the controller copied the annotation", 10, || async {
        env.sets("web").await.iter().any(|s| !s["metadata"]["annotations"]["interlock.dev/hooks"].is_null())
    })
    .await;
    let sets = env.sets("web").await;
    let first = sets.iter().find(|s| s["spec"]["replicas"] == 0).unwrap();
    undo(&env, first).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    assert_eq!(env.get("web").await["metadata"]["annotations"]["interlock.dev/hooks"], hooks);
    let steps = env.run("web").await["status"]["steps"].clone();
    assert_eq!(steps[0]["outcome"], "Succeeded", "the hook ran for the undo: {steps}");
    update(&env, "v5").await;
    assert_eq!(env.runs("web").await.len(), 2, "the next update is held again");
}

#[tokio::test]
async fn d4_wedge_a_replica_set_made_again_does_not_wedge_the_deployment() {
    let env = Env::with_policy("d4").await;
    env.create(objects::deployment("web", 3)).await;
    env.receiver.close();
    env.patch("web", objects::set_env("e1")).await;
    env.receiver.arrived(1).await;
    env.scale("web", 5).await;
    env.until("five pods", 20, || async { env.pods("web").await.len() == 5 }).await;
    let main = env.sets("web").await[0]["metadata"]["name"].as_str().unwrap().to_owned();
    env.replica_sets().delete(&main, &DeleteParams::background()).await.unwrap();
    env.until("it is made again", 20, || async { env.sets("web").await.iter().any(|s| s["spec"]["replicas"] == 5) })
        .await;
    let again = env.sets("web").await;
    assert!(
        again.iter().all(|s| s["metadata"]["name"] != json!(main)
            && image_of(&s["spec"]["template"]["spec"]) == objects::image("v1")),
        "made again with what ran"
    );
    env.receiver.open();
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}

#[tokio::test]
async fn d5_limit0_at_zero_replicas_nothing_fights_over_the_main_replica_set() {
    let env = Env::with_policy("d5").await;
    let mut deployment = objects::deployment("web", 2);
    deployment["spec"]["revisionHistoryLimit"] = json!(0);
    env.create(deployment).await;
    env.receiver.close();
    env.patch("web", objects::set_image("v2")).await;
    env.receiver.arrived(1).await;
    env.scale("web", 0).await;
    env.until("the controller deleted the main one", 20, || async { env.sets("web").await.is_empty() }).await;
    env.until("the pods are gone", 20, || async { env.pods("web").await.is_empty() }).await;
    assert!(env.gate.count("POST replicasets") <= 1, "{:?}", env.gate.writes());
    env.scale("web", 2).await;
    env.receiver.open();
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    env.assert_hooks_first("web", &["v1"]);
}

#[tokio::test]
async fn d6_hist0_scaled_up_from_zero_around_the_commit() {
    for (moment, what) in [
        (Moment::Before, "PATCH replicasets"),
        (Moment::After, "PATCH replicasets"),
        (Moment::Before, "POST replicasets"),
    ] {
        let env = Env::with_policy("d6").await;
        env.create(objects::deployment("web", 2)).await;
        env.scale("web", 0).await;
        env.until("no pods", 20, || async { env.pods("web").await.is_empty() }).await;
        env.complete("web").await;
        let mut stops = env.gate.stop_at(moment, what, 1);
        env.patch("web", objects::set_image("v2")).await;
        let stop = stopped(&mut stops).await;
        env.scale("web", 3).await;
        env.until("it is scaled up", 20, || async { env.pods("web").await.len() == 3 }).await;
        stop.go_on();
        env.ended("web", "Succeeded").await;
        env.all_well("web").await;
        env.assert_hooks_first("web", &["v1"]);
    }
}

#[tokio::test]
async fn d7_the_barrier_is_defined_under_a_quota_and_at_zero_replicas() {
    let env = Env::with_policy("d7").await;
    env.create(objects::deployment("web", 2)).await;
    env.quota("count/replicasets.apps", "1").await;
    update(&env, "v2").await;
    env.scale("web", 0).await;
    env.until("no pods", 20, || async { env.pods("web").await.is_empty() }).await;
    update(&env, "v3").await;
    assert_eq!(env.sets("web").await.len(), 1);
}

#[tokio::test]
async fn d8_wake_the_main_replica_set_deleted_while_held_comes_back() {
    let env = Env::with_policy("d8").await;
    env.create(objects::deployment("web", 3)).await;
    update(&env, "v2").await;
    update(&env, "v3").await;
    env.receiver.close();
    let calls = env.receiver.calls().len();
    env.patch("web", objects::set_image("v4")).await;
    env.receiver.arrived(calls + 1).await;
    let sets = env.sets("web").await;
    let main = sets.iter().find(|s| s["spec"]["replicas"] != 0).unwrap();
    env.replica_sets().delete(main["metadata"]["name"].as_str().unwrap(), &DeleteParams::background()).await.unwrap();
    env.until("v3 runs again, still held", 30, || async {
        let pods = env.pods("web").await;
        env.held("web").await && pods.len() == 3 && pods.iter().all(|p| image_of(&p["spec"]) == objects::image("v3"))
    })
    .await;
    env.receiver.open();
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}

#[tokio::test]
async fn d9_dup_no_two_replica_sets_with_one_revision() {
    let env = Env::with_policy("d9").await;
    env.create(objects::deployment("web", 2)).await;
    let mut before = env.gate.stop_at(Moment::Before, "PATCH replicasets", 1);
    let mut after = env.gate.stop_at(Moment::After, "PATCH replicasets", 1);
    env.patch("web", objects::set_image("v2")).await;
    let stop = stopped(&mut before).await;
    env.cluster.pause(Component::ControllerManager).unwrap();
    stop.go_on();
    let stop = stopped(&mut after).await;
    env.patch("web", objects::set_image("v3")).await;
    stop.go_on();
    env.cluster.resume(Component::ControllerManager).unwrap();
    env.until("v3 has arrived", 40, || async { env.run("web").await["status"]["ended"]["outcome"] == "Succeeded" })
        .await;
    env.all_well("web").await;
    let revisions: Vec<i64> = env.sets("web").await.iter().map(revision).collect();
    assert_eq!(revisions.iter().collect::<BTreeSet<_>>().len(), revisions.len(), "{revisions:?}");
}

#[tokio::test]
async fn d10_flap_no_revision_is_lost_from_the_history() {
    let env = Env::with_policy("d10").await;
    env.create(objects::deployment("web", 2)).await;
    update(&env, "v2").await;
    update(&env, "v3").await;
    env.receiver.close();
    env.patch("web", objects::set_image("v1")).await;
    env.until("the equal empty one is gone", 20, || async {
        env.sets("web").await.iter().all(|s| image_of(&s["spec"]["template"]["spec"]) != objects::image("v1"))
    })
    .await;
    env.patch("web", objects::set_image("v4")).await;
    env.receiver.open();
    env.until("v4 has arrived", 40, || async { env.run("web").await["status"]["ended"]["outcome"] == "Succeeded" })
        .await;
    env.all_well("web").await;
    let images: BTreeSet<String> =
        env.sets("web").await.iter().map(|s| image_of(&s["spec"]["template"]["spec"])).collect();
    assert_eq!(images, ["v1", "v2", "v3", "v4"].map(objects::image).into(), "the history");
}

#[tokio::test]
async fn d11_superseded_by_a_native_template_before_the_commit_leaves_no_twin() {
    let env = Env::with_policy("d11").await;
    env.create(objects::deployment("web", 2)).await;
    let mut stops = env.gate.stop_at(Moment::Before, "PATCH replicasets", 1);
    env.patch("web", objects::set_image("v2")).await;
    let stop = stopped(&mut stops).await;
    env.patch("web", objects::set_env("e1")).await;
    stop.go_on();
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    let sets = env.sets("web").await;
    let templates: BTreeSet<String> =
        sets.iter().map(|s| format!("{:?}", containers(&s["spec"]["template"]["spec"]))).collect();
    assert_eq!(templates.len(), sets.len(), "two ReplicaSets with one template");
}

#[tokio::test]
async fn d12_back_to_one_of_two_that_run_is_released_at_once() {
    let env = Env::with_policy("d12").await;
    env.create(objects::deployment("web", 3)).await;
    env.frozen_native_roll("web").await;
    let calls = env.receiver.calls().len();
    env.receiver.close();
    env.patch("web", json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": objects::image("v1"), "env": null}]}}}})).await;
    env.all_well("web").await;
    assert_eq!(env.receiver.calls().len(), calls, "a way back asks nobody");
}

#[tokio::test]
async fn d13_a_quarter_of_three_moves_and_a_quota_is_named() {
    let env = Env::with_policy("d13").await;
    let mut deployment = objects::deployment("web", 3);
    deployment["spec"]["strategy"] = json!({"rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}});
    env.create(deployment).await;
    update(&env, "v2").await;
    env.quota("pods", "3").await;
    env.scale("web", 6).await;
    env.until("the quota refuses pods", 20, || async {
        env.get("web").await["status"]["conditions"].to_string().contains("exceeded quota")
    })
    .await;
    env.patch("web", objects::set_image("v3")).await;
    env.until("the quota is named", 20, || async {
        env.run("web").await["status"]["waitingFor"]["reason"] == "QuotaExceeded"
    })
    .await;
    env.scale("web", 3).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}

#[tokio::test]
async fn d14_the_main_replica_set_goes_before_the_run_exists() {
    let mut env = Env::with_policy("d14").await;
    env.create(objects::deployment("web", 3)).await;
    update(&env, "v2").await;
    env.kill().await;
    env.patch("web", objects::set_image("v3")).await;
    let sets = env.sets("web").await;
    let main = sets.iter().find(|s| s["spec"]["replicas"] != 0).unwrap();
    env.replica_sets().delete(main["metadata"]["name"].as_str().unwrap(), &DeleteParams::background()).await.unwrap();
    env.until("the older one was woken", 20, || async {
        env.sets("web")
            .await
            .iter()
            .any(|s| s["spec"]["replicas"] == 3 && image_of(&s["spec"]["template"]["spec"]) == objects::image("v1"))
    })
    .await;
    env.receiver.close();
    env.start().await;
    env.until("what ran last runs again", 30, || async {
        let pods = env.pods("web").await;
        pods.len() == 3 && pods.iter().all(|p| image_of(&p["spec"]) == objects::image("v2"))
    })
    .await;
    env.receiver.open();
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}

#[tokio::test]
async fn d15_what_marks_a_history_replica_set_does_not_come_back_by_undo() {
    let env = Env::with_policy("d15").await;
    env.create(objects::deployment("web", 2)).await;
    update(&env, "v2").await;
    let sets = env.sets("web").await;
    let history = sets.iter().find(|s| s["spec"]["replicas"] == 0).unwrap();
    assert_eq!(history["metadata"]["labels"]["interlock.dev/history"], "true");
    let annotations = history["metadata"]["annotations"].as_object().unwrap();
    assert!(annotations.keys().all(|k| !k.starts_with("interlock.dev/")), "{annotations:?}");
    assert_eq!(annotations["team"], "a", "the user's own annotations come back with an undo");
    undo(&env, history).await;
    env.until("the undo has a run", 20, || async { env.runs("web").await.len() == 2 }).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    assert_eq!(env.get("web").await["metadata"]["annotations"]["team"], "a");
}

#[tokio::test]
async fn d16_stale_mark_an_old_release_mark_releases_nothing() {
    let env = Env::with_policy("d16").await;
    env.create(objects::deployment("web", 2)).await;
    let old = env.get("web").await["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    env.receiver.close();
    env.patch("web", objects::set_image("v2")).await;
    env.receiver.arrived(1).await;
    let admin: kube::Api<k8s_openapi::api::apps::v1::Deployment> =
        kube::Api::namespaced(env.admin.clone(), &env.namespace);
    let patch = json!({"metadata": {"annotations": {"interlock.dev/release": old, "interlock.dev/held-by": null}}, "spec": {"paused": null}});
    admin.patch("web", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    assert!(env.held("web").await, "an old mark ended the hold");
    env.receiver.open();
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}
