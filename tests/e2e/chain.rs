//! The main job: components in a chain, started in order, updated in order and in place.

use std::{collections::BTreeSet, time::Duration};

use kube::api::PostParams;
use serde_json::json;
use tokio::time::Instant;

use crate::harness::{Env, objects, stage::revision};

const APPS: [&str; 3] = ["one", "two", "three"];

fn chain_policy(url: &str) -> serde_json::Value {
    let mut policy = objects::policy("chain", url);
    policy["spec"]["order"] =
        json!([{"name": "one"}, {"name": "two", "after": ["one"]}, {"name": "three", "after": ["two"]}]);
    policy["spec"]["settleSeconds"] = json!(1);
    policy
}

/// When so many pods of the app were ready with this image for the first time.
fn ready_at(env: &Env, app: &str, image: &str, pods: usize) -> Instant {
    let mut ready = BTreeSet::new();
    for s in env.observer.all().into_iter().filter(|s| s.app == app && s.image == image && s.ready) {
        ready.insert(s.uid);
        if ready.len() == pods {
            return s.at;
        }
    }
    panic!("{app} was never ready with {image}");
}

/// falco-operator#356: a timestamp in a status that triggers the next reconcile for ever (30 s without a write at the end).
#[tokio::test]
async fn three_deployments_of_four_start_and_update_in_order_and_in_place() {
    let mut env = Env::new("chain").await;
    env.policy(chain_policy(&env.receiver.url)).await;
    env.start().await;
    let v1 = objects::image("v1");

    // All at once, in reverse order: each starts only after the one before it.
    for app in APPS.iter().rev() {
        let deployment = serde_json::from_value(objects::deployment(app, 4)).unwrap();
        env.deployments().create(&PostParams::default(), &deployment).await.unwrap();
    }
    for app in APPS {
        env.all_well(app).await;
    }
    for pair in APPS.windows(2) {
        let (before, after) = (ready_at(&env, pair[0], &v1, 4), env.observer.first_seen(pair[1], &v1).unwrap().at);
        assert!(before < after, "{} started before {} was ready", pair[1], pair[0]);
    }
    assert!(env.receiver.calls().is_empty(), "no hooks at birth");

    // A new image for all of them, forwards through the chain, in place.
    let audit_mark = env.cluster.audit_mark().await.unwrap();
    let mark = env.observer.mark();
    let mut uids = Vec::new();
    for app in APPS {
        uids.push(env.uids(app).await);
    }
    for app in APPS {
        env.patch(app, objects::set_image("v2")).await;
    }
    for app in APPS {
        env.ended(app, "Succeeded").await;
        env.all_well(app).await;
    }
    let v2 = objects::image("v2");
    for (app, before) in APPS.iter().zip(&uids) {
        let (born, gone) = env.observer.born_and_gone(app, mark);
        assert_eq!((born.len(), gone.len()), (0, 0), "{app}: pods were created or deleted");
        assert_eq!(&env.uids(app).await, before, "{app}: other pods");
        assert!(env.observer.fewest_ready(app, mark) >= 3, "{app}: fewer ready pods than replicas - maxUnavailable");
    }
    for pair in APPS.windows(2) {
        let (before, after) = (ready_at(&env, pair[0], &v2, 4), env.observer.first_seen(pair[1], &v2).unwrap().at);
        assert!(before < after, "{} was updated before {} was done", pair[1], pair[0]);
    }
    for app in APPS {
        env.assert_hooks_first(app, &["v1"]);
    }
    // Hook calls exactly as configured: one before and one after, for each.
    let calls = env.receiver.calls();
    for app in APPS {
        let of = |path: &str| calls.iter().filter(|c| c.path == path && c.text("deployment") == app).count();
        assert_eq!((of("/before"), of("/after")), (1, 1), "{app}: {calls:#?}");
    }
    let keys: BTreeSet<&str> = calls.iter().map(|c| c.key.as_str()).collect();
    assert_eq!(keys.len(), calls.len(), "every call has a key of its own");

    // One write per pod, by the audit log, and none refused; what is beside does not grow with pods.
    let agent = format!("interlock/e2e-{}", env.namespace);
    env.cluster.audit_mark().await.unwrap();
    let mut writes = env.cluster.audit().unwrap().writes_since(audit_mark).unwrap();
    writes.retain(|e| e.user_agent == agent && e.resource != "leases");
    let pods: Vec<_> = writes.iter().filter(|e| e.resource == "pods").collect();
    assert_eq!(pods.len(), 12, "{pods:#?}");
    // A release may lose the race against the Deployment controller's own status and be planned again; nothing else is.
    let lost = |e: &devcluster::Event| e.resource == "deployments" && e.code == 409;
    let refused: Vec<_> = writes.iter().filter(|e| !e.is_success() && !lost(e)).collect();
    assert!(refused.is_empty(), "{refused:#?}");

    // kubectl's own commands work.
    let kubectl = |args: &'static [&'static str]| {
        let (bin, config) =
            (env.cluster.bin(devcluster::Binary::Kubectl).unwrap(), env.cluster.kubeconfig_path().to_owned());
        let namespace = env.namespace.clone();
        async move {
            let out = tokio::process::Command::new(bin)
                .args(["-n", &namespace])
                .args(args)
                .env("KUBECONFIG", config)
                .output()
                .await
                .unwrap();
            (
                out.status.success(),
                String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr),
            )
        }
    };
    let (ok, text) = kubectl(&["rollout", "status", "deploy/one", "--timeout=5s"]).await;
    assert!(ok && text.contains("successfully rolled out"), "{text}");
    let (ok, text) = kubectl(&["rollout", "history", "deploy/one"]).await;
    assert!(ok && text.lines().filter(|l| l.starts_with(char::is_numeric)).count() == 2, "{text}");
    let runs = env.runs("one").await.len();
    let (ok, text) = kubectl(&["rollout", "undo", "deploy/one"]).await;
    assert!(ok && text.contains("interlock holds deployment one"), "the warning is missing: {text}");
    env.until("the undo has a run", 20, || async { env.runs("one").await.len() > runs }).await;
    env.ended("one", "Succeeded").await;
    env.all_well("one").await;
    assert_eq!(env.uids("one").await, uids[0], "the undo goes back in place");
    assert!(env.pods("one").await.iter().all(|p| p["spec"]["containers"][0]["image"] == v1));
    let sets = env.sets("one").await;
    assert_eq!(sets.iter().map(revision).collect::<BTreeSet<_>>().len(), sets.len(), "revisions are unique");

    // At rest nothing is written: the audit log of half a minute.
    env.until("the policy says that nothing is in progress", 20, || async {
        let policy = serde_json::to_value(env.policies().get("chain").await.unwrap()).unwrap();
        let conditions = policy["status"]["conditions"].clone();
        conditions.as_array().into_iter().flatten().any(|c| c["type"] == "Progressing" && c["status"] == "False")
    })
    .await;
    let mark = env.cluster.audit_mark().await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await; // the acceptance is about time itself
    let writes: Vec<_> = env
        .cluster
        .audit()
        .unwrap()
        .writes_since(mark)
        .unwrap()
        .into_iter()
        .filter(|e| e.user_agent == agent && e.resource != "leases")
        .collect();
    assert!(writes.is_empty(), "writes at rest: {writes:#?}");
}
