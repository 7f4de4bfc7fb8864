//! RollingRestart on the real control plane: a namespace of twenty, death at every write, and sidecars that an admission policy
//! injects.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt};
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tally::Tally;

use crate::harness::{Env, Moment, objects};

fn restarts(env: &Env) -> Api<DynamicObject> {
    env.resource("RollingRestart", "rollingrestarts")
}

async fn make(env: &Env, name: &str, spec: Value) {
    let object = json!({"apiVersion": "interlock.dev/v1alpha1", "kind": "RollingRestart",
        "metadata": {"name": name}, "spec": spec});
    restarts(env).create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

async fn status(env: &Env, name: &str) -> Value {
    restarts(env).get(name).await.unwrap().data["status"].clone()
}

/// Waits for a condition of a request.
async fn becomes(env: &Env, name: &str, type_: &str) -> Value {
    let is = |status: &Value| {
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == type_ && c["status"] == "True")
    };
    let what = format!("{name} is {type_}");
    let reached = async { env.until(&what, 120, || async { is(&status(env, name).await) }).await };
    reached.await;
    status(env, name).await
}

fn targets(status: &Value) -> BTreeMap<String, (String, String)> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let all = status["targets"].as_array().cloned().unwrap_or_default();
    all.iter().map(|t| (text(&t["name"]), (text(&t["state"]), text(&t["reason"])))).collect()
}

/// Adds to new pods of this namespace what `configuration` says.
async fn inject(env: &Env, what: &str, condition: &str, configuration: &str) -> String {
    let name = format!("{what}-{}", env.namespace);
    let policies: Api<MutatingAdmissionPolicy> = Api::all(env.admin.clone());
    let bindings: Api<MutatingAdmissionPolicyBinding> = Api::all(env.admin.clone());
    let policy = json!({
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": env.namespace}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            },
            "matchConditions": [{"name": "these", "expression": condition}],
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": configuration}}],
        },
    });
    policies.create(&PostParams::default(), &serde_json::from_value(policy).unwrap()).await.unwrap();
    let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name}});
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    name
}

async fn no_more(env: &Env, name: &str) {
    let policies: Api<MutatingAdmissionPolicy> = Api::all(env.admin.clone());
    let bindings: Api<MutatingAdmissionPolicyBinding> = Api::all(env.admin.clone());
    bindings.delete(name, &DeleteParams::default()).await.unwrap();
    policies.delete(name, &DeleteParams::default()).await.unwrap();
}

/// Waits until the API server injects, or does not any more: an admission policy takes effect a moment after it is written.
async fn injects(env: &Env, labels: Value, annotations: Value, found: impl Fn(&Value) -> bool) {
    let pods: Api<DynamicObject> = Api::namespaced_with(
        env.admin.clone(),
        &env.namespace,
        &kube::core::ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()),
    );
    env.until("what the admission policy does", 20, || async {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "labels": labels, "annotations": annotations},
            "spec": {"containers": [{"name": "c", "image": "r.test/img:v1"}]}});
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let answer = pods.create(&params, &serde_json::from_value(pod).unwrap()).await;
        answer.is_ok_and(|pod| found(&serde_json::to_value(pod).unwrap()))
    })
    .await;
}

/// A sidecar `proxy` in every new pod, of the image that label `proxy` of the pod says, v1 without one.
async fn with_proxies(env: &Env) {
    let image = r#""r.test/proxy:" + (has(object.metadata.labels) && "proxy" in object.metadata.labels ? object.metadata.labels["proxy"] : "v1")"#;
    let configuration = format!(
        r#"Object{{spec: Object.spec{{containers: [Object.spec.containers{{name: "proxy", image: {image}}}]}}}}"#
    );
    inject(env, "proxy", "true", &configuration).await;
    injects(env, json!({}), json!({}), |pod| pod["spec"]["containers"].as_array().unwrap().len() == 2).await;
}

fn name(n: usize) -> String {
    format!("app-{n:02}")
}

fn decision(id: &str, action: &str) -> Value {
    json!({"spec": {"decisions": [{"id": id, "action": action, "by": "dev"}]}})
}

