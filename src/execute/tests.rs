use std::{
    cell::Cell,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use http::{Request, Response, StatusCode};
use interlock_core::time::Time;
use kube::client::Body;

use super::*;
use crate::action::Runner;

/// An API server that answers every write after a moment, and what it was asked.
pub(crate) struct Fixture {
    pub(crate) executor: Executor,
    pub(crate) observe: Arc<Observe>,
    asked: Arc<Mutex<Vec<String>>>,
    pub(crate) most: Arc<AtomicUsize>,
    leads: Arc<AtomicBool>,
}

impl Fixture {
    pub(crate) fn new(answer: impl Fn(&Request<Body>) -> (StatusCode, Value) + Clone + Send + Sync + 'static) -> Self {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let service = {
            let (asked, most) = (Arc::clone(&asked), Arc::clone(&most));
            tower::service_fn(move |request: Request<Body>| {
                let path = request.uri().path().rsplit("namespaces/ns/").next().unwrap_or_default().to_owned();
                asked.lock().unwrap().push(format!("{} {path}", request.method()));
                let (code, body) = answer(&request);
                let (now, most) = (Arc::clone(&now), Arc::clone(&most));
                async move {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, std::convert::Infallible>(
                        Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap(),
                    )
                }
            })
        };
        let leads = Arc::new(AtomicBool::new(true));
        let fence: Fence = {
            let leads = Arc::clone(&leads);
            Arc::new(move || leads.load(Ordering::SeqCst))
        };
        let observe = Arc::new(Observe::new(|_| ()));
        let runner = Runner::of(|_| std::future::pending());
        let actions = Arc::new(Actions::new(runner, |_| ()));
        let client = Client::new(service, "ns");
        let executor = Executor::new(client, fence, Arc::clone(&observe), actions, Metrics::new(), "test".to_owned());
        Self { executor, observe, asked, most, leads }
    }

    async fn perform(&self, effects: Vec<Effect>) -> Result<bool, Failure> {
        self.executor.perform(&subject(), effects).await
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

pub(crate) fn subject() -> Subject {
    Subject::new(Key::new("ns", "web"), "uid-web".to_owned())
}

pub(crate) fn patch_pod(name: &str) -> Effect {
    Effect::PatchPod { name: name.to_owned(), patch: json!([{"op": "test", "path": "/a", "value": 1}]) }
}

fn event() -> Effect {
    Effect::Event { warning: false, reason: "R".to_owned(), message: "m".to_owned() }
}

pub(crate) fn failure(code: u16, message: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "x", "code": code});
    (StatusCode::from_u16(code).unwrap(), status)
}

fn deployment(version: &str) -> Value {
    json!({"metadata": {"namespace": "ns", "name": "web", "uid": "uid-web", "resourceVersion": version}, "spec": {}})
}

std::thread_local!(static LEASE_CHECK_REMOVED: Cell<bool> = const { Cell::new(false) });

/// A fault that a test plants on purpose: in no other build.
pub(super) fn planted_lease_check_removed() -> bool {
    LEASE_CHECK_REMOVED.get()
}

/// What was answered and asked when a process writes that does not lead.
async fn written_without_leadership() -> (Vec<Result<bool, Failure>>, Vec<String>) {
    let f = Fixture::new(|_| (StatusCode::OK, deployment("1")));
    f.leads.store(false, Ordering::SeqCst);
    let call = HookCall {
        key: "k".into(),
        hook: "h".into(),
        phase: interlock_core::api::hook::Phase::PreUpdate,
        namespace: "ns".into(),
        deployment: interlock_core::api::run::ObjectRef { name: "web".into(), uid: "uid-web".into() },
        attempt: 1,
        run: interlock_core::api::run::ObjectRef { name: "r".into(), uid: "u".into() },
        pod: None,
        call: interlock_core::effect::Call::Http(interlock_core::api::hook::HttpHook {
            url: String::new(),
            ..interlock_core::api::hook::HttpHook::default()
        }),
        started_at: interlock_core::time::Time(0),
        timeout_seconds: 1,
        facts: Value::Null,
    };
    let mut answers = Vec::new();
    for effect in [patch_pod("a"), event(), Effect::StartHook(Box::new(call))] {
        answers.push(f.perform(vec![effect]).await);
    }
    (answers, f.asked())
}

