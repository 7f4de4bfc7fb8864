//! What becomes of every kind of hook in every case.

use futures::stream::{self, StreamExt};
use tally::Tally;

use super::cell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Http,
    /// `http` with `repeatUntil`.
    Poll,
    Job,
    PrePull,
    Wait,
    WaitFor,
    Patch,
    /// `patch` with target Pod.
    PatchPod,
    PodGate,
    Approval,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    Success,
    Failure,
    Timeout,
    /// The first attempt fails, a later one does not.
    Retry,
    /// The controller is killed while the attempt is under way; another one takes over.
    Killed,
    /// The policy gets other hooks while the attempt is under way.
    Edited,
    /// A newer template comes while the attempt is under way.
    Superseded,
}

const CASES: [Case; 7] =
    [Case::Success, Case::Failure, Case::Timeout, Case::Retry, Case::Killed, Case::Edited, Case::Superseded];

/// Outcome and reason of an attempt.
pub type Attempt = (&'static str, &'static str);

/// What a run shows of its attempts.
#[derive(Clone, Debug)]
pub enum Attempts {
    /// These, in this order.
    Exactly(Vec<Attempt>),
    /// One or more of the first, then the second. How many, timing decides.
    Until(Attempt, Attempt),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Succeeded,
    /// Stalled as `HookFailed`, held, with nothing touched.
    Stalled,
    Aborted,
}

/// What a cell of the table has to come to. Where a newer template came, it is said of its run.
#[derive(Clone, Debug)]
pub struct Expected {
    pub attempts: Attempts,
    pub end: End,
    /// Keys of attempts that did what they are for.
    pub accepted: usize,
    /// Jobs that are still there: at least, at most.
    pub jobs: (usize, usize),
}

impl Expected {
    fn new(end: End, attempts: Attempts, accepted: usize) -> Self {
        Self { attempts, end, accepted, jobs: (0, 0) }
    }

    fn succeeds(attempts: Vec<Attempt>) -> Self {
        let accepted = attempts.iter().filter(|a| a.0 == "Succeeded").count();
        Self::new(End::Succeeded, Attempts::Exactly(attempts), accepted)
    }

    fn succeeds_after(failed: Attempt, good: Attempt) -> Self {
        Self::new(End::Succeeded, Attempts::Until(failed, good), 1)
    }

    fn stalls(attempt: Attempt) -> Self {
        Self::new(End::Stalled, Attempts::Exactly(vec![attempt]), 0)
    }

    const fn jobs(mut self, jobs: usize) -> Self {
        self.jobs = (jobs, jobs);
        self
    }
}

