//! Two processes: one that stands still for longer than its Lease lasts has no effect any more, whatever it was about to
//! write, and a Lease that is deleted makes no second leader.

use futures::stream::{self, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::DeleteParams};
use tally::Tally;
use tokio::time::{Duration, Instant, sleep};

use crate::{
    controller::Controller,
    crashes::{CHECKS, PODS, check},
    harness::{Env, Moment, objects, process::Way},
};

/// Conditions on the Deployment, the one write whose only precondition is the UID: arriving late it is put right.
const MIRROR: &str = "PATCH deployments/status";

struct Two {
    env: Env,
    lease: String,
    first: (Way, Controller),
    second: (Way, Controller),
}

impl Two {
    /// The first leads, the second is ready to.
    async fn new(name: &str) -> Self {
        let env = Env::new(name).await;
        env.policy(objects::policy("p", &env.receiver.url)).await;
        env.create(objects::deployment("web", PODS)).await;
        let lease = env.namespace.clone();
        let election = ["--lease-namespace", "interlock-system", "--lease-name", &lease];
        let way = Way::new(&env, "first").await;
        let controller = way.start(&election).await;
        env.until("the first leads", 40, || controller.leads()).await;
        let first = (way, controller);
        let way = Way::new(&env, "second").await;
        let controller = way.start(&election).await;
        Self { env, lease, first, second: (way, controller) }
    }

    async fn delete_lease(&self) {
        let leases: Api<Lease> = Api::namespaced(self.env.admin.clone(), "interlock-system");
        leases.delete(&self.lease, &DeleteParams::default()).await.unwrap();
    }
}

async fn conditions_tell_of_the_end(env: &Env) -> bool {
    let deployment = env.get("web").await;
    let shows = |type_: &str, reason: &str| {
        let all = deployment["status"]["conditions"].as_array();
        all.is_some_and(|all| all.iter().any(|c| c["type"] == type_ && c["reason"] == reason))
    };
    shows("interlock.dev/Held", "Released") && shows("interlock.dev/Succeeded", "Succeeded")
}

/// The leader stands still at a write: `Before`, the write is on its way and arrives when all is over; `After`, its reply
/// waits until the process goes on.
async fn frozen(moment: Moment, write: &str, delete: bool, tally: &Tally) {
    let what = format!("frozen {moment:?} {write}{}", if delete { ", Lease deleted" } else { "" });
    let mut two = Two::new("frozen").await;
    let mark = two.env.observer.mark();
    let mut stops = two.first.0.gate.stop_at(moment, write, 1);
    two.env.patch("web", objects::set_image("v2")).await;
    let stop = tokio::time::timeout(Duration::from_secs(200), stops.recv()).await.expect(&what).unwrap();
    two.first.1.signal("STOP");
    let start = Instant::now();
    let stop = match moment {
        Moment::Before => Some(stop),
        Moment::After => {
            stop.go_on();
            None
        }
    };
    if delete {
        two.delete_lease().await;
    }
    // What it had sent before it stopped has arrived.
    sleep(Duration::from_secs(1)).await;
    let audit = two.env.cluster.audit_mark().await.unwrap();
    two.env.until("the second leads", 60, || two.second.1.leads()).await;
    println!("{what}: the other led after {:.1} s", start.elapsed().as_secs_f64());
    check(&two.env, mark, &what).await;

    let passed = two.first.0.gate.writes().len();
    if let Some(stop) = stop {
        stop.go_on();
        two.env.until("the write arrived", 20, || async { two.first.0.gate.writes().len() > passed }).await;
    }
    two.first.1.signal("CONT");
    assert_eq!(two.first.1.wait().await.code(), Some(5), "{what}: it ends");
    two.env.cluster.audit_mark().await.unwrap();
    let mut writes = two.env.cluster.audit().unwrap().writes_since(audit).unwrap();
    writes.retain(|w| w.user_agent == two.first.0.agent);
    let late: Vec<String> = writes.iter().map(|w| format!("{} {} {}", w.verb, w.resource, w.code)).collect();
    println!("{what}: writes of the process that stood still: {late:?}");
    assert!(write == MIRROR || writes.iter().all(|w| !w.is_success()), "{what}: {late:?}");
    assert_eq!(writes.len(), usize::from(moment == Moment::Before), "{what}: {late:?}");
    two.env.until("the conditions tell of the end", 20, || conditions_tell_of_the_end(&two.env)).await;
    check(&two.env, mark, &what).await;
    assert_eq!(two.second.1.terminate().await, Some(0));
    tally.points(1);
    tally.checks(2 * CHECKS + 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stood_still_beyond_its_lease_has_no_effect_any_more() {
    let tally = Tally::new("leader frozen beyond its Lease");
    let points = [
        (Moment::Before, "POST hookruns", false),
        (Moment::Before, "PATCH hookruns/status", false),
        (Moment::Before, "PATCH pods", false),
        (Moment::After, "PATCH pods", true),
        (Moment::Before, "PATCH replicasets", false),
        (Moment::After, "PATCH replicasets", false),
        (Moment::Before, "POST replicasets", false),
        (Moment::Before, "PATCH deployments", false),
        (Moment::Before, MIRROR, false),
    ];
    stream::iter(points).for_each_concurrent(9, |(moment, write, delete)| frozen(moment, write, delete, &tally)).await;
}

#[tokio::test]
async fn a_lease_that_is_deleted_under_its_leader_makes_no_second_one() {
    let mut two = Two::new("deleted").await;
    let mark = two.env.observer.mark();
    let mut stops = two.first.0.gate.stop_at(Moment::After, "PATCH pods", 1);
    two.env.patch("web", objects::set_image("v2")).await;
    let stop = stops.recv().await.unwrap();
    two.delete_lease().await;
    stop.go_on();
    check(&two.env, mark, "Lease deleted").await;
    let leases: Api<Lease> = Api::namespaced(two.env.admin.clone(), "interlock-system");
    two.env
        .until("the Lease is there again", 20, || async { leases.get_opt(&two.lease).await.unwrap().is_some() })
        .await;
    assert!(two.first.1.leads().await && !two.second.1.leads().await);
    let writes = two.second.0.gate.writes();
    assert!(writes.is_empty(), "a follower wrote: {writes:?}");
    assert_eq!(two.first.1.terminate().await, Some(0));
    two.env.until("the second leads", 20, || two.second.1.leads()).await;
    assert_eq!(two.second.1.terminate().await, Some(0));
}
