//! The controller dies before each of its writes, and right after each with the reply lost; the API server answers
//! each write with each kind of trouble. Taken up again, it reaches the same end with the same counts.

use std::collections::BTreeSet;

use futures::stream::{self, StreamExt};
use tally::Tally;

use crate::harness::{Env, Gate, Moment, gate::Answer, objects};

pub const PODS: i64 = 2;

/// How many expectations [`check`] looks at.
pub const CHECKS: usize = 10;

async fn ready(name: &str) -> Env {
    let env = Env::with_policy(name).await;
    env.create(objects::deployment("web", PODS)).await;
    env
}

/// The end that the update has to reach, whatever happened on the way.
pub async fn check(env: &Env, mark: usize, what: &str) {
    env.ended("web", "Succeeded").await;
    env.all_well("web").await;
    let (born, gone) = env.observer.born_and_gone("web", mark);
    assert_eq!((born.len(), gone.len()), (0, 0), "{what}: pods were created or deleted");
    assert!(env.observer.fewest_ready("web", mark) >= 1, "{what}: fewer ready pods than replicas - maxUnavailable");
    assert_eq!(env.sets("web").await.len(), 2, "{what}: the main ReplicaSet and one for the history");
    assert_eq!(env.observer.sets("web").len(), 2, "{what}: no other ReplicaSet was ever made");
    assert_eq!(env.runs("web").await.len(), 1, "{what}: one run");
    env.assert_hooks_first("web", &["v1"]);
    for path in ["/before", "/after"] {
        let keys: BTreeSet<String> =
            env.receiver.calls().into_iter().filter(|c| c.path == path).map(|c| c.key).collect();
        assert_eq!(keys.len(), 1, "{what}: {path} was called with {keys:?}");
    }
}

/// How many writes an undisturbed update makes.
async fn reference() -> usize {
    let env = ready("ref").await;
    undisturbed(&env, &env.gate).await
}

/// Updates without trouble, and counts the writes that went through the gate.
pub async fn undisturbed(env: &Env, gate: &Gate) -> usize {
    let (mark, before) = (env.observer.mark(), gate.writes().len());
    env.patch("web", objects::set_image("v2")).await;
    check(env, mark, "undisturbed").await;
    let writes = gate.writes();
    let own: Vec<_> = writes[before..].iter().filter(|w| !w.what.contains("hookpolicies")).collect();
    assert!(own.len() >= 10, "{own:?}");
    own.len()
}

async fn die(moment: Moment, nth: usize, tally: &Tally) {
    let what = format!("death {moment:?} write {nth}");
    let mut env = ready(if moment == Moment::Before { "die-b" } else { "die-a" }).await;
    let mark = env.observer.mark();
    let mut stops = env.gate.stop_at_any(moment, nth);
    env.patch("web", objects::set_image("v2")).await;
    tokio::select! {
        stop = stops.recv() => {
            // Nothing of this process survives; the write that waits here is never sent, or its reply never read.
            env.kill().await;
            drop(stop);
            env.start().await;
        }
        // Fewer writes than in the reference run: timing decides whether counters are written.
        () = env.ended("web", "Succeeded") => {}
    }
    check(&env, mark, &what).await;
    tally.checks(CHECKS);
}

#[tokio::test]
async fn death_before_and_after_every_write() {
    let writes = reference().await;
    let tally = Tally::new("death at every write, real control plane");
    tally.points(2 * (writes + 1));
    let points = (1..=writes + 1).flat_map(|n| [(Moment::Before, n), (Moment::After, n)]);
    stream::iter(points).for_each_concurrent(4, |(moment, n)| die(moment, n, &tally)).await;
}

async fn trouble(answer: Answer, nth: usize, tally: &Tally) {
    let what = format!("{answer:?} to write {nth}");
    let env = ready("trouble").await;
    let mark = env.observer.mark();
    env.gate.answer_any(answer, nth);
    env.patch("web", objects::set_image("v2")).await;
    check(&env, mark, &what).await;
    tally.checks(CHECKS);
}

#[tokio::test]
async fn trouble_as_the_answer_to_every_write() {
    let writes = reference().await;
    let answers =
        [Answer::Code(409), Answer::Code(422), Answer::Code(429), Answer::Code(500), Answer::Code(504), Answer::Lost];
    // Each write meets two kinds here, and each kind many writes; the long form has all pairs.
    let long = std::env::var_os("INTERLOCK_LONG").is_some();
    let points: Vec<(Answer, usize)> = (1..=writes)
        .flat_map(|n| {
            answers.iter().enumerate().filter(move |(i, _)| long || i % 3 == n % 3).map(move |(_, a)| (*a, n))
        })
        .collect();
    let tally = Tally::new("trouble at every write, real control plane");
    tally.points(points.len());
    stream::iter(points).for_each_concurrent(4, |(answer, n)| trouble(answer, n, &tally)).await;
}
