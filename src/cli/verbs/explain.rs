//! `explain`: the planner's own report. It plans, as the user, from what is there now, and carries nothing out.

use interlock_core::{
    api::run::{Step, WaitingFor, Way},
    effect::Effect,
    plan::{self, Plan, Report},
    time::Time,
    world::{Deployment, Run, World},
};
use serde::Serialize;

use super::state;
use crate::{
    cli::{
        connect::Connection,
        exit::{Exit, Failure},
        output::{self, Format, age, duration, fields, word},
        read,
        target::Target,
    },
    observe::{LiveError, Observe},
};

#[cfg(test)]
mod tests;

/// What is explained, for `-o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explained<'a> {
    deployment: &'a str,
    namespace: &'a str,
    held: bool,
    report: &'a Report,
    next: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a interlock_core::api::run::HookRunStatus>,
}

/// Carries out the verb.
pub async fn run(connection: &Connection, target: &Target, format: Format) -> Result<Exit, Failure> {
    let now = output::now();
    let world = match Observe::once(&connection.client, &connection.namespace, &target.0, now).await {
        Ok(Some(world)) => world,
        Ok(None) => return Err(read::absent(connection, target)),
        Err(LiveError::Api(kube::Error::Api(status))) if status.code == 403 => {
            return stored(connection, target, &status.message, now).await;
        }
        Err(LiveError::Api(error)) => return Err(Failure::request(&format!("look at {target}"), &error)),
        Err(error) => return Err(Failure::error(error.to_string())),
    };
    let (world, plan) = planned(world);
    let text = match output::structured(format, &explained(&world, &plan))? {
        Some(text) => text,
        None => render(&world, &plan, now),
    };
    output::print(&text);
    Ok(Exit::Ok)
}

/// The plan that the controller makes of the same facts.
fn planned(mut world: World) -> (World, Plan) {
    // Only the controller knows the attempts that it carries out. Those that have begun run, as far as we can tell.
    for run in &world.runs {
        for step in run.status.steps.iter().filter(|step| step.outcome.is_none()) {
            world.attempts.insert(plan::hook_key(&run.uid, step.phase, &step.hook, step.attempt), None);
        }
    }
    let mut plan = plan::plan(&world);
    // The planner asks who governs only where that decides something.
    let (by, others) = state::governed_by(&world.deployment, &world.policies);
    if plan.report.governed_by.is_none() {
        plan.report.governed_by = by.map(str::to_owned);
        plan.report.conflicts = others.into_iter().map(str::to_owned).collect();
    }
    (world, plan)
}

fn explained<'a>(world: &'a World, plan: &'a Plan) -> Explained<'a> {
    Explained {
        deployment: &world.deployment.name,
        namespace: &world.deployment.namespace,
        held: world.deployment.held(),
        report: &plan.report,
        next: plan.effects.iter().filter_map(doing).collect(),
        status: state::latest(&world.runs).map(|run| &run.status),
    }
}

/// For those who may not list everything that the planner needs: what the controller stored.
async fn stored(connection: &Connection, target: &Target, why: &str, now: Time) -> Result<Exit, Failure> {
    let deployment = read::deployment(connection, target).await?;
    let runs = read::runs_of(connection, &deployment).await?;
    let mut text =
        format!("Not everything that decides may be read ({why}), so this is what the controller last stored.\n\n");
    let state = state::of(&deployment, &runs);
    let mut lines = head(&deployment, &state.word, state.since.map(|since| age(since, now)));
    lines.push(("Message", state.message));
    if let Some(run) = state::latest(&runs) {
        lines.push(("Run", run.name.clone()));
        lines.extend(way(run.status.way.as_ref()));
        lines.extend(waiting(run.status.waiting_for.as_ref(), now));
    }
    text += &fields(&lines);
    text += &state::latest(&runs).map(|run| hooks(run, now)).unwrap_or_default();
    output::print(&text);
    Ok(Exit::Ok)
}

/// The report for people.
fn render(world: &World, plan: &Plan, now: Time) -> String {
    let Plan { look_live: _, effects, status, wake, report } = plan;
    let deployment = &world.deployment;
    let run = report.run.as_ref().and_then(|name| world.runs.iter().find(|run| run.name == *name));
    let latest = run.or_else(|| state::latest(&world.runs));
    // What the controller is about to store is newer than what it has stored.
    let fresh = status.as_ref().filter(|s| run.is_some_and(|run| run.name == s.run)).map(|s| &s.status);
    let status = fresh.or_else(|| latest.map(|run| &run.status));
    let mut lines = head(deployment, &word(&report.state), None);
    // What is awaited, or why it stands still, is told below.
    let told = report.waiting_for.as_ref().is_some_and(|w| w.what == report.message)
        || status.is_some_and(|s| s.stall.is_some() && s.ended.is_none());
    if !told {
        lines.push(("Message", report.message.clone()));
    }
    lines.push(("Governed by", report.governed_by.clone().unwrap_or_else(|| "nobody".into())));
    if !report.conflicts.is_empty() {
        lines.push(("Conflicts with", format!("{} (the smallest name wins)", report.conflicts.join(", "))));
    }
    if let Some(run) = run {
        lines.push(("Run", format!("{} (started {} ago)", run.name, age(run.created, now))));
    } else if let Some(run) = latest {
        let ended = run.status.ended.as_ref().map(|e| format!("{}, {} ago", word(&e.outcome), age(e.at, now)));
        lines.push(("Last run", format!("{} ({})", run.name, ended.unwrap_or_else(|| "not ended".into()))));
    }
    lines.extend(way(report.way.as_ref()));
    if let Some(pods) = status.and_then(|s| s.pods.as_ref()) {
        let counts = format!(
            "{} desired, {} updated, {} changing, {} available",
            pods.desired, pods.updated, pods.in_flight, pods.available
        );
        lines.push(("Pods", counts));
        lines.push(("Failing", pods.failing.join("\n")));
    }
    lines.extend(waiting(report.waiting_for.as_ref(), now));
    if let Some(stall) = status.and_then(|s| s.stall.as_ref()) {
        lines.push(("Stalled", format!("{}, for {}: {}", stall.reason, age(stall.since, now), stall.message)));
        lines.push(("To go on", exits(deployment)));
    }
    let next: Vec<String> = effects.iter().filter_map(doing).collect();
    lines.push(("Next", next.join("\n")));
    if let Some(wake) = wake {
        lines.push(("Looks again", format!("in {} at the latest", duration(wake.millis_since(now)))));
    }
    fields(&lines) + &latest.map(|run| hooks(run, now)).unwrap_or_default()
}

