//! What a failed write means.

use std::time::Duration;

use kube::core::Status;

use crate::publish::metrics::WriteResult;

/// Why a write did not come about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Its precondition no longer held: the world is to be planned again at once.
    #[error("{what}: the object has changed meanwhile: {message}")]
    Lost {
        /// What was written.
        what: String,
        /// What the API server said.
        message: String,
    },
    /// It may succeed later, or may even have succeeded.
    #[error("{what}: {message}")]
    Transient {
        /// What was written.
        what: String,
        /// What went wrong.
        message: String,
        /// When the API server wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// The API server does not want it: invalid, forbidden, over a quota.
    #[error("{what}: refused: {message}")]
    Refused {
        /// What was written, as [`interlock_core::world::World::refusals`] names it.
        what: String,
        /// What the API server said.
        message: String,
    },
    /// This process may no longer lead. It must end.
    #[error("leadership is not certain any more; nothing was written")]
    Fenced,
}

impl Failure {
    /// Its kind, for metrics; a write that the fence stopped was never one.
    pub fn result(&self) -> Option<WriteResult> {
        match self {
            Self::Lost { .. } => Some(WriteResult::Lost),
            Self::Transient { .. } => Some(WriteResult::Transient),
            Self::Refused { .. } => Some(WriteResult::Refused),
            Self::Fenced => None,
        }
    }

    /// A call that got no answer in time.
    pub fn timeout(what: &str, after: Duration) -> Self {
        let message = format!("no answer within {} s", after.as_secs());
        Self::Transient { what: what.to_owned(), message, retry_after: None }
    }

    /// Sorts an error of the client.
    pub fn of(what: &str, error: &kube::Error) -> Self {
        let what = what.to_owned();
        match error {
            kube::Error::Api(status) => Self::of_status(what, status),
            // The cause is below: the outer text only names the layer.
            other => Self::Transient { what, message: chain(other), retry_after: None },
        }
    }

    fn of_status(what: String, status: &Status) -> Self {
        let message = if status.message.is_empty() { status.reason.clone() } else { status.message.clone() };
        match status.code {
            404 | 409 => Self::Lost { what, message },
            422 if lost(status) => Self::Lost { what, message },
            400 | 403 | 405 | 413 | 415 | 422 => Self::Refused { what, message },
            // 401: a token that is being rotated. 429 and 5xx: overload or an API server that starts or stops.
            _ => {
                let seconds = status.details.as_ref().map_or(0, |d| d.retry_after_seconds);
                let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
                Self::Transient { what, message, retry_after }
            }
        }
    }
}

/// A JSON patch whose `test` failed, or that does not fit any more, is 422 like an invalid object or a denial by
/// somebody's admission policy, and told from them only by its words (Kubernetes 1.37). A changed UID is said by validation.
fn lost(status: &Status) -> bool {
    let causes = status.details.as_ref().map_or(&[][..], |d| &d.causes[..]);
    status.message.contains("the server rejected our request") || causes.iter().any(|c| c.field == "metadata.uid")
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    fn of(code: u16, message: &str, details: Option<StatusDetails>) -> Failure {
        let mut status = Status::failure(message, "x").with_code(code);
        status.details = details;
        Failure::of("pod/a", &kube::Error::Api(status.boxed()))
    }

    #[test]
    fn lost_races_are_told_from_refusals() {
        let rejected = "the server rejected our request due to an error in our request";
        assert!(matches!(of(409, "object has been modified", None), Failure::Lost { .. }));
        assert!(matches!(of(404, "not found", None), Failure::Lost { .. }));
        assert!(matches!(of(422, rejected, None), Failure::Lost { .. }));
        assert!(matches!(of(422, "Pod \"a\" is invalid: spec: Forbidden", None), Failure::Refused { .. }));
        assert!(matches!(of(403, "exceeded quota", None), Failure::Refused { .. }));
        let denied = "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no";
        assert!(matches!(of(422, denied, None), Failure::Refused { .. }));
        let cause = StatusCause { reason: String::new(), message: String::new(), field: "metadata.uid".into() };
        let details = StatusDetails { causes: vec![cause], ..empty() };
        assert!(matches!(of(422, "Pod \"a\" is invalid: metadata.uid", Some(details)), Failure::Lost { .. }));
    }

    #[test]
    fn the_api_server_says_when_to_come_again() {
        let details = StatusDetails { retry_after_seconds: 7, ..empty() };
        let Failure::Transient { retry_after, .. } = of(429, "slow down", Some(details)) else { panic!() };
        assert_eq!(retry_after, Some(Duration::from_secs(7)));
        for code in [401, 500, 502, 503, 504] {
            assert!(matches!(of(code, "", None), Failure::Transient { retry_after: None, .. }));
        }
    }

    fn empty() -> StatusDetails {
        StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        }
    }
}
