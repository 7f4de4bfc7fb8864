//! `status`: all Deployments that interlock governs or holds, one line each.

use std::collections::BTreeMap;

use interlock_core::{
    time::Time,
    world::{Deployment, Policy, Run},
};
use serde::Serialize;

use super::{
    exits::qualified,
    state::{self, State},
    tables,
};
use crate::cli::{
    connect::Connection,
    controller,
    exit::{Exit, Failure},
    output::{self, Format, age},
    read,
    target::Target,
};

#[cfg(test)]
mod tests;

/// Longest text in the last column of the narrow table, in characters.
const NARROW: usize = 80;

/// One Deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// State in one word.
    pub state: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Is it held?
    pub held: bool,
    /// InPlace, Native, `first start`, `needs new pods` or, audited, `would be InPlace`, once that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<String>,
    /// Pods that run the template that is wanted.
    pub updated: i64,
    /// Pods that are available.
    pub available: i64,
    /// Pods that are wanted.
    pub desired: i64,
    /// Name of the policy, or `annotation`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governed_by: Option<String>,
    /// Name of the latest run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// What was last decided about the latest run, and by whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided: Option<String>,
    /// What it waits for, or what is wrong.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How a person can make it go on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub how: String,
}

/// Carries out the verb.
pub async fn run(
    connection: &Connection,
    target: Option<&Target>,
    all_namespaces: bool,
    format: Format,
) -> Result<Exit, Failure> {
    let deployments = match target {
        Some(target) => vec![read::deployment(connection, target).await?],
        None => read::deployments(connection, all_namespaces).await?,
    };
    let (policies, runs) =
        tokio::join!(read::policies(connection, all_namespaces), read::runs(connection, all_namespaces));
    let told = |why: String| eprintln!("Not everything may be read: {why}");
    let policies = read::if_allowed(policies)?.unwrap_or_else(|why| {
        told(why);
        Vec::new()
    });
    let runs = read::if_allowed(runs)?.map_err(told).ok();
    let rows = rows(&deployments, &policies, runs.as_deref(), target.is_some());
    if let Some(text) = output::structured(format, &rows)? {
        output::print(&text);
    } else if rows.is_empty() {
        let place =
            if all_namespaces { "any namespace".to_owned() } else { format!("namespace {}", connection.namespace) };
        eprintln!("No Deployment is governed by interlock in {place}.");
    } else {
        output::print(&render(&rows, all_namespaces, format == Format::Wide, output::now()));
        if let Some(hint) = controller::missing(connection, output::now()).await {
            eprintln!("The controller is {hint}.");
        }
    }
    Ok(Exit::Ok)
}

/// A row for each Deployment that is governed, is held or has a run; with `every`, for each. Without runs, which not
/// everybody may read, by the Deployments' conditions.
pub fn rows(deployments: &[Deployment], policies: &[(String, Policy)], runs: Option<&[Run]>, every: bool) -> Vec<Row> {
    let mut by_deployment: BTreeMap<&str, Vec<Run>> = BTreeMap::new();
    for run in runs.unwrap_or_default() {
        by_deployment.entry(&run.spec.deployment.uid).or_default().push(run.clone());
    }
    let mut rows: Vec<Row> = deployments
        .iter()
        .filter_map(|deployment| {
            let here = policies.iter().filter(|(namespace, _)| *namespace == deployment.namespace).map(|(_, p)| p);
            let (governed_by, _) = state::governed_by(deployment, here);
            let ours = by_deployment.get(deployment.uid.as_str()).map_or(&[][..], Vec::as_slice);
            let known = !ours.is_empty() || (runs.is_none() && !deployment.status.conditions.is_empty());
            let state = if runs.is_some() { state::of(deployment, ours) } else { state::of_conditions(deployment) };
            (every || governed_by.is_some() || deployment.held() || known)
                .then(|| row(deployment, governed_by, ours, state))
        })
        .collect();
    rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    rows
}

fn row(deployment: &Deployment, governed_by: Option<&str>, runs: &[Run], state: State) -> Row {
    let current = state::current(deployment, runs);
    let open = current.filter(|run| run.status.ended.is_none());
    // While it is held the Deployment's own count of updated pods is that of the old template.
    let (updated, available) = match open.and_then(|run| run.status.pods.as_ref()) {
        Some(pods) => (pods.updated, pods.available),
        None if deployment.held() => (0, deployment.status.available),
        None => (deployment.status.updated, deployment.status.available),
    };
    Row {
        namespace: deployment.namespace.clone(),
        name: deployment.name.clone(),
        state: state.word,
        since: state.since,
        held: deployment.held(),
        way: current.and_then(|run| state::way(run, run.status.way.as_ref())),
        updated,
        available,
        desired: deployment.replicas,
        governed_by: governed_by.map(str::to_owned),
        run: state::latest(runs).map(|run| run.name.clone()),
        decided: state::latest(runs).and_then(|run| run.spec.decisions.last()).map(tables::in_words),
        message: qualified(&state.message, deployment),
        how: open
            .and_then(|run| run.status.waiting_for.as_ref())
            .map(|waiting| qualified(&waiting.how, deployment))
            .unwrap_or_default(),
    }
}

fn render(rows: &[Row], namespaces: bool, wide: bool, now: Time) -> String {
    let cells = |row: &Row| {
        let mut cells = vec![
            if namespaces { format!("{}/{}", row.namespace, row.name) } else { row.name.clone() },
            row.state.clone(),
            row.since.map(|since| age(since, now)).unwrap_or_default(),
            row.way.clone().unwrap_or_default(),
            format!("{}/{}", row.updated, row.desired),
            format!("{}/{}", row.available, row.desired),
            row.governed_by.clone().unwrap_or_default(),
            if wide { row.message.clone() } else { cut(&row.message) },
        ];
        if wide {
            let last = |text: &Option<String>| text.clone().unwrap_or_default();
            cells.extend([row.how.clone(), last(&row.decided), last(&row.run)]);
        }
        cells
    };
    let mut head = vec!["NAME", "STATE", "SINCE", "WAY", "UPDATED", "AVAILABLE", "POLICY", "WAITING FOR"];
    if wide {
        head.extend(["HOW TO GO ON", "DECIDED", "RUN"]);
    }
    output::table(&head, &rows.iter().map(cells).collect::<Vec<_>>())
}

fn cut(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= NARROW {
        return line.to_owned();
    }
    line.chars().take(NARROW - 3).collect::<String>().trim_end().to_owned() + "..."
}
