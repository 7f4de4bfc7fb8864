//! The Deployment controller (Kubernetes 1.37, pkg/controller/deployment: sync.go, rolling.go, recreate.go, progress.go,
//! util/deployment_util.go), on its own view of Deployments and ReplicaSets. What it writes, it writes by the version
//! that it has seen.

mod roll;
mod scale;
mod sets;
mod status;

use std::{sync::Arc, time::Duration};

use interlock_core::api::names;
use serde_json::Value;
use tokio::{sync::watch, time::Instant};

use super::{Lag, View};
use crate::{
    json::{annotation, at, int, text},
    kinds,
    refusal::Refusal,
    store::{Caller, Part, Store},
};

const US: &str = "deployment-controller";
const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// First and longest pause after a failed sync.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(5));

pub(super) async fn run(store: Arc<Store>, lag: Lag, mut switch: watch::Receiver<bool>) {
    let mut view = View::new(&store, &["deployments", "replicasets"], lag);
    let mut failures = 0;
    let mut timer = None;
    loop {
        view.turn(timer, &mut switch).await;
        let all: Vec<Value> = view.of("deployments").map(|d| Value::clone(d)).collect();
        let mut failed = false;
        for d in all {
            let sets = view.owned("replicasets", "Deployment", text(&d, "/metadata/uid"));
            failed |= Sync { store: &store, d, sets }.sync().is_err();
        }
        failures = if failed { failures + 1 } else { 0 };
        timer = failed.then(|| Instant::now() + RETRY.0.saturating_mul(1 << failures.min(12)).min(RETRY.1));
    }
}

fn age(set: &Value) -> (String, String) {
    (text(set, "/metadata/creationTimestamp").to_owned(), text(set, "/metadata/name").to_owned())
}

fn replicas(set: &Value) -> i64 {
    int(set, "/spec/replicas")
}

fn revision(set: &Value) -> i64 {
    annotation(set, names::REVISION).and_then(|r| r.parse().ok()).unwrap_or(0)
}

fn uid(set: &Value) -> &str {
    text(set, "/metadata/uid")
}

fn sum(sets: &[Value], field: &str) -> i64 {
    sets.iter().map(|s| int(s, field)).sum()
}

/// A number or a percentage of the replicas.
fn scaled(value: &Value, replicas: i64, up: bool) -> i64 {
    let Some(percent) = value.as_str().and_then(|t| t.trim_end_matches('%').parse::<i64>().ok()) else {
        return value.as_i64().unwrap_or(0);
    };
    if up { (replicas * percent + 99) / 100 } else { replicas * percent / 100 }
}

struct Sync<'a> {
    store: &'a Store,
    d: Value,
    sets: Vec<Value>,
}

type Done<T = ()> = Result<T, Refusal>;

impl Sync<'_> {
    fn desired(&self) -> i64 {
        replicas(&self.d)
    }

    fn recreate(&self) -> bool {
        text(&self.d, "/spec/strategy/type") == "Recreate"
    }

    fn limits(&self) -> (i64, i64) {
        let part =
            |name: &str, up| scaled(at(&self.d, &format!("/spec/strategy/rollingUpdate/{name}")), self.desired(), up);
        let (surge, unavailable) = (part("maxSurge", true), part("maxUnavailable", false));
        if self.recreate() {
            return (0, 0);
        }
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        (surge, unavailable.min(self.desired()))
    }

    fn key(&self) -> (&'static kinds::Kind, String, String) {
        let of = |p| text(&self.d, p).to_owned();
        (kinds::of("deployments"), of("/metadata/namespace"), of("/metadata/name"))
    }

    /// The status and the annotations of the Deployment as we have them.
    fn update_status(&mut self) -> Done {
        let (kind, namespace, name) = self.key();
        let sent = self.d.clone();
        self.d = self.store.update(Caller::system(US), (kind, &namespace, &name), Part::Status, |_| Ok(sent))?;
        Ok(())
    }

    /// A ReplicaSet as we have it. Returns it as it is stored.
    fn update_set(&mut self, set: Value) -> Done<Value> {
        let (namespace, name) = (text(&set, "/metadata/namespace").to_owned(), text(&set, "/metadata/name").to_owned());
        let target = (kinds::of("replicasets"), namespace.as_str(), name.as_str());
        let stored = self.store.update(Caller::system(US), target, Part::Main, |_| Ok(set))?;
        if let Some(seen) = self.sets.iter_mut().find(|s| uid(s) == uid(&stored)) {
            *seen = stored.clone();
        }
        Ok(stored)
    }

    fn sync(&mut self) -> Done {
        if !at(&self.d, "/metadata/deletionTimestamp").is_null() {
            return Ok(());
        }
        self.check_paused()?;
        let paused = self.d["spec"]["paused"] == true;
        if paused || self.scaling_event()? {
            let new = self.revise(false)?;
            self.scale(new.as_ref())?;
            if paused {
                self.clean_up(new.as_ref())?;
            }
            return self.sync_status(new.as_ref(), false);
        }
        if self.recreate() { self.roll_by_recreation() } else { self.roll() }
    }
}
