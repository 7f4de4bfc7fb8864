//! `retry`, `skip`, `abort`, `resume`: a decision is added to the run in progress, in the user's own name.

use std::time::Duration;

use interlock_core::{
    api::run::{Action, Decision, StepOutcome},
    reason::Reason,
    world::{Deployment, Run},
};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

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

#[cfg(test)]
mod tests;

/// The controller writes the status of a run meanwhile, at most once a second.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);
/// As the CustomResourceDefinition has it.
const MOST_DECISIONS: usize = 64;

/// Targets of decisions.
const ORDER: &str = "gate/order";
const BUDGET: &str = "gate/budget";

/// A gate that can be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Gate {
    /// Predecessors.
    Order,
    /// PodDisruptionBudgets.
    Budget,
}

/// What is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skip {
    /// What the run waits for now.
    Current,
    /// A hook.
    Hook(String),
    /// A gate.
    Gate(Gate),
}

/// What is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Try again what failed.
    Retry,
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
        let (action, what) = allowed(run, choice)
            .map_err(|why| Failure::failed(format!("{target}: {}", refusal(&deployment, &runs, choice, &why))))?;
        let Some(run) = run else { continue };
        let decision = Decision {
            id: id.clone(),
            action,
            target: what.clone(),
            reason: reason.map(str::to_owned),
            by: by.clone(),
        };
        let patch = patch(run, &decision)?;
        match api.patch(&run.name, &PatchParams::default(), &Patch::<()>::Json(patch)).await {
            Ok(_) => {
                let what = what.map(|what| format!(" {what}")).unwrap_or_default();
                output::print(&format!("{target}: {}{what} decided by {by} (run {})\n", word(&action), run.name));
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
    if paused && matches!(choice, Choice::Resume | Choice::Retry) {
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

/// May this be decided now? The action and its target, or why not.
pub fn allowed(run: Option<&Run>, choice: &Choice) -> Result<(Action, Option<String>), String> {
    let Some(run) = run else { return Err("there is nothing to decide: it has no run".into()) };
    if let Some(ended) = &run.status.ended {
        return Err(format!("there is nothing to decide: run {} has ended ({})", run.name, word(&ended.outcome)));
    }
    if run.spec.decisions.len() >= MOST_DECISIONS {
        return Err(format!(
            "run {} has {MOST_DECISIONS} decisions, which is the most; change the template or undo",
            run.name
        ));
    }
    let status = &run.status;
    match choice {
        Choice::Abort => Ok((Action::Abort, None)),
        Choice::Retry | Choice::Resume => {
            if status.stall.is_none() {
                let waits = match &status.waiting_for {
                    Some(waiting) => format!("it waits: {}", waiting.what),
                    None => "it is in progress".into(),
                };
                return Err(format!("run {} is not stalled, {waits}", run.name));
            }
            Ok((if *choice == Choice::Retry { Action::Retry } else { Action::Resume }, None))
        }
        Choice::Skip(Skip::Gate(Gate::Order)) => skippable(run, ORDER),
        Choice::Skip(Skip::Gate(Gate::Budget)) => skippable(run, BUDGET),
        Choice::Skip(Skip::Hook(name)) => {
            let hooks = &run.spec.settings.hooks;
            if hooks.iter().any(|hook| hook.name == *name) {
                return skippable(run, &format!("hook/{name}"));
            }
            let names: Vec<&str> = hooks.iter().map(|hook| hook.name.as_str()).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Err(format!("run {} has no hook {name}; its hooks: {names}", run.name))
        }
        Choice::Skip(Skip::Current) => match current(run) {
            Some(target) => skippable(run, &target),
            None => {
                Err(format!("run {} waits for nothing that can be skipped; name it with --hook or --gate", run.name))
            }
        },
    }
}

/// The decision to skip the target, unless it has been decided before or there is nothing of the kind.
fn skippable(run: &Run, target: &str) -> Result<(Action, Option<String>), String> {
    let settings = &run.spec.settings;
    let status = &run.status;
    let decided = run.spec.decisions.iter().any(|d| d.action == Action::Skip && d.target.as_deref() == Some(target));
    let what = target.replace('/', " ");
    let against = match target.strip_prefix("hook/") {
        Some(_) if run.spec.old_template.is_none() => Some("a first start calls no hooks".to_owned()),
        Some(hook) => match status.steps.iter().rev().find(|step| step.hook == hook).and_then(|step| step.outcome) {
            Some(StepOutcome::Succeeded) => Some(format!("{what} has succeeded")),
            Some(StepOutcome::Skipped) => Some(format!("{what} has been skipped")),
            Some(StepOutcome::Failed | StepOutcome::TimedOut | StepOutcome::Cancelled) | None => None,
        },
        None if target == ORDER && status.order_passed => Some("the order gate is passed".to_owned()),
        None if target == ORDER && settings.after.is_empty() && current(run).as_deref() != Some(ORDER) => {
            Some("it waits for no predecessor".to_owned())
        }
        None if target == BUDGET && status.budget_skipped => Some("budgets are no longer waited for".to_owned()),
        None => None,
    };
    match against {
        Some(why) => Err(format!("there is nothing to skip in run {}: {why}", run.name)),
        None if decided => Err(format!("run {}: it is already decided to skip {what}", run.name)),
        None => Ok((Action::Skip, Some(target.to_owned()))),
    }
}

/// What the run waits for or has failed at, as a target of a decision.
fn current(run: &Run) -> Option<String> {
    let status = &run.status;
    let reason = match (&status.stall, &status.waiting_for) {
        (Some(stall), _) => Reason::parse(&stall.reason)?,
        (None, Some(waiting)) => Reason::parse(&waiting.reason)?,
        (None, None) => return None,
    };
    match reason {
        Reason::Predecessor | Reason::OrderCycle => Some(ORDER.into()),
        Reason::Budget | Reason::BudgetImpossible => Some(BUDGET.into()),
        // The last attempt is that of the hook whose turn it is.
        Reason::HookRunning | Reason::HookBackoff | Reason::HookFailed => {
            status.steps.last().map(|step| format!("hook/{}", step.hook))
        }
        _ => None,
    }
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
async fn whoami(connection: &Connection) -> Result<String, Failure> {
    let api: Api<SelfSubjectReview> = Api::all(connection.client.clone());
    let review = api
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(|e| Failure::request("ask the API server who you are", &e))?;
    let name = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
    name.ok_or_else(|| Failure::error("the API server does not say who you are"))
}
