//! HookRuns, read for people: what they wait for, which way they go, how they end.

use std::{collections::BTreeMap, pin::pin};

use anyhow::{Context, Result};
use futures::TryStreamExt;
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    core::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::Value;

use crate::say::Say;

fn api(client: Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("interlock.dev", "v1alpha1", "HookRun");
    Api::namespaced_with(client, namespace, &ApiResource::from_gvk_with_plural(&kind, "hookruns"))
}

/// Prints each change of what a run says, until the process ends.
pub(crate) fn tell(client: Client, namespace: &str, say: Say) {
    let api = api(client, namespace);
    tokio::spawn(async move {
        let mut said: BTreeMap<String, String> = BTreeMap::new();
        let mut runs = pin!(watcher(api, watcher::Config::default()).default_backoff().applied_objects());
        // A failed watch is begun again after a pause; nothing depends on these lines.
        loop {
            let Ok(run) = runs.try_next().await else { continue };
            let Some(run) = run else { return };
            let Some(text) = summary(&run.data) else { continue };
            if said.insert(run.name_any(), text.clone()).as_ref() != Some(&text) {
                say.line(text);
            }
        }
    });
}

fn text<'a>(value: &'a Value, path: &str) -> Option<&'a str> {
    value.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// What a run says that is worth a line.
fn summary(run: &Value) -> Option<String> {
    let name = text(run, "/spec/deployment/name")?;
    if let Some(outcome) = text(run, "/status/ended/outcome") {
        return Some(format!("{name}: run ended, {outcome}"));
    }
    if let Some(stall) = text(run, "/status/stall/reason") {
        return Some(format!("{name}: stalled, {stall}"));
    }
    if text(run, "/status/waitingFor/reason") == Some("Predecessor") {
        return Some(format!("{name}: {}", text(run, "/status/waitingFor/what")?));
    }
    let way = text(run, "/status/way/kind")?;
    // Only a birth has no template to go from.
    if run.pointer("/spec/oldTemplate").is_none() {
        return Some(format!("{name}: its turn, starts"));
    }
    match way {
        "InPlace" => Some(format!("{name}: goes in place")),
        "Native" => Some(format!("{name}: goes the native way")),
        other => Some(format!("{name}: goes {other}")),
    }
}

/// The way of the latest run of a Deployment (`InPlace`, `Native`), and why it is not in place.
///
/// # Errors
/// When there is no run, or it cannot be read.
pub(crate) async fn way(client: Client, namespace: &str, deployment: &str) -> Result<(String, Vec<String>)> {
    let runs = api(client, namespace).list(&ListParams::default()).await.context("HookRuns cannot be listed")?;
    let of_this = runs.items.iter().filter(|run| text(&run.data, "/spec/deployment/name") == Some(deployment));
    let latest = of_this.max_by_key(|run| run.data.pointer("/spec/sequence").and_then(Value::as_i64));
    let run = &latest.with_context(|| format!("there is no HookRun of deployment {deployment}"))?.data;
    let because = run.pointer("/status/way/because").and_then(Value::as_array).into_iter().flatten();
    let because = because.filter_map(|line| line.as_str().map(str::to_owned)).collect();
    Ok((text(run, "/status/way/kind").unwrap_or("unknown").to_owned(), because))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_end_is_more_than_a_stall_is_more_than_a_wait_is_more_than_the_way() {
        let mut run = json!({"spec": {"deployment": {"name": "a"}, "oldTemplate": {}}});
        assert_eq!(summary(&run), None);
        run["status"] = json!({"way": {"kind": "InPlace"}});
        assert_eq!(summary(&run).unwrap(), "a: goes in place");
        let birth = json!({"spec": {"deployment": {"name": "a"}}, "status": run["status"]});
        assert_eq!(summary(&birth).unwrap(), "a: its turn, starts");
        run["status"]["waitingFor"] = json!({"reason": "Predecessor", "what": "waits for b"});
        assert_eq!(summary(&run).unwrap(), "a: waits for b");
        run["status"]["stall"] = json!({"reason": "PodFailing"});
        assert_eq!(summary(&run).unwrap(), "a: stalled, PodFailing");
        run["status"]["ended"] = json!({"outcome": "Superseded"});
        assert_eq!(summary(&run).unwrap(), "a: run ended, Superseded");
    }
}
