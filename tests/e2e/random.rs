//! A random user on the real control plane, with crashes of ours. In the end somebody sensible sets a good template, and
//! all must become well. `SEEDS=a..b` says which stories; the short form has few.

use futures::stream::{self, StreamExt};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tally::Tally;

use crate::harness::{Env, objects};

/// splitmix64: small, seeded, the same everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// One thing that people do. Races are part of it: what is refused because it is gone already is no fault.
async fn act(env: &mut Env, rng: &mut Rng, ungated: &mut bool) -> String {
    let deployments = env.deployments();
    let patch = |body: serde_json::Value| {
        let api = deployments.clone();
        async move {
            let _ = api.patch("web", &PatchParams::default(), &Patch::Strategic(&body)).await;
        }
    };
    match rng.below(16) {
        0..=3 => {
            let version = format!("v{}", 1 + rng.below(4));
            patch(objects::set_image(&version)).await;
            format!("image {version}")
        }
        4 => {
            patch(objects::set_image("bad-pull1")).await;
            "bad image".into()
        }
        5 => {
            let value = format!("e{}", rng.below(3));
            patch(objects::set_env(&value)).await;
            format!("env {value}")
        }
        6 | 7 => {
            let replicas = [0, 0, 1, 2, 3, 4][usize::try_from(rng.below(6)).unwrap()];
            patch(json!({"spec": {"replicas": replicas}})).await;
            format!("scale {replicas}")
        }
        8 => {
            let pods = env.pods("web").await;
            if let Some(pod) = pods.get(usize::try_from(rng.below(4)).unwrap()) {
                let _ =
                    env.pods_api().delete(pod["metadata"]["name"].as_str().unwrap(), &DeleteParams::default()).await;
            }
            "pod deleted".into()
        }
        9 => {
            let sets = env.sets("web").await;
            if let Some(set) = sets.get(usize::try_from(rng.below(3)).unwrap()) {
                let _ = env
                    .replica_sets()
                    .delete(set["metadata"]["name"].as_str().unwrap(), &DeleteParams::background())
                    .await;
            }
            // Nobody can prevent that the Deployment controller then wakes the youngest other one.
            *ungated = true;
            "ReplicaSet deleted".into()
        }
        10 => {
            let kubectl = env.cluster.bin(devcluster::Binary::Kubectl).unwrap();
            let _ = tokio::process::Command::new(kubectl)
                .args(["-n", &env.namespace, "rollout", "undo", "deploy/web"])
                .env("KUBECONFIG", env.cluster.kubeconfig_path())
                .output()
                .await;
            "undo".into()
        }
        11 => {
            patch(json!({"spec": {"paused": true}})).await;
            "pause".into()
        }
        12 => {
            patch(json!({"spec": {"paused": false}})).await;
            "resume".into()
        }
        13 => {
            *ungated = true;
            let _ = env.policies().delete("p", &DeleteParams::default()).await;
            "policy deleted".into()
        }
        14 => {
            let limit = rng.below(3);
            patch(json!({"spec": {"revisionHistoryLimit": limit}})).await;
            format!("history limit {limit}")
        }
        _ => {
            env.kill().await;
            env.start().await;
            "the controller dies and comes back".into()
        }
    }
}

async fn story(seed: u64) {
    let mut rng = Rng(seed);
    let mut env = Env::with_policy(&format!("r{seed}")).await;
    env.create(objects::deployment("web", 3)).await;
    let mut ungated = false;
    let mut told = Vec::new();
    for _ in 0..8 + rng.below(6) {
        told.push(act(&mut env, &mut rng, &mut ungated).await);
        tokio::time::sleep(std::time::Duration::from_millis(rng.below(1200))).await; // a person's own pace
    }
    println!("seed {seed}: {}", told.join(", "));
    env.apply(objects::policy("p", &env.receiver.url)).await;
    env.patch("web", json!({"spec": {"paused": false, "replicas": 2, "revisionHistoryLimit": 10}})).await;
    env.patch("web", objects::set_image("v9")).await;
    env.all_well("web").await;
    if !ungated {
        env.assert_hooks_first("web", &["v1"]);
    }
}

#[tokio::test]
async fn whatever_people_do_it_ends_well() {
    let text = std::env::var("SEEDS").unwrap_or_else(|_| "1..5".to_owned());
    let (from, to) = text.split_once("..").expect("SEEDS=a..b");
    let seeds: Vec<u64> = (from.parse().unwrap()..to.parse().unwrap()).collect();
    let tally = Tally::new("random user, real control plane");
    tally.seeds(seeds.len());
    stream::iter(seeds).for_each_concurrent(4, story).await;
}
