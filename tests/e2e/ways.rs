//! Which way an update goes, and what bounds it.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::harness::{Env, objects};

#[tokio::test]
async fn a_change_of_environment_goes_the_native_way_and_says_why() {
    let env = Env::with_policy("native").await;
    env.create(objects::deployment("web", 2)).await;
    env.patch("web", objects::set_env("e1")).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    let way = env.run("web").await["status"]["way"].clone();
    assert_eq!(way["kind"], "Native");
    assert!(way["because"][0].as_str().unwrap().starts_with("spec.containers[c].env:"), "{way}");
    assert_eq!(env.receiver.calls().len(), 2);
}

#[tokio::test]
async fn in_place_only_stays_held_with_the_paths_and_a_new_template_leaves_it() {
    let mut env = Env::new("only").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["update"] = json!({"strategy": "InPlaceOnly"});
    env.policy(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 2)).await;
    env.patch("web", objects::set_env("e1")).await;
    env.until("stalled", 20, || async { env.run("web").await["status"]["stall"]["reason"] == "NotInPlace" }).await;
    assert!(env.held("web").await);
    let run = env.run("web").await;
    assert!(run["status"]["stall"]["message"].as_str().unwrap().contains("spec.containers[c].env"), "{run}");
    env.patch("web", json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": objects::image("v2"), "env": null}]}}}})).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}

#[tokio::test]
async fn listed_metadata_and_resources_change_in_place_with_two_writes_per_pod() {
    let mut env = Env::new("resize").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["update"] =
        json!({"strategy": "InPlaceOnly", "inPlaceMetadata": ["app.kubernetes.io/*"], "maxUnavailable": 2});
    env.policy(policy).await;
    env.start().await;
    let mut deployment = objects::deployment("web", 3);
    deployment["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}});
    env.create(deployment).await;
    let mark = env.observer.mark();
    env.patch(
        "web",
        json!({"spec": {"template": {
            "metadata": {"labels": {"app.kubernetes.io/version": "2"}},
            "spec": {"containers": [{"name": "c", "image": objects::image("v2"), "resources": {"limits": {"cpu": "300m"}}}]},
        }}}),
    )
    .await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    let (born, gone) = env.observer.born_and_gone("web", mark);
    assert_eq!((born.len(), gone.len()), (0, 0));
    for pod in env.pods("web").await {
        assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/version"], "2");
        assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["cpu"], "300m");
    }
    assert_eq!((env.gate.count("PATCH pods"), env.gate.count("PATCH pods/resize")), (3, 3));
}

#[tokio::test]
async fn a_restartable_init_container_changes_in_place_and_a_plain_one_does_not() {
    let env = Env::with_policy("init").await;
    let mut deployment = objects::deployment("web", 2);
    deployment["spec"]["template"]["spec"]["initContainers"] = json!([
        {"name": "setup", "image": "r.test/setup:v1"},
        {"name": "side", "image": "r.test/side:v1", "restartPolicy": "Always"},
    ]);
    env.create(deployment).await;
    let before = env.uids("web").await;
    env.patch(
        "web",
        json!({"spec": {"template": {"spec": {"initContainers": [{"name": "side", "image": "r.test/side:v2"}]}}}}),
    )
    .await;
    env.ended("web", "Succeeded").await;
    assert_eq!(env.uids("web").await, before);
    assert!(env.pods("web").await.iter().all(|p| p["spec"]["initContainers"].to_string().contains("r.test/side:v2")));
    env.patch(
        "web",
        json!({"spec": {"template": {"spec": {"initContainers": [{"name": "setup", "image": "r.test/setup:v2"}]}}}}),
    )
    .await;
    env.until("a second run", 20, || async { env.runs("web").await.len() == 2 }).await;
    env.ended("web", "Succeeded").await;
    assert_eq!(env.run("web").await["status"]["way"]["kind"], "Native");
}

#[tokio::test]
async fn a_partition_keeps_pods_old_until_it_is_lowered() {
    let mut env = Env::new("canary").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["update"] = json!({"partition": 3, "maxUnavailable": 1});
    env.policy(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 4)).await;
    env.patch("web", objects::set_image("v2")).await;
    env.until("one pod is new", 30, || async {
        env.run("web").await["status"]["waitingFor"]["reason"] == "Partitioned"
    })
    .await;
    let new = |pods: &[serde_json::Value]| {
        pods.iter().filter(|p| p["spec"]["containers"][0]["image"] == objects::image("v2")).count()
    };
    assert_eq!(new(&env.pods("web").await), 1);
    let conditions = env.run("web").await["status"]["conditions"].clone();
    assert!(
        conditions
            .as_array()
            .unwrap()
            .iter()
            .any(|c| c["type"] == "Updated" && c["status"] == "False" && c["reason"] == "Partitioned")
    );
    let patch = json!({"spec": {"update": {"partition": 0}}});
    env.policies().patch("p", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
}

#[tokio::test]
async fn disruption_budgets_are_respected_and_an_impossible_one_is_named() {
    let env = Env::with_policy("budget").await;
    env.create(objects::deployment("web", 3)).await;
    let budget = |n: i64| {
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
            "spec": {"minAvailable": n, "selector": {"matchLabels": {"app": "web"}}}})
    };
    env.apply(budget(3)).await;
    let budgets: kube::Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> =
        kube::Api::namespaced(env.admin.clone(), &env.namespace);
    env.until("the budget counts", 20, || async {
        budgets.get("b").await.unwrap().status.is_some_and(|s| s.desired_healthy == Some(3))
    })
    .await;
    let mark = env.observer.mark();
    env.patch("web", objects::set_image("v2")).await;
    env.until("impossible", 20, || async { env.run("web").await["status"]["stall"]["reason"] == "BudgetImpossible" })
        .await;
    assert_eq!(env.gate.count("PATCH pods"), 0);
    env.apply(budget(2)).await;
    env.until("the budget counts", 20, || async {
        budgets.get("b").await.unwrap().status.is_some_and(|s| s.disruptions_allowed == Some(1))
    })
    .await;
    env.decide("web", "Retry", None).await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    assert!(env.observer.fewest_ready("web", mark) >= 2);
}

