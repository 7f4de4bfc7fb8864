//! Two controllers and one Lease.

use std::time::Duration;

use apiserver::{
    objects,
    store::{Caller, Entry, Preconditions},
};
use serde_json::Value;
use tally::Tally;
use tokio::task::JoinHandle;

use inproc::{Env, NAMESPACE, difference, each, story};

const LEASE: &str = "leases";

/// `one` leads, `two` waits; nothing has been changed yet.
async fn ready() -> (Env, JoinHandle<String>, JoinHandle<String>) {
    let env = Env::new(1);
    env.put(objects::policy("p", "http://hook.test"));
    let one = env.candidate("one");
    while holder(&env) != "one" {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let two = env.candidate("two");
    env.create(objects::deployment("web", 2)).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    (env, one, two)
}

fn holder(env: &Env) -> String {
    let lease = env.server.store.get(LEASE, NAMESPACE, "interlock");
    lease.and_then(|l| l["spec"]["holderIdentity"].as_str().map(str::to_owned)).unwrap_or_default()
}

/// The update is through, and all is well for good; the Lease goes on being renewed.
async fn through(env: &Env) {
    env.when("the end", "web", |p| p.run()["status"]["ended"]["outcome"] == "Succeeded" && p.unwell().is_none()).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(env.picture_of("web").unwell(), None, "{}", env.log());
}

/// How many writes an update makes.
fn writes() -> usize {
    story(async {
        let (env, _one, _two) = ready().await;
        let before = env.gate.writes().len();
        env.patch("web", objects::set_image("v2")).await;
        through(&env).await;
        env.gate.writes()[before..].iter().filter(|w| !w.what.contains("hookpolicies")).count()
    })
}

/// The leader stands still with its `nth` write under way, beyond its Lease, while the other one finishes the update. Then
/// that write arrives.
async fn late(nth: usize) -> Result<(), String> {
    let (env, one, two) = ready().await;
    let kept = env.server.keep_write("one", nth);
    env.patch("web", objects::set_image("v2")).await;
    let Ok(Ok(kept)) = tokio::time::timeout(Duration::from_secs(20), kept).await else { return Ok(()) };
    let what = kept.what.clone();
    env.server.mute("one", LEASE, true);
    through(&env).await;
    if holder(&env) != "two" || !one.is_finished() || two.is_finished() {
        return Err(format!(
            "{what}: {:?} leads, one ended {}, two {}",
            holder(&env),
            one.is_finished(),
            two.is_finished()
        ));
    }
    let position = env.server.store.log_len();
    let picture = || env.picture_of("web").ending(&env.observer, "web", 0, &[]);
    let before = picture();
    env.server.mute("one", LEASE, false);
    kept.arrive();
    tokio::time::sleep(Duration::from_mins(1)).await;
    // Conditions on the Deployment are merged by type, without a precondition: their writer is told by nothing. The leader
    // puts them right at once. Nothing else of a late write gets through.
    let conditions = |e: &Entry| {
        e.kind.plural == "deployments" && e.before.as_ref().is_some_and(|b| same_but_conditions(b, &e.object))
    };
    let mut written = env.server.store.log(position).into_iter().filter(|e| e.by == "one" && !conditions(e));
    if let Some(entry) = written.next() {
        return Err(format!("{what} had an effect: {:?} {:?}", entry.what, entry.key()));
    }
    let after = picture();
    if after != before {
        return Err(format!("{what} left something:{}", difference(&before, &after)));
    }
    Ok(())
}

fn same_but_conditions(a: &Value, b: &Value) -> bool {
    let rest = |o: &Value| {
        let mut o = o.clone();
        o["metadata"]["resourceVersion"] = Value::Null;
        o["status"]["conditions"] = Value::Null;
        o
    };
    rest(a) == rest(b)
}

#[test]
fn a_write_of_a_leader_that_stood_still_has_no_effect() {
    let tally = Tally::new("late write of a frozen leader, in process");
    let points: Vec<usize> = (1..=writes()).collect();
    assert!(points.len() >= 10);
    tally.points(points.len());
    let faults = each(&points, |nth| {
        let result = story(late(*nth));
        tally.checks(3);
        if result.is_err() {
            tally.failure();
        }
        result
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_leader_that_cannot_renew_ends_before_the_next_one_begins() {
    story(async {
        let (env, one, _two) = ready().await;
        env.server.mute("one", LEASE, true);
        env.patch("web", objects::set_image("v2")).await;
        let ended = one.await.unwrap();
        assert!(ended.contains("NotRenewed") || ended.contains("Fenced"), "{ended}");
        assert_eq!(holder(&env), "one", "nobody else began before it had ended");
        let position = env.server.store.log_len();
        through(&env).await;
        assert_eq!(holder(&env), "two");
        assert!(env.server.store.log(position).iter().all(|e| e.by != "one"));
    });
}

#[test]
fn a_lease_that_is_deleted_is_made_again_by_its_holder() {
    story(async {
        let (env, one, two) = ready().await;
        env.patch("web", objects::set_image("v2")).await;
        let target = (apiserver::kinds::of(LEASE), NAMESPACE, "interlock");
        env.server.store.delete(Caller::system("test"), target, Preconditions::default()).unwrap();
        through(&env).await;
        assert_eq!(holder(&env), "one");
        assert!(!one.is_finished() && !two.is_finished());
        let written = env.server.store.log(0).into_iter().filter(|e| e.by == "two").count();
        assert_eq!(written, 0, "the other one has not written anything");
    });
}
