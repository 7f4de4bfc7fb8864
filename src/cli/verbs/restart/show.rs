//! What is printed of a RollingRestart.

use interlock_core::{
    api::{
        condition::{self, Status},
        restart::{RollingRestartStatus, Target, TargetState},
    },
    time::Time,
};
use kube::ResourceExt as _;

use super::api;
use crate::{
    api::RollingRestart,
    cli::{
        connect::Connection,
        exit::{Exit, Failure},
        output::{self, Format, age},
    },
};

/// How it has ended, or that it stands still. `None`: it goes on.
pub(super) fn verdict(status: &RollingRestartStatus) -> Option<Exit> {
    if condition::is_true(&status.conditions, "Stalled") {
        return Some(Exit::Failed);
    }
    status.ended_at.map(|_| if condition::is_true(&status.conditions, "Succeeded") { Exit::Ok } else { Exit::Failed })
}

/// One line for a change of a Deployment.
pub(super) fn line(target: &Target, finished: i64, total: i64) -> String {
    let Target { name, state, reason, message, .. } = target;
    let why = match (reason.is_empty(), message.is_empty()) {
        (true, _) => String::new(),
        (false, true) => format!(" ({reason})"),
        (false, false) => format!(" ({reason}: {message})"),
    };
    format!("[{finished}/{total}] deployment/{name} {}{why}\n", state.as_str().to_lowercase())
}

/// What a dry run found.
pub(super) fn plan(restart: &RollingRestart) -> String {
    let Some(status) = &restart.status else { return String::new() };
    let rows: Vec<Vec<String>> = status
        .targets
        .iter()
        .map(|t| {
            let does = if t.state == TargetState::Skipped { "skip" } else { "restart" };
            vec![t.name.clone(), does.to_owned(), t.reason.clone(), t.message.clone()]
        })
        .collect();
    let failed = condition::find(&status.conditions, "Stalled").filter(|c| c.status == Status::True);
    let end = failed.map_or_else(|| "Nothing was changed.".to_owned(), |c| c.message.clone());
    output::table(&["DEPLOYMENT", "WOULD", "REASON", "WHY"], &rows) + &end + "\n"
}

/// The last line.
pub(super) fn end(restart: &RollingRestart) -> String {
    let name = restart.name_any();
    let conditions = restart.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    let told = ["Stalled", "Succeeded"]
        .into_iter()
        .filter_map(|type_| condition::find(conditions, type_))
        .find(|c| c.type_ == "Succeeded" || c.status == Status::True);
    told.map_or_else(String::new, |c| format!("rollingrestart/{name}: {}: {}\n", c.reason, c.message))
}

/// `explain restart/NAME`.
pub async fn explain(connection: &Connection, name: &str, format: Format) -> Result<Exit, Failure> {
    let restart = api(connection).get(name).await;
    let restart = restart.map_err(|e| Failure::request(&format!("read rollingrestart/{name}"), &e))?;
    let text = match output::structured(format, &restart)? {
        Some(text) => text,
        None => table(&restart, output::now()),
    };
    output::print(&text);
    Ok(Exit::Ok)
}

fn table(restart: &RollingRestart, now: Time) -> String {
    let Some(status) = &restart.status else {
        return format!(
            "rollingrestart/{} has not been taken up yet; does a controller run that is not narrowed by a selector?\n",
            restart.name_any()
        );
    };
    let wait = status.waiting_for.as_ref();
    let waits = wait.map_or_else(String::new, |w| format!("Waits for: {} (for {})\n", w.what, age(w.since, now)));
    let rows: Vec<Vec<String>> = status
        .targets
        .iter()
        .map(|t| {
            let at = |time: Option<Time>| time.map(|at| age(at, now) + " ago").unwrap_or_default();
            let state = t.state.as_str().to_owned();
            vec![t.name.clone(), state, at(t.started_at), at(t.finished_at), t.reason.clone(), t.message.clone()]
        })
        .collect();
    let table = output::table(&["DEPLOYMENT", "STATE", "STARTED", "FINISHED", "REASON", "WHY"], &rows);
    format!("{}{waits}\n{table}", end(restart))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn restart(status: &serde_json::Value) -> RollingRestart {
        serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": {}, "status": status})).unwrap()
    }

    #[test]
    fn an_end_and_a_stop_are_told_apart() {
        let stalled = json!({"conditions": [{"type": "Stalled", "status": "True", "reason": "RestartFailed",
            "message": "Deployment b failed", "lastTransitionTime": "2026-01-01T00:00:00Z"}], "targets": [
            {"name": "a", "uid": "1", "state": "Done"},
            {"name": "b", "uid": "2", "state": "Failed", "reason": "PodFailing", "message": "container c: ErrImagePull"}]});
        let stalled = restart(&stalled);
        assert_eq!(verdict(stalled.status.as_ref().unwrap()), Some(Exit::Failed));
        assert_eq!(end(&stalled), "rollingrestart/r: RestartFailed: Deployment b failed\n");
        let text = table(&stalled, Time(0));
        assert!(
            text.contains("b            Failed   -         -          PodFailing   container c: ErrImagePull"),
            "{text}"
        );
        assert_eq!(verdict(restart(&json!({})).status.as_ref().unwrap()), None);
        let over = json!({"endedAt": "2026-01-01T00:00:00Z", "conditions": [{"type": "Succeeded", "status": "True",
            "reason": "Succeeded", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        assert_eq!(verdict(restart(&over).status.as_ref().unwrap()), Some(Exit::Ok));
    }
}
