//! The real process is killed before each of its writes reaches the API server, and right after each with the reply
//! lost. A new process reaches the same end with the same counts.

use futures::stream::{self, StreamExt};
use tally::Tally;

use crate::{
    crashes::{CHECKS, PODS, check, undisturbed},
    harness::{
        Env, Moment, objects,
        process::{ALONE, Way},
    },
};

async fn ready() -> (Env, Way) {
    let env = Env::new("killed").await;
    env.policy(objects::policy("p", &env.receiver.url)).await;
    let way = Way::new(&env, "killed").await;
    env.create(objects::deployment("web", PODS)).await;
    (env, way)
}

async fn killed(moment: Moment, nth: usize, tally: &Tally) {
    let what = format!("killed {moment:?} write {nth}");
    let (env, way) = ready().await;
    let mark = env.observer.mark();
    let aftermath = way.update_killed_at(&env, moment, nth, env.ended("web", "Succeeded")).await;
    check(&env, mark, &what).await;
    drop(aftermath);
    tally.points(1);
    tally.checks(CHECKS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_at_any_write_is_taken_up() {
    let (env, way) = ready().await;
    let controller = way.start(&ALONE).await;
    let writes = undisturbed(&env, &way.gate).await;
    drop(controller);
    let tally = Tally::new("process killed at every write, real control plane");
    // The short form has each write once, before and after by turns; all pairs are in the long form, and in process.
    let long = std::env::var_os("INTERLOCK_LONG").is_some();
    let both = |n: usize| [(Moment::Before, n), (Moment::After, n)].into_iter().skip(if long { 0 } else { n % 2 });
    let points = (1..=writes).flat_map(|n| both(n).take(if long { 2 } else { 1 }));
    stream::iter(points).for_each_concurrent(4, |(moment, n)| killed(moment, n, &tally)).await;
}
