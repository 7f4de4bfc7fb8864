//! A random user and random trouble: crashes, refused and lost writes, watches that fail, controllers that lag or stand
//! still. In the end somebody sensible sets a good template, and all must become well.
//!
//! `SEEDS=a..b` says which stories; `SEEDS=n` tells one with everything that was written.

use std::time::Duration;

use apiserver::{Rng, calls, gate::Answer, objects, watch::Fault};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tally::Tally;

use inproc::{Env, each, story};

async fn patch(env: &Env, body: Value) {
    // Races are part of it: what is refused because it is gone already is no fault.
    let _ = env.deployments().patch("web", &PatchParams::default(), &Patch::Strategic(&body)).await;
}

/// One thing that people do. True: what starts afterwards need not have had its hooks.
async fn act(env: &Env, rng: &mut Rng) -> (String, bool) {
    match rng.below(20) {
        0..=4 => {
            let version = format!("v{}", 1 + rng.below(4));
            patch(env, objects::set_image(&version)).await;
            (format!("image {version}"), false)
        }
        5 => {
            let bad = rng.pick(&["bad-pull1", "bad-crash1", "bad-ready1"]);
            patch(env, objects::set_image(bad)).await;
            (format!("image {bad}"), false)
        }
        6 => {
            let value = format!("e{}", rng.below(3));
            patch(env, objects::set_env(&value)).await;
            (format!("env {value}"), false)
        }
        7 | 8 => {
            let replicas = rng.pick(&[0, 0, 1, 2, 3, 4]);
            patch(env, json!({"spec": {"replicas": replicas}})).await;
            (format!("scale {replicas}"), false)
        }
        9 => {
            let mut body = objects::set_image(rng.pick(&["v1", "v2", "v3"]));
            body["spec"]["replicas"] = json!(rng.pick(&[0, 1, 3]));
            patch(env, body.clone()).await;
            // From 0 to what an older ReplicaSet shows: nobody can prevent that it is woken.
            (format!("{body}"), true)
        }
        10 => {
            let pods = env.pods("web").await;
            if let Some(pod) = pods.get(rng.below(4)) {
                let name = pod["metadata"]["name"].as_str().unwrap();
                let _ = env.pods_api().delete(name, &DeleteParams::default()).await;
            }
            ("pod deleted".into(), false)
        }
        11 => {
            let sets = env.sets("web").await;
            if let Some(set) = sets.get(rng.below(3)) {
                let name = set["metadata"]["name"].as_str().unwrap();
                let _ = env.replica_sets().delete(name, &DeleteParams::background()).await;
            }
            // The Deployment controller then wakes the youngest other one.
            ("ReplicaSet deleted".into(), true)
        }
        12 => {
            env.undo("web").await;
            ("undo".into(), false)
        }
        13 => {
            patch(env, json!({"spec": {"paused": true}})).await;
            ("pause".into(), false)
        }
        14 | 15 => {
            patch(env, json!({"spec": {"paused": false}})).await;
            ("paused: false".into(), false)
        }
        16 => {
            let _ = env.policies().delete("p", &DeleteParams::default()).await;
            ("policy deleted".into(), true)
        }
        17 => {
            env.apply(objects::policy("p", "http://hook.test")).await;
            ("policy applied".into(), false)
        }
        18 => {
            let limit = rng.below(3);
            patch(env, json!({"spec": {"revisionHistoryLimit": limit}})).await;
            (format!("history limit {limit}"), false)
        }
        _ => {
            let _ = env.try_decide("web", rng.pick(&["Retry", "Skip", "Resume", "Abort"]), None).await;
            ("decision".into(), true)
        }
    }
}

