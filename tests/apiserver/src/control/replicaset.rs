//! The ReplicaSet controller (Kubernetes 1.37, pkg/controller/replicaset). It knows the pods as they are, as its
//! expectations make it wait for its own writes, and ReplicaSets as its view shows them.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{Lag, View};
use crate::{
    json::{at, controller, default, int, list, text},
    kinds,
    store::{Caller, Part, Preconditions, Store},
};

const US: &str = "replicaset-controller";
/// After a pod that could not be made. The real one doubles up to 1,000 s.
const RETRY: Duration = Duration::from_millis(500);

pub(super) async fn run(store: Arc<Store>, lag: Lag, mut switch: watch::Receiver<bool>) {
    let mut view = View::new(&store, &["replicasets", "pods"], lag);
    let mut timer = None;
    loop {
        view.turn(timer, &mut switch).await;
        let sets: Vec<Arc<Value>> = view.of("replicasets").cloned().collect();
        timer = sets.iter().filter_map(|set| sync(&store, set)).min();
    }
}

/// Returns when to look again although nothing has changed.
fn sync(store: &Store, set: &Value) -> Option<Instant> {
    let (namespace, name) = (text(set, "/metadata/namespace"), text(set, "/metadata/name"));
    let real = store.get("replicasets", namespace, name)?;
    if real["metadata"]["uid"] != set["metadata"]["uid"] {
        return None;
    }
    let uid = text(set, "/metadata/uid");
    let mine = || -> Vec<Arc<Value>> {
        let all = store.list("pods", Some(namespace)).0.into_iter();
        all.filter(|p| controller(p, "ReplicaSet") == uid && at(p, "/metadata/deletionTimestamp").is_null()).collect()
    };
    let have = mine();
    let wanted = int(set, "/spec/replicas");
    let count = i64::try_from(have.len()).unwrap();
    let mut failure = None;
    for _ in count..wanted {
        let created = store.create(Caller::system(US), kinds::of("pods"), namespace, pod(set));
        if let Err(refusal) = created {
            failure = Some(refusal.message);
            break;
        }
    }
    if count > wanted {
        let mut doomed = have;
        // Not ready first, then the youngest (controller_utils.go, ActivePodsWithRanks).
        doomed.sort_by_key(|p| (ready(p), std::cmp::Reverse(text(p, "/metadata/creationTimestamp").to_owned())));
        for pod in doomed.iter().take(usize::try_from(count - wanted).unwrap()) {
            let target = (kinds::of("pods"), namespace, text(pod, "/metadata/name"));
            let _ = store.delete(Caller::system(US), target, Preconditions::default());
        }
    }
    let mut status = set["status"].clone();
    let mut wake = failure.is_some().then(|| Instant::now() + RETRY);
    let pods = mine();
    let (mut are_ready, mut available) = (0, 0);
    for pod in pods.iter().filter(|p| ready(p)) {
        are_ready += 1;
        match available_in(store, pod, int(set, "/spec/minReadySeconds")) {
            None => available += 1,
            Some(wait) => wake = Some(wake.unwrap_or(Instant::now() + wait).min(Instant::now() + wait)),
        }
    }
    status["replicas"] = json!(pods.len());
    for (field, value) in
        [("fullyLabeledReplicas", pods.len()), ("readyReplicas", are_ready), ("availableReplicas", available)]
    {
        if value == 0 {
            crate::json::drop_key(&mut status, field);
        } else {
            status[field] = json!(value);
        }
    }
    status["observedGeneration"] = set["metadata"]["generation"].clone();
    let before = list(&status, "/conditions").iter().any(|c| c["type"] == "ReplicaFailure");
    match failure {
        Some(message) if !before => {
            status["conditions"] = json!([{
                "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message,
                "lastTransitionTime": store.stamp(),
            }]);
        }
        None if before => crate::json::drop_key(&mut status, "conditions"),
        Some(_) | None => {}
    }
    if status != real["status"] {
        let written =
            store.update(Caller::system(US), (kinds::of("replicasets"), namespace, name), Part::Status, |old| {
                let mut new = old.clone();
                new["status"] = status;
                // It updates by the version that it has seen.
                new["metadata"]["resourceVersion"] = set["metadata"]["resourceVersion"].clone();
                Ok(new)
            });
        if written.is_err() {
            let again = Instant::now() + Duration::from_millis(5);
            wake = Some(wake.unwrap_or(again).min(again));
        }
    }
    wake
}

fn pod(set: &Value) -> Value {
    let mut pod = set["spec"]["template"].clone();
    default(&mut pod, "metadata", json!({}));
    pod["metadata"]["generateName"] = json!(format!("{}-", text(set, "/metadata/name")));
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set["metadata"]["name"], "uid": set["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    }]);
    pod
}

fn ready(pod: &Value) -> bool {
    list(pod, "/status/conditions").iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// How long a ready pod still has to stay so; `None`: it is available.
fn available_in(store: &Store, pod: &Value, seconds: i64) -> Option<Duration> {
    let ready = list(pod, "/status/conditions").iter().find(|c| c["type"] == "Ready")?;
    let since: jiff::Timestamp = text(ready, "/lastTransitionTime").parse().ok()?;
    let left = since.as_millisecond() + seconds * 1000 - store.now().as_millisecond();
    u64::try_from(left).ok().filter(|left| seconds > 0 && *left > 0).map(Duration::from_millis)
}
