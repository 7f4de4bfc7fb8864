//! Hooks of kind `job` with real Jobs: the Job controller, the TTL controller and the garbage collector are the real ones.

use apiserver::stage::apply;
use kube::{Api, api::DeleteParams, core::DynamicObject};
use serde_json::{Value, json};

use crate::harness::{Env, Moment, objects};

/// A policy with one Job as the PreUpdate hook. `pod` is merged into the Job's template, `hook` into the hook.
fn policy(pod: Value, hook: Value) -> Value {
    let mut template = json!({"spec": {"containers": [{"name": "c", "image": "r.test/tool:v1"}]}});
    json_patch::merge(&mut template, &pod);
    let mut job = json!({
        "name": "migrate", "phase": "PreUpdate", "timeoutSeconds": 60, "retries": 0,
        "job": {"serviceAccountName": "default", "template": template, "ttlSecondsAfterResult": 600},
    });
    json_patch::merge(&mut job, &hook);
    let mut policy = objects::policy("p", "http://unused.test");
    policy["spec"]["hooks"] = json!([job]);
    policy
}

fn fate(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

async fn env(name: &str, pod: Value, hook: Value) -> Env {
    let mut env = Env::new(name).await;
    env.policy(policy(pod, hook)).await;
    env.start().await;
    env.create(objects::deployment("web", 1)).await;
    env
}

fn api(env: &Env) -> Api<DynamicObject> {
    let mut resource = kube::core::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("batch", "v1", "Job"));
    resource.plural = "jobs".to_owned();
    Api::namespaced_with(env.admin.clone(), &env.namespace, &resource)
}

async fn jobs(env: &Env) -> Vec<Value> {
    let list = api(env).list(&Default::default()).await.unwrap();
    list.items.iter().map(|job| serde_json::to_value(job).unwrap()).collect()
}

async fn a_job(env: &Env) -> Value {
    env.until("a Job", 30, || async { !jobs(env).await.is_empty() }).await;
    jobs(env).await.remove(0)
}

/// Waits for the result of the first attempt.
async fn result(env: &Env) -> (String, String) {
    let step = || async { env.run("web").await["status"]["steps"][0].clone() };
    env.until("a result", 60, || async { step().await["outcome"].is_string() }).await;
    let step = step().await;
    (step["outcome"].as_str().unwrap().to_owned(), step["reason"].as_str().unwrap_or_default().to_owned())
}

async fn no_jobs(env: &Env) {
    env.until("no Job is left", 30, || async { jobs(env).await.is_empty() }).await;
}

fn is(outcome: &str, reason: &str) -> (String, String) {
    (outcome.to_owned(), reason.to_owned())
}

/// Regressions 9, 13 and 17: it completes, its result is stored, then it goes by its time to live; it never runs again.
#[tokio::test]
async fn r17_a_job_that_completes_is_done_even_when_it_is_deleted_afterwards() {
    let env = env("job-ok", json!({}), json!({"job": {"ttlSecondsAfterResult": 1}})).await;
    env.patch("web", objects::set_image("v2")).await;
    assert_eq!(result(&env).await, is("Succeeded", "Complete"));
    env.ended("web", "Succeeded").await;
    no_jobs(&env).await;
    env.all_well("web").await;
    assert_eq!(env.gate.count("POST jobs"), 1);
    assert_eq!(env.run("web").await["status"]["steps"].as_array().unwrap().len(), 1);
}

/// Regression 13: what cannot be scheduled, what hangs and what a quota keeps away end by our deadline, and no success.
#[tokio::test]
async fn r13_jobs_that_never_end_end_by_our_deadline() {
    for (name, pod) in [
        ("job-sched", json!({"spec": {"nodeSelector": {"nowhere": "x"}}})),
        ("job-hangs", fate("sim/job-delay", "600s")),
        ("job-pull", json!({"spec": {"containers": [{"name": "c", "image": "r.test/tool:bad-pull1"}]}})),
    ] {
        let env = env(name, pod, json!({"timeoutSeconds": 4})).await;
        env.patch("web", objects::set_image("v2")).await;
        let job = a_job(&env).await;
        assert!(job["spec"]["activeDeadlineSeconds"].as_i64().unwrap() <= 4);
        assert_eq!(result(&env).await, is("TimedOut", "Timeout"), "{name}");
        assert_eq!(env.gate.count("PATCH pods"), 0, "nothing starts after it");
    }
    let env = env("job-quota", json!({}), json!({"timeoutSeconds": 4})).await;
    env.quota("count/jobs.batch", "0").await;
    env.patch("web", objects::set_image("v2")).await;
    assert_eq!(result(&env).await, is("TimedOut", "Timeout"));
    assert!(jobs(&env).await.is_empty());
}

#[tokio::test]
async fn a_job_that_fails_is_a_failed_attempt_and_the_next_one_has_its_own() {
    let env = env("job-fails", fate("sim/job", "fail"), json!({"retries": 1, "backoffSeconds": 0})).await;
    env.patch("web", objects::set_image("v2")).await;
    assert_eq!(result(&env).await, is("Failed", "JobFailed"));
    env.until("stalled", 60, || async { env.run("web").await["status"]["stall"]["reason"] == "HookFailed" }).await;
    assert_eq!(env.gate.count("POST jobs"), 2);
    assert_eq!(jobs(&env).await.len(), 2, "kept for who looks for the reason");
    // Their time to live came after their results.
    env.until("a time to live", 30, || async {
        jobs(&env).await.iter().all(|job| job["spec"]["ttlSecondsAfterFinished"] == 600)
    })
    .await;
}

