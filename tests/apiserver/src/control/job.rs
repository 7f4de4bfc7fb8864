//! The Job controller, as far as hooks see it: a Job ends after a moment, well or as annotation `sim/job` of its pods says;
//! one with a time to live goes when that has passed.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{Lag, View};
use crate::{
    json::{at, list, text},
    kinds,
    store::{Caller, Part, Preconditions, Store},
};

/// How long the pods of a Job run.
const RUNS: Duration = Duration::from_millis(500);

pub(super) async fn run(store: Arc<Store>, mut switch: watch::Receiver<bool>) {
    let mut view = View::new(&store, &["jobs"], Lag::default());
    let mut timer = None;
    loop {
        view.turn(timer, &mut switch).await;
        timer = None;
        for job in store.list("jobs", None).0 {
            if let Some(due) = look(&store, &job) {
                let due = Instant::now() + due;
                timer = Some(timer.map_or(due, |t: Instant| t.min(due)));
            }
        }
    }
}

/// Does what is due; says how long it is until something else is.
fn look(store: &Store, job: &Value) -> Option<Duration> {
    let by = Caller::system("job-controller");
    let target = (kinds::of("jobs"), text(job, "/metadata/namespace"), text(job, "/metadata/name"));
    let since = |stamp: &str| {
        let then: jiff::Timestamp = stamp.parse().unwrap_or_default();
        Duration::from_millis(u64::try_from(store.now().as_millisecond() - then.as_millisecond()).unwrap_or(0))
    };
    let conditions = list(job, "/status/conditions");
    let Some(ended) = conditions.first() else {
        // Creation times have whole seconds.
        let left = (RUNS + Duration::from_secs(1)).saturating_sub(since(text(job, "/metadata/creationTimestamp")));
        let fate = text(job, "/spec/template/metadata/annotations/sim~1job");
        if !left.is_zero() {
            return Some(left);
        }
        if fate == "hang" {
            return None;
        }
        let (type_, reason) =
            if fate == "fail" { ("Failed", "BackoffLimitExceeded") } else { ("Complete", "CompletionsReached") };
        let condition = json!({"type": type_, "status": "True", "reason": reason, "lastTransitionTime": store.stamp()});
        let _ = store.update(by, target, Part::Status, |job| {
            let mut job = job.clone();
            job["status"]["conditions"] = json!([condition]);
            Ok(job)
        });
        return None;
    };
    let ttl = at(job, "/spec/ttlSecondsAfterFinished").as_u64()?;
    let left = Duration::from_secs(ttl).saturating_sub(since(text(ended, "/lastTransitionTime")));
    if left.is_zero() {
        let conditions = Preconditions { uid: Some(text(job, "/metadata/uid")), ..Preconditions::default() };
        let _ = store.delete(by, target, conditions);
        return None;
    }
    Some(left)
}
