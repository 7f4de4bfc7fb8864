//! `history`: the revisions of a Deployment and the runs that led there.

use interlock_core::{
    template::Template,
    time::Time,
    world::{Deployment, ReplicaSet, Run},
};
use serde_json::Value;

use super::{state, tables};

use crate::cli::{
    connect::Connection,
    exit::{Exit, Failure},
    output::{self, age, duration, word},
    read,
    target::Target,
};

#[cfg(test)]
mod tests;

/// Carries out the verb.
pub async fn run(connection: &Connection, target: &Target) -> Result<Exit, Failure> {
    let deployment = read::deployment(connection, target).await?;
    let (sets, runs) =
        tokio::try_join!(read::replica_sets(connection, &deployment), read::runs_of(connection, &deployment))?;
    output::print(&render(&deployment, &sets, &runs, output::now()));
    Ok(Exit::Ok)
}

fn render(deployment: &Deployment, sets: &[ReplicaSet], runs: &[Run], now: Time) -> String {
    let revisions: Vec<[String; 5]> = sets
        .iter()
        .filter(|set| set.revision() > 0 && !set.copy)
        .map(|set| {
            let wanted = if set.template == deployment.template { "*" } else { "" };
            [
                format!("{}{wanted}", set.revision()),
                age(set.created, now),
                set.replicas.to_string(),
                images(&set.template),
                set.annotations.get("kubernetes.io/change-cause").cloned().unwrap_or_default(),
            ]
        })
        .collect();
    let mut text = output::table(&["REVISION", "AGE", "PODS", "IMAGES", "CHANGE-CAUSE"], &revisions);
    if runs.is_empty() {
        return text;
    }
    let rows: Vec<[String; 7]> = runs
        .iter()
        .map(|run| {
            let status = &run.status;
            let outcome = match (&status.ended, &status.stall) {
                (Some(ended), _) => word(&ended.outcome),
                (None, Some(stall)) => format!("Stalled/{}", stall.reason),
                (None, None) => "InProgress".to_owned(),
            };
            [
                run.spec.sequence.to_string(),
                run.name.clone(),
                outcome,
                state::way(run, status.way.as_ref()).unwrap_or_default(),
                age(run.created, now),
                status.ended.as_ref().map(|ended| duration(ended.at.millis_since(run.created))).unwrap_or_default(),
                images(&run.spec.new_template),
            ]
        })
        .collect();
    text.push('\n');
    text += &output::table(&["NO", "RUN", "OUTCOME", "WAY", "AGE", "TOOK", "IMAGES"], &rows);
    text + &tables::decisions_of_all(runs)
}

/// The images of a template, in order.
fn images(template: &Template) -> String {
    let containers = template.json().pointer("/spec/containers").and_then(Value::as_array);
    let images: Vec<&str> = containers.into_iter().flatten().filter_map(|c| c.get("image")?.as_str()).collect();
    images.join(",")
}
