//! `wait` and `tree` as processes: exit codes are a contract.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::harness::{Env, deployment};

/// A Deployment without any controller of ours and with this image.
async fn create(env: &Env, name: &str, replicas: i64, image: &str) {
    let mut object = deployment(name, replicas);
    object["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    env.deployments().create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

async fn pods(env: &Env, name: &str, count: usize) {
    let api: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::namespaced(env.client.clone(), &env.namespace);
    env.until("its pods are there", 30, || async {
        let params = kube::api::ListParams::default().labels(&format!("app={name}"));
        api.list(&params).await.unwrap().items.len() == count
    })
    .await;
}

#[tokio::test]
async fn wait_ends_with_0_when_all_is_settled_started_or_gone() {
    let env = Env::new("wait-ok").await;
    create(&env, "web", 3, "r.test/img:v1").await;
    let started = env.plugin(&["wait", "deploy/web", "--for=started", "--timeout", "60s"]).await;
    assert_eq!((started.code, started.out.as_str()), (Some(0), "deployment/web started\n"), "{started:?}");
    let settled = env.plugin(&["wait", "web", "pods/app=web", "--timeout", "60s", "--settle", "1s"]).await;
    assert_eq!(settled.out, "deployment/web settled\npods/app=web settled\n", "{settled:?}");
    let selected = env.plugin(&["wait", "deploy", "-l", "app.kubernetes.io/none=x", "--timeout", "1s"]).await;
    assert_eq!(selected.code, Some(4), "{selected:?}");
    // None is wanted: settled at once.
    create(&env, "none", 0, "r.test/img:bad-pull1").await;
    assert_eq!(env.plugin(&["wait", "deploy/none", "--timeout", "30s"]).await.code, Some(0));
    env.deployments().delete("web", &DeleteParams::background()).await.unwrap();
    let gone = env.plugin(&["wait", "deploy/web", "pods/app=web", "--for=gone", "--timeout", "60s"]).await;
    assert_eq!(gone.out, "deployment/web gone\npods/app=web gone\n", "{gone:?}");
    let absent = env.plugin(&["wait", "deploy/web", "--timeout", "30s"]).await;
    assert_eq!(absent.code, Some(4), "{absent:?}");
    assert!(absent.err.contains("deployment/web does not exist in namespace"), "{absent:?}");
    for other in ["sts/x", "ds/x", "job/x"] {
        assert_eq!(env.plugin(&["wait", other, "--timeout", "30s"]).await.code, Some(4), "{other}");
    }
    assert_eq!(env.plugin(&["wait", "service/x"]).await.code, Some(2));
}

/// opencurve/curve-operator (regression 25): one ready pod of many is accepted. argo-cd#5585 (regression 26): a stale "healthy".
#[tokio::test]
async fn regression_25_26_wait_sees_what_loops_miss_and_says_why_a_pod_cannot_start() {
    let env = Env::new("wait-bad").await;
    // One pod of three is ready: the new ones never are.
    create(&env, "some", 3, "r.test/img:v1").await;
    assert_eq!(env.plugin(&["wait", "some", "--timeout", "60s"]).await.code, Some(0));
    env.set_image("some", "r.test/img:bad-ready1", false).await;
    // Right after the change the status still is that of before.
    let some = env.plugin(&["wait", "some", "--timeout", "3s"]).await;
    assert_eq!(some.code, Some(3), "{some:?}");
    assert!(some.err.contains("timed out after 3s: deployment/some: "), "{some:?}");
    // A container that says why it does not start ends the wait long before its time is over.
    for (name, image, said) in
        [("crash", "r.test/img:bad-crash1", "crashed "), ("pull", "r.test/img:bad-pull1", "ImagePullBackOff")]
    {
        create(&env, name, 2, image).await;
        let failed = env.plugin(&["wait", &format!("deploy/{name}"), "--timeout", "30m"]).await;
        assert_eq!(failed.code, Some(1), "{failed:?}");
        let pull = said == "ImagePullBackOff" && failed.err.contains("ErrImagePull");
        assert!(failed.err.contains("has a pod that fails") && (failed.err.contains(said) || pull), "{failed:?}");
    }
    // A Deployment that is on its way out will not settle.
    let keep = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let params = PatchParams::default();
    env.deployments().patch("some", &params, &keep(json!(["test.example/keep"]))).await.unwrap();
    env.deployments().delete("some", &DeleteParams::background()).await.unwrap();
    let deleting = env.plugin(&["wait", "some", "--timeout", "30m"]).await;
    assert_eq!(deleting.code, Some(1), "{deleting:?}");
    assert!(deleting.err.contains("deployment/some is being deleted"), "{deleting:?}");
    env.deployments().patch("some", &params, &keep(json!(null))).await.unwrap();
}

/// Without a time it looks once; the interval only repeats what it says.
#[tokio::test]
async fn wait_without_time_looks_once_and_the_interval_repeats_its_line() {
    let env = Env::new("wait-once").await;
    create(&env, "web", 1, "r.test/img:bad-ready1").await;
    pods(&env, "web", 1).await;
    let once = env.plugin(&["wait", "web", "--timeout", "0"]).await;
    assert_eq!(once.code, Some(3), "{once:?}");
    assert!(once.err.contains("deployment/web: 0 of 1 updated pods are available"), "{once:?}");
    let lines = |ended: &super::harness::Ended| ended.err.lines().filter(|l| l.starts_with("Waiting for")).count();
    let quiet = env.plugin(&["wait", "web", "--timeout", "3s"]).await;
    let loud = env.plugin(&["wait", "web", "--timeout", "3s", "--interval", "1s"]).await;
    assert!(lines(&quiet) == 1 && lines(&loud) > 1, "{quiet:?} {loud:?}");
}

#[tokio::test]
async fn wait_for_other_kinds_follows_the_rule_of_each() {
    let env = Env::new("wait-kinds").await;
    let template = |app: &str, image: &str| {
        let mut template = deployment(app, 1)["spec"]["template"].clone();
        template["metadata"]["labels"] = json!({"app": app});
        template["spec"]["containers"][0]["image"] = json!(image);
        template
    };
    let set = |kind: &str, name: &str| {
        let mut spec = json!({"selector": {"matchLabels": {"app": name}}, "template": template(name, "r.test/img:v1")});
        if kind == "StatefulSet" {
            spec["serviceName"] = json!(name);
            spec["replicas"] = json!(2);
        }
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": env.namespace}, "spec": spec})
    };
    let job = |name: &str, annotations: Value| {
        let mut template = template(name, "r.test/img:v1");
        template["metadata"]["annotations"] = annotations;
        template["spec"]["restartPolicy"] = json!("Never");
        template["spec"]["containers"][0].as_object_mut().unwrap().remove("readinessProbe");
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": env.namespace},
            "spec": {"backoffLimit": 0, "template": template}})
    };
    for object in [
        set("StatefulSet", "db"),
        set("DaemonSet", "agent"),
        job("migrate", json!({})),
        job("broken", json!({"sim/job": "fail"})),
    ] {
        apiserver::stage::apply(&env.client, &object).await;
    }
    let all = env
        .plugin(&["wait", "sts/db", "ds/agent", "job/migrate", "pods/owner=statefulset/db", "--timeout", "120s"])
        .await;
    assert_eq!(all.code, Some(0), "{all:?}");
    let failed = env.plugin(&["wait", "job/broken", "--timeout", "30m"]).await;
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.err.contains("job/broken has failed: "), "{failed:?}");
}

