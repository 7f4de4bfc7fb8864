//! Hook runners, and the register of the attempts that run.
//!
//! At least once with a key: an attempt whose key is known here, running or ended, is not started again. After a
//! restart nothing is known, and the planner asks again for what has no result, with the same key. So every runner is
//! level-based: it looks at what is there, and goes on from that.
//!
//! A result is an outcome and one fixed word. Nothing that came from outside is in it but a status code of HTTP.

mod cel;
mod check;
mod cluster;
mod drained;
pub mod http;
mod job;
mod names;
mod patch;
mod prepull;
mod register;
mod runner;
mod waitfor;

use std::borrow::Cow;

use interlock_core::{api::run::StepOutcome, effect::HookCall};
use tokio::time::Instant;

pub use self::{
    check::problem,
    cluster::Cluster,
    register::Actions,
    runner::{Attempting, Runner, Runners, Tidy, Tidying},
};

/// The name of the Job of an attempt, by its key.
pub fn job_name(key: &str) -> String {
    job::name(key)
}

/// The word for an attempt whose time was over.
const TIMEOUT: &str = "Timeout";
/// The word for a hook that says something that cannot be carried out.
const INVALID_HOOK: &str = "InvalidHook";

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    outcome: StepOutcome,
    reason: Cow<'static, str>,
}

impl End {
    fn succeeded(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { outcome: StepOutcome::Succeeded, reason: reason.into() }
    }

    fn failed(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { outcome: StepOutcome::Failed, reason: reason.into() }
    }

    fn timed_out(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { outcome: StepOutcome::TimedOut, reason: reason.into() }
    }

    fn cancelled() -> Self {
        Self { outcome: StepOutcome::Cancelled, reason: "Cancelled".into() }
    }
}

/// One attempt, as its runner sees it.
struct Attempt<'a> {
    cluster: &'a Cluster,
    call: &'a HookCall,
    /// Its time is over then.
    until: Instant,
}

#[cfg(test)]
pub(crate) mod fixture;
