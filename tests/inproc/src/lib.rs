//! A cluster in this process with one namespace, a controller in it, and hooks that are answered by the test. Time passes
//! only when everybody waits: what takes minutes on a real control plane takes milliseconds here.

#![allow(clippy::pedantic, missing_docs, unreachable_pub)] // test code; each test uses its part
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    collections::BTreeMap,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

pub use apiserver::ControlPlane;
use apiserver::{
    Gate, Observer, Picture, Server, Stage,
    calls::Call,
    objects,
    store::{Caller, EPOCH_MILLIS},
};
use interlock::{
    action::{
        Runner, Runners,
        http::{ApiServer, HttpClient, Rules},
    },
    controller::{self, Clock},
    lease::{Candidate, Fence},
    observe::Scope,
    publish::metrics::Metrics,
    serve::Health,
};
use interlock_core::{api::run::StepOutcome, time::Time, world::AttemptResult};
use kube::{Client, api::PostParams};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use tower::{Layer, ServiceExt};

pub const NAMESPACE: &str = "ns";
/// Longer than any pause between two steps of a run that is going on.
const QUIET: Duration = Duration::from_secs(4);
/// What has not come by then never comes.
const LONGEST: Duration = Duration::from_secs(3600);

/// Runs a story on a runtime of its own, whose time passes only when everybody waits.
pub fn story<F: Future>(story: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(story)
}

/// What hooks were called. All of them succeed.
#[derive(Clone, Default)]
pub struct Hooks {
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Hooks {
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// Carries out attempts: those of http hooks without a network, all others as they are. Ends with its process.
    fn runner(&self, client: Client, clock: Clock, process: CancellationToken) -> Runner {
        let hooks = self.clone();
        let http = HttpClient::new(Rules::default(), None, ApiServer::default());
        Runners::new(client, Arc::new(|| true), clock, http).runner().http_by(move |call| {
            let (hooks, process) = (hooks.clone(), process.clone());
            async move {
                let http = match &call.call {
                    interlock_core::effect::Call::Http(http) => http,
                    interlock_core::effect::Call::Drained => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        let (outcome, reason) = (StepOutcome::Succeeded, "Drained".to_owned());
                        return AttemptResult { outcome, reason, at: clock.now() };
                    }
                    other => panic!("{other:?}"),
                };
                let path = http.url.splitn(4, '/').nth(3).map(|p| format!("/{p}")).unwrap_or_default();
                hooks.calls.lock().unwrap().push(Call { at: Instant::now(), path, key: call.key, body: call.facts });
                tokio::select! {
                    () = process.cancelled() => std::future::pending().await,
                    () = tokio::time::sleep(Duration::from_millis(5)) => {}
                }
                AttemptResult { outcome: StepOutcome::Succeeded, reason: "Http200".to_owned(), at: clock.now() }
            }
        })
    }
}

/// A controller's process.
struct Process {
    task: JoinHandle<Result<(), controller::Error>>,
    alive: CancellationToken,
}

pub struct Env {
    pub server: Server,
    pub plane: ControlPlane,
    pub stage: Stage,
    pub observer: Observer,
    pub hooks: Hooks,
    process: Mutex<Option<Process>>,
}

impl std::ops::Deref for Env {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Env {
    /// A cluster; no policy and no controller yet.
    pub fn new(seed: u64) -> Self {
        let server = Server::new(seed, 2);
        let stage = Stage {
            namespace: NAMESPACE.to_owned(),
            admin: server.client("admin"),
            dev: server.client("dev"),
            gate: Gate::default(),
        };
        let observer = Observer::of(&server.store);
        Self {
            plane: ControlPlane::start(&server),
            stage,
            observer,
            hooks: Hooks::default(),
            process: Mutex::default(),
            server,
        }
    }

    /// The usual policy and a running controller.
    pub fn with_policy(seed: u64) -> Self {
        let env = Self::new(seed);
        env.put(objects::policy("p", "http://hook.test"));
        env.start();
        env
    }