#[tokio::test]
async fn an_audited_policy_holds_nothing_and_reports() {
    let mut env = Env::new("audit").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["enforcement"] = json!("Audit");
    env.apply(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 2)).await;
    env.patch("web", objects::set_image("v2")).await;
    env.ended("web", "Audited").await;
    let run = env.run("web").await;
    assert_eq!(run["status"]["way"]["kind"], "InPlace", "{run}");
    env.complete("web").await;
    assert!(env.receiver.calls().is_empty());
}

#[tokio::test]
async fn a_change_that_the_trigger_does_not_name_is_not_held() {
    let mut env = Env::new("trigger").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["trigger"] = json!({"containers": ["c"]});
    env.policy(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 2)).await;
    env.patch("web", json!({"spec": {"template": {"metadata": {"annotations": {"note": "1"}}}}})).await;
    env.complete("web").await;
    assert!(env.runs("web").await.is_empty());
    env.patch("web", objects::set_image("v2")).await;
    env.ended("web", "Succeeded").await;
}

#[tokio::test]
async fn policy_deleted_with_on_delete_release_lets_go_at_once() {
    let mut env = Env::new("ondelete").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["onDelete"] = json!("Release");
    env.policy(policy).await;
    env.start().await;
    env.create(objects::deployment("web", 2)).await;
    env.receiver.close();
    env.patch("web", objects::set_image("v2")).await;
    env.receiver.arrived(1).await;
    env.policies().delete("p", &DeleteParams::default()).await.unwrap();
    env.complete("web").await;
    let steps = env.run("web").await["status"]["steps"].clone();
    assert_eq!(steps[0]["outcome"], "Cancelled", "the hook before is not waited for: {steps}");
    env.receiver.open();
    env.all_well("web").await;
}

/// openkruise/kruise#2000: half of an update under a policy that came in between.
#[tokio::test]
async fn a_deployment_that_slipped_past_the_hold_is_reported() {
    let mut env = Env::new("missed").await;
    env.create(objects::deployment("web", 2)).await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["enforcement"] = json!("Off");
    env.apply(policy.clone()).await;
    // Stands for a write that reached an API server before it knew the policy.
    env.until("a second has passed", 5, || async {
        let created = env.policies().get("p").await.unwrap().metadata.creation_timestamp.unwrap();
        k8s_openapi::jiff::Timestamp::now().as_second() > created.0.as_second() + 1
    })
    .await;
    env.patch("web", objects::set_image("v2")).await;
    env.complete("web").await;
    policy["spec"]["enforcement"] = json!("Hold");
    env.apply(policy).await;
    env.start().await;
    env.until("it is reported", 20, || async {
        env.get("web").await["status"]["conditions"].to_string().contains("MissedHold")
    })
    .await;
}

/// fluxcd/flagger#27: two policies select one Deployment.
#[tokio::test]
async fn two_policies_the_smallest_name_wins_and_both_say_conflict() {
    let mut env = Env::new("conflict").await;
    env.policy(objects::policy("pb", &env.receiver.url)).await;
    env.policy(objects::policy("pa", &env.receiver.url)).await;
    env.start().await;
    env.create(objects::deployment("web", 2)).await;
    env.patch("web", objects::set_image("v2")).await;
    env.ended("web", "Succeeded").await;
    assert_eq!(env.run("web").await["spec"]["policy"]["name"], "pa");
    for name in ["pa", "pb"] {
        env.until("the policy says Conflict", 20, || async {
            let policy = serde_json::to_value(env.policies().get(name).await.unwrap()).unwrap();
            policy["status"]["conditions"].to_string().contains("Conflict")
        })
        .await;
    }
}

