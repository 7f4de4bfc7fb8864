//! One cell of the table.

use kube::api::ListParams;
use serde_json::{Value, json};

use super::{
    acts::{Act, HOOK, deployment, hook, jobs, pull_pods, version},
    table::{Attempts, Case, End, Expected, Kind},
};
use crate::harness::{Env, objects};

/// Plays it and looks at what it came to; how many expectations were looked at.
pub async fn run(kind: Kind, case: Case, expected: Expected) -> usize {
    let what = format!("{kind:?} x {case:?}");
    let mut env = Env::new(&format!("hk-{}-{}", kind_name(kind), format!("{case:?}").to_lowercase())).await;
    let mut policy = objects::policy("p", &env.receiver.url);
    policy["spec"]["hooks"] = json!([hook(kind, case, &env.receiver.url)]);
    env.policy(policy.clone()).await;
    env.start().await;
    env.create(deployment(kind)).await;
    let mut act = Act::prepare(&env, kind, case).await;
    let mark = env.observer.mark();
    env.patch("web", objects::set_image(version(kind, case))).await;
    match case {
        Case::Success => {}
        Case::Failure => act.fail(&env).await,
        Case::Timeout => {}
        Case::Retry => {
            act.fail_once(&env).await;
            act.let_go(&env).await;
        }
        Case::Killed => {
            act.middle(&env).await;
            env.kill().await;
            act.release();
            env.start().await;
            act.let_go(&env).await;
        }
        Case::Edited => {
            act.middle(&env).await;
            edit(&env, policy).await;
            act.let_go(&env).await;
        }
        Case::Superseded => {
            act.middle(&env).await;
            env.patch("web", objects::set_image("v3")).await;
            env.until("the first run is superseded", 60, || async {
                env.runs("web").await[0]["status"]["ended"]["outcome"] == "Superseded"
            })
            .await;
            act.let_go(&env).await;
        }
    }
    tokio::select! {
        () = ended(&env, expected.end) => {}
        () = async {
            // In a timeout nobody does anything.
            if !matches!(case, Case::Failure | Case::Timeout) { act.people(&env).await } else { std::future::pending().await }
        } => {}
    }
    act.release();
    check(&env, kind, case, &expected, mark, &what).await
}

const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Http => "http",
        Kind::Poll => "poll",
        Kind::Job => "job",
        Kind::PrePull => "pull",
        Kind::Wait => "wait",
        Kind::WaitFor => "for",
        Kind::Patch => "patch",
        Kind::PatchPod => "patch-pod",
        Kind::PodGate => "gate",
        Kind::Approval => "yes",
    }
}

async fn ended(env: &Env, end: End) {
    match end {
        End::Succeeded => env.ended("web", "Succeeded").await,
        End::Aborted => env.ended("web", "Aborted").await,
        End::Stalled => {
            env.until("it stalls", 60, || async { env.run("web").await["status"]["stall"]["reason"] == "HookFailed" })
                .await;
        }
    }
}

/// The policy gets another hook in place of the one that runs, and the controller has seen that.
async fn edit(env: &Env, mut policy: Value) {
    policy["spec"]["hooks"] = json!([{"name": "other", "phase": "PreUpdate", "wait": {"seconds": 0}}]);
    env.apply(policy).await;
    env.until("the controller has seen the policy", 30, || async {
        let policy = serde_json::to_value(env.policies().get("p").await.unwrap()).unwrap();
        policy["status"]["observedGeneration"] == policy["metadata"]["generation"]
    })
    .await;
}

fn steps(run: &Value) -> Vec<(String, String)> {
    let of = |step: &Value, field: &str| step[field].as_str().unwrap_or_default().to_owned();
    run["status"]["steps"].as_array().into_iter().flatten().map(|s| (of(s, "outcome"), of(s, "reason"))).collect()
}

