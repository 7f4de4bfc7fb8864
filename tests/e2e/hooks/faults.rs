//! Faults of tools of this kind, by their numbers, on the real control plane: those that no other test here has.

use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

use super::acts::jobs;
use crate::harness::{Env, Moment, objects};

fn job(name: &str) -> Value {
    json!({"name": name, "phase": "PreUpdate", "job": {
        "serviceAccountName": "default",
        "template": {"spec": {"containers": [{"name": "c", "image": "r.test/tool:v1"}]}},
    }})
}

/// keptn#2161: a reference to something that is not there leaves pods pending. Here nothing has begun, the run says which
/// hook and why, and goes on once it is there.
#[tokio::test]
async fn r5_a_secret_that_is_not_there_is_told_and_blocks_no_longer_than_it_lacks() {
    let mut env = Env::new("r5").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["hooks"] = json!([{
        "name": "call", "phase": "PreUpdate", "retries": 0,
        "http": {"url": format!("{}/call", env.receiver.url), "hmac": {"name": "absent", "key": "k"}},
    }]);
    env.policy(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 1)).await;
    env.patch("web", objects::set_image("v2")).await;
    env.until("it stalls", 60, || async { env.run("web").await["status"]["stall"]["reason"] == "HookFailed" }).await;
    let run = env.run("web").await;
    let said = run["status"]["stall"]["message"].as_str().unwrap();
    assert!(said.contains("hook call") && said.contains("SecretMissing"), "{said}");
    assert_eq!(env.gate.count("PATCH pods"), 0, "nothing was touched");
    assert!(env.receiver.calls().is_empty());
    env.apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "absent"}, "stringData": {"k": "x"}}))
        .await;
    env.decide("web", "Retry", None).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}

/// keptn#3921: a restarted operator runs every finished task again, its Jobs having been deleted. keptn#3920: a failed task and
/// yet it goes on.
#[tokio::test]
async fn r9_r11_what_is_done_stays_done_when_its_job_is_deleted_and_the_controller_is_killed() {
    let mut env = Env::new("r9").await;
    let http = json!({"name": "call", "phase": "PreUpdate", "http": {"url": format!("{}/call", env.receiver.url)}});
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["hooks"] = json!([job("migrate"), http]);
    env.policy(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 2)).await;
    let mut stops = env.gate.stop_at(Moment::Before, "PATCH pods", 2);
    env.patch("web", objects::set_image("v2")).await;
    let stopped = stops.recv().await.unwrap();
    let api: Api<k8s_openapi::api::batch::v1::Job> = Api::namespaced(env.admin.clone(), &env.namespace);
    for job in jobs(&env).await {
        api.delete(job["metadata"]["name"].as_str().unwrap(), &DeleteParams::background()).await.unwrap();
    }
    env.until("the Job is gone", 30, || async { jobs(&env).await.is_empty() }).await;
    env.kill().await;
    drop(stopped);
    env.start().await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    assert_eq!((env.gate.count("POST jobs"), env.receiver.calls().len()), (1, 1));
    assert_eq!(env.run("web").await["status"]["steps"].as_array().unwrap().len(), 2);
}

/// fluxcd/flagger#1563, #634: an autoscaler starts or restarts an update. fluxcd/flagger#963, #1248: a waiting hook restarts
/// the others.
#[tokio::test]
async fn r11_r12_replicas_neither_start_nor_restart_hooks() {
    let env = Env::with_policy("r12").await;
    env.create(objects::deployment("web", 1)).await;
    env.receiver.close();
    env.patch("web", objects::set_image("v2")).await;
    env.receiver.arrived(1).await;
    for replicas in [3, 2] {
        env.scale("web", replicas).await;
    }
    env.until("it is scaled", 60, || async { env.pods("web").await.len() == 2 }).await;
    env.receiver.open();
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    env.scale("web", 3).await;
    env.complete("web").await;
    assert_eq!(env.runs("web").await.len(), 1);
    let paths: Vec<String> = env.receiver.calls().into_iter().map(|call| call.path).collect();
    assert_eq!(paths, ["/before", "/after"]);
}