    /// Stores an object at once.
    pub fn put(&self, object: Value) {
        let kind = object["kind"].as_str().unwrap().to_owned();
        let plural = BTreeMap::from([("HookPolicy", "hookpolicies"), ("PodDisruptionBudget", "poddisruptionbudgets")])
            [kind.as_str()];
        self.server.store.create(Caller::system("test"), apiserver::kinds::of(plural), NAMESPACE, object).unwrap();
    }

    /// Somebody keeps all pods by a label: lets go when a pod asks for it, and takes hold again when its update is over.
    pub fn keep(&self, key: &'static str, value: &'static str) {
        let store = Arc::clone(&self.server.store);
        tokio::spawn(async move {
            let mut changes = store.changes();
            loop {
                for pod in store.list("pods", Some(NAMESPACE)).0 {
                    let state = pod["metadata"]["annotations"]["interlock.dev/state"].as_str();
                    let wants = !matches!(state, Some("PreparingUpdate" | "Updating"));
                    if wants != pod["metadata"]["labels"][key].is_null() {
                        continue;
                    }
                    let name = pod["metadata"]["name"].as_str().unwrap();
                    let target = (apiserver::kinds::of("pods"), NAMESPACE, name);
                    let _ = store.update(Caller::system("keeper"), target, apiserver::store::Part::Main, |old| {
                        let mut new = old.clone();
                        let labels = new["metadata"]["labels"].as_object_mut().unwrap();
                        if wants {
                            labels.insert(key.to_owned(), value.into())
                        } else {
                            labels.remove(key)
                        };
                        Ok(new)
                    });
                }
                if changes.changed().await.is_err() {
                    return;
                }
            }
        });
    }

    fn clock(&self) -> Clock {
        Clock::Tokio { start: self.server.store.start(), at: Time(EPOCH_MILLIS) }
    }

    /// The controller's client, behind the gate.
    fn client(&self, user: &str) -> Client {
        let service = self.server.service(user).map_err(|never| -> tower::BoxError { match never {} });
        Client::new(self.gate.layer(service), NAMESPACE)
    }

    fn options(&self, user: &str, fence: Fence, process: &CancellationToken) -> controller::Options {
        controller::Options {
            scope: Scope { namespace: Some(NAMESPACE.to_owned()), ..Scope::default() },
            clock: self.clock(),
            instance: "inproc".to_owned(),
            hooks: self.hooks.runner(self.client(user), self.clock(), process.clone()),
            metrics: Metrics::default(),
            health: Health::new(fence),
        }
    }

    /// Starts the controller.
    pub fn start(&self) {
        let alive = CancellationToken::new();
        let options = self.options("interlock", Fence::always(), &alive);
        let run = controller::run(self.client("interlock"), options, Fence::always(), alive.clone());
        *self.process.lock().unwrap() = Some(Process { task: tokio::spawn(run), alive });
    }

    /// Kills the controller where it stands, with the hook calls that it waits for.
    pub async fn kill(&self) {
        let process = self.process.lock().unwrap().take();
        if let Some(Process { task, alive }) = process {
            task.abort();
            let _ = task.await;
            alive.cancel();
        }
    }

    /// Writes a Deployment as the user, and does not wait for it.
    pub async fn born(&self, deployment: Value) {
        let deployment = serde_json::from_value(deployment).unwrap();
        self.deployments().create(&PostParams::default(), &deployment).await.unwrap();
    }

    pub fn picture_of(&self, name: &str) -> Picture {
        Picture::of_store(&self.server.store, NAMESPACE, name).unwrap()
    }

    /// Waits until nothing has changed for some seconds.
    pub async fn quiet(&self) {
        let mut changes = self.server.store.changes();
        changes.borrow_and_update();
        while tokio::time::timeout(QUIET, changes.changed()).await.is_ok() {}
    }

    /// Waits for a state that may pass again.
    pub async fn when(&self, what: &str, name: &str, is: impl Fn(&Picture) -> bool) {
        let mut changes = self.server.store.changes();
        let wait = async {
            while !Picture::of_store(&self.server.store, NAMESPACE, name).is_some_and(|p| is(&p)) {
                let _ = tokio::time::timeout(Duration::from_secs(5), changes.changed()).await;
            }
        };
        if tokio::time::timeout(LONGEST, wait).await.is_err() {
            panic!("never: {what}\n{}", self.log());
        }
    }

