//! Under paused time, against a Lease API that keeps resourceVersions and can be told to misbehave.

use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::sleep};

use super::*;

#[derive(Clone, Copy, Default, PartialEq)]
enum Mood {
    #[default]
    Well,
    /// Answers 500.
    Broken,
    /// Takes the write, and never answers.
    Silent,
    /// Never answers.
    Hanging,
}

#[derive(Default)]
struct State {
    lease: Option<Value>,
    version: u64,
    writes: u64,
    mood: Mood,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, std::convert::Infallible>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let method = request.method().clone();
        let body = request.into_body().collect_bytes().await.unwrap();
        let mood = self.0.lock().unwrap().mood;
        if mood == Mood::Hanging {
            std::future::pending::<()>().await;
        }
        if mood == Mood::Broken {
            return status(500, "InternalError");
        }
        let answer = self.apply(&method, &body);
        if mood == Mood::Silent && method != Method::GET {
            std::future::pending::<()>().await;
        }
        answer
    }

    fn apply(&self, method: &Method, body: &[u8]) -> Response<Body> {
        let mut state = self.0.lock().unwrap();
        if *method == Method::GET {
            return state.lease.as_ref().map_or_else(|| status(404, "NotFound"), object);
        }
        let mut new: Value = serde_json::from_slice(body).unwrap();
        match (&state.lease, *method == Method::POST) {
            (Some(_), true) => return status(409, "AlreadyExists"),
            (None, false) => return status(404, "NotFound"),
            (Some(old), false) if old["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"] => {
                return status(409, "Conflict");
            }
            _ => {}
        }
        state.version += 1;
        state.writes += 1;
        new["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.lease = Some(new.clone());
        object(&new)
    }

    fn mood(&self, mood: Mood) {
        self.0.lock().unwrap().mood = mood;
    }

    fn holder(&self) -> Option<String> {
        let state = self.0.lock().unwrap();
        Some(state.lease.as_ref()?["spec"]["holderIdentity"].as_str()?.to_owned())
    }

    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        let version = state.version.to_string();
        let lease = state.lease.as_mut().unwrap();
        edit(lease);
        lease["metadata"]["resourceVersion"] = json!(version);
    }

    fn start(&self, identity: &str) -> Runner {
        let (candidate, fence) = Candidate::new(self.client(), "interlock-system", "interlock", identity.into());
        let stop = CancellationToken::new();
        Runner { fence, task: tokio::spawn(candidate.run(stop.clone())), stop }
    }
}

fn object(value: &Value) -> Response<Body> {
    Response::new(Body::from(value.to_string().into_bytes()))
}

fn status(code: u16, reason: &str) -> Response<Body> {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": code});
    Response::builder()
        .status(StatusCode::from_u16(code).unwrap())
        .body(Body::from(body.to_string().into_bytes()))
        .unwrap()
}

