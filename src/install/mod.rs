//! Installation and removal of definitions, admission policies and rights.
//!
//! The order matters both ways: with `failurePolicy: Fail` an API server that starts while the policy `interlock-hold`
//! is there and its definition is not refuses every Deployment write. So the definition comes first and goes last.

mod apply;
mod gate;
mod held;
mod manifests;
mod remove;

use std::fmt;

use serde_json::Value;

pub use apply::{install, prove_hold};
pub use held::{Held, list_held, release_patch};
pub use manifests::{manifests, yaml};
pub use remove::uninstall;

/// Field manager of what `interlock install` applies.
pub const FIELD_MANAGER: &str = "interlock-install";
/// Where the controller lives unless the options say otherwise.
pub const NAMESPACE: &str = "interlock-system";

/// What becomes of a Deployment write that the hold cannot be decided for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It is refused. Nothing rolls unheld, also in the first moments of an API server.
    #[default]
    Fail,
    /// It goes through, unheld.
    Ignore,
}

impl FailurePolicy {
    /// The word as the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fail => "Fail",
            Self::Ignore => "Ignore",
        }
    }
}

/// How to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallOptions {
    /// Namespace of the controller and its service account `interlock`. The hold leaves it alone.
    pub namespace: String,
    /// Of the three policies that hold.
    pub failure_policy: FailurePolicy,
    /// Image of the controller. Absent: it is not deployed (it runs elsewhere, or comes later).
    pub image: Option<String>,
    /// New pods of chosen Deployments get the readiness gate. False: what is installed of it stays as it is.
    pub readiness_gate: bool,
}

impl Default for InstallOptions {
    fn default() -> Self {
        Self {
            namespace: NAMESPACE.to_owned(),
            failure_policy: FailurePolicy::default(),
            image: None,
            readiness_gate: false,
        }
    }
}

/// What becomes of updates that are held when Interlock goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUninstall {
    /// Every hold ends; the Deployment controller rolls what was held.
    Release,
    /// Held Deployments stay paused, with their marks: a later installation takes them up.
    Keep,
    /// The template goes back to the one that runs, then the hold ends: nothing rolls.
    Revert,
}

/// How to uninstall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UninstallOptions {
    /// Namespace of the controller.
    pub namespace: String,
    /// What becomes of what is held.
    pub held: OnUninstall,
}

/// What was done with one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It was not there before.
    Created,
    /// It was there, and differed.
    Configured,
    /// It was there just so.
    Unchanged,
    /// It is gone.
    Deleted,
    /// It was not there.
    Absent,
    /// Its hold has ended.
    Released,
    /// Its template is back to what runs, and its hold has ended.
    Reverted,
    /// It was left as it is.
    Kept,
    /// Its readiness gate is open for good.
    Opened,
    /// It was looked at and is as it should be.
    Verified,
    /// It could not be verified.
    NotVerified,
}

impl Done {
    /// The word for people and programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
            Self::Deleted => "deleted",
            Self::Absent => "not there",
            Self::Released => "released",
            Self::Reverted => "reverted",
            Self::Kept => "kept",
            Self::Opened => "set ready",
            Self::Verified => "verified",
            Self::NotVerified => "not verified",
        }
    }
}

/// One line of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What was done.
    pub done: Done,
    /// To what: `kind/name`, with ` -n NAMESPACE` where it lives in one.
    pub object: String,
    /// More, for people; may be empty.
    pub note: String,
}

impl Line {
    fn new(done: Done, object: impl Into<String>) -> Self {
        Self { done, object: object.into(), note: String::new() }
    }

    fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, object, note } = self;
        write!(f, "{object} {}", done.as_str())?;
        if note.is_empty() { Ok(()) } else { write!(f, ": {note}") }
    }
}

/// Why an installation or a removal stopped. What was done before stands in `lines`; running it again goes on.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failed {
    /// What was done before.
    pub lines: Vec<Line>,
    /// What went wrong and how to go on.
    pub message: String,
    /// The cause, where a request failed.
    #[source]
    pub source: Option<kube::Error>,
}

/// What went wrong with a request, for people: of a refusal the API server's own sentence.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// The name of an object for people.
fn label(object: &Value) -> String {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or_default().to_ascii_lowercase();
    let name = text("/metadata/name").unwrap_or_default();
    match text("/metadata/namespace") {
        Some(namespace) => format!("{kind}/{name} -n {namespace}"),
        None => format!("{kind}/{name}"),
    }
}