/// The table. `Err`: why there is no such case.
pub fn expected(kind: Kind, case: Case) -> Result<Expected, &'static str> {
    use Case::{Failure, Retry, Timeout};
    let good = |reason| ("Succeeded", reason);
    let failed = |reason| ("Failed", reason);
    let late = |reason| ("TimedOut", reason);
    Ok(match (kind, case) {
        (Kind::Http, Failure) => Expected::stalls(failed("Http500")),
        (Kind::Http, Timeout) => Expected::stalls(late("Timeout")),
        (Kind::Http, Retry) => Expected::succeeds(vec![failed("Http503"), failed("Http503"), good("Http200")]),
        (Kind::Http, _) => Expected::succeeds(vec![good("Http200")]),

        (Kind::Poll, Failure) => return Err("an answer that is not as wanted is asked for again; only time ends that"),
        // The word is that of the last answer.
        (Kind::Poll, Timeout) => Expected::stalls(late("Http503")),
        (Kind::Poll, Retry) => Expected::succeeds_after(late("Http503"), good("Http200")),
        (Kind::Poll, _) => Expected::succeeds(vec![good("Http200")]),

        (Kind::Job, Failure) => Expected::stalls(failed("JobFailed")).jobs(1),
        // Ended by its own deadline it is kept for who looks for the reason; if ours comes first, it is taken away.
        (Kind::Job, Timeout) => Expected { jobs: (0, 1), ..Expected::stalls(late("Timeout")) },
        (Kind::Job, Retry) => Expected::succeeds(vec![failed("JobFailed"), good("Complete")]).jobs(2),
        (Kind::Job, _) => Expected::succeeds(vec![good("Complete")]).jobs(1),

        (Kind::PrePull, Failure) => Expected::stalls(failed("InvalidImageName")),
        (Kind::PrePull, Timeout) => Expected::stalls(late("ImagePull")),
        (Kind::PrePull, Retry) => Expected::succeeds_after(late("Timeout"), good("Pulled")),
        (Kind::PrePull, _) => Expected::succeeds(vec![good("Pulled")]),

        (Kind::Wait, Failure) => return Err("nothing can go wrong in a pause"),
        (Kind::Wait, Timeout) => return Err("its length is its end; timeoutSeconds does not bound it"),
        (Kind::Wait, Retry) => return Err("it never fails, so it is never tried again"),
        (Kind::Wait, _) => Expected::succeeds(vec![good("Waited")]),

        (Kind::WaitFor, Failure) => {
            return Err("an object that is not there or in another state is waited for; only time ends that");
        }
        (Kind::WaitFor, Timeout) => Expected::stalls(late("Timeout")),
        (Kind::WaitFor, Retry) => Expected::succeeds_after(late("Timeout"), good("Reached")),
        (Kind::WaitFor, _) => Expected::succeeds(vec![good("Reached")]),

        (Kind::Patch, Failure) => Expected::stalls(failed("SelectorLabel")),
        (Kind::Patch, Timeout) => Expected::stalls(late("Timeout")),
        (Kind::Patch, Retry) => Expected::succeeds_after(late("Timeout"), good("Patched")),
        (Kind::Patch, _) => Expected::succeeds(vec![good("Patched")]),

        (Kind::PodGate, Failure) => return Err("whoever holds the gate can only be late"),
        (Kind::PodGate, Timeout) => Expected::stalls(late("PodGateClosed")),
        (Kind::PatchPod, Failure) => Expected::stalls(failed("SelectorLabel")),
        (Kind::PatchPod, Timeout) => Expected::stalls(late("Timeout")),
        (Kind::PatchPod, Retry) => Expected::succeeds(vec![good("Patched")]),
        (Kind::PatchPod, _) => Expected::succeeds(vec![good("Patched")]),

        // Before and after the update of the pod. Of the hooks of pods only the latest attempt is kept.
        (Kind::PodGate, _) => Expected::succeeds(vec![good("PodGateOpen"), good("PodGateOpen")]),

        // A person who does not approve says so by ending the update.
        (Kind::Approval, Failure) => Expected::new(End::Aborted, Attempts::Exactly(vec![("Cancelled", "")]), 0),
        (Kind::Approval, Timeout) => Expected::stalls(late("NotApproved")),
        // By a decision, too: an approval is not tried again by itself.
        (Kind::Approval, Retry) => Expected::succeeds_after(late("NotApproved"), good("Approved")),
        (Kind::Approval, _) => Expected::succeeds(vec![good("Approved")]),
    })
}

async fn row(kind: Kind, name: &'static str) {
    let tally = Tally::new(name);
    let only = std::env::var("CELL").ok();
    let wanted = |case: &Case| only.as_ref().is_none_or(|only| format!("{case:?}") == *only);
    let cells = CASES.into_iter().filter(wanted).filter_map(|case| match expected(kind, case) {
        Ok(expected) => Some((case, expected)),
        Err(why) => {
            assert!(!why.is_empty());
            None
        }
    });
    stream::iter(cells)
        .for_each_concurrent(4, |(case, expected)| {
            let tally = &tally;
            async move {
                let checks = cell::run(kind, case, expected).await;
                tally.points(1);
                tally.checks(checks);
            }
        })
        .await;
}

#[tokio::test]
async fn http_in_every_case() {
    row(Kind::Http, "hooks, http x case, real control plane").await;
}

#[tokio::test]
async fn poll_in_every_case() {
    row(Kind::Poll, "hooks, http with repeatUntil x case, real control plane").await;
}

#[tokio::test]
async fn job_in_every_case() {
    row(Kind::Job, "hooks, job x case, real control plane").await;
}

#[tokio::test]
async fn pre_pull_in_every_case() {
    row(Kind::PrePull, "hooks, prePull x case, real control plane").await;
}

#[tokio::test]
async fn wait_in_every_case() {
    row(Kind::Wait, "hooks, wait x case, real control plane").await;
}

#[tokio::test]
async fn wait_for_in_every_case() {
    row(Kind::WaitFor, "hooks, waitFor x case, real control plane").await;
}

#[tokio::test]
async fn patch_in_every_case() {
    row(Kind::Patch, "hooks, patch x case, real control plane").await;
}

#[tokio::test]
async fn patch_of_a_pod_in_every_case() {
    row(Kind::PatchPod, "hooks, patch of a pod x case, real control plane").await;
}

#[tokio::test]
async fn pod_gate_in_every_case() {
    row(Kind::PodGate, "hooks, podGate x case, real control plane").await;
}

/// Regression 19: an approval gate that never times out (case Timeout).
#[tokio::test]
async fn approval_in_every_case() {
    row(Kind::Approval, "hooks, approval x case, real control plane").await;
}