struct Runner {
    fence: Fence,
    task: JoinHandle<Result<(), LeaseLost>>,
    stop: CancellationToken,
}

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[tokio::test(start_paused = true)]
async fn one_of_two_leads_renews_every_two_seconds_and_hands_over_quickly() {
    let server = Server::default();
    let a = server.start("a");
    a.fence.acquired().await;
    let b = server.start("b");
    sleep(seconds(61)).await;
    assert!(a.fence.holds() && !b.fence.holds());
    assert_eq!(server.0.lock().unwrap().writes, 31, "one to acquire, one every 2 s");

    a.stop.cancel();
    a.task.await.unwrap().unwrap();
    assert!(!a.fence.holds());
    assert_eq!(server.holder(), None);
    let before = Instant::now();
    b.fence.acquired().await;
    assert!(before.elapsed() <= PERIOD, "{:?}", before.elapsed());
    assert_eq!(server.holder().as_deref(), Some("b"));
    assert_eq!(server.0.lock().unwrap().lease.as_ref().unwrap()["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn two_that_start_together_never_both_lead() {
    let server = Server::default();
    let a = server.start("a");
    let b = server.start("b");
    for _ in 0..1000 {
        sleep(Duration::from_millis(50)).await;
        assert!(!(a.fence.holds() && b.fence.holds()));
    }
    assert!(a.fence.holds() || b.fence.holds());
}

#[tokio::test(start_paused = true)]
async fn a_dead_holder_is_replaced_after_the_duration_whatever_its_clock_said() {
    let server = Server::default();
    let a = server.start("a");
    a.fence.acquired().await;
    server.edit(|lease| lease["spec"]["renewTime"] = json!("2099-01-01T00:00:00.000000Z"));
    a.task.abort();
    let b = server.start("b");
    let before = Instant::now();
    b.fence.acquired().await;
    let waited = before.elapsed();
    assert!(waited >= DURATION && waited <= DURATION + PERIOD * 2, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn an_old_looking_lease_of_a_living_holder_is_not_taken() {
    let server = Server::default();
    let a = server.start("a");
    a.fence.acquired().await;
    let b = server.start("b");
    for _ in 0..60 {
        sleep(seconds(1)).await;
        assert!(!b.fence.holds());
    }
    assert!(a.fence.holds());
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_the_fence_falls_at_the_deadline_and_the_process_ends() {
    for mood in [Mood::Broken, Mood::Hanging, Mood::Silent] {
        let server = Server::default();
        let a = server.start("a");
        a.fence.acquired().await;
        sleep(Duration::from_millis(4100)).await;
        let renewed = Instant::now() - Duration::from_millis(100);
        server.mood(mood);
        while a.fence.holds() {
            sleep(Duration::from_millis(10)).await;
        }
        let held = renewed.elapsed();
        assert!(
            held + Duration::from_millis(50) >= DEADLINE && held <= DEADLINE + Duration::from_millis(50),
            "{held:?}"
        );
        let lost = a.task.await.unwrap().unwrap_err();
        assert!(matches!(lost, LeaseLost::NotRenewed { .. }), "{lost}");
        assert!(renewed.elapsed() <= DEADLINE + Duration::from_millis(50));
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_is_survived() {
    for mood in [Mood::Broken, Mood::Hanging, Mood::Silent] {
        let server = Server::default();
        let a = server.start("a");
        a.fence.acquired().await;
        server.mood(mood);
        sleep(seconds(6)).await;
        server.mood(Mood::Well);
        sleep(seconds(30)).await;
        assert!(a.fence.holds() && !a.task.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_made_again_by_its_holder_and_not_stolen_meanwhile() {
    let server = Server::default();
    let a = server.start("a");
    a.fence.acquired().await;
    let b = server.start("b");
    sleep(seconds(5)).await;
    for _ in 0..20 {
        server.0.lock().unwrap().lease = None;
        sleep(Duration::from_millis(2700)).await;
        assert!(a.fence.holds() && !b.fence.holds());
        assert_eq!(server.holder().as_deref(), Some("a"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_else_holds_is_lost_at_the_next_renewal() {
    let server = Server::default();
    let a = server.start("a");
    a.fence.acquired().await;
    server.edit(|lease| lease["spec"]["holderIdentity"] = json!("thief"));
    let lost = a.task.await.unwrap().unwrap_err();
    assert_eq!(lost, LeaseLost::Taken { lease: "interlock-system/interlock".into(), holder: "thief".into() });
    assert!(!a.fence.holds());
}

#[tokio::test(start_paused = true)]
async fn edits_by_others_that_leave_the_holder_are_harmless() {
    let server = Server::default();
    let a = server.start("a");
    a.fence.acquired().await;
    for n in 0..10 {
        server.edit(|lease| lease["metadata"]["labels"] = json!({"n": n.to_string()}));
        sleep(seconds(3)).await;
        assert!(a.fence.holds());
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stood_still_finds_its_fence_down() {
    let server = Server::default();
    let a = server.start("a");
    a.fence.acquired().await;
    // The clock moves and no task of ours ran: what SIGSTOP does.
    tokio::time::advance(seconds(60)).await;
    assert!(!a.fence.holds());
    assert!(matches!(a.task.await.unwrap(), Err(LeaseLost::NotRenewed { .. })));
}

#[tokio::test(start_paused = true)]
async fn stopping_a_candidate_that_does_not_lead_leaves_the_lease_alone() {
    let server = Server::default();
    let a = server.start("a");
    a.fence.acquired().await;
    let b = server.start("b");
    sleep(seconds(3)).await;
    b.stop.cancel();
    b.task.await.unwrap().unwrap();
    assert_eq!(server.holder().as_deref(), Some("a"));
}

#[test]
fn the_open_fence_holds() {
    assert!(Fence::always().holds());
}