#[tokio::test]
async fn tree_draws_the_order_with_its_states_and_who_is_blocked_by_whom() {
    let env = Env::new("tree").await;
    let empty = env.plugin(&["tree"]).await;
    assert!(empty.out.starts_with("No component in namespace"), "{empty:?}");
    create(&env, "etcd", 1, "r.test/img:v1").await;
    assert_eq!(env.plugin(&["wait", "etcd", "--timeout", "60s"]).await.code, Some(0));
    for (name, after) in [("mds", "etcd, statefulset/meta"), ("chunkserver", "mds")] {
        let mut object = deployment(name, 1);
        object["metadata"]["annotations"] = json!({"interlock.dev/after": after});
        env.deployments().create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }
    let mut controller = env.controller(&["--leader-elect=false"]).await;
    controller.ready().await;
    env.until("both wait", 30, || async {
        let tree = env.plugin(&["tree", "-o", "json"]).await;
        let tree: Value = serde_json::from_str(&tree.out).unwrap();
        let nodes = tree["nodes"].as_array().unwrap().clone();
        let of = |name: &str| nodes.iter().find(|n| n["name"] == name).cloned().unwrap_or_default();
        of("mds")["blockedBy"] == json!(["statefulset/meta"])
            && of("chunkserver")["blockedBy"] == json!(["mds"])
            && of("etcd")["state"] == "Settled"
            && of("statefulset/meta")["state"] == "Missing"
    })
    .await;
    let drawn = env.plugin(&["tree"]).await;
    assert!(drawn.out.contains("└─ mds") && drawn.out.contains("blocked by statefulset/meta: "), "{drawn:?}");
    controller.terminate().await;
}