#[tokio::test(start_paused = true)]
async fn without_certain_leadership_nothing_is_asked() {
    let (answers, asked) = written_without_leadership().await;
    assert_eq!(answers, vec![Err(Failure::Fenced); 3]);
    assert_eq!(asked, [""; 0]);
}

/// The last of the planted faults; the others stand in `core/tests/planted.rs`.
#[tokio::test(start_paused = true)]
async fn lease_check_removed() {
    LEASE_CHECK_REMOVED.set(true);
    let (answers, asked) = written_without_leadership().await;
    assert!(answers.iter().all(|a| *a != Err(Failure::Fenced)) && asked.len() == 2, "{answers:?} {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn neighbouring_pods_go_side_by_side_and_everything_else_in_order() {
    let f = Fixture::new(|_| (StatusCode::OK, json!({"metadata": {}})));
    let mut effects = vec![Effect::MirrorConditions { conditions: BTreeMap::new() }];
    effects.extend((0..40).map(|n| patch_pod(&format!("p{n}"))));
    effects.push(Effect::PatchReplicaSet { name: "rs".into(), patch: json!([]) });
    assert_eq!(f.perform(effects).await, Ok(true));
    assert_eq!(f.most.load(Ordering::SeqCst), SIDE_BY_SIDE);
    let asked = f.asked();
    assert_eq!(asked.len(), 42);
    assert_eq!(asked[0], "PATCH deployments/web/status");
    assert_eq!(asked[41], "PATCH replicasets/rs");
}

#[tokio::test(start_paused = true)]
async fn two_writes_of_one_pod_go_one_after_the_other() {
    let f = Fixture::new(|request| match request.uri().path() {
        path if path.ends_with("/p1") => failure(409, "changed"),
        _ => (StatusCode::OK, json!({"metadata": {}})),
    });
    let resize = |name: &str| Effect::ResizePod { name: name.to_owned(), patch: json!([]) };
    let effects = vec![patch_pod("p0"), resize("p0"), patch_pod("p1"), resize("p1")];
    assert!(f.perform(effects).await.is_err());
    assert_eq!(f.asked(), ["PATCH pods/p0", "PATCH pods/p1", "PATCH pods/p0/resize"]);
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_ends_it_after_those_in_flight() {
    let f = Fixture::new(|request| match request.uri().path() {
        path if path.ends_with("/p0") => failure(409, "changed"),
        _ => (StatusCode::OK, json!({"metadata": {}})),
    });
    let mut effects: Vec<Effect> = (0..3).map(|n| patch_pod(&format!("p{n}"))).collect();
    effects.push(event());
    let what = "pod/p0".to_owned();
    assert_eq!(f.perform(effects).await, Err(Failure::Lost { what, message: "changed".into() }));
    assert_eq!(f.asked().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_a_write_returned_is_known_at_once() {
    let f = Fixture::new(|_| (StatusCode::OK, deployment("7")));
    let effect = Effect::PatchDeployment { purpose: DeploymentPurpose::Release, patch: json!({}) };
    assert_eq!(f.perform(vec![effect]).await, Ok(true));
    let world = f.observe.world(&subject().key, Time(0), None).unwrap();
    assert_eq!(world.deployment.resource_version, "7");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_cannot_be_written_stops_nothing() {
    let f = Fixture::new(|request| match request.uri().path() {
        path if path.ends_with("/events") => failure(403, "no"),
        _ => (StatusCode::OK, deployment("1")),
    });
    assert_eq!(f.perform(vec![event(), Effect::MirrorConditions { conditions: BTreeMap::new() }]).await, Ok(true));
    assert_eq!(f.asked(), ["POST events", "PATCH deployments/web/status"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_ends_at_its_deadline() {
    let client = Client::new(
        tower::service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, std::convert::Infallible>>()
        }),
        "ns",
    );
    let f = Fixture::new(|_| failure(500, ""));
    let executor = Executor { client, ..f.executor };
    let start = tokio::time::Instant::now();
    let failed = executor.perform(&subject(), vec![patch_pod("a")]).await;
    assert!(matches!(failed, Err(Failure::Transient { .. })));
    assert_eq!(start.elapsed(), CALL);
}
