//! The examples are applied for real: what stands in `examples/` works as it is.

use kube::api::{Patch, PatchParams, ValidationDirective};
use serde_json::{Value, json};

use crate::harness::Env;

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple::<Value>(text).unwrap()
}

/// Every file, with the Deployments that are to be complete in the end.
fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "yaml") {
                files.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    // Policies before Deployments of the same folder.
    files.sort_by_key(|(name, _)| (!name.contains("policy"), name.clone()));
    files
}

#[tokio::test]
async fn every_example_is_accepted_strictly_and_its_deployments_come_up() {
    let mut env = Env::new("examples").await;
    env.start().await;
    let files = files();
    assert!(files.len() >= 4, "{files:?}");
    let mut names = Vec::new();
    for (file, text) in &files {
        for mut object in documents(text) {
            object["metadata"]["namespace"] = json!(env.namespace);
            let mut object: kube::core::DynamicObject = serde_json::from_value(object).unwrap();
            let types = object.types.clone().unwrap();
            let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
            let resource =
                kube::core::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, &types.kind));
            let api =
                kube::Api::<kube::core::DynamicObject>::namespaced_with(env.admin.clone(), &env.namespace, &resource);
            let name = object.metadata.name.clone().unwrap();
            object.metadata.managed_fields = None;
            let mut params = PatchParams::apply("e2e").force();
            params.field_validation = Some(ValidationDirective::Strict);
            api.patch(&name, &params, &Patch::Apply(&object)).await.unwrap_or_else(|e| panic!("{file}: {name}: {e}"));
            if types.kind == "Deployment" {
                names.push(name);
            }
        }
    }
    for name in &names {
        env.complete(name).await;
    }
    assert!(names.len() >= 6, "{names:?}");
}
