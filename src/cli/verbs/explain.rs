//! `explain`: the planner's own report. It plans, as the user, from what is there now, and carries nothing out.

use interlock_core::{
    api::{
        condition::{self, Status},
        hook::Hook,
        names,
        run::{WaitingFor, Way},
    },
    effect::Effect,
    plan::{self, Plan, Report, conditions},
    time::Time,
    world::{Deployment, Run, World},
};
use serde::Serialize;

use super::{
    exits::{exits, qualified},
    state, tables,
};
use crate::{
    cli::{
        connect::Connection,
        controller,
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
    state: String,
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
        None => render(&world, &plan, controller::missing(connection, now).await, now),
    };
    output::print(&text);
    Ok(Exit::Ok)
}

/// The plan that the controller makes of the same facts.
fn planned(mut world: World) -> (World, Plan) {
    // Only the controller knows the attempts that it carries out. Those that have begun run, as far as we can tell.
    for run in &world.runs {
        for step in run.status.steps.iter().filter(|step| step.outcome.is_none()) {
            world.attempts.insert(plan::hook_key(&run.uid, step), None);
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
        state: in_a_word(world, plan, &overlaid(world, plan)),
        held: world.deployment.held(),
        report: &plan.report,
        next: plan.effects.iter().filter_map(doing).collect(),
        status: state::latest(&world.runs).map(|run| &run.status),
    }
}

/// For those who may not list everything that the planner needs: what the controller stored.
async fn stored(connection: &Connection, target: &Target, why: &str, now: Time) -> Result<Exit, Failure> {
    let deployment = read::deployment(connection, target).await?;
    let runs = read::if_allowed(read::runs_of(connection, &deployment).await)?;
    output::print(&render_stored(&deployment, runs.as_deref(), why, now));
    Ok(Exit::Ok)
}

fn render_stored(deployment: &Deployment, runs: Result<&[Run], &String>, why: &str, now: Time) -> String {
    let runs = match runs {
        Ok(runs) => runs,
        Err(why) => {
            let state = state::of_conditions(deployment);
            let mut lines = head(deployment, &state.word, None);
            lines.push(("Message", qualified(&state.message, deployment)));
            return format!(
                "Runs may not be read ({why}), so this is what the conditions of the Deployment say.\n\n{}",
                fields(&lines)
            );
        }
    };
    let state = state::of(deployment, runs);
    let mut lines = head(deployment, &state.word, state.since.map(|since| age(since, now)));
    lines.push(("Message", state.message));
    let latest = state::latest(runs);
    if let Some(run) = latest {
        lines.push(("Run", run.name.clone()));
        lines.extend(way(run, run.status.way.as_ref()));
        lines.extend(waiting(run.status.waiting_for.as_ref(), deployment, now));
        if run.status.waiting_for.is_none() {
            lines.push(("To go on", exits(deployment, runs).join("\n")));
        }
    }
    format!(
        "Not everything that decides may be read ({why}), so this is what the controller last stored.\n\n{}{}",
        fields(&lines),
        latest.map(|run| tables::of(run, now)).unwrap_or_default()
    )
}

/// The report for people.
fn render(world: &World, plan: &Plan, hint: Option<String>, now: Time) -> String {
    let Plan { look_live: _, effects, status: _, wake, report } = plan;
    let deployment = &world.deployment;
    let runs = overlaid(world, plan);
    let run = report.run.as_ref().and_then(|name| runs.iter().find(|run| run.name == *name));
    let latest = run.or_else(|| state::latest(&runs));
    let open = run.filter(|run| run.status.ended.is_none());
    let stall = open.and_then(|run| run.status.stall.as_ref());
    let mut lines = head(deployment, &in_a_word(world, plan, &runs), None);
    // What is awaited, or why it stands still, is told below.
    let told = report.waiting_for.as_ref().is_some_and(|w| w.what == report.message) || stall.is_some();
    if !told {
        lines.push(("Message", qualified(&report.message, deployment)));
    }
    lines.push(("Governed by", report.governed_by.clone().unwrap_or_else(|| "nobody".into())));
    if !report.conflicts.is_empty() {
        lines.push(("Conflicts with", format!("{} (the smallest name wins)", report.conflicts.join(", "))));
    }
    lines.push(("Hooks of", both_speak(world, report)));
    if let Some(name) =
        deployment.annotation(names::POLICY).filter(|name| world.policies.iter().all(|p| p.name != **name))
    {
        let namespace = &deployment.namespace;
        lines.push((
            "Attention",
            format!(
                "annotation {} names HookPolicy {name}, which does not exist in namespace {namespace}",
                names::POLICY
            ),
        ));
    }
    if let Some(run) = run {
        lines.push(("Run", format!("{} (started {} ago)", run.name, age(run.created, now))));
        lines.extend(way(run, report.way.as_ref()));
    } else if let Some(run) = latest {
        let ended = run.status.ended.as_ref().map(|e| format!("{}, {} ago", word(&e.outcome), age(e.at, now)));
        let way = state::way(run, run.status.way.as_ref()).map(|way| format!(", {way}")).unwrap_or_default();
        lines.push(("Last run", format!("{} ({}{way})", run.name, ended.unwrap_or_else(|| "not ended".into()))));
    }
    lines.push(("Limited", latest.map(limited).unwrap_or_default()));
    lines.extend(pods(deployment, run));
    lines.extend(waiting(report.waiting_for.as_ref(), deployment, now));
    if let Some(stall) = stall {
        let message = qualified(&stall.message, deployment);
        lines.push(("Stalled", format!("{}, for {}: {message}", stall.reason, age(stall.since, now))));
    }
    if report.waiting_for.is_none() && (stall.is_some() || run.is_some_and(state::aborted)) {
        lines.push(("To go on", exits(deployment, &runs).join("\n")));
    }
    let next: Vec<String> = effects.iter().filter_map(doing).collect();
    lines.push(("Next", next.join("\n")));
    if let Some(wake) = wake {
        lines.push(("Looks again", format!("in {} at the latest", duration(wake.millis_since(now)))));
    }
    lines.push(("Controller", hint.unwrap_or_default()));
    fields(&lines) + &latest.map(|run| tables::of(run, now)).unwrap_or_default()
}

/// What the policy asks for and this run cannot do.
fn limited(run: &Run) -> String {
    let said = condition::find(&run.status.conditions, conditions::LIMITED).filter(|c| c.status == Status::True);
    said.map(|c| format!("{} ({})", c.message, c.reason)).unwrap_or_default()
}

/// Whose hooks run in which order, where a policy and the Deployment's own annotation both speak.
fn both_speak(world: &World, report: &Report) -> String {
    let policy = report.governed_by.as_ref().and_then(|name| world.policies.iter().find(|p| p.name == *name));
    let spec = policy.and_then(|p| p.spec.as_ref().ok());
    let (Some(policy), Some(spec), Some(Ok(own))) = (policy, spec, &world.deployment.own_hooks) else {
        return String::new();
    };
    let names = |hooks: &[&Hook]| hooks.iter().map(|h| h.name.as_str()).collect::<Vec<_>>().join(", ");
    let (double, more): (Vec<&Hook>, Vec<&Hook>) =
        own.iter().partition(|h| spec.hooks.iter().any(|p| p.name == h.name));
    let of_policy: Vec<&Hook> = spec.hooks.iter().collect();
    let mut lines = vec![
        format!("HookPolicy {}: {}", policy.name, names(&of_policy)),
        format!("then annotation {}: {}", names::HOOKS, names(&more)),
    ];
    if !double.is_empty() {
        lines.push(format!("not the annotation's {}: the policy has hooks of that name", names(&double)));
    }
    lines.join("\n")
}

/// The runs with what the controller is about to store, which is newer than what it has stored.
fn overlaid(world: &World, plan: &Plan) -> Vec<Run> {
    let mut runs = world.runs.clone();
    if let Some(write) = &plan.status
        && let Some(run) = runs.iter_mut().find(|run| run.name == write.run)
    {
        run.status = write.status.clone();
    }
    runs
}

/// The word that `status` has for it; without a run of its own, what the planner waits for.
fn in_a_word(world: &World, plan: &Plan, runs: &[Run]) -> String {
    match (&plan.report.waiting_for, &plan.report.run) {
        (Some(waiting), None) => waiting.reason.clone(),
        (Some(_) | None, _) => state::of(&world.deployment, runs).word,
    }
}

/// While an update goes on its own counts; else those of the Deployment, whose count of updated pods means nothing while
/// it is held.
fn pods(deployment: &Deployment, run: Option<&Run>) -> Vec<(&'static str, String)> {
    if let Some(pods) = run.and_then(|run| run.status.pods.as_ref()) {
        let counts = format!(
            "{} desired, {} updated, {} changing, {} available",
            pods.desired, pods.updated, pods.in_flight, pods.available
        );
        return vec![("Pods", counts), ("Failing", pods.failing.join("\n"))];
    }
    let updated = if deployment.held() { String::new() } else { format!("{} updated, ", deployment.status.updated) };
    vec![("Pods", format!("{} desired, {updated}{} available", deployment.replicas, deployment.status.available))]
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

fn way(run: &Run, way: Option<&Way>) -> Vec<(&'static str, String)> {
    let because = way.map(|way| way.because.join("\n")).unwrap_or_default();
    // That nothing runs yet is all there is to say about a first start.
    let because = if run.spec.old_template.is_none() { String::new() } else { because };
    vec![("Way", state::way(run, way).unwrap_or_default()), ("Because", because)]
}

fn waiting(waiting: Option<&WaitingFor>, deployment: &Deployment, now: Time) -> Vec<(&'static str, String)> {
    let Some(WaitingFor { reason, what, since, until, how }) = waiting else { return Vec::new() };
    let until = until.map(|until| match until.millis_since(now) {
        left if left > 0 => format!("{until} (in {})", duration(left)),
        _ => format!("{until} (now)"),
    });
    vec![
        (
            "Waiting for",
            format!("{} ({reason})", qualified(what.strip_prefix("waiting for ").unwrap_or(what), deployment)),
        ),
        ("Since", format!("{since} ({} ago)", age(*since, now))),
        ("Until", until.unwrap_or_default()),
        ("To go on", qualified(how, deployment)),
    ]
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
        Effect::SetReadinessGate { name, open: true, .. } => format!("let pod {name} serve"),
        Effect::SetReadinessGate { name, open: false, .. } => format!("take pod {name} out of service"),
        Effect::CreateReplicaSet { purpose, .. } => format!("create a ReplicaSet ({purpose:?})"),
        Effect::PatchReplicaSet { name, .. } => format!("change ReplicaSet {name}"),
        Effect::DeleteReplicaSet { name, .. } => format!("delete the empty ReplicaSet {name}"),
        Effect::PatchDeployment { purpose, .. } => format!("write the Deployment ({purpose:?})"),
        Effect::StartHook(call) => format!("call hook {} (attempt {})", call.hook, call.attempt),
        Effect::CancelHooks(keys) => format!("cancel {} attempts of hooks", keys.len()),
    })
}
