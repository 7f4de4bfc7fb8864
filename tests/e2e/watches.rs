//! Watches that are late or lost: each single one of the Deployment controller, of the ReplicaSet controller and of
//! Interlock. Whatever they see and when, an update in place with a scale in the middle makes no pod and no ReplicaSet
//! too many and leaves no pod old.
//!
//! The long form (`INTERLOCK_LONG=1`) makes every pair of watch and delay 20 times, at other moments, and every pair of
//! watch and loss; the short form some of them.

use std::time::Duration;

use devcluster::{WatchFault, WatchProxy};
use futures::{
    future::join_all,
    stream::{self, StreamExt},
};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tally::Tally;
use tokio::time::{Instant, sleep};

use crate::harness::{Env, Moment, Spoilt, objects};

/// Watches of Interlock.
const OURS: [&str; 6] = [
    "deployments.apps",
    "replicasets.apps",
    "pods",
    "hookruns.interlock.dev",
    "hookpolicies.interlock.dev",
    "poddisruptionbudgets.policy",
];
const SECOND: Duration = Duration::from_secs(1);
/// Far more than an update needs whose every step waits for a watch that is ten seconds late.
const LONG: u64 = 300;
const PODS: i64 = 3;
/// How many expectations [`Story::judge`] looks at.
const CHECKS: usize = 6;

fn long() -> bool {
    std::env::var_os("INTERLOCK_LONG").is_some()
}

/// An update in place with a scale in the middle, the `nth` one at another moment: the even ones up, some moments before
/// the commit, so that pods are being made then; the others down, early.
struct Story {
    env: Env,
    what: String,
    nth: u32,
    mark: usize,
}

impl Story {
    /// A governed Deployment that is complete.
    async fn new(env: Env, what: String, nth: u32) -> Self {
        let env = env.governed().await;
        env.create(objects::deployment("web", PODS)).await;
        let mark = env.observer.mark();
        Self { env, what, nth, mark }
    }

    /// How many pods there are in the end.
    fn scaled(&self) -> i64 {
        if self.nth.is_multiple_of(2) { 5 } else { 2 }
    }

    /// Somebody is `late`.
    async fn go(&self, late: Duration) {
        let mut commit =
            (self.nth.is_multiple_of(2)).then(|| self.env.gate.stop_at(Moment::Before, "PATCH replicasets", 1));
        self.env.patch("web", objects::set_image("v2")).await;
        let pause = late * (self.nth % 20) / 20;
        if let Some(commit) = commit.as_mut() {
            let stop = tokio::time::timeout(Duration::from_secs(LONG), commit.recv()).await;
            let stop = stop.ok().flatten().unwrap_or_else(|| panic!("{}: no commit within {LONG} s", self.what));
            self.env.scale("web", self.scaled()).await;
            sleep(pause).await;
            stop.go_on();
        } else {
            sleep(pause * 3).await;
            self.env.scale("web", self.scaled()).await;
        }
        self.env
            .until(&format!("{}: the run succeeded and all is well", self.what), LONG, || async {
                self.env.run("web").await["status"]["ended"]["outcome"] == "Succeeded"
                    && self.env.why_not_well("web").await.is_none()
            })
            .await;
        // What somebody does who sees all of this only now.
        sleep(late + SECOND / 2).await;
    }

    async fn judge(&self, tally: &Tally) {
        let (env, what, scaled) = (&self.env, &self.what, self.scaled());
        assert_eq!(env.why_not_well("web").await, None, "{what}: it stays well");
        let (born, gone) = env.observer.born_and_gone("web", self.mark);
        let (born, gone) = (born.len() as i64, gone.len() as i64);
        assert_eq!(
            (born, gone),
            ((scaled - PODS).max(0), (PODS - scaled).max(0)),
            "{what}: pods born and gone, {PODS} -> {scaled}"
        );
        assert_eq!(
            env.observer.sets("web").len(),
            2,
            "{what}: the main ReplicaSet, one for the history, none else ever"
        );
        assert_eq!(env.runs("web").await.len(), 1, "{what}: one run");
        let fewest = env.observer.fewest_ready("web", self.mark);
        assert!(fewest as i64 >= PODS.min(scaled) - 1, "{what}: {fewest} ready");
        env.assert_hooks_first("web", &["v1"]);
        tally.points(1);
        tally.checks(CHECKS);
    }
}

