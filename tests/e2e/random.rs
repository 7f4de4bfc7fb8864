//! A random user on the real control plane, with crashes of ours, watches that are late, and controllers that stand still
//! for a moment. In the end somebody sensible sets a good template, and an outside observer looks at all that happened.
//! `SEEDS=a..b` says which stories; the short form has few. Every third story is tame: it has nothing in it that goes
//! the native way.

use std::{collections::BTreeSet, time::Duration};

use apiserver::Rng;
use devcluster::{Binary, Component, WatchFault, WatchProxy};
use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tally::Tally;
use tokio::time::sleep;

use crate::harness::{Env, Spoilt, objects};

/// How many expectations [`Story::end`] looks at.
const CHECKS: usize = 6;

fn millis(rng: &mut Rng, below: usize) -> Duration {
    Duration::from_millis(rng.below(below) as u64)
}

struct Story {
    env: Env,
    spoilt: &'static Spoilt,
    rng: Rng,
    /// Nothing that goes the native way.
    tame: bool,
    /// No policy is in force, so what is written now need not be held.
    free: bool,
    /// Images for which nobody asked for hooks: the first one, and what was written while free.
    unhooked: BTreeSet<String>,
    quota: bool,
    replicas: i64,
    /// How many pods the user has made go, by deletion and by scaling down.
    sent_away: i64,
}

impl Story {
    async fn begin(seed: u64, spoilt: &'static Spoilt) -> Self {
        let env = Env::on(&spoilt.cluster, &format!("r{seed}")).await.behind_proxy().await.governed().await;
        env.create(objects::deployment("web", 3)).await;
        Self {
            env,
            spoilt,
            rng: Rng(seed),
            tame: seed.is_multiple_of(3),
            free: false,
            unhooked: BTreeSet::from([objects::image("v1")]),
            quota: false,
            replicas: 3,
            sent_away: 0,
        }
    }

    /// Was it taken? Races are part of it: what is refused because it is gone already is no fault.
    async fn patch(&self, body: Value) -> bool {
        self.env.deployments().patch("web", &PatchParams::default(), &Patch::Strategic(&body)).await.is_ok()
    }

    fn now_has(&mut self, replicas: i64, taken: bool) {
        if taken {
            self.sent_away += (self.replicas - replicas).max(0);
            self.replicas = replicas;
        }
    }

    /// One thing that happens.
    async fn act(&mut self) -> String {
        let told = match self.rng.below(26) {
            0..=3 => self.image().await,
            4 | 5 => self.bad_image().await,
            6..=8 => self.scale().await,
            9 => self.delete_pod().await,
            10 | 11 => self.undo().await,
            12 => {
                self.patch(json!({"spec": {"paused": true}})).await;
                "pause".into()
            }
            13 | 14 => {
                self.patch(json!({"spec": {"paused": false}})).await;
                "resume".into()
            }
            15 => {
                let limit = self.rng.below(3);
                self.patch(json!({"spec": {"revisionHistoryLimit": limit}})).await;
                format!("history limit {limit}")
            }
            16 | 17 => self.apply().await,
            18 => self.quota().await,
            19 | 20 => {
                self.env.kill().await;
                self.env.start().await;
                "the controller dies and comes back".into()
            }
            21 => self.late().await,
            22 => self.freeze().await,
            _ if self.tame => self.image().await,
            23 => {
                let value = format!("e{}", self.rng.below(3));
                self.patch(objects::set_env(&value)).await;
                format!("env {value}")
            }
            24 => self.delete_replica_set().await,
            _ => self.policy().await,
        };
        if self.free {
            let deployment = self.env.get("web").await;
            let image = deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap();
            self.unhooked.insert(image.to_owned());
        }
        told
    }

    async fn image(&mut self) -> String {
        let version = format!("v{}", 1 + self.rng.below(4));
        self.patch(objects::set_image(&version)).await;
        format!("image {version}")
    }