    /// Waits for a state that stays.
    pub async fn end(&self, name: &str, is: impl Fn(&Picture) -> bool) {
        if !self.ends(name, is).await {
            panic!("no end: {:?}\n{}", self.picture_of(name).unwell(), self.log());
        }
    }

    /// Waits until all is well for good. Says what is not, if that never comes.
    pub async fn ended_well(&self, name: &str) -> Result<(), String> {
        if self.ends(name, |p| p.unwell().is_none()).await {
            return Ok(());
        }
        let picture = self.picture_of(name);
        Err(format!("{}, {}", picture.unwell().unwrap_or_default(), picture.run()["status"]))
    }

    async fn ends(&self, name: &str, is: impl Fn(&Picture) -> bool) -> bool {
        let mut changes = self.server.store.changes();
        let now = || Picture::of_store(&self.server.store, NAMESPACE, name).is_some_and(|p| is(&p));
        let wait = async {
            loop {
                while !now() {
                    let _ = tokio::time::timeout(Duration::from_secs(5), changes.changed()).await;
                }
                self.quiet().await;
                if now() {
                    return;
                }
            }
        };
        tokio::time::timeout(LONGEST, wait).await.is_ok()
    }

    /// A candidate for the leadership with a controller behind its fence, as one process.
    pub fn candidate(&self, user: &'static str) -> JoinHandle<String> {
        let (candidate, fence) = Candidate::new(self.server.client(user), NAMESPACE, "interlock", user.to_owned());
        let stop = CancellationToken::new();
        let acting = controller::run(self.client(user), self.options(user, fence.clone(), &stop), fence, stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                ended = acting => format!("controller: {ended:?}"),
                ended = candidate.run(stop) => format!("lease: {ended:?}"),
            }
        })
    }

    /// Everything that the store saw, for a failed test.
    pub fn log(&self) -> String {
        let mut text = String::new();
        for entry in self.server.store.log(0) {
            let at = (entry.at - self.server.store.start()).as_millis();
            let (_, _, name) = entry.key();
            let o = &entry.object;
            let more = match entry.kind.plural {
                "deployments" => json!([
                    o["metadata"]["generation"],
                    o["spec"]["replicas"],
                    o["spec"]["paused"],
                    o["metadata"]["annotations"],
                    o["status"]["observedGeneration"],
                    o["status"]["updatedReplicas"]
                ]),
                "replicasets" => json!([o["spec"]["replicas"], o["metadata"]["annotations"], o["status"]]),
                "pods" => json!([
                    o["spec"]["containers"][0]["image"],
                    o["status"]["observedGeneration"],
                    o["status"]["containerStatuses"][0]["state"]
                ]),
                "hookruns" => {
                    json!([o["status"]["waitingFor"]["reason"], o["status"]["ended"], o["status"]["stall"]["reason"]])
                }
                "events" => json!([o["reason"], o["note"]]),
                _ => json!([]),
            };
            text += &format!("{at:>8} {:22} {:?} {}/{name} {more}\n", entry.by, entry.what, entry.kind.plural);
        }
        text
    }
}

/// Goes through points on all cores. Returns how each one failed.
pub fn each<P: Sync + std::fmt::Debug>(points: &[P], check: impl Fn(&P) -> Result<(), String> + Sync) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let faults = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = std::panic::catch_unwind(AssertUnwindSafe(|| check(point))).unwrap_or_else(|panic| {
                        let text = panic.downcast_ref::<String>().cloned();
                        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
                    });
                    if let Err(why) = result {
                        faults.lock().unwrap().push(format!("{point:?}: {why}"));
                    }
                }
            });
        }
    });
    faults.into_inner().unwrap()
}

/// Where two endings differ.
pub fn difference(wanted: &Value, have: &Value) -> String {
    let patch = json_patch::diff(wanted, have);
    patch
        .0
        .iter()
        .map(|op| format!("\n  {} {op}", wanted.pointer(op.path().as_str()).unwrap_or(&Value::Null)))
        .collect()
}