/// All at once under one late watch of a controller that they share.
async fn late_controller(
    spoilt: &'static Spoilt,
    proxy: &WatchProxy,
    resource: &str,
    late: Duration,
    runs: u32,
    tally: &Tally,
) {
    let who = if std::ptr::eq(proxy, &spoilt.deployments) { "Deployment" } else { "ReplicaSet" };
    let what = format!("{resource} of the {who} controller {late:?} late");
    let stories = join_all((0..runs).map(|nth| {
        let what = format!("{what}, {nth}");
        async move { Story::new(Env::on(&spoilt.cluster, "late").await, what, nth).await }
    }))
    .await;
    assert!(proxy.begun(resource) > 0, "{what}: there is such a watch");
    let start = Instant::now();
    proxy.set(resource, WatchFault::Delay(late));
    join_all(stories.iter().map(|story| story.go(late))).await;
    proxy.set(resource, WatchFault::None);
    join_all(stories.iter().map(|story| story.judge(tally))).await;
    println!("{what}: {runs} in {:.1} s", start.elapsed().as_secs_f64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_watch_of_the_controllers_makes_nothing_too_many_and_leaves_nothing_old() {
    let spoilt = Spoilt::shared().await;
    let tally = Tally::new("late watch of a controller of Kubernetes");
    let theirs = [
        (&spoilt.deployments, "deployments.apps"),
        (&spoilt.deployments, "replicasets.apps"),
        (&spoilt.deployments, "pods"),
        (&spoilt.replica_sets, "replicasets.apps"),
        (&spoilt.replica_sets, "pods"),
    ];
    let (delays, runs) = if long() { (&[SECOND, SECOND * 10][..], 20) } else { (&[SECOND][..], 2) };
    for late in delays {
        for (proxy, resource) in theirs {
            late_controller(spoilt, proxy, resource, *late, runs, &tally).await;
        }
    }
}

/// Interlock behind a proxy of its own.
async fn ours(what: String, nth: u32) -> Story {
    Story::new(Env::new("ours").await.behind_proxy().await, what, nth).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_watch_of_interlock_makes_nothing_too_many_and_leaves_nothing_old() {
    let tally = Tally::new("late watch of Interlock");
    let runs = if long() { 20 } else { 1 };
    // The short form has ten seconds for the first three, one for the others.
    let points = OURS
        .iter()
        .enumerate()
        .flat_map(|(at, resource)| [SECOND, SECOND * 10].map(|late| (at, resource, late)))
        .filter(|(at, _, late)| long() || (*at < 3) == (*late > SECOND))
        .map(|(_, resource, late)| (resource, late))
        .flat_map(|(resource, late)| (0..runs).map(move |nth| (resource, late, nth)));
    stream::iter(points)
        .for_each_concurrent(12, |(resource, late, nth)| {
            let tally = &tally;
            async move {
                let story = ours(format!("{resource} {late:?} late, {nth}"), nth).await;
                let start = Instant::now();
                story.env.proxy().set(resource, WatchFault::Delay(late));
                story.go(late).await;
                story.judge(tally).await;
                println!("{}: {:.1} s", story.what, start.elapsed().as_secs_f64());
            }
        })
        .await;
}

/// How a watch is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Cut,
    Gone,
    Expired,
    BlackHole,
}

/// A change that only this watch tells of, and that is to be noticed.
async fn news(env: &Env, resource: &str) {
    if resource == "hookpolicies.interlock.dev" {
        let patch = json!({"spec": {"maxConcurrentUpdates": 9}});
        env.policies().patch("p", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }
}

async fn noticed(env: &Env, resource: &str) -> bool {
    if resource != "hookpolicies.interlock.dev" {
        return true;
    }
    let policy = serde_json::to_value(env.policies().get("p").await.unwrap()).unwrap();
    let conditions = policy["status"]["conditions"].as_array().unwrap();
    conditions.iter().any(|c| c["type"] == "Ready" && c["observedGeneration"] == policy["metadata"]["generation"])
}

async fn lost(resource: &str, loss: Loss, tally: &Tally) {
    let story = ours(format!("{resource}: {loss:?}"), 0).await;
    let (env, what, proxy) = (&story.env, &story.what, story.env.proxy());
    let begun = proxy.begun(resource);
    assert!(begun > 0, "{what}: there is such a watch");
    let start = Instant::now();
    match loss {
        Loss::Cut => proxy.cut(resource),
        Loss::Gone => proxy.set(resource, WatchFault::Gone),
        Loss::Expired => proxy.set(resource, WatchFault::Expired),
        Loss::BlackHole => {
            proxy.set(resource, WatchFault::BlackHole);
            // The connection that was caught stays silent; the next one passes.
            sleep(SECOND / 10).await;
            proxy.set(resource, WatchFault::None);
        }
    }
    news(env, resource).await;
    let again = async {
        // Noticed within 60 s; the rest is for a machine that does other things as well.
        let again = tokio::time::timeout(Duration::from_secs(75), proxy.more_than(resource, begun)).await;
        assert!(again.is_ok(), "{what}: nobody noticed");
        start.elapsed()
    };
    let awaited = format!("{what}: the news arrived");
    let arrived = env.until(&awaited, LONG, || noticed(env, resource));
    let (again, (), ()) = tokio::join!(again, arrived, story.go(Duration::ZERO));
    let awaited = format!("{what}: there is a watch again, which stays");
    env.until(&awaited, LONG, || async { proxy.running(resource) == 1 }).await;
    story.judge(tally).await;
    let over = start.elapsed();
    println!("{what}: watched again after {:.1} s, over after {:.1} s", again.as_secs_f64(), over.as_secs_f64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_cut_gone_or_black_holed_is_taken_up_again() {
    let tally = Tally::new("lost watch of Interlock");
    // Those that take a minute first, all at once. Of the others each watch has one, in the short form.
    let losses = [Loss::BlackHole, Loss::Cut, Loss::Gone, Loss::Expired];
    let points = losses.iter().enumerate().flat_map(|(i, loss)| {
        let due = move |at: usize| long() || i == 0 || i == 1 + at % 3;
        OURS.into_iter().enumerate().filter(move |(at, _)| due(*at)).map(|(_, resource)| (resource, *loss))
    });
    stream::iter(points).for_each_concurrent(12, |(resource, loss)| lost(resource, loss, &tally)).await;
}