/// argoproj/argo-rollouts#693: thousands of leftovers.
#[tokio::test]
async fn r18_runs_beyond_the_history_limit_go_and_their_jobs_with_them() {
    let mut env = Env::new("r18").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["historyLimit"] = json!(1);
    policy["spec"]["hooks"] = json!([job("migrate")]);
    env.policy(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 1)).await;
    for version in ["v2", "v3", "v4"] {
        env.patch("web", objects::set_image(version)).await;
        let image = objects::image(version);
        env.until("it is updated", 60, || async {
            let run = env.run("web").await;
            run["status"]["ended"]["outcome"] == "Succeeded"
                && run["spec"]["newTemplate"]["spec"]["containers"][0]["image"] == image
        })
        .await;
    }
    env.until("old runs and their Jobs are gone", 60, || async {
        let runs = env.runs_api().list(&ListParams::default()).await.unwrap().items.len();
        runs <= 2 && jobs(&env).await.len() == runs
    })
    .await;
    env.all_well("web").await;
}

/// Each failure is told under one key, although whoever told it is killed before there is an answer; it decides nothing.
#[tokio::test]
async fn a_failure_is_told_under_one_key_although_the_controller_is_killed_meanwhile() {
    let mut env = Env::new("tell").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["hooks"] = json!([
        // What the Deployment selects its pods by is not for hooks.
        {"name": "wrong", "phase": "PreUpdate", "retries": 0, "patch": {"labels": {"app": "x"}}},
        {"name": "tell", "phase": "OnFailure", "http": {"url": format!("{}/tell", env.receiver.url), "body": "${failure.number} ${failure.reason}"}},
    ]);
    env.policy(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 1)).await;
    env.receiver.close();
    env.patch("web", objects::set_image("v2")).await;
    env.receiver.arrived(1).await;
    env.kill().await;
    env.start().await;
    env.receiver.arrived(2).await;
    env.receiver.open();
    let told = |attempts: usize| {
        let env = &env;
        async move {
            let run = env.run("web").await;
            let steps = run["status"]["steps"].as_array().cloned().unwrap_or_default();
            steps.iter().filter(|s| s["hook"] == "tell" && s["outcome"] == "Succeeded").count() == attempts
        }
    };
    env.until("it is told", 60, || told(1)).await;
    let keys = || env.receiver.calls().into_iter().map(|call| call.key).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(keys().len(), 1, "{:?}", keys());
    env.decide("web", "Retry", None).await;
    env.until("the second failure is told", 60, || told(2)).await;
    assert_eq!((keys().len(), env.receiver.calls().len()), (2, 3), "{:?}", keys());
    assert!(env.held("web").await, "it decides nothing");
    assert_eq!(env.run("web").await["status"]["stall"]["reason"], "HookFailed");
}

/// Whoever may write policies reaches nothing through us that they could not reach: not this cluster's API server, nor a metadata
/// service, under none of their names.
#[tokio::test]
async fn a_user_who_may_write_policies_reaches_no_refused_host_through_us() {
    let mut env = Env::new("author").await;
    let rule = |group: &str, resource: &str, verb: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]});
    let meta = json!({"name": "author"});
    env.apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta,
        "rules": [rule("interlock.dev", "hookpolicies", "*"), rule("apps", "deployments", "patch")]}))
        .await;
    env.apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "author"},
        "subjects": [{"kind": "User", "name": "policy-author", "apiGroup": "rbac.authorization.k8s.io"}]}))
        .await;
    let server = env.cluster.config().await.unwrap().cluster_url;
    let (host, port) = (server.host().unwrap().to_owned(), server.port_u16().unwrap());
    let urls = [
        format!("https://{host}:{port}/api"),
        format!("https://[::ffff:{host}]:{port}/api"),
        "http://169.254.169.254/latest".to_owned(),
        "http://2852039166/latest".to_owned(),
        "http://0251.0376.0251.0376/latest".to_owned(),
        "http://[fe80::1]/".to_owned(),
    ];
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["hooks"] = urls
        .iter()
        .enumerate()
        .map(|(n, url)| json!({"name": format!("h{n}"), "phase": "PreUpdate", "retries": 0, "failure": "Continue", "http": {"url": url}}))
        .collect();
    let author = env.cluster.client_as("policy-author", &[]).await.unwrap();
    let policies: Api<interlock::api::HookPolicy> = Api::namespaced(author, &env.namespace);
    let policy = serde_json::from_value(policy).unwrap();
    env.until("the role is known", 30, || async { policies.list(&ListParams::default()).await.is_ok() }).await;
    policies.create(&kube::api::PostParams::default(), &policy).await.unwrap();
    env.start().await;
    env.create(objects::deployment("web", 1)).await;
    env.until("the policy is in force", 60, || async {
        let policy = serde_json::to_value(policies.get("p").await.unwrap()).unwrap();
        let conditions = policy["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Enforced" && c["status"] == "True")
    })
    .await;
    env.patch("web", objects::set_image("v2")).await;
    env.ended("web", "Succeeded").await;
    let run = env.run("web").await;
    let steps = run["status"]["steps"].as_array().unwrap();
    assert_eq!(steps.len(), urls.len());
    for (step, url) in steps.iter().zip(&urls) {
        assert_eq!((&step["outcome"], &step["reason"]), (&json!("Failed"), &json!("AddressRefused")), "{url}");
    }
}

