//! The real process is killed before and after writes of an update with a hook of every kind. Whoever comes after makes each
//! of them happen under one key.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use tally::Tally;

use super::acts::{HOOK, awaited, decide, deployment, jobs, pull_pods, serve};
use crate::{
    harness::{
        Env, Moment, objects,
        process::{ALONE, Way},
    },
    hooks::table::Kind,
};

/// How many expectations [`check`] looks at.
const CHECKS: usize = 9;

/// Of every kind one, of every phase one. [`HOOK`] is the approval.
fn hooks(url: &str) -> Value {
    let http =
        |name: &str, phase: &str| json!({"name": name, "phase": phase, "http": {"url": format!("{url}/{name}")}});
    json!([
        http("before", "PreUpdate"),
        {"name": "job", "phase": "PreUpdate", "job": {
            "serviceAccountName": "default",
            "template": {"spec": {"containers": [{"name": "c", "image": "r.test/tool:v1"}]}},
        }},
        {"name": "pull", "phase": "PreUpdate", "prePull": {}},
        {"name": "pause", "phase": "PreUpdate", "wait": {"seconds": 0}},
        {"name": "await", "phase": "PreUpdate",
            "waitFor": {"kind": "ConfigMap", "name": "awaited", "label": {"key": "state"}}},
        {"name": "mark", "phase": "PreUpdate", "patch": {"labels": {"hooked": "yes"}, "undoOnRevert": true}},
        {"name": HOOK, "phase": "PreUpdate", "approval": {}},
        {"name": "gate", "phase": "PrePod", "podGate": {"labels": {"example.com/serving": "yes"}}},
        http("pre-pod", "PrePod"),
        http("post-pod", "PostPod"),
        http("after", "PostUpdate"),
    ])
}

async fn ready() -> (Env, Way) {
    let env = Env::new("hk-death").await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["hooks"] = hooks(&env.receiver.url);
    env.policy(policy).await;
    awaited(&env).await;
    let way = Way::new(&env, "hk-death").await;
    env.create(deployment(Kind::PodGate)).await;
    (env, way)
}

/// People and other software do their part until the update is over.
async fn ended(env: &Env) {
    let people = async {
        loop {
            serve(env).await;
            decide(env).await;
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = env.ended("web", "Succeeded") => {}
        () = people => {}
    }
}

async fn check(env: &Env, mark: usize, what: &str) {
    ended(env).await;
    env.all_well("web").await;
    let runs = env.runs("web").await;
    assert_eq!(runs.len(), 1, "{what}: one run");
    let steps = runs[0]["status"]["steps"].as_array().cloned().unwrap_or_default();
    let mut by_hook: BTreeMap<(String, String), Vec<(Value, Value)>> = BTreeMap::new();
    for step in &steps {
        let of = |field: &str| step[field].as_str().unwrap_or_default().to_owned();
        by_hook.entry((of("hook"), of("phase"))).or_default().push((step["attempt"].clone(), step["outcome"].clone()));
    }
    // The gate stands before and after the pod.
    assert_eq!(by_hook.len(), 12, "{what}: {by_hook:?}");
    for (hook, attempts) in &by_hook {
        assert_eq!(attempts[..], [(json!(1), json!("Succeeded"))], "{what}: {hook:?}");
    }
    let mut keys: BTreeMap<String, std::collections::BTreeSet<String>> = BTreeMap::new();
    for call in env.receiver.calls() {
        keys.entry(call.path).or_default().insert(call.key);
    }
    assert_eq!(keys.keys().collect::<Vec<_>>(), ["/after", "/before", "/post-pod", "/pre-pod"], "{what}");
    assert!(keys.values().all(|keys| keys.len() == 1), "{what}: more than one key: {keys:?}");
    assert_eq!(jobs(env).await.len(), 1, "{what}: one Job");
    env.until("no pod that pulls is left", 30, || async { pull_pods(env).await.is_empty() }).await;
    assert_eq!(env.get("web").await["metadata"]["labels"]["hooked"], "yes", "{what}");
    let (born, gone) = env.observer.born_and_gone("web", mark);
    assert_eq!((born.len(), gone.len()), (0, 0), "{what}: pods were created or deleted");
    env.assert_hooks_first("web", &["v1"]);
}

async fn killed(moment: Moment, nth: usize, tally: &Tally) {
    let what = format!("killed {moment:?} write {nth}");
    let (env, way) = ready().await;
    let mark = env.observer.mark();
    let aftermath = way.update_killed_at(&env, moment, nth, ended(&env)).await;
    check(&env, mark, &what).await;
    drop(aftermath);
    tally.points(1);
    tally.checks(CHECKS);
}

/// Regressions 9 and 11: done is done, whoever dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_among_hooks_of_every_kind_calls_nothing_under_two_keys() {
    let (env, way) = ready().await;
    let controller = way.start(&ALONE).await;
    let mark = env.observer.mark();
    let before = way.gate.writes().len();
    env.patch("web", objects::set_image("v2")).await;
    check(&env, mark, "undisturbed").await;
    let writes = way.gate.writes()[before..].iter().filter(|w| !w.what.contains("hookpolicies")).count();
    assert!(writes >= 20, "{:?}", way.gate.writes());
    drop(controller);
    let tally = Tally::new("process killed among hooks of every kind, real control plane");
    // The short form has some, at both sides of a write by turns; in process every write of such an update has its death.
    let long = std::env::var_os("INTERLOCK_LONG").is_some();
    let points: Vec<(Moment, usize)> = (1..=writes)
        .flat_map(|n| [(Moment::Before, n), (Moment::After, n)])
        .enumerate()
        .filter(|(index, _)| long || index % 9 == 3)
        .map(|(_, point)| point)
        .collect();
    stream::iter(points).for_each_concurrent(4, |(moment, n)| killed(moment, n, &tally)).await;
}
