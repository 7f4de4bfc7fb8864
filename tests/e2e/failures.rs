//! Updates that fail, and every way out.

use serde_json::json;

use crate::harness::{Env, objects};

async fn stalled(env: &Env, reason: &str) {
    env.until(&format!("stalled: {reason}"), 60, || async {
        env.run("web").await["status"]["stall"]["reason"] == reason
    })
    .await;
}

/// keptn/lifecycle-toolkit#1878, devantler-tech/platform#2387: a failed update must not block the next one.
#[tokio::test]
async fn a_bad_image_freezes_within_max_unavailable_and_a_new_template_leaves_it() {
    let env = Env::with_policy("bad").await;
    env.create(objects::deployment("web", 4)).await;
    let mark = env.observer.mark();
    let before = env.uids("web").await;
    env.patch("web", objects::set_image("bad-pull1")).await;
    stalled(&env, "PodFailing").await;
    assert!(env.observer.fewest_ready("web", mark) >= 3);
    assert_eq!(env.gate.count("PATCH pods"), 1, "never more than maxUnavailable pods in doubt");
    env.patch("web", objects::set_image("v2")).await;
    env.until("the good one has arrived", 60, || async {
        let run = env.run("web").await;
        run["status"]["ended"]["outcome"] == "Succeeded"
    })
    .await;
    env.all_well("web").await;
    assert_eq!(env.uids("web").await, before);
    assert!(env.observer.fewest_ready("web", mark) >= 3);
}

#[tokio::test]
async fn revert_puts_changed_pods_back_and_leaves_the_template_alone() {
    let mut env = Env::new("revert").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["update"] = json!({"failure": "Revert", "tolerance": {"seconds": 3}});
    env.policy(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 3)).await;
    env.patch("web", objects::set_image("bad-crash1")).await;
    env.until("stalled", 60, || async { !env.run("web").await["status"]["stall"].is_null() }).await;
    env.until("all pods run v1 and are ready", 60, || async {
        let pods = env.pods("web").await;
        pods.iter().all(|p| {
            p["spec"]["containers"][0]["image"] == objects::image("v1")
                && p["status"]["containerStatuses"][0]["ready"] == true
        })
    })
    .await;
    assert!(env.held("web").await);
    assert_eq!(
        env.get("web").await["spec"]["template"]["spec"]["containers"][0]["image"],
        objects::image("bad-crash1")
    );
    env.patch("web", objects::set_image("v2")).await;
    env.until("v2", 60, || async { env.run("web").await["status"]["ended"]["outcome"] == "Succeeded" }).await;
    env.all_well("web").await;
}

/// fluxcd/flagger#1578, #1247: a deadline that is ignored.
#[tokio::test]
async fn never_ready_ends_at_the_deadline() {
    let mut env = Env::new("deadline").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["update"] = json!({"progressDeadlineSeconds": 4});
    env.policy(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 2)).await;
    env.patch("web", objects::set_image("bad-ready1")).await;
    stalled(&env, "DeadlineExceeded").await;
    env.patch("web", objects::set_image("v1")).await;
    env.all_well("web").await;
}

/// keptn#3920: a failed task and yet the rollout goes on. fluxcd/flagger#862, #1310: no retry without a new template.
#[tokio::test]
async fn a_failed_hook_stops_the_update_and_retry_goes_on() {
    let env = Env::with_policy("hookfail").await;
    env.create(objects::deployment("web", 2)).await;
    env.receiver.answer([503, 503, 503]);
    env.patch("web", objects::set_image("v2")).await;
    stalled(&env, "HookFailed").await;
    assert_eq!(env.gate.count("PATCH pods"), 0, "nothing starts after a failed hook");
    let steps = env.run("web").await["status"]["steps"].clone();
    assert_eq!(steps.as_array().unwrap().len(), 3, "{steps}");
    assert!(steps.as_array().unwrap().iter().all(|s| s["outcome"] == "Failed" && s["reason"] == "Http503"), "{steps}");
    env.decide("web", "Retry", None).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}

#[tokio::test]
async fn skip_goes_on_without_a_hook_and_says_who_decided() {
    let env = Env::with_policy("skip").await;
    env.create(objects::deployment("web", 2)).await;
    env.receiver.answer([500, 500, 500]);
    env.patch("web", objects::set_image("v2")).await;
    stalled(&env, "HookFailed").await;
    env.decide("web", "Skip", Some("hook/before")).await;
    env.ended("web", "Succeeded").await;
    let run = env.run("web").await;
    assert_eq!(run["spec"]["decisions"][0]["by"], "admin");
    assert!(run["status"]["steps"].to_string().contains("Skipped"));
}

#[tokio::test]
async fn abort_ends_the_run_frozen_and_a_new_template_goes_on() {
    let env = Env::with_policy("abort").await;
    env.create(objects::deployment("web", 2)).await;
    env.receiver.close();
    env.patch("web", objects::set_image("v2")).await;
    env.receiver.arrived(1).await;
    env.decide("web", "Abort", None).await;
    env.ended("web", "Aborted").await;
    env.receiver.open();
    assert!(env.held("web").await);
    assert_eq!(env.gate.count("PATCH pods"), 0);
    env.patch("web", objects::set_image("v3")).await;
    env.until("v3", 60, || async { env.run("web").await["status"]["ended"]["outcome"] == "Succeeded" }).await;
    env.all_well("web").await;
    env.assert_hooks_first("web", &["v1"]);
}

