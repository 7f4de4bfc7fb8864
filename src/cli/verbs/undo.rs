//! `undo`: writes an earlier template to the Deployment, also while it is held, where `kubectl rollout undo` refuses.

use std::{collections::BTreeMap, time::Duration};

use interlock_core::{
    api::run::Outcome,
    template::Template,
    world::{Deployment, ReplicaSet, Run},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::state;
use crate::{
    cli::{
        connect::Connection,
        exit::{Exit, Failure, changed_meanwhile},
        output, read,
        target::Target,
    },
    observe::object::{DeploymentKind, Object},
};

#[cfg(test)]
mod tests;

const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);
/// Says in the history what a revision was about. The Deployment controller copies it to the ReplicaSet.
const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";

/// Where an undo goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    /// The template.
    pub template: Template,
    /// What it is, for people.
    pub what: String,
    /// Its change cause.
    pub cause: Option<String>,
}

/// Carries out the verb.
pub async fn run(connection: &Connection, target: &Target, revision: Option<i64>) -> Result<Exit, Failure> {
    let api: Api<Object<DeploymentKind>> = Api::namespaced(connection.client.clone(), &connection.namespace);
    for attempt in 0..TRIES {
        tokio::time::sleep(PAUSE * attempt).await;
        let deployment = read::deployment(connection, target).await?;
        let sets = read::replica_sets(connection, &deployment).await?;
        // Whoever may change Deployments need not be able to read runs; the revisions then have to do.
        let runs = read::if_allowed(read::runs_of(connection, &deployment).await)?.unwrap_or_else(|why| {
            eprintln!("Runs are not looked at: {why}");
            Vec::new()
        });
        let goal = goal(&deployment, &sets, &runs, revision)
            .map_err(|why| Failure::failed(format!("{target} cannot be undone: {why}")))?;
        if goal.template == deployment.template {
            output::print(&format!("{target} skipped: its template is already that of {}\n", goal.what));
            return Ok(Exit::Ok);
        }
        let patch = patch(&deployment, &goal)?;
        match api.patch(&target.0, &PatchParams::default(), &Patch::<()>::Json(patch)).await {
            Ok(_) => {
                output::print(&format!("{target} set back to {}\n", goal.what));
                return Ok(Exit::Ok);
            }
            Err(kube::Error::Api(status)) if changed_meanwhile(&status) => {}
            Err(error) => return Err(Failure::request(&format!("change {target}"), &error)),
        }
    }
    Err(Failure::error(format!("{target} changes too fast; try again")))
}

/// Which template: that of `revision`; without one the template that the update in progress (or stalled, or aborted)
/// started from; else that of the revision before.
pub fn goal(deployment: &Deployment, sets: &[ReplicaSet], runs: &[Run], revision: Option<i64>) -> Result<Goal, String> {
    let of_set = |set: &ReplicaSet| Goal {
        template: set.template.clone(),
        what: format!("revision {}", set.revision()),
        cause: set.annotations.get(CHANGE_CAUSE).cloned(),
    };
    let mut revisions: BTreeMap<i64, &ReplicaSet> = BTreeMap::new();
    for set in sets.iter().filter(|set| set.revision() > 0 && !set.copy) {
        revisions.insert(set.revision(), set);
    }
    if let Some(wanted) = revision.filter(|n| *n != 0) {
        return revisions.get(&wanted).map(|set| of_set(set)).ok_or_else(|| {
            let there: Vec<String> = revisions.keys().map(i64::to_string).collect();
            format!("there is no revision {wanted}; there are: {}", there.join(", "))
        });
    }
    let started = state::current(deployment, runs).filter(|run| match run.status.ended.as_ref().map(|e| e.outcome) {
        None => run.status.released_at.is_none() || deployment.held(),
        Some(Outcome::Aborted) => deployment.held(),
        Some(Outcome::Succeeded | Outcome::Superseded | Outcome::Returned | Outcome::Audited) => false,
    });
    if let Some(run) = started {
        let Some(template) = run.spec.old_template.clone() else {
            return Err("it has never run another template".into());
        };
        let set = run.spec.replica_set.as_ref();
        let what = match set.map(|set| set.revision) {
            Some(revision) if revision > 0 => {
                format!("the template that run {} started from (revision {revision})", run.name)
            }
            _ => format!("the template that run {} started from", run.name),
        };
        return Ok(Goal { template, what, cause: set.and_then(|set| set.annotations.get(CHANGE_CAUSE).cloned()) });
    }
    // While held without a run (the controller is down), what runs is the way back.
    if deployment.held() {
        return revisions
            .values()
            .rfind(|set| set.replicas > 0)
            .or_else(|| revisions.values().next_back())
            .map(|set| of_set(set))
            .ok_or_else(|| "it has never run another template".into());
    }
    revisions
        .values()
        .rev()
        .find(|set| set.template != deployment.template)
        .map(|set| of_set(set))
        .ok_or_else(|| "there is no other revision in its history".into())
}

fn patch(deployment: &Deployment, goal: &Goal) -> Result<json_patch::Patch, Failure> {
    let mut operations = vec![
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": deployment.resource_version}),
        json!({"op": "replace", "path": "/spec/template", "value": goal.template.json()}),
    ];
    let path = format!("/metadata/annotations/{}", CHANGE_CAUSE.replace('/', "~1"));
    match (&goal.cause, deployment.annotation(CHANGE_CAUSE)) {
        // Without any annotation there is no map to add to; a Deployment that has ever run has its revision there.
        (Some(cause), _) if !deployment.annotations.is_empty() => {
            operations.push(json!({"op": "add", "path": path, "value": cause}));
        }
        (None, Some(_)) => operations.push(json!({"op": "remove", "path": path})),
        (Some(_) | None, _) => {}
    }
    serde_json::from_value(Value::Array(operations))
        .map_err(|e| Failure::error(format!("cannot write the change: {e}")))
}
