//! Pods with our readiness gate when Interlock goes: nobody would ever say again that they are ready.

use interlock_core::{api::names, time::Time};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Done, FIELD_MANAGER, Line, held::Stop, words};

/// Pods of one answer of the API server.
const PAGE: u32 = 500;

/// Opens the gate of every pod that has it and is kept out by it: a new one that the controller had not seen, or one in the
/// middle of its update.
pub(super) async fn open(client: &Client, lines: &mut Vec<Line>) -> Result<(), Stop> {
    let all: Api<Pod> = Api::all(client.clone());
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = match all.list(&page).await {
            Ok(list) => list,
            // The list has become too old on the way: once more from the start. What is open is passed over.
            Err(kube::Error::Api(status)) if status.code == 410 => {
                page.continue_token = None;
                continue;
            }
            Err(error) => return Err((format!("pods cannot be listed: {}", words(&error)), Some(error))),
        };
        for pod in list.items.iter().filter(|pod| closed(pod)) {
            lines.push(open_one(client, pod).await?);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}

fn closed(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    gates.into_iter().any(|gate| gate.condition_type == names::READINESS_GATE)
        && !conditions.into_iter().any(|c| c.type_ == names::READINESS_GATE && c.status == "True")
}

async fn open_one(client: &Client, pod: &Pod) -> Result<Line, Stop> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let label = format!("pod/{name} -n {namespace}");
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match pods.patch_status(&name, &params, &Patch::Strategic(patch(pod))).await {
        Ok(_) => Ok(Line::new(Done::Opened, label).note("its readiness gate is open; nobody looks after it any more")),
        // Gone, or another pod of its name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(Line::new(Done::Absent, label)),
        Err(error) => Err((format!("{label}: {}", words(&error)), Some(error))),
    }
}

fn patch(pod: &Pod) -> Value {
    let now = Time(jiff::Timestamp::now().as_millisecond()).whole_seconds();
    json!({
        "metadata": {"uid": pod.uid()},
        "status": {"conditions": [{
            "type": names::READINESS_GATE, "status": "True", "reason": "Uninstalled", "lastTransitionTime": now.to_string(),
            "message": "Interlock was removed",
        }]},
    })
}
