//! What the tests of several runners need.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use apiserver::store::{Caller, Part, Preconditions};
use interlock_core::{
    api::{
        hook::Phase,
        run::{ObjectRef, Step, StepOutcome},
    },
    effect::{Call, HookCall},
    time::Time,
};
use kube::Client;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Cluster, Runners,
    http::{ApiServer, HttpClient, Rules},
};
use crate::controller::Clock;

/// When every story begins.
pub(crate) const BEGIN: Time = Time(1_800_000_000_000);

/// An attempt of a hook named `h` for the Deployment `web`, begun at [`BEGIN`], with a minute.
pub(crate) fn call(key: &str, call: Call) -> HookCall {
    HookCall {
        key: key.into(),
        hook: "h".into(),
        phase: Phase::PreUpdate,
        namespace: "ns".into(),
        deployment: ObjectRef { name: "web".into(), uid: "uid-web".into() },
        attempt: 1,
        run: ObjectRef { name: "r".into(), uid: "u".into() },
        pod: None,
        call,
        started_at: BEGIN,
        timeout_seconds: 60,
        facts: json!({
            "namespace": "ns",
            "deployment": "web",
            "attempt": 1,
            "images": {"app": "r.test/app:v2"},
            "odd": "a\"b\\c\n$",
            "nothing": null,
        }),
    }
}

/// The step of that attempt, without a result.
pub(crate) fn step(call: &HookCall) -> Step {
    Step {
        hook: call.hook.clone(),
        phase: call.phase,
        pod: None,
        pod_uid: None,
        attempt: call.attempt,
        started_at: call.started_at,
        finished_at: None,
        outcome: None,
        failure: None,
        undone: false,
        reason: String::new(),
    }
}

/// Attempts begin now, on tokio's clock.
pub(crate) fn clock() -> Clock {
    Clock::Tokio { start: Instant::now(), at: BEGIN }
}

/// A cluster that a client speaks to.
pub(crate) fn cluster(client: Client) -> Cluster {
    Cluster::new(client, Arc::new(|| true), clock())
}

/// Nobody there.
pub(crate) fn no_cluster() -> Cluster {
    let service = tower::service_fn(|_: ::http::Request<kube::client::Body>| async {
        Err::<::http::Response<kube::client::Body>, _>(std::io::Error::other("nobody there"))
    });
    cluster(Client::new(service, "ns"))
}

/// Waits until something comes true.
pub(crate) async fn until(mut is: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came true");
}

/// Some words as a set.
pub(crate) fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

/// An in-process API server, with what a test does to it.
pub(crate) struct Plane {
    pub(crate) server: apiserver::Server,
    pub(crate) cluster: Cluster,
}

impl Plane {
    pub(crate) fn new() -> Self {
        let server = apiserver::Server::new(1, 2);
        let cluster = cluster(server.client("interlock"));
        Self { server, cluster }
    }

    /// Stores an object, its status too. Returns its UID.
    pub(crate) fn put(&self, plural: &str, object: Value) -> String {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let status = object.get("status").cloned();
        let kind = apiserver::kinds::of(plural);
        let stored = self.server.store.create(Caller::system("test"), kind, "ns", object).unwrap();
        if let Some(status) = status {
            self.edit(plural, &name, Part::Status, |o| o["status"] = status);
        }
        stored["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Changes an object.
    pub(crate) fn edit(&self, plural: &str, name: &str, part: Part, change: impl FnOnce(&mut Value)) {
        let target = (apiserver::kinds::of(plural), "ns", name);
        let edit = |old: &Value| {
            let mut new = old.clone();
            change(&mut new);
            Ok(new)
        };
        self.server.store.update(Caller::system("test"), target, part, edit).unwrap();
    }

    pub(crate) fn delete(&self, plural: &str, name: &str) {
        let target = (apiserver::kinds::of(plural), "ns", name);
        let now = Preconditions { grace: Some(0), ..Preconditions::default() };
        self.server.store.delete(Caller::system("test"), target, now).unwrap();
    }

    pub(crate) fn get(&self, plural: &str, name: &str) -> Option<Arc<Value>> {
        self.server.store.get(plural, "ns", name)
    }

    pub(crate) fn all(&self, plural: &str) -> Vec<Arc<Value>> {
        self.server.store.list(plural, Some("ns")).0
    }

    /// Writes that the controller asked for, as `POST jobs`.
    pub(crate) fn writes(&self) -> Vec<String> {
        let ours = self.server.asked().into_iter().filter(|a| a.user == "interlock" && a.write());
        ours.map(|a| {
            let path = a.path.rsplit("namespaces/ns/").next().unwrap_or_default().split('/').next().unwrap_or_default();
            format!("{} {path}", a.method)
        })
        .collect()
    }

    /// Carries an attempt out, as the controller does.
    pub(crate) fn start(&self, call: HookCall, stop: &CancellationToken) -> JoinHandle<(StepOutcome, String)> {
        let http = HttpClient::new(Rules::default(), None, ApiServer::default());
        let runner = Runners::new(self.server.client("interlock"), Arc::new(|| true), clock(), http).runner();
        let running = runner.start(call, stop.clone());
        tokio::spawn(async move {
            let result = running.await;
            (result.outcome, result.reason)
        })
    }

    /// Carries it out to its end.
    pub(crate) async fn run(&self, call: HookCall) -> (StepOutcome, String) {
        self.start(call, &CancellationToken::new()).await.unwrap()
    }
}
