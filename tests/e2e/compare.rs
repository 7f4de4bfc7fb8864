//! The API server in the test's own process (tests/apiserver) against the real one: the same stories have the same ends,
//! the same requests get the same answers. What tests/inproc finds is worth as much as this comparison.

use std::collections::BTreeMap;

use apiserver::{Picture, script::SCRIPTS};
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use tally::Tally;

use crate::harness::{Env, objects};

/// What was written, by kind. The status of a run counts what moves once in a while, and a write can lose the race against
/// the Deployment controller and be made again: how often is a matter of time.
fn writes(gate: &apiserver::Gate) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for write in gate.writes() {
        let timed = write.what.contains("hookpolicies") || write.what.ends_with("/status");
        if write.accepted && !timed {
            *counts.entry(write.what).or_insert(0) += 1;
        }
    }
    counts
}

async fn on_a_real_one(index: usize) -> (Value, String) {
    let (name, steps) = SCRIPTS[index];
    let env = Env::with_policy(&format!("cmp{index}")).await;
    let policy = objects::policy("p", &env.receiver.url);
    for step in steps {
        step.play(&env, &policy).await;
    }
    let mut ending = env.look("web").await.ending(&env.observer, "web", 0, &env.receiver.calls());
    ending["writes"] = json!(writes(&env.gate));
    (ending, format!("{name}\n{}", env.picture().await))
}

fn in_process(index: usize) -> (Value, String) {
    inproc::story(async {
        let env = inproc::Env::with_policy(1);
        let policy = objects::policy("p", "http://hook.test");
        for step in SCRIPTS[index].1 {
            step.play(&env, &policy).await;
        }
        let picture = Picture::of_store(&env.server.store, inproc::NAMESPACE, "web").unwrap();
        let mut ending = picture.ending(&env.observer, "web", 0, &env.hooks.calls());
        ending["writes"] = json!(writes(&env.gate));
        (ending, env.log())
    })
}

#[tokio::test]
async fn the_same_stories_have_the_same_ends() {
    let tally = Tally::new("stories in process and on a real control plane");
    tally.points(SCRIPTS.len());
    let faults: Vec<String> = stream::iter(0..SCRIPTS.len())
        .map(|index| async move {
            let here = tokio::task::spawn_blocking(move || in_process(index)).await;
            let (here, log) = here.map_err(|error| format!("{}: in process: {error}", SCRIPTS[index].0))?;
            let (there, picture) = on_a_real_one(index).await;
            if here == there {
                return Ok(());
            }
            let only = std::env::var("SCRIPT").is_ok_and(|only| only == SCRIPTS[index].0);
            let more = if only { format!("\n{log}\n{picture}") } else { String::new() };
            Err(format!("{} ends otherwise in process:{}{more}", SCRIPTS[index].0, inproc::difference(&there, &here)))
        })
        .buffer_unordered(4)
        .filter_map(|result: Result<(), String>| async move { result.err() })
        .collect()
        .await;
    tally.checks(SCRIPTS.len());
    faults.iter().for_each(|_| tally.failure());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