/// Who may patch Deployments decides in their own name.
async fn decide(env: &Env, name: &str, id: &str, action: &str) {
    let api: Api<DynamicObject> = Api::namespaced_with(env.dev.clone(), &env.namespace, &{
        let mut resource = kube::core::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(
            "interlock.dev",
            "v1alpha1",
            "RollingRestart",
        ));
        "rollingrestarts".clone_into(&mut resource.plural);
        resource
    });
    api.patch(name, &PatchParams::default(), &Patch::Merge(decision(id, action))).await.unwrap();
}

/// Pods that an app had in all: those that were made before `mark` and after it.
fn made_since(env: &Env, app: &str, mark: usize) -> usize {
    env.observer.born_and_gone(app, mark).0.len()
}

#[tokio::test]
async fn a_namespace_of_twenty_stops_at_the_one_that_fails_and_goes_on_when_it_is_repaired() {
    let mut env = Env::new("twenty").await;
    with_proxies(&env).await;
    let owner = json!({"apiVersion": "interlock.dev/v1alpha1", "kind": "HookPolicy", "metadata": {"name": "owner"},
        "spec": {"enforcement": "Off", "selector": {"matchLabels": {"nobody": "nowhere"}}}});
    env.apply(owner).await;
    let owner = env.policies().get("owner").await.unwrap().metadata.uid.unwrap();
    // 1 to 5 replicas, some with one; one paused, one without replicas, one that a custom resource owns, three that carry the
    // new sidecar already, and one whose next pod never gets ready.
    let (paused, empty, owned, broken) = (name(3), name(5), name(7), name(11));
    let newer: BTreeSet<String> = [2, 9, 15].map(name).into();
    for n in 1..=20 {
        let app = name(n);
        let mut deployment = objects::deployment(&app, i64::try_from(n % 5 + 1).unwrap());
        deployment["spec"]["strategy"] = json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
        if newer.contains(&app) {
            deployment["spec"]["template"]["metadata"]["labels"]["proxy"] = json!("v2");
        }
        if app == empty {
            deployment["spec"]["replicas"] = json!(0);
        }
        if app == owned {
            deployment["metadata"]["ownerReferences"] = json!([{"apiVersion": "interlock.dev/v1alpha1", "kind": "HookPolicy",
                "name": "owner", "uid": owner, "controller": true}]);
        }
        env.deployments().create(&PostParams::default(), &serde_json::from_value(deployment).unwrap()).await.unwrap();
    }
    for n in 1..=20 {
        env.complete(&name(n)).await;
    }
    env.patch(&paused, json!({"spec": {"paused": true}})).await;
    let fault = inject(
        &env,
        "fault",
        &format!(r#"object.metadata.labels["app"] == "{broken}" && has(object.metadata.annotations) && "interlock.dev/restart" in object.metadata.annotations"#),
        r#"Object{spec: Object.spec{containers: [Object.spec.containers{name: "c", image: "r.test/img:bad-ready1"}]}}"#,
    )
    .await;
    let bad = |pod: &Value| pod["spec"]["containers"][0]["image"] == "r.test/img:bad-ready1";
    injects(&env, json!({"app": broken}), json!({"interlock.dev/restart": "x"}), bad).await;
    env.start().await;
    // Pods and requests have whole seconds: what was made in the second of the request would count as made before it.
    let mark = env.observer.mark();
    let spec = json!({"skipWhen": [{"name": "proxy", "image": "r.test/proxy:v2"}], "settleSeconds": 0,
        // Longer than a busy machine takes for one pod of those that are well.
        "progressDeadlineSeconds": 30});
    make(&env, "all", spec).await;

    let stalled = becomes(&env, "all", "Stalled").await;
    let state = targets(&stalled);
    assert_eq!(state[&broken], ("Failed".into(), "DeadlineExceeded".into()), "{stalled:#}");
    let skipped = |app: &String| {
        if newer.contains(app) {
            Some("SkipWhen")
        } else if *app == paused {
            Some("Paused")
        } else if *app == empty {
            Some("ScaledToZero")
        } else if *app == owned {
            Some("OwnedByOther")
        } else {
            None
        }
    };
    let replicas = |n: usize| n % 5 + 1;
    for n in 1..=20 {
        let app = name(n);
        let made = made_since(&env, &app, mark);
        match skipped(&app) {
            _ if n > 11 => {
                assert_eq!((state[&app].0.as_str(), made), ("Pending", 0), "{app} comes after the failed one");
            }
            Some(reason) => assert_eq!((&state[&app], made), (&("Skipped".into(), reason.into()), 0), "{app}"),
            None if app != broken => assert_eq!((state[&app].0.as_str(), made), ("Done", replicas(n)), "{app}"),
            None => {}
        }
        if *app != empty {
            assert!(env.observer.fewest_ready(&app, mark) >= replicas(n), "{app}: fewer ready pods than promised");
        }
    }

    // Repaired: the pods that cannot get ready are made anew, without the fault.
    no_more(&env, &fault).await;
    injects(&env, json!({"app": broken}), json!({"interlock.dev/restart": "x"}), |pod| !bad(pod)).await;
    for pod in env.pods(&broken).await.iter().filter(|p| p["spec"]["containers"][0]["image"] == "r.test/img:bad-ready1")
    {
        let name = pod["metadata"]["name"].as_str().unwrap();
        env.pods_api().delete(name, &DeleteParams::default()).await.unwrap();
    }
    env.complete(&broken).await;
    decide(&env, "all", "go", "Resume").await;
    let end = becomes(&env, "all", "Succeeded").await;
    for (app, (state, reason)) in targets(&end) {
        let expected = skipped(&app).map_or(("Done", ""), |reason| ("Skipped", reason));
        assert_eq!((state.as_str(), reason.as_str()), expected, "{app}");
        assert_eq!(env.observer.sets(&app).len(), if state == "Done" { 2 } else { 1 }, "{app} was restarted twice");
    }
}

async fn three(what: &str) -> Env {
    let env = Env::new(what).await;
    three_in(&env).await;
    env
}

async fn three_in(env: &Env) {
    for n in 1..=3 {
        env.deployments()
            .create(&PostParams::default(), &serde_json::from_value(objects::deployment(&name(n), 2)).unwrap())
            .await
            .unwrap();
    }
    for n in 1..=3 {
        env.complete(&name(n)).await;
    }
}

async fn restarted_once(env: &Env, what: &str) {
    let end = becomes(env, "all", "Succeeded").await;
    for n in 1..=3 {
        let app = name(n);
        assert_eq!(targets(&end)[&app].0, "Done", "{what}: {end:#}");
        assert_eq!(env.observer.sets(&app).len(), 2, "{what}: {app} was restarted twice");
        assert_eq!(env.pods(&app).await.len(), 2, "{what}");
    }
}

/// The controller dies before each of its writes, and right after each with the reply lost. `ready` makes the namespace,
/// `well` looks at its end.
async fn death_at_every_write(
    what: &'static str,
    spec: Value,
    least: usize,
    ready: impl AsyncFn() -> Env,
    well: impl AsyncFn(&Env, &str),
) {
    let mut env = ready().await;
    env.start().await;
    let before = env.gate.writes().len();
    make(&env, "all", spec.clone()).await;
    well(&env, "undisturbed").await;
    let writes = env.gate.writes().len() - before;
    assert!(writes >= least, "{writes}");
    drop(env);
    let tally = Tally::new(what);
    // Each write once, before and after by turns; the long form has both.
    let long = std::env::var_os("INTERLOCK_LONG").is_some();
    let points: Vec<(Moment, usize)> = (1..=writes)
        .flat_map(|n| {
            [(Moment::Before, n), (Moment::After, n)].into_iter().skip(if long { 0 } else { n % 2 }).take(if long {
                2
            } else {
                1
            })
        })
        .collect();
    tally.points(points.len());
    stream::iter(points)
        .for_each_concurrent(4, |(moment, nth)| {
            let (spec, tally, ready, well) = (spec.clone(), &tally, &ready, &well);
            async move {
                let what = format!("death {moment:?} write {nth}");
                let mut env = ready().await;
                env.start().await;
                let mut stops = env.gate.stop_at_any(moment, nth);
                make(&env, "all", spec).await;
                tokio::select! {
                    stop = stops.recv() => {
                        env.kill().await;
                        drop(stop);
                        env.start().await;
                    }
                    _ = becomes(&env, "all", "Succeeded") => {}
                }
                well(&env, &what).await;
                tally.checks(9);
            }
        })
        .await;
}

#[tokio::test]
async fn death_at_every_write_restarts_nothing_twice() {
    let ready = async || three("rr-die").await;
    death_at_every_write(
        "RollingRestart: death at every write, real control plane",
        json!({"settleSeconds": 0}),
        9,
        ready,
        restarted_once,
    )
    .await;
}

/// No pod is made anew, and each has one change of its image: the generation of a pod counts them.
#[tokio::test]
async fn death_at_every_write_changes_no_sidecar_twice() {
    let ready = async || {
        let env = Env::new("rr-die-sidecar").await;
        with_proxies(&env).await;
        three_in(&env).await;
        env
    };
    let well = async |env: &Env, what: &str| {
        let end = becomes(env, "all", "Succeeded").await;
        for n in 1..=3 {
            let app = name(n);
            assert_eq!(targets(&end)[&app].0, "Done", "{what}: {end:#}");
            let pods = env.pods(&app).await;
            assert_eq!((pods.len(), env.observer.born_and_gone(&app, 0).0.len()), (2, 2), "{what}: {app}");
            for pod in pods {
                let containers = pod["spec"]["containers"].as_array().unwrap();
                let proxy = containers.iter().find(|c| c["name"] == "proxy").unwrap();
                assert_eq!(
                    (&proxy["image"], &pod["metadata"]["generation"]),
                    (&json!("r.test/proxy:v2"), &json!(2)),
                    "{what}"
                );
            }
        }
    };
    let spec = json!({"settleSeconds": 0, "sidecars": [{"name": "proxy", "image": "r.test/proxy:v2"}]});
    death_at_every_write("sidecars: death at every write, real control plane", spec, 12, ready, well).await;
}

/// Restarts of Deployments under a HookPolicy run its hooks.
#[tokio::test]
async fn a_restart_under_a_policy_runs_its_hooks() {
    let env = Env::with_policy("rr-hooks").await;
    env.create(objects::deployment("web", 2)).await;
    make(&env, "all", json!({"settleSeconds": 0})).await;
    let end = becomes(&env, "all", "Succeeded").await;
    assert_eq!(targets(&end)["web"].0, "Done", "{end:#}");
    env.ended("web", "Succeeded").await;
    let mut paths: Vec<String> = env.receiver.calls().into_iter().map(|c| c.path).collect();
    paths.dedup();
    assert_eq!(paths, ["/before", "/after"]);
    let template = env.get("web").await["spec"]["template"].clone();
    assert!(template["metadata"]["annotations"]["interlock.dev/restart"].is_string(), "{template}");
}

/// A container that is in no template is upgraded in the running pods: no pod is made anew, one Deployment after the other.
#[tokio::test]
async fn sidecars_of_twenty_by_five_are_upgraded_in_place() {
    let mut env = Env::new("sidecars").await;
    with_proxies(&env).await;
    for n in 1..=20 {
        let deployment = objects::deployment(&name(n), 5);
        env.deployments().create(&PostParams::default(), &serde_json::from_value(deployment).unwrap()).await.unwrap();
    }
    for n in 1..=20 {
        env.complete(&name(n)).await;
    }
    env.start().await;
    let mark = env.observer.mark();
    make(&env, "proxies", json!({"settleSeconds": 0, "sidecars": [{"name": "proxy", "image": "r.test/proxy:v2"}]}))
        .await;
    let end = becomes(&env, "proxies", "Succeeded").await;
    for n in 1..=20 {
        let app = name(n);
        assert_eq!(targets(&end)[&app].0, "Done", "{end:#}");
        let (born, gone) = env.observer.born_and_gone(&app, mark);
        assert_eq!((born.len(), gone.len()), (0, 0), "{app}: pods were created or deleted");
        assert!(env.observer.fewest_ready(&app, mark) >= 4, "{app}: more than maxUnavailable were down");
        for pod in env.pods(&app).await {
            let containers = pod["spec"]["containers"].as_array().unwrap();
            let proxy = containers.iter().find(|c| c["name"] == "proxy").unwrap();
            assert_eq!(proxy["image"], "r.test/proxy:v2");
        }
    }
}
