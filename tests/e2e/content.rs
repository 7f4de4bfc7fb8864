//! Bad content: refused, or a condition with path and cure; nothing panics, neighbours are unaffected.

use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{Env, objects};

async fn annotate(env: &Env, name: &str, key: &str, value: Value) -> Result<(), kube::Error> {
    let patch = json!({"metadata": {"annotations": {key: value}}});
    env.deployments().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map(|_| ())
}

/// argoproj/argo-workflows CVE-2026-40886: a malformed annotation crash-loops the controller.
#[tokio::test]
async fn annotations_that_do_not_parse_hold_say_why_and_recover() {
    let mut env = Env::new("content").await;
    env.start().await;
    let bad: Vec<(&str, String)> = vec![
        ("syntax", "[{name: x".into()),
        ("type", "hooks: 7".into()),
        ("unknown", "- {name: a, phase: PreUpdate, wait: {seconds: 1}, colour: red}".into()),
        ("empty", String::new()),
        ("absurd", "- {name: a, phase: PreUpdate, wait: {seconds: 99999999999999999999}}".into()),
        ("negative", "- {name: a, phase: PreUpdate, wait: {seconds: -1}}".into()),
        ("none", "- {name: a, phase: PreUpdate}".into()),
        ("nul", "- {name: \"a\\0b\", phase: PreUpdate, wait: {seconds: 1}}".into()),
        ("large", "x".repeat(200 * 1024)),
        ("phase", "- {name: a, phase: Sometime, wait: {seconds: 1}}".into()),
    ];
    env.create(objects::deployment("neighbour", 1)).await;
    for (name, text) in &bad {
        env.create(objects::deployment(name, 1)).await;
        annotate(&env, name, "interlock.dev/hooks", json!(text)).await.unwrap();
        env.patch(name, objects::set_image("v2")).await;
    }
    for (name, _) in &bad {
        if *name == "empty" {
            continue; // an empty list is no hook at all
        }
        env.until(&format!("{name}: held, with the reason"), 20, || async {
            let d = env.get(name).await;
            d["spec"]["paused"] == true && d["status"]["conditions"].to_string().contains("AnnotationInvalid")
        })
        .await;
        let message = env.get(name).await["status"]["conditions"].to_string();
        assert!(message.contains("interlock.dev/hooks"), "{name}: names the annotation: {message}");
        assert!(env.runs(name).await.is_empty());
    }
    // A neighbour is not affected, and a correction is enough.
    annotate(&env, "neighbour", "interlock.dev/hooks", json!("- {name: w, phase: PreUpdate, wait: {seconds: 0}}"))
        .await
        .unwrap();
    env.patch("neighbour", objects::set_image("v2")).await;
    env.ended("neighbour", "Succeeded").await;
    for (name, _) in &bad {
        annotate(&env, name, "interlock.dev/hooks", json!("- {name: w, phase: PreUpdate, wait: {seconds: 0}}"))
            .await
            .unwrap();
        env.ended(name, "Succeeded").await;
        env.all_well(name).await;
    }
}

