//! `resume`, `skip` and `abort` of a RollingRestart: a decision is added to it, in the user's own name.

use interlock_core::api::restart::{RestartAction, RestartDecision, TargetState};
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{api, show::verdict};
use crate::{
    api::RollingRestart,
    cli::{
        connect::Connection,
        exit::{Exit, Failure, changed_meanwhile},
        output, random_id,
        verbs::decide::whoami,
    },
};

/// The controller writes its status meanwhile.
const TRIES: u32 = 10;

pub use interlock_core::api::restart::RestartAction as Action;

/// Adds the decision.
pub async fn decide(
    connection: &Connection,
    name: &str,
    action: Action,
    deployment: Option<&str>,
    reason: Option<&str>,
) -> Result<Exit, Failure> {
    let by = whoami(connection).await?;
    let id = random_id();
    let api = api(connection);
    for _ in 0..TRIES {
        let restart = api.get(name).await;
        let restart = restart.map_err(|e| Failure::request(&format!("read rollingrestart/{name}"), &e))?;
        check(&restart, action, deployment)?;
        let decision = RestartDecision {
            id: id.clone(),
            action,
            target: deployment.map(str::to_owned),
            reason: reason.unwrap_or_default().to_owned(),
            by: by.clone(),
        };
        let add = if restart.spec.decisions.is_empty() {
            json!({"op": "add", "path": "/spec/decisions", "value": [decision]})
        } else {
            json!({"op": "add", "path": "/spec/decisions/-", "value": decision})
        };
        let patch = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": restart.resource_version()}, add]);
        let patch = serde_json::from_value(patch).map_err(|e| Failure::error(e.to_string()))?;
        match api.patch(name, &PatchParams::default(), &Patch::<()>::Json(patch)).await {
            Ok(_) => {
                let about = deployment.map(|d| format!(" of {d}")).unwrap_or_default();
                output::print(&format!("rollingrestart/{name}: {action:?}{about} decided by {by}\n"));
                return Ok(Exit::Ok);
            }
            Err(kube::Error::Api(status)) if changed_meanwhile(&status) => {}
            Err(error) => return Err(Failure::request(&format!("decide on rollingrestart/{name}"), &error)),
        }
    }
    Err(Failure::error(format!("rollingrestart/{name} changes too fast to add a decision; try again")))
}

/// Is there anything that it could be about?
fn check(restart: &RollingRestart, action: RestartAction, deployment: Option<&str>) -> Result<(), Failure> {
    let name = restart.name_any();
    let Some(status) = restart.status.as_ref().filter(|s| !s.targets.is_empty()) else {
        return Err(Failure::failed(format!("rollingrestart/{name} has not begun; to end it, delete it")));
    };
    if status.ended_at.is_some() {
        return Err(Failure::failed(format!(
            "rollingrestart/{name} has ended; make a new one: kubectl interlock restart"
        )));
    }
    let named = |t: &interlock_core::api::restart::Target| deployment.is_none_or(|d| t.name == d);
    if !status.targets.iter().any(named) {
        let of = deployment.unwrap_or_default();
        return Err(Failure::failed(format!("rollingrestart/{name} has no Deployment {of}")));
    }
    let possible = match action {
        RestartAction::Abort => true,
        RestartAction::Resume => status.targets.iter().any(|t| named(t) && t.state == TargetState::Failed),
        RestartAction::Skip => status
            .targets
            .iter()
            .any(|t| named(t) && (t.state == TargetState::Failed || deployment.is_some() && !t.state.over())),
    };
    if possible {
        return Ok(());
    }
    let how = if verdict(status).is_none() { "it goes on by itself" } else { "see: kubectl interlock explain" };
    Err(Failure::failed(format!("nothing of rollingrestart/{name} has failed; {how}")))
}
