//! Exit codes, which are a contract, and the failures that lead to them.

use std::{fmt, process::ExitCode};

/// How a command ends. Scripts rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// 0: it is as asked for: settled (started, gone), succeeded, written.
    Ok = 0,
    /// 1: the update failed, stalled or was aborted, a pod of it cannot start, a Job failed; or there is nothing that the
    /// command could apply to.
    Failed = 1,
    /// 2: the command line is wrong.
    Usage = 2,
    /// 3: not settled within `--timeout`; it may still become so.
    TimedOut = 3,
    /// 4: the object does not exist.
    NotFound = 4,
    /// 5: it cannot be told: no connection, no right, an answer that makes no sense.
    Error = 5,
}

/// The table for `--help`.
pub const HELP: &str = "\
Exit codes:
  0  as asked for (wait: settled, started or gone)
  1  the update failed, stalled or was aborted (wait: a pod cannot start, a Job failed),
     or there is nothing to act on
  2  wrong usage
  3  timed out
  4  not found
  5  cannot be told: no connection, no right";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A command that did not get what was asked for, with the sentence for people.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// How to exit.
    pub exit: Exit,
    /// What is wrong and how to go on.
    pub message: String,
    /// The API server refused it for lack of rights, so that less may do.
    pub forbidden: bool,
}

impl Failure {
    fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), forbidden: false }
    }

    /// Exit 3.
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::new(Exit::TimedOut, message)
    }

    /// Exit 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// Exit 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Exit 4.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Exit::NotFound, message)
    }

    /// Exit 5.
    pub fn error(message: impl Into<String>) -> Self {
        Self::new(Exit::Error, message)
    }

    /// A failed request: what was tried, and what to do about the answer.
    pub fn request(what: &str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 403 => {
                Self { forbidden: true, ..Self::error(format!("cannot {what}: {}", status.message)) }
            }
            // The API server knows objects by name in its answers; a path that it does not serve has no name.
            kube::Error::Api(status) if status.code == 404 && status.message.starts_with("404 page not found") => {
                Self::error(format!(
                    "cannot {what}: the cluster does not know the resources of Interlock; run: kubectl interlock install"
                ))
            }
            kube::Error::Api(status) if status.code == 404 => {
                Self::not_found(format!("cannot {what}: {}", status.message))
            }
            kube::Error::Api(status) => Self::error(format!("cannot {what}: {} ({})", status.message, status.code)),
            other => Self::error(format!("cannot {what}: {}", chain(other))),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Was the object changed since it was read? A JSON patch whose `test` fails is answered with 422 and this text; refusals
/// by validation or by an admission policy, which can be 422 too, name the object instead.
pub fn changed_meanwhile(status: &kube::core::Status) -> bool {
    status.code == 409 || (status.code == 422 && status.message.starts_with("the server rejected our request"))
}

/// An error with its causes, each only once.
pub fn chain(error: &Cause) -> String {
    let mut text = words(error);
    let mut cause = cause_of(error);
    while let Some(error) = cause {
        let next = words(error);
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = cause_of(error);
    }
    text
}

type Cause = dyn std::error::Error + 'static;

/// What a refused request is caused by is the refusal once more.
fn cause_of(error: &Cause) -> Option<&Cause> {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(_)) => None,
        Some(_) | None => error.source(),
    }
}

/// What an error says by itself. Of a refused request only what the API server said: kube's own text is its whole answer
/// in the form for programmers.
fn words(error: &Cause) -> String {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => status.message.clone(),
        Some(_) | None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_request_says_what_the_server_said_and_nothing_else() {
        let status = kube::core::Status { code: 403, message: "web is forbidden".into(), ..Default::default() };
        let error = kube::Error::Api(Box::new(status));
        assert_eq!(chain(&error), "web is forbidden");
        let failed = crate::install::Failed {
            lines: Vec::new(),
            message: "deployment/web: web is forbidden".into(),
            source: Some(error),
        };
        assert_eq!(chain(&failed), "deployment/web: web is forbidden");
    }
}