/// One thing that goes wrong.
async fn trouble(env: &Env, rng: &mut Rng) -> String {
    const RESOURCES: [&str; 5] = ["deployments", "replicasets", "pods", "hookruns", "hookpolicies"];
    match rng.below(9) {
        0 => {
            env.kill().await;
            tokio::time::sleep(Duration::from_millis(rng.pick(&[0, 50, 5_000]))).await;
            env.start();
            "crash".into()
        }
        1 | 2 => {
            let answer = rng.pick(&[
                Answer::Code(409),
                Answer::Code(422),
                Answer::Code(429),
                Answer::Code(500),
                Answer::Code(504),
                Answer::Lost,
            ]);
            let nth = 1 + rng.below(6);
            env.gate.answer_any(answer, nth);
            format!("{answer:?} to write {nth}")
        }
        3 | 4 => {
            let late = Duration::from_millis(rng.pick(&[0, 0, 300, 3_000]));
            let fault = rng.pick(&[Fault::Cut, Fault::Gone, Fault::BlackHole, Fault::Delay(late)]);
            let resource = rng.pick(&RESOURCES);
            env.server.faults.happens("interlock", resource, fault);
            format!("watch of {resource}: {fault:?}")
        }
        5 => {
            let millis = rng.pick(&[0, 0, 200, 2_000]);
            env.plane.deployments_lag.set(millis);
            format!("Deployment controller {millis} ms late")
        }
        6 => {
            let millis = rng.pick(&[0, 0, 200, 2_000]);
            env.plane.replica_sets_lag.set(millis);
            format!("ReplicaSet controller {millis} ms late")
        }
        7 => {
            env.plane.freeze();
            "controller manager stands still".into()
        }
        _ => {
            env.plane.thaw();
            env.server.store.compact();
            "controller manager goes on, old versions are dropped".into()
        }
    }
}

/// A recorded success is not made again under another key.
fn hooks_ran_once(env: &Env) -> Result<(), String> {
    for run in &env.picture_of("web").runs {
        let steps = run["status"]["steps"].as_array().cloned().unwrap_or_default();
        for step in &steps {
            let same =
                |s: &&Value| s["hook"] == step["hook"] && s["phase"] == step["phase"] && s["outcome"] == "Succeeded";
            if steps.iter().filter(same).count() > 1 {
                return Err(format!("hook {} succeeded twice in one run", step["hook"]));
            }
        }
    }
    Ok(())
}

async fn tell(seed: u64, aloud: bool) -> Result<(), String> {
    let mut rng = Rng(seed);
    let env = Env::with_policy(seed);
    let replicas = 1 + i64::try_from(rng.below(4)).unwrap();
    env.create(objects::deployment("web", replicas)).await;
    let mut ungated = false;
    let mut told = Vec::new();
    for _ in 0..5 + rng.below(8) {
        if rng.chance(40) {
            told.push(trouble(&env, &mut rng).await);
        }
        let (what, free) = act(&env, &mut rng).await;
        ungated |= free;
        told.push(what);
        let pause = rng.pick(&[0, 3, 10, 30, 100, 300, 1_000, 5_000, 20_000]);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    // Everybody stops.
    env.plane.thaw();
    env.plane.deployments_lag.set(0);
    env.plane.replica_sets_lag.set(0);
    for resource in ["deployments", "replicasets", "pods", "hookruns", "hookpolicies"] {
        env.server.faults.happens("interlock", resource, Fault::Delay(Duration::ZERO));
    }
    env.gate.forget();
    env.apply(objects::policy("p", "http://hook.test")).await;
    patch(&env, json!({"spec": {"paused": false, "replicas": 2, "revisionHistoryLimit": 10}})).await;
    patch(&env, objects::set_image("v9")).await;
    let ended = env.ended_well("web").await;
    let text = || format!("{}\n{}", told.join(", "), env.log());
    if aloud {
        println!("{}", text());
    }
    ended.map_err(|why| format!("{why}: {}", told.join(", ")))?;
    hooks_ran_once(&env).map_err(|why| format!("{why}: {}", told.join(", ")))?;
    if !ungated && let Some(fault) = calls::unhooked(&env.observer, &env.hooks.calls(), "web", &["v1"]) {
        return Err(format!("{fault}: {}", told.join(", ")));
    }
    Ok(())
}

#[test]
fn whatever_happens_it_ends_well() {
    let default = if std::env::var_os("INTERLOCK_LONG").is_some() { "1..10001" } else { "1..401" };
    let text = std::env::var("SEEDS").unwrap_or_else(|_| default.to_owned());
    let number = |text: &str| text.parse::<u64>().expect("SEEDS=a..b or SEEDS=n");
    let (from, to) = match text.split_once("..") {
        Some((from, to)) => (number(from), number(to)),
        None => (number(&text), number(&text) + 1),
    };
    let tally = Tally::new("random user and trouble, in process");
    let seeds: Vec<u64> = (from..to).collect();
    tally.seeds(seeds.len());
    let faults = each(&seeds, |seed| {
        let result = story(tell(*seed, seeds.len() == 1));
        tally.checks(3);
        if result.is_err() {
            tally.failure();
        }
        result
    });
    let shown = faults.iter().take(20).map(|f| f.chars().take(1500).collect::<String>()).collect::<Vec<_>>();
    assert!(faults.is_empty(), "{} of {} stories end badly:\n{}", faults.len(), seeds.len(), shown.join("\n"));
}