fn condition(run: &Value, type_: &str) -> (String, String) {
    let conditions = run["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|c| c["type"] == type_).cloned().unwrap_or_default();
    let of = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (of("status"), of("reason"))
}

async fn check(env: &Env, kind: Kind, case: Case, expected: &Expected, mark: usize, what: &str) -> usize {
    let runs = env.runs("web").await;
    let run = runs.last().unwrap();

    // The attempts.
    let have = steps(run);
    let is = |have: &(String, String), wanted: &(&str, &str)| (have.0.as_str(), have.1.as_str()) == *wanted;
    let as_expected = match &expected.attempts {
        Attempts::Exactly(wanted) => have.len() == wanted.len() && have.iter().zip(wanted).all(|(h, w)| is(h, w)),
        Attempts::Until(failed, good) => {
            have.len() >= 2
                && have.split_last().is_some_and(|(l, rest)| is(l, good) && rest.iter().all(|s| is(s, failed)))
        }
    };
    assert!(as_expected, "{what}: attempts {have:?}, expected {:?}", expected.attempts);
    let hooks = run["status"]["steps"].as_array().into_iter().flatten();
    assert!(hooks.clone().all(|s| s["hook"] == HOOK), "{what}: hooks that the run does not have");
    let of_pod = matches!(kind, Kind::PodGate | Kind::PatchPod);
    if of_pod && case == Case::Retry {
        assert!(hooks.clone().next().unwrap()["attempt"].as_i64() > Some(1), "{what}: {}", run["status"]["steps"]);
    }

    // How the run and the Deployment stand.
    let (type_, reason) = match expected.end {
        End::Succeeded => ("Succeeded", "Succeeded"),
        End::Stalled => ("Stalled", "HookFailed"),
        End::Aborted => ("Stalled", "Aborted"),
    };
    assert_eq!(condition(run, type_), ("True".to_owned(), reason.to_owned()), "{what}: {run}");
    if expected.end == End::Succeeded {
        env.all_well("web").await;
        let image = objects::image(if case == Case::Superseded { "v3" } else { "v2" });
        let seen = env.observer.first_seen("web", &image).expect("the new image runs");
        assert!(
            of_pod || env.observer.hooks_recorded_before(&seen),
            "{what}: {image} ran before its hook was recorded"
        );
    } else {
        assert!(env.held("web").await, "{what}: it stays held");
        assert_eq!(
            env.observer.images("web").into_iter().collect::<Vec<_>>(),
            [objects::image("v1")],
            "{what}: something was touched"
        );
    }
    let (born, gone) = env.observer.born_and_gone("web", mark);
    assert_eq!((born.len(), gone.len()), (0, 0), "{what}: pods were created or deleted");

    // What happened outside.
    assert_eq!(accepted(env, kind).await, expected.accepted, "{what}: accepted keys");
    if matches!(kind, Kind::Http | Kind::Poll) {
        // One key for each attempt, whoever carried it out and however often.
        let keys: std::collections::BTreeSet<String> = env.receiver.calls().into_iter().map(|call| call.key).collect();
        assert_eq!(keys.len(), runs.iter().flat_map(steps).count(), "{what}: {keys:?}");
    }
    env.until(&format!("{what}: {:?} Jobs are left, and no pod that pulls", expected.jobs), 30, || async {
        (expected.jobs.0..=expected.jobs.1).contains(&jobs(env).await.len()) && pull_pods(env).await.is_empty()
    })
    .await;
    if kind == Kind::PodGate && expected.end == End::Succeeded {
        env.until("the pods are asked for nothing more", 30, || async {
            env.pods("web").await.iter().all(|pod| pod["metadata"]["annotations"]["interlock.dev/state"].is_null())
        })
        .await;
    }

    // The run before, and the one after.
    let list = env.runs_api().list(&ListParams::default()).await.unwrap().items.len();
    let superseded = case == Case::Superseded;
    assert_eq!(list, 1 + usize::from(superseded), "{what}: runs");
    if superseded {
        let first = &runs[0];
        assert_eq!(steps(first).iter().map(|s| s.0.as_str()).collect::<Vec<_>>(), ["Superseded"], "{what}");
        let v2 = objects::image("v2");
        assert!(!env.observer.images("web").contains(&v2), "{what}: the superseded template ran");
    }
    if case == Case::Edited {
        env.patch("web", objects::set_image("v3")).await;
        env.until("another run", 30, || async { env.runs("web").await.len() == 2 }).await;
        env.ended("web", "Succeeded").await;
        let run = env.run("web").await;
        assert_eq!(
            run["status"]["steps"][0]["hook"], "other",
            "{what}: the next run has the hooks that the policy has now"
        );
        assert_eq!(steps(&run).len(), 1);
    }
    10
}

/// Keys of attempts that did what they are for.
async fn accepted(env: &Env, kind: Kind) -> usize {
    match kind {
        Kind::Http | Kind::Poll => {
            let keys: std::collections::BTreeSet<String> = env.receiver.accepted().into_iter().collect();
            keys.len()
        }
        Kind::Job => {
            let complete = |job: &Value| {
                let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
                conditions.iter().any(|c| c["type"] == "Complete" && c["status"] == "True")
            };
            jobs(env).await.iter().filter(|job| complete(job)).count()
        }
        _ => env.runs("web").await.iter().flat_map(steps).filter(|s| s.0 == "Succeeded").count(),
    }
}