/// Regression 15: a Job deleted by hand is taken as success.
#[tokio::test]
async fn r15_a_job_that_somebody_deletes_has_failed() {
    let env = env("job-gone", fate("sim/job-delay", "600s"), json!({})).await;
    env.patch("web", objects::set_image("v2")).await;
    let job = a_job(&env).await;
    let params = DeleteParams::background();
    api(&env).delete(job["metadata"]["name"].as_str().unwrap(), &params).await.unwrap();
    assert_eq!(result(&env).await, is("Failed", "JobMissing"));
    assert_eq!(env.gate.count("POST jobs"), 1);
}

/// Regression 16: our name, but another owner.
#[tokio::test]
async fn r16_a_job_of_our_name_with_another_owner_is_not_ours() {
    let env = env("job-taken", fate("sim/job-delay", "600s"), json!({})).await;
    let mut stops = env.gate.stop_at(Moment::Before, "POST jobs", 1);
    env.patch("web", objects::set_image("v2")).await;
    let stopped = stops.recv().await.unwrap();
    // The name is a function of the key, and the key of the run.
    let key = format!("{}.PreUpdate.migrate.1", env.run("web").await["metadata"]["uid"].as_str().unwrap());
    let name = interlock::action::job_name(&key);
    apply(&env.admin, &json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": env.namespace, "annotations": {"interlock.dev/hook-key": key}},
        "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "r.test/x:v1"}]}}},
    }))
    .await;
    stopped.go_on();
    assert_eq!(result(&env).await, is("Failed", "NameTaken"));
    assert_eq!(jobs(&env).await.len(), 1, "it is left alone");
}

/// Regression 14: the controller is killed while the Job runs; the next one goes on with the same Job.
#[tokio::test]
async fn r14_a_controller_that_was_killed_goes_on_with_its_job() {
    let mut env = env("job-killed", fate("sim/job-delay", "3s"), json!({})).await;
    env.patch("web", objects::set_image("v2")).await;
    let before = a_job(&env).await;
    env.kill().await;
    env.start().await;
    assert_eq!(result(&env).await, is("Succeeded", "Complete"));
    env.ended("web", "Succeeded").await;
    let after = jobs(&env).await;
    assert_eq!(after.len(), 1);
    assert_eq!(after[0]["metadata"]["uid"], before["metadata"]["uid"]);
}

/// A newer template cancels: the Job goes, in one process and when another one had made it.
#[tokio::test]
async fn a_superseded_run_takes_its_job_away() {
    for killed in [false, true] {
        let mut env =
            env(if killed { "job-super-k" } else { "job-super" }, fate("sim/job-delay", "600s"), json!({})).await;
        env.patch("web", objects::set_image("v2")).await;
        let first = a_job(&env).await["metadata"]["uid"].clone();
        if killed {
            env.kill().await;
        }
        env.patch("web", objects::set_image("v1")).await;
        if killed {
            env.start().await;
        }
        env.until("the Job is gone", 30, || async { jobs(&env).await.iter().all(|j| j["metadata"]["uid"] != first) })
            .await;
        env.all_well("web").await;
    }
}

/// Every other kind that asks the API server for something, with the rights that are shipped.
#[tokio::test]
async fn pre_pull_wait_for_and_patch_with_the_shipped_rights() {
    let mut env = Env::new("kinds").await;
    let kinds = ["Deployment", "StatefulSet", "DaemonSet", "Job", "Pod", "Service", "EndpointSlice", "ConfigMap"];
    let mut hooks: Vec<Value> = kinds
        .iter()
        .map(|kind| {
            let wait = json!({"kind": kind, "name": "awaited", "expression": "object.kind == 'ConfigMap'"});
            json!({"name": format!("wait-{}", kind.to_lowercase()), "phase": "PreUpdate", "timeoutSeconds": 2, "retries": 0, "failure": "Continue", "waitFor": wait})
        })
        .collect();
    let patch = json!({"labels": {"hooked": "yes"}, "annotations": {"note": "x"}, "undoOnRevert": true});
    hooks.push(json!({"name": "mark", "phase": "PreUpdate", "patch": patch}));
    hooks.push(json!({"name": "pull", "phase": "PreUpdate", "timeoutSeconds": 60, "prePull": {"maxConcurrent": 1}}));
    let mut policy = objects::policy("p", "http://unused.test");
    policy["spec"]["hooks"] = json!(hooks);
    env.policy(policy).await;
    env.apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "awaited"}, "data": {}})).await;
    env.start().await;
    env.create(objects::deployment("web", 2)).await;
    env.complete("web").await;
    env.patch("web", objects::set_image("v2")).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    let steps = env.run("web").await["status"]["steps"].clone();
    let of = |name: &str| steps.as_array().unwrap().iter().find(|s| s["hook"] == name).unwrap()["reason"].clone();
    assert_eq!(
        (of("wait-configmap"), of("mark"), of("pull")),
        (json!("Reached"), json!("Patched"), json!("Pulled")),
        "{steps}"
    );
    for kind in kinds.iter().filter(|kind| **kind != "ConfigMap") {
        assert_eq!(of(&format!("wait-{}", kind.to_lowercase())), "Timeout");
    }
    assert_eq!(env.get("web").await["metadata"]["labels"]["hooked"], "yes");
    assert!(env.gate.count("POST pods") >= 1);
    assert_eq!(env.gate.count("POST pods"), env.gate.count("DELETE pods"));
}

/// Regression 18: what is left goes with its run, and a run with its Deployment.
#[tokio::test]
async fn r18_jobs_go_with_their_run() {
    let env = env("job-owned", json!({}), json!({})).await;
    env.patch("web", objects::set_image("v2")).await;
    env.ended("web", "Succeeded").await;
    assert_eq!(jobs(&env).await.len(), 1);
    env.deployments().delete("web", &DeleteParams::background()).await.unwrap();
    no_jobs(&env).await;
}