    async fn bad_image(&mut self) -> String {
        self.patch(objects::set_image("bad-pull1")).await;
        if self.rng.below(2) == 0 {
            return "bad image".into();
        }
        if self.free {
            self.unhooked.insert(objects::image("bad-pull1"));
        }
        sleep(millis(&mut self.rng, 3000)).await; // until somebody sees it
        format!("bad image, then {}", self.image().await)
    }

    async fn scale(&mut self) -> String {
        let replicas = self.rng.pick(&[0, 0, 1, 2, 3, 4]);
        let taken = self.patch(json!({"spec": {"replicas": replicas}})).await;
        self.now_has(replicas, taken);
        format!("scale {replicas}")
    }

    async fn delete_pod(&mut self) -> String {
        let pods = self.env.pods("web").await;
        if let Some(pod) = pods.get(self.rng.below(4)) {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let taken = self.env.pods_api().delete(name, &DeleteParams::default()).await.is_ok();
            self.sent_away += i64::from(taken);
        }
        "pod deleted".into()
    }

    async fn delete_replica_set(&mut self) -> String {
        let sets = self.env.sets("web").await;
        if let Some(set) = sets.get(self.rng.below(3)) {
            let name = set["metadata"]["name"].as_str().unwrap();
            let _ = self.env.replica_sets().delete(name, &DeleteParams::background()).await;
        }
        "ReplicaSet deleted".into()
    }

    async fn undo(&mut self) -> String {
        let _ = tokio::process::Command::new(self.env.cluster.bin(Binary::Kubectl).unwrap())
            .args(["-n", &self.env.namespace, "rollout", "undo", "deploy/web"])
            .env("KUBECONFIG", self.env.cluster.kubeconfig_path())
            .output()
            .await;
        "undo".into()
    }

    /// The whole manifest as somebody has it in a file, which knows nothing of holds.
    async fn apply(&mut self) -> String {
        let (version, replicas) = (format!("v{}", 1 + self.rng.below(4)), self.rng.pick(&[1, 2, 3]));
        let mut manifest = objects::deployment("web", replicas);
        manifest["spec"]["paused"] = json!(false);
        manifest["spec"]["template"]["spec"]["containers"][0]["image"] = json!(objects::image(&version));
        let api = self.env.deployments();
        let (how, answer) = if self.rng.below(2) == 0 {
            let params = PatchParams::apply("somebody").force();
            ("applied", api.patch("web", &params, &Patch::Apply(&manifest)).await)
        } else {
            let manifest = serde_json::from_value(manifest).unwrap();
            ("replaced", api.replace("web", &PostParams::default(), &manifest).await)
        };
        self.now_has(replicas, answer.is_ok());
        format!("{how} with {version}, {replicas} replicas, paused: false")
    }

    async fn quota(&mut self) -> String {
        self.quota = !self.quota;
        if !self.quota {
            self.no_quota().await;
            return "quota gone".into();
        }
        let (resource, hard) = self.rng.pick(&[("pods", "2"), ("pods", "4"), ("count/replicasets.apps", "1")]);
        self.env.quota(resource, hard).await;
        format!("quota {resource} {hard}")
    }

    async fn no_quota(&self) {
        let quotas: Api<ResourceQuota> = Api::namespaced(self.env.admin.clone(), &self.env.namespace);
        let _ = quotas.delete("q", &DeleteParams::default()).await;
    }

    async fn policy(&mut self) -> String {
        if self.free {
            self.env.policy(objects::policy("p", &self.env.receiver.url)).await;
            self.free = false;
            return "policy back".into();
        }
        self.free = true;
        let _ = self.env.policies().delete("p", &DeleteParams::default()).await;
        "policy gone".into()
    }