/// openkruise/kruise#2276: a stale cache skips the drain, and the pod gets traffic while its container is replaced.
#[tokio::test]
async fn r32_when_an_image_is_written_no_endpoint_slice_shows_the_pod_as_ready() {
    let mut env = Env::new("r32").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["hooks"] = json!([]);
    policy["spec"]["update"] = json!({"drain": {"readinessGate": true}});
    env.policy(policy).await;
    env.start().await;
    env.apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}))
        .await;
    let mut deployment = objects::deployment("web", 2);
    deployment["spec"]["template"]["spec"]["readinessGates"] =
        json!([{"conditionType": "interlock.dev/in-place-update-ready"}]);
    env.create(deployment).await;
    let slices: Api<k8s_openapi::api::discovery::v1::EndpointSlice> =
        Api::namespaced(env.admin.clone(), &env.namespace);
    let serving = || async {
        let list = slices.list(&ListParams::default()).await.unwrap();
        let endpoints = list.items.into_iter().flat_map(|slice| slice.endpoints.into_iter().flatten());
        let ready = endpoints.filter(|e| e.conditions.as_ref().and_then(|c| c.ready) == Some(true));
        ready.filter_map(|e| e.target_ref.and_then(|t| t.name)).collect::<Vec<String>>()
    };
    env.until("both pods serve", 60, || async { serving().await.len() == 2 }).await;
    let mut stops: Vec<_> = (1..=2).map(|nth| env.gate.stop_at(Moment::Before, "PATCH pods", nth)).collect();
    // One more slice of the Service, which follows the pods only when somebody says so.
    let endpoints: Vec<Value> = (env.pods("web").await.iter())
        .map(|pod| {
            let target = json!({"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]});
            json!({"addresses": [pod["status"]["podIP"]], "conditions": {"ready": true}, "targetRef": target})
        })
        .collect();
    env.apply(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"name": "late", "labels": {"kubernetes.io/service-name": "web"}}}))
        .await;
    env.patch("web", objects::set_image("v2")).await;
    env.until("a pod is closed, and only the late slice shows it", 60, || async { serving().await.len() == 3 }).await;
    // Whoever does not wait for that slice writes within this time.
    let early = tokio::time::timeout(std::time::Duration::from_secs(2), stops[0].recv()).await;
    assert!(early.is_err(), "the image is written while a slice shows the pod as ready");
    slices.delete("late", &DeleteParams::default()).await.unwrap();
    for stops in &mut stops {
        let stopped = tokio::time::timeout(std::time::Duration::from_secs(150), stops.recv()).await.unwrap().unwrap();
        let old = objects::image("v1");
        let pods = env.pods("web").await;
        let closed: Vec<&Value> = pods
            .iter()
            .filter(|pod| {
                let conditions = pod["status"]["conditions"].as_array().unwrap();
                conditions.iter().any(|c| c["type"] == "interlock.dev/in-place-update-ready" && c["status"] == "False")
            })
            .collect();
        assert_eq!(closed.len(), 1, "one pod is drained at a time");
        assert_eq!(closed[0]["spec"]["containers"][0]["image"], old);
        let name = closed[0]["metadata"]["name"].as_str().unwrap();
        assert!(
            !serving().await.iter().any(|serving| serving == name),
            "it is shown as ready when its image is written"
        );
        stopped.go_on();
    }
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    env.until("both pods serve", 60, || async { serving().await.len() == 2 }).await;
}