#[tokio::test]
async fn a_policy_reports_that_it_is_ready_and_enforced() {
    let mut env = Env::new("enforced").await;
    env.policy(objects::policy("p", &env.receiver.url)).await;
    env.start().await;
    env.create(objects::deployment("web", 1)).await;
    env.until("Ready and Enforced", 20, || async {
        let policy = serde_json::to_value(env.policies().get("p").await.unwrap()).unwrap();
        let is = |type_: &str| {
            policy["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|c| c["type"] == type_ && c["status"] == "True")
        };
        is("Ready") && is("Enforced") && policy["status"]["targets"] == json!(["web"])
    })
    .await;
}

#[tokio::test]
async fn a_git_style_reapply_every_second_changes_nothing_and_gets_no_error() {
    let env = Env::with_policy("git").await;
    env.create(objects::deployment("web", 3)).await;
    let mut wanted = objects::deployment("web", 3);
    wanted["metadata"]["namespace"] = json!(env.namespace);
    wanted["spec"]["template"]["spec"]["containers"][0]["image"] = json!(objects::image("v2"));
    wanted["spec"]["paused"] = json!(false);
    let (api, done) = (env.deployments(), tokio_util::sync::CancellationToken::new());
    let stop = done.clone();
    let git = tokio::spawn(async move {
        let mut applied = 0;
        while !stop.is_cancelled() {
            api.patch("web", &PatchParams::apply("git").force(), &Patch::Apply(&wanted))
                .await
                .expect("no error for anybody");
            applied += 1;
            tokio::time::sleep(std::time::Duration::from_secs(1)).await; // once a second is what is tested
        }
        applied
    });
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    done.cancel();
    assert!(git.await.unwrap() >= 1);
    assert_eq!(env.runs("web").await.len(), 1, "one run, whatever was applied meanwhile");
    env.assert_hooks_first("web", &["v1"]);
}

/// argoproj/argo-cd#17254, #3516: nobody can see what is awaited.
#[tokio::test]
async fn a_birth_waits_for_a_predecessor_that_is_named_and_missing() {
    let env = Env::with_policy("birth").await;
    let mut second = objects::deployment("second", 1);
    second["metadata"]["annotations"] = json!({"interlock.dev/after": "first"});
    env.deployments().create(&PostParams::default(), &serde_json::from_value(second).unwrap()).await.unwrap();
    env.until("it waits, by name", 20, || async {
        env.run("second").await["status"]["waitingFor"]["what"]
            .as_str()
            .is_some_and(|w| w.contains("first does not exist"))
    })
    .await;
    assert!(env.sets("second").await.is_empty());
    env.create(objects::deployment("first", 1)).await;
    env.complete("second").await;
}

/// The glass is broken in the middle of an update in place, with the controller stopped: what it then says is true.
#[tokio::test]
async fn a_hold_that_an_administrator_ended_is_told_as_such() {
    let mut env = Env::with_policy("glass").await;
    env.create(objects::deployment("web", 3)).await;
    let mut stops = env.gate.stop_at(crate::harness::Moment::Before, "PATCH pods", 2);
    env.patch("web", objects::set_image("v2")).await;
    let stop = tokio::time::timeout(std::time::Duration::from_secs(150), stops.recv()).await.unwrap();
    env.kill().await;
    drop(stop);
    let admin: kube::Api<k8s_openapi::api::apps::v1::Deployment> =
        kube::Api::namespaced(env.admin.clone(), &env.namespace);
    env.until("the glass is broken", 20, || async {
        let version = env.get("web").await["metadata"]["resourceVersion"].clone();
        let patch = json!({"metadata": {"resourceVersion": version, "annotations": {"interlock.dev/release": version,
            "interlock.dev/held-by": null, "interlock.dev/held-at": null, "interlock.dev/resume": null}}, "spec": {"paused": null}});
        admin.patch("web", &PatchParams::default(), &Patch::Merge(&patch)).await.is_ok() && !env.held("web").await
    })
    .await;
    env.complete("web").await;
    env.start().await;
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    let way = env.run("web").await["status"]["way"].clone();
    assert_eq!(way["kind"], "Native", "{way}");
    let events: kube::Api<k8s_openapi::api::core::v1::Event> = kube::Api::namespaced(env.admin.clone(), &env.namespace);
    env.until("an event says it", 20, || async {
        let list = events.list(&kube::api::ListParams::default()).await.unwrap();
        list.items.iter().any(|e| e.reason.as_deref() == Some("ReleasedByOther"))
    })
    .await;
}
