//! Everything in `examples/` is accepted by the API server and by the rules that only code can tell; every kind and every
//! phase of hooks has an example.

use std::{collections::BTreeSet, path::PathBuf};

use interlock_core::{
    api::{
        hook::{Hook, Kind},
        names,
        policy::HookPolicySpec,
    },
    validate,
};
use serde_json::{Value, json};

use crate::place::Place;

fn files() -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn kind(hook: &Hook) -> &'static str {
    match hook.kind().unwrap() {
        Kind::Http(_) => "http",
        Kind::Job(_) => "job",
        Kind::PrePull(_) => "prePull",
        Kind::Wait(_) => "wait",
        Kind::WaitFor(_) => "waitFor",
        Kind::Patch(_) => "patch",
        Kind::PodGate(_) => "podGate",
        Kind::Approval(_) => "approval",
    }
}

#[tokio::test]
async fn every_example_is_accepted_and_every_kind_and_phase_has_one() {
    let tally = tally::Tally::new("examples, by a strict server-side dry run");
    let place = Place::new().await;
    let (mut kinds, mut phases) = (BTreeSet::new(), BTreeSet::new());
    for file in files() {
        let file_name = file.display();
        for object in serde_saphyr::from_multiple::<Value>(&std::fs::read_to_string(&file).unwrap()).unwrap() {
            let (group, plural) = match object["kind"].as_str().unwrap() {
                "HookPolicy" => ("interlock.dev/v1alpha1", "hookpolicies"),
                "RollingRestart" => ("interlock.dev/v1alpha1", "rollingrestarts"),
                "Deployment" => ("apps/v1", "deployments"),
                "StatefulSet" => ("apps/v1", "statefulsets"),
                "DaemonSet" => ("apps/v1", "daemonsets"),
                "Job" => ("batch/v1", "jobs"),
                other => panic!("{file_name}: {other}"),
            };
            let path =
                format!("/apis/{group}/namespaces/{}/{plural}?dryRun=All&fieldValidation=Strict", place.namespace);
            let answer = place.raw(&place.admin, "POST", &path, "application/json", &object).await;
            let (_, stored) = answer.unwrap_or_else(|error| panic!("{file_name}: {error}"));
            tally.points(1);
            let hooks = if plural == "rollingrestarts" {
                let spec = serde_json::from_value(stored["spec"].clone()).unwrap();
                assert_eq!(validate::restart(&spec), [], "{file_name}");
                Vec::new()
            } else if plural == "hookpolicies" {
                let spec: HookPolicySpec = serde_json::from_value(stored["spec"].clone()).unwrap();
                assert_eq!(validate::policy(&spec), [], "{file_name}");
                spec.hooks
            } else {
                let annotation = stored["metadata"]["annotations"][names::HOOKS].as_str().unwrap_or("[]");
                let hooks = interlock::api::annotation::hooks(annotation).unwrap();
                assert_eq!(validate::own_hooks(&hooks, &place.namespace), [], "{file_name}");
                hooks
            };
            tally.checks(2);
            kinds.extend(hooks.iter().map(kind));
            phases.extend(hooks.iter().map(|hook| hook.phase.as_str()));
        }
    }
    assert_eq!(json!(kinds), json!(["approval", "http", "job", "patch", "podGate", "prePull", "wait", "waitFor"]));
    assert_eq!(json!(phases), json!(["OnFailure", "PostPod", "PostUpdate", "PrePod", "PreUpdate"]));
}