fn head(deployment: &Deployment, state: &str, since: Option<String>) -> Vec<(&'static str, String)> {
    let held = match (deployment.held(), deployment.user_paused(), deployment.paused) {
        (true, true, _) => "yes, and paused by its user",
        (true, false, _) => "yes",
        (false, _, true) => "no (paused by its user)",
        (false, _, false) => "no",
    };
    vec![
        ("Deployment", format!("{}/{}", deployment.namespace, deployment.name)),
        ("State", since.map_or_else(|| state.to_owned(), |since| format!("{state} (for {since})"))),
        ("Held", held.to_owned()),
    ]
}

fn way(way: Option<&Way>) -> Vec<(&'static str, String)> {
    let Some(Way { kind, because }) = way else { return Vec::new() };
    vec![("Way", word(kind)), ("Because", because.join("\n"))]
}

fn waiting(waiting: Option<&WaitingFor>, now: Time) -> Vec<(&'static str, String)> {
    let Some(WaitingFor { reason, what, since, until, how }) = waiting else { return Vec::new() };
    let until = until.map(|until| match until.millis_since(now) {
        left if left > 0 => format!("{until} (in {})", duration(left)),
        _ => format!("{until} (now)"),
    });
    vec![
        ("Waiting for", format!("{} ({reason})", what.strip_prefix("waiting for ").unwrap_or(what))),
        ("Since", format!("{since} ({} ago)", age(*since, now))),
        ("Until", until.unwrap_or_default()),
        ("To go on", how.clone()),
    ]
}

fn exits(deployment: &Deployment) -> String {
    let command = |verb| format!("kubectl interlock {verb} deploy/{} -n {}", deployment.name, deployment.namespace);
    let mut lines = vec!["change the template, or one of:".to_owned()];
    lines.extend(["retry", "skip", "resume", "abort", "undo"].map(command));
    lines.join("\n")
}

/// The hooks of a run with their attempts.
fn hooks(run: &Run, now: Time) -> String {
    let rows: Vec<[String; 6]> = run
        .spec
        .settings
        .hooks
        .iter()
        .flat_map(|hook| {
            let steps: Vec<&Step> =
                run.status.steps.iter().filter(|s| s.hook == hook.name && s.phase == hook.phase).collect();
            let name = [hook.name.clone(), hook.phase.as_str().to_owned()];
            if steps.is_empty() {
                let [hook, phase] = name;
                // Nothing is called for a birth, nor after the end.
                let over = run.status.ended.is_some() || run.spec.old_template.is_none();
                let outcome = if over { "NotCalled" } else { "Pending" };
                return vec![[hook, phase, String::new(), outcome.to_owned(), String::new(), String::new()]];
            }
            steps
                .into_iter()
                .map(|step| {
                    let outcome = step.outcome.as_ref().map_or_else(|| "Running".to_owned(), word);
                    let outcome = if step.reason.is_empty() || step.reason == outcome {
                        outcome
                    } else {
                        format!("{outcome} ({})", step.reason)
                    };
                    let took = duration(step.finished_at.unwrap_or(now).millis_since(step.started_at));
                    let [hook, phase] = name.clone();
                    [hook, phase, step.attempt.to_string(), outcome, age(step.started_at, now) + " ago", took]
                })
                .collect()
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("\n{}", output::table(&["HOOK", "PHASE", "ATTEMPT", "OUTCOME", "STARTED", "TOOK"], &rows))
}

/// What an effect does, in a few words; `None` for the bookkeeping.
fn doing(effect: &Effect) -> Option<String> {
    Some(match effect {
        Effect::CreateRun { name, .. } => format!("start run {name}"),
        Effect::DeleteRun { .. }
        | Effect::RecordStatus { .. }
        | Effect::MirrorConditions { .. }
        | Effect::Event { .. } => {
            return None;
        }
        Effect::PatchPod { name, .. } => format!("change pod {name} in place"),
        Effect::ResizePod { name, .. } => format!("resize pod {name}"),
        Effect::CreateReplicaSet { purpose, .. } => format!("create a ReplicaSet ({purpose:?})"),
        Effect::PatchReplicaSet { name, .. } => format!("change ReplicaSet {name}"),
        Effect::DeleteReplicaSet { name, .. } => format!("delete the empty ReplicaSet {name}"),
        Effect::PatchDeployment { purpose, .. } => format!("write the Deployment ({purpose:?})"),
        Effect::StartHook(call) => format!("call hook {} (attempt {})", call.hook, call.attempt),
        Effect::CancelHooks(keys) => format!("cancel {} attempts of hooks", keys.len()),
    })
}
