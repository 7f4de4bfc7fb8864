//! What a component can wait for beside Deployments, and what else its gate can be told.

use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{Env, objects};

fn policy(after: &[&str], more: Value) -> Value {
    let mut spec = json!({"order": [{"name": "web", "after": after}], "settleSeconds": 1});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"apiVersion": "interlock.dev/v1alpha1", "kind": "HookPolicy", "metadata": {"name": "order"}, "spec": spec})
}

/// A pod template of an app; its pods become ready only with image `v*`.
fn template(app: &str, version: &str) -> Value {
    let mut template = objects::deployment(app, 1)["spec"]["template"].clone();
    template["spec"]["containers"][0]["image"] = json!(objects::image(version));
    template
}

fn workload(kind: &str, name: &str, version: &str) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": name}}, "template": template(name, version)});
    if kind == "StatefulSet" {
        spec["serviceName"] = json!(name);
        spec["replicas"] = json!(2);
        spec["podManagementPolicy"] = json!("Parallel");
    }
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn job(name: &str) -> Value {
    let mut template = template(name, "v1");
    template["spec"]["restartPolicy"] = json!("Never");
    template["spec"]["containers"][0].as_object_mut().unwrap().remove("readinessProbe");
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template}})
}

async fn waits(env: &Env, said: &str) {
    env.until(&format!("web waits, and says: {said}"), 20, || async {
        let run = env.run("web").await;
        run["status"]["waitingFor"]["what"].as_str().is_some_and(|what| what.contains(said))
    })
    .await;
    assert!(env.pods("web").await.is_empty());
}

async fn ordered(name: &str, after: &[&str], more: Value) -> Env {
    let mut env = Env::new(name).await;
    env.policy(policy(after, more)).await;
    env.start().await;
    let web = serde_json::from_value(objects::deployment("web", 1)).unwrap();
    env.deployments().create(&PostParams::default(), &web).await.unwrap();
    env
}

async fn set_version(env: &Env, object: &Value, version: &str) {
    let mut object = object.clone();
    object["spec"]["template"]["spec"]["containers"][0]["image"] = json!(objects::image(version));
    env.apply(object).await;
}

#[tokio::test]
async fn every_kind_is_waited_for_by_its_own_rule() {
    let after = ["statefulset/db", "daemonset/agent", "job/migrate", "pods/app=cache", "pods/owner=statefulset/db"];
    let env = ordered("order-kinds", &after, json!({})).await;
    waits(&env, "statefulset/db does not exist").await;
    for said in ["daemonset/agent does not exist", "job/migrate does not exist", "pods/app=cache has no pods"] {
        waits(&env, said).await;
    }
    waits(&env, "pods/owner=statefulset/db has no pods").await;
    let (db, agent) = (workload("StatefulSet", "db", "bad-ready1"), workload("DaemonSet", "agent", "bad-ready1"));
    env.apply(db.clone()).await;
    env.apply(agent.clone()).await;
    waits(&env, "statefulset/db has 0 of 2 pods ready").await;
    waits(&env, "pods/owner=statefulset/db has 0 of 2 pods ready").await;
    waits(&env, "daemonset/agent has 0 of ").await;
    set_version(&env, &agent, "v1").await;
    // A StatefulSet does not replace pods that never were ready: the known way out is to delete them.
    set_version(&env, &db, "v1").await;
    env.pods_api().delete_collection(&DeleteParams::default(), &ListParams::default().labels("app=db")).await.unwrap();
    env.apply(job("migrate")).await;
    env.until("only pods/app=cache is left", 60, || async {
        let run = env.run("web").await;
        run["status"]["waitingFor"]["what"] == "waiting for predecessors: pods/app=cache has no pods"
    })
    .await;
    let mut cache = objects::deployment("cache", 2);
    cache["metadata"]["labels"] = json!({});
    env.create(cache).await;
    env.all_well("web").await;
}

/// kubernetes/kubectl#1628 (regression 30): "done" while old pods still terminate. kubernetes-sigs/jobset#1021 (regression 29):
/// terminating pods counted as current; without the option they hold nobody up.
#[tokio::test]
async fn regression_29_30_old_pods_that_terminate_are_waited_for_if_asked() {
    for (name, old_pods) in [("order-old-wait", "Wait"), ("order-old-ignore", "Ignore")] {
        let mut env = Env::new(name).await;
        env.policy(policy(&["etcd"], json!({"oldPods": old_pods}))).await;
        env.start().await;
        env.create(objects::deployment("etcd", 1)).await;
        let old = env.pods("etcd").await[0]["metadata"]["name"].as_str().unwrap().to_owned();
        let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::namespaced(env.admin.clone(), &env.namespace);
        let keep = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        pods.patch(&old, &PatchParams::default(), &keep(json!(["test.example/keep"]))).await.unwrap();
        env.patch("etcd", objects::set_env("e1")).await;
        env.until("the old pod terminates and the new one serves", 40, || async {
            let deleting = pods.get(&old).await.unwrap().metadata.deletion_timestamp.is_some();
            deleting && env.is_complete("etcd").await
        })
        .await;
        let web = serde_json::from_value(objects::deployment("web", 1)).unwrap();
        env.deployments().create(&PostParams::default(), &web).await.unwrap();
        if old_pods == "Wait" {
            waits(&env, "etcd has 1 pods that are still terminating").await;
        } else {
            env.all_well("web").await;
        }
        pods.patch(&old, &PatchParams::default(), &keep(json!(null))).await.unwrap();
        env.all_well("web").await;
    }
}

/// fluxcd, documentation (regression 27): circular dependencies are never reported. Here no single object shows the circle.
#[tokio::test]
async fn regression_27_a_circle_through_annotations_is_reported_with_its_path_and_ends() {
    let mut env = Env::new("order-circle").await;
    env.start().await;
    for (name, after) in [("a", "b"), ("b", "deployment/c"), ("c", "a")] {
        let mut deployment = objects::deployment(name, 1);
        deployment["metadata"]["annotations"] = json!({"interlock.dev/after": after});
        let deployment = serde_json::from_value(deployment).unwrap();
        env.deployments().create(&PostParams::default(), &deployment).await.unwrap();
    }
    env.until("the circle is named with its path", 30, || async {
        let c = env.get("c").await;
        let conditions = c["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| {
            c["reason"] == "OrderCycle"
                && c["message"].as_str().is_some_and(|m| m.contains("c -> a -> b -> c wait for each other"))
        })
    })
    .await;
    env.patch("b", json!({"metadata": {"annotations": {"interlock.dev/after": ""}}})).await;
    for name in ["a", "b", "c"] {
        env.all_well(name).await;
    }
}

#[tokio::test]
async fn a_gate_that_takes_too_long_stalls_and_goes_on_when_its_predecessor_comes_after_all() {
    let env = ordered("order-timeout", &["etcd"], json!({"gateTimeoutSeconds": 2})).await;
    env.until("the gate has taken too long", 30, || async {
        env.run("web").await["status"]["stall"]["reason"] == "GateTimeout"
    })
    .await;
    assert!(env.pods("web").await.is_empty());
    env.create(objects::deployment("etcd", 1)).await;
    env.all_well("web").await;
}
