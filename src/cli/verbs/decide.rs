//! `approve`, `retry`, `skip`, `abort`, `resume`: a decision is added to the run in progress, in the user's own name.

use std::time::Duration;

use interlock_core::{
    api::run::Decision,
    world::{Deployment, Run},
};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

pub use allowed::{Aim, allowed};

use super::{exits::exits, state};
use crate::{
    cli::{
        connect::Connection,
        exit::{Exit, Failure, changed_meanwhile},
        output::{self, word},
        random_id, read,
        target::Target,
    },
    observe::object::{Object, RunKind},
};

mod allowed;
#[cfg(test)]
mod tests;

/// The controller writes the status of a run meanwhile, at most once a second.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);
/// As the CustomResourceDefinition has it.
const MOST_DECISIONS: usize = 64;

/// A gate that can be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Gate {
    /// Predecessors.
    Order,
    /// PodDisruptionBudgets.
    Budget,
}

/// Which hook, pod and attempt a decision is about. What is absent follows from what there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct About {
    /// Name of a hook
    #[arg(long, value_name = "NAME")]
    pub hook: Option<String>,
    /// Only for this pod, in a phase that runs for each pod. Absent: for all
    #[arg(long, value_name = "NAME")]
    pub pod: Option<String>,
    /// Only this attempt; refused if another one is under way
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub attempt: Option<i64>,
}

impl About {
    /// Is nothing said?
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skip {
    /// What the run waits for now.
    Current,
    /// A hook.
    Hook(About),
    /// A gate.
    Gate(Gate),
}

/// What is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Approve what waits for approval.
    Approve(About),
    /// Try again what failed.
    Retry(About),
    /// Go on after a stall.
    Resume,
    /// End the run where it stands.
    Abort,
    /// Go on without something.
    Skip(Skip),
}

/// Carries out the verb.
pub async fn run(
    connection: &Connection,
    target: &Target,
    choice: &Choice,
    reason: Option<&str>,
) -> Result<Exit, Failure> {
    let by = whoami(connection).await?;
    let id = random_id();
    let api: Api<Object<RunKind>> = Api::namespaced(connection.client.clone(), &connection.namespace);
    for attempt in 0..TRIES {
        tokio::time::sleep(PAUSE * attempt).await;
        let deployment = read::deployment(connection, target).await?;
        let runs = read::runs_of(connection, &deployment).await?;
        let run = state::latest(&runs);
        let aim = allowed(run, choice)
            .map_err(|why| Failure::failed(format!("{target}: {}", refusal(&deployment, &runs, choice, &why))))?;
        let Some(run) = run else { continue };
        let decision = Decision {
            id: id.clone(),
            action: aim.action,
            target: aim.target.clone(),
            pod: aim.pod.clone(),
            attempt: aim.attempt,
            reason: reason.map(str::to_owned),
            by: by.clone(),
        };
        let patch = patch(run, &decision)?;
        match api.patch(&run.name, &PatchParams::default(), &Patch::<()>::Json(patch)).await {
            Ok(_) => {
                let what = format!("{} {}", word(&aim.action), aim.what());
                output::print(&format!("{target}: {} decided by {by} (run {})\n", what.trim(), run.name));
                return Ok(Exit::Ok);
            }
            // The run has changed since it was read, so what was allowed may no longer be.
            Err(kube::Error::Api(status)) if changed_meanwhile(&status) => {}
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Err(forbidden(connection, run, &status.message));
            }
            Err(error) => return Err(Failure::request(&format!("decide on run {}", run.name), &error)),
        }
    }
    Err(Failure::error(format!("{target}: the run changes too fast to add a decision; try again")))
}

/// Why it cannot be decided, and what can be done instead.
fn refusal(deployment: &Deployment, runs: &[Run], choice: &Choice, why: &str) -> String {
    let paused = deployment.user_paused() || (deployment.paused && !deployment.held());
    if paused && matches!(choice, Choice::Resume | Choice::Retry(_)) {
        return format!(
            "{why}; it is paused by its user, and goes on with: kubectl rollout resume deploy/{} -n {}",
            deployment.name, deployment.namespace
        );
    }
    match exits(deployment, runs).as_slice() {
        [] => why.to_owned(),
        ways => format!("{why}\nTo go on: {}", ways.join("\n  ")),
    }
}

fn forbidden(connection: &Connection, run: &Run, message: &str) -> Failure {
    Failure::error(format!(
        "you may not decide on run {}: {message}; needed in namespace {}: verbs get, list, patch and decide \
         on hookruns.interlock.dev, as cluster role interlock-decide has them",
        run.name, connection.namespace
    ))
}

/// Adds the decision to exactly the run that was read.
fn patch(run: &Run, decision: &Decision) -> Result<json_patch::Patch, Failure> {
    let bad = |e: serde_json::Error| Failure::error(format!("cannot write the decision: {e}"));
    let decision = serde_json::to_value(decision).map_err(bad)?;
    let (path, value): (&str, Value) = if run.spec.decisions.is_empty() {
        ("/spec/decisions", json!([decision]))
    } else {
        ("/spec/decisions/-", decision)
    };
    serde_json::from_value(json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": run.resource_version},
        {"op": "add", "path": path, "value": value},
    ]))
    .map_err(bad)
}

/// The user name that the API server knows.
pub async fn whoami(connection: &Connection) -> Result<String, Failure> {
    let api: Api<SelfSubjectReview> = Api::all(connection.client.clone());
    let review = api
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(|e| Failure::request("ask the API server who you are", &e))?;
    let name = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
    name.ok_or_else(|| Failure::error("the API server does not say who you are"))
}