#[tokio::test]
async fn a_failed_post_hook_touches_nothing_that_runs() {
    let env = Env::with_policy("post").await;
    env.create(objects::deployment("web", 2)).await;
    env.receiver.answer([200, 500, 500, 500]);
    env.patch("web", objects::set_image("v2")).await;
    stalled(&env, "HookFailed").await;
    assert!(!env.held("web").await);
    assert!(env.is_complete("web").await);
    env.decide("web", "Retry", None).await;
    env.ended("web", "Succeeded").await;
}

#[tokio::test]
async fn a_native_roll_that_fails_is_frozen_and_undone_by_a_new_template() {
    let env = Env::with_policy("nativebad").await;
    env.create(objects::deployment("web", 3)).await;
    env.frozen_native_roll("web").await;
    env.patch("web", objects::set_env("e2")).await;
    env.patch("web", objects::set_image("v2")).await;
    env.until("it has arrived", 60, || async { env.run("web").await["status"]["ended"]["outcome"] == "Succeeded" })
        .await;
    env.all_well("web").await;
}

/// stakater/Reloader#1016, #1219: the controller restarts while a Deployment is paused; the hold is taken up again.
#[tokio::test]
async fn the_controller_is_killed_during_a_hook_and_the_hook_keeps_its_key() {
    let mut env = Env::with_policy("killed").await;
    env.create(objects::deployment("web", 2)).await;
    env.receiver.close();
    env.patch("web", objects::set_image("v2")).await;
    env.receiver.arrived(1).await;
    env.kill().await;
    env.receiver.open();
    env.start().await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    let keys: std::collections::BTreeSet<String> =
        env.receiver.calls().into_iter().filter(|c| c.path == "/before").map(|c| c.key).collect();
    assert_eq!(keys.len(), 1, "one key, however often it was sent");
}

/// argo-rollouts#3534: time that the user spends paused counts against the deadline.
#[tokio::test]
async fn time_that_the_user_has_it_paused_does_not_count() {
    let mut env = Env::new("clock").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["update"] = json!({"progressDeadlineSeconds": 3});
    env.policy(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 2)).await;
    let mut stops = env.gate.stop_at(crate::harness::Moment::Before, "PATCH pods", 2);
    env.patch("web", objects::set_image("v2")).await;
    let stop = tokio::time::timeout(std::time::Duration::from_secs(150), stops.recv()).await.unwrap().unwrap();
    env.patch("web", json!({"metadata": {"annotations": {"interlock.dev/resume": "false"}}, "spec": {"paused": true}}))
        .await;
    stop.go_on();
    env.until("it waits for its user", 20, || async {
        env.run("web").await["status"]["waitingFor"]["reason"] == "UserPaused"
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await; // longer than the deadline: that is what is tested
    assert!(env.run("web").await["status"]["stall"].is_null());
    env.patch("web", json!({"metadata": {"annotations": {"interlock.dev/resume": null}}, "spec": {"paused": false}}))
        .await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}

/// fluxcd/flagger#1407: two controllers rewrite one field for ever.
#[tokio::test]
async fn two_controllers_that_rewrite_one_field_stop_after_a_few_flips() {
    let env = Env::with_policy("flips").await;
    env.create(objects::deployment("web", 1)).await;
    let (pods, done) = (env.pods_api(), tokio_util::sync::CancellationToken::new());
    let name = env.pods("web").await[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let stop = done.clone();
    let other = tokio::spawn(async move {
        let back = json!({"spec": {"containers": [{"name": "c", "image": objects::image("v1")}]}});
        while !stop.is_cancelled() {
            let _ = pods.patch(&name, &kube::api::PatchParams::default(), &kube::api::Patch::Strategic(&back)).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await; // the other one's own pace
        }
    });
    env.patch("web", objects::set_image("v2")).await;
    stalled(&env, "Conflicting").await;
    let written = env.gate.count("PATCH pods");
    assert!((5..=6).contains(&written), "{written} writes");
    done.cancel();
    other.await.unwrap();
    env.decide("web", "Retry", None).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}

/// A write that somebody's admission policy refuses is named, and goes through when that policy is gone.
#[tokio::test]
async fn a_write_that_is_refused_is_named_and_goes_through_later() {
    let env = Env::with_policy("refused").await;
    env.create(objects::deployment("web", 2)).await;
    let name = format!("refuse-{}", env.namespace);
    let quiet = json!({"matchLabels": {"kubernetes.io/metadata.name": env.namespace}});
    crate::harness::stage::apply(&env.admin, &json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"namespaceSelector": quiet, "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}]},
            "validations": [{"expression": "object.spec.containers.all(c, !c.image.endsWith(':v2'))", "message": "v2 is not wanted here"}],
        }}))
    .await;
    crate::harness::stage::apply(&env.admin, &json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]}}))
    .await;
    let pod = env.pods("web").await[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let dry = kube::api::PatchParams { dry_run: true, ..kube::api::PatchParams::default() };
    let patch = json!({"spec": {"containers": [{"name": "c", "image": objects::image("v2")}]}});
    env.until("it refuses", 20, || async {
        env.pods_api().patch(&pod, &dry, &kube::api::Patch::Strategic(&patch)).await.is_err()
    })
    .await;
    env.patch("web", objects::set_image("v2")).await;
    env.until("it is named", 30, || async {
        let waiting = env.run("web").await["status"]["waitingFor"].clone();
        waiting["reason"] == "Refused" && waiting["what"].as_str().unwrap().contains("v2 is not wanted here")
    })
    .await;
    env.patch("web", objects::set_image("v3")).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}