/// fluxcd: circular dependencies that are never reported.
#[tokio::test]
async fn a_deployment_after_itself_and_cycles_are_named_and_only_members_stay_held() {
    let mut env = Env::new("cycle").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["order"] = json!([
        {"name": "a", "after": ["b"]}, {"name": "b", "after": ["c"]}, {"name": "c", "after": ["a"]}, {"name": "free"},
    ]);
    env.policy(policy).await;
    env.start().await;
    for name in ["a", "b", "c"] {
        let deployment = serde_json::from_value(objects::deployment(name, 1)).unwrap();
        env.deployments().create(&PostParams::default(), &deployment).await.unwrap();
    }
    env.create(objects::deployment("free", 1)).await;
    env.patch("free", objects::set_image("v2")).await;
    env.ended("free", "Succeeded").await;
    for name in ["a", "b", "c"] {
        env.until("held, with the path", 20, || async {
            let conditions = env.get(name).await["status"]["conditions"].to_string();
            conditions.contains("OrderCycle") && conditions.contains("a -> b -> c -> a")
        })
        .await;
    }
    env.until("the policy says it too", 20, || async {
        let policy = serde_json::to_value(env.policies().get("p").await.unwrap()).unwrap();
        policy["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|c| c["type"] == "Ready" && c["status"] == "False" && c["reason"] == "OrderCycle")
    })
    .await;
    let mut own = objects::deployment("own", 1);
    own["metadata"]["annotations"] = json!({"interlock.dev/after": "own"});
    env.deployments().create(&PostParams::default(), &serde_json::from_value(own).unwrap()).await.unwrap();
    env.until("after itself", 20, || async {
        env.get("own").await["status"]["conditions"].to_string().contains("OrderCycle")
    })
    .await;
    let fix = json!({"spec": {"order": [{"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["b"]}, {"name": "free"}]}});
    env.policies().patch("p", &PatchParams::default(), &Patch::Merge(&fix)).await.unwrap();
    for name in ["a", "b", "c"] {
        env.complete(name).await;
    }
}

#[tokio::test]
async fn policies_with_bad_content_are_refused_with_the_path() {
    let env = Env::new("badpolicy").await;
    let cases = [
        ("unknown field", json!({"selektor": {}}), "selektor"),
        ("wrong type", json!({"historyLimit": "many"}), "historyLimit"),
        ("absurd number", json!({"update": {"partition": 1_000_000_000_000_i64}}), "partition"),
        ("negative", json!({"settleSeconds": -1}), "settleSeconds"),
        ("percentage", json!({"update": {"maxUnavailable": "250%"}}), "maxUnavailable"),
        ("empty selector", json!({"selector": {}}), "selector"),
        ("field selector", json!({"selector": {"fieldSelector": "spec.replicas=1"}}), "fieldSelector"),
        (
            "two kinds",
            json!({"hooks": [{"name": "a", "phase": "PreUpdate", "wait": {"seconds": 1}, "http": {"url": "http://x.test/"}}]}),
            "exactly one",
        ),
        ("no kind", json!({"hooks": [{"name": "a", "phase": "PreUpdate"}]}), "exactly one"),
        ("url", json!({"hooks": [{"name": "a", "phase": "PreUpdate", "http": {"url": "ftp://x.test/"}}]}), "url"),
        (
            "twice",
            json!({"hooks": [{"name": "a", "phase": "PreUpdate", "wait": {"seconds": 1}}, {"name": "a", "phase": "PreUpdate", "wait": {"seconds": 1}}]}),
            "duplicate entries",
        ),
        ("name", json!({"hooks": [{"name": "a\u{0}", "phase": "PreUpdate", "wait": {"seconds": 1}}]}), "name"),
    ];
    for (what, spec, names) in cases {
        let policy = json!({"apiVersion": "interlock.dev/v1alpha1", "kind": "HookPolicy", "metadata": {"name": "bad"}, "spec": spec});
        let policy: kube::core::DynamicObject = serde_json::from_value(policy).unwrap();
        let mut params = PatchParams::apply("e2e").force();
        params.field_validation = Some(kube::api::ValidationDirective::Strict);
        let refused = env.policies().patch("bad", &params, &Patch::Apply(&policy)).await;
        let message = refused.expect_err(what).to_string();
        assert!(message.contains(names), "{what}: {message}");
    }
}

/// What is taken away from the Deployment does not count any more, although its ReplicaSet shows it for ever.
#[tokio::test]
async fn an_annotation_that_is_removed_does_not_come_back_from_the_replica_set() {
    let mut env = Env::new("removed").await;
    env.start().await;
    env.create(objects::deployment("web", 1)).await;
    env.create(objects::deployment("first", 1)).await;
    annotate(&env, "web", "interlock.dev/after", json!("first")).await.unwrap();
    annotate(&env, "web", "interlock.dev/hooks", json!("- {name: w, phase: PreUpdate, wait: {seconds: 0}}"))
        .await
        .unwrap();
    env.patch("web", objects::set_image("v2")).await;
    env.ended("web", "Succeeded").await;
    annotate(&env, "web", "interlock.dev/after", json!(null)).await.unwrap();
    env.patch("web", objects::set_image("v3")).await;
    env.until("a second run", 20, || async { env.runs("web").await.len() == 2 }).await;
    assert!(
        env.run("web").await["spec"]["settings"]["after"].is_null(),
        "{}",
        env.run("web").await["spec"]["settings"]
    );
    env.ended("web", "Succeeded").await;
    annotate(&env, "web", "interlock.dev/hooks", json!(null)).await.unwrap();
    annotate(&env, "web", "interlock.dev/after", json!("first")).await.unwrap();
    env.patch("web", objects::set_image("v4")).await;
    env.until("a third run", 20, || async { env.runs("web").await.len() == 3 }).await;
    assert!(
        env.run("web").await["spec"]["settings"]["hooks"].is_null(),
        "{}",
        env.run("web").await["spec"]["settings"]
    );
    env.ended("web", "Succeeded").await;
}