    /// Every watch that may be late, with whose it is.
    fn watches(&self) -> [(&'static str, &WatchProxy, &'static str); 8] {
        let (theirs, ours) = (self.spoilt, self.env.proxy());
        [
            ("the Deployment controller", &theirs.deployments, "deployments.apps"),
            ("the Deployment controller", &theirs.deployments, "replicasets.apps"),
            ("the Deployment controller", &theirs.deployments, "pods"),
            ("the ReplicaSet controller", &theirs.replica_sets, "replicasets.apps"),
            ("the ReplicaSet controller", &theirs.replica_sets, "pods"),
            ("Interlock", ours, "deployments.apps"),
            ("Interlock", ours, "replicasets.apps"),
            ("Interlock", ours, "pods"),
        ]
    }

    async fn late(&mut self) -> String {
        let late = millis(&mut self.rng, 2000);
        let which = self.rng.below(8);
        let (whose, proxy, resource) = self.watches()[which];
        proxy.set(resource, WatchFault::Delay(late));
        if late < Duration::from_millis(300) {
            proxy.cut(resource);
        }
        format!("{resource} of {whose} {late:?} late")
    }

    async fn freeze(&mut self) -> String {
        let who = self.rng.pick(&[Component::DeploymentController, Component::ReplicaSetController]);
        let pause = millis(&mut self.rng, 1500);
        self.spoilt.cluster.pause(who).unwrap();
        sleep(pause).await;
        self.spoilt.cluster.resume(who).unwrap();
        format!("{who} stands still for {pause:?}")
    }

    /// Everybody stops, somebody sensible sets a good template, and the observer tells.
    async fn end(mut self, told: &str) {
        self.watches().iter().for_each(|(_, proxy, resource)| proxy.set(resource, WatchFault::None));
        self.no_quota().await;
        self.env.policy(objects::policy("p", &self.env.receiver.url)).await;
        let taken = self.patch(json!({"spec": {"paused": false, "replicas": 2, "revisionHistoryLimit": 10}})).await;
        self.now_has(2, taken);
        self.env.patch("web", objects::set_image("v9")).await;
        let env = &self.env;
        env.until(&format!("the last run succeeded and all is well: {told}"), 240, || async {
            env.run("web").await["status"]["ended"]["outcome"] == "Succeeded" && env.why_not_well("web").await.is_none()
        })
        .await;
        sleep(Duration::from_millis(500)).await; // who was late may act still
        assert_eq!(env.why_not_well("web").await, None, "{}: it stays well: {told}", env.namespace);
        assert_ne!(env.get("web").await["spec"]["paused"], true, "{}: nothing is stuck: {told}", env.namespace);
        let unhooked: Vec<&str> = self.unhooked.iter().filter_map(|image| image.rsplit(':').next()).collect();
        env.assert_hooks_first("web", &unhooked);
        if self.tame {
            let gone = env.observer.born_and_gone("web", 0).1.len() as i64;
            let allowed = self.sent_away;
            assert!(gone <= allowed, "{}: {gone} pods gone, {allowed} by the user: {told}", env.namespace);
        }
    }
}

async fn story(seed: u64, spoilt: &'static Spoilt, tally: &Tally) {
    let mut story = Story::begin(seed, spoilt).await;
    let mut told = Vec::new();
    for _ in 0..8 + story.rng.below(6) {
        told.push(story.act().await);
        sleep(millis(&mut story.rng, 1200)).await; // a person's own pace
    }
    let told = told.join(", ");
    println!("seed {seed}: {told}");
    story.end(&told).await;
    tally.seeds(1);
    tally.checks(CHECKS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_people_do_it_ends_well() {
    let text = std::env::var("SEEDS").unwrap_or_else(|_| "1..5".to_owned());
    let (from, to) = text.split_once("..").expect("SEEDS=a..b");
    let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
    let spoilt = Spoilt::shared().await;
    let tally = Tally::new("random user, real control plane");
    stream::iter(from..to).for_each_concurrent(4, |seed| story(seed, spoilt, &tally)).await;
}
