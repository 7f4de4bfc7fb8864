//! The readiness gate of new pods: who gets it, and that nobody else does.

use interlock::install::{InstallOptions, install};
use interlock_core::api::names;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::place::{Place, until};

fn deployment(name: &str, label: Option<&str>, gates: &[&str]) -> Value {
    let mut labels = json!({"app": name});
    if let Some(label) = label {
        labels[names::READINESS_GATE_LABEL] = json!(label);
    }
    let gates: Vec<Value> = gates.iter().map(|gate| json!({"conditionType": gate})).collect();
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": {
                "readinessGates": gates, "containers": [{"name": "app", "image": "app:1"}],
            }},
        },
    })
}

fn gates(pod: &Pod) -> Vec<&str> {
    pod.spec.iter().flat_map(|s| s.readiness_gates.iter().flatten()).map(|g| g.condition_type.as_str()).collect()
}

/// The gates of the pod of a Deployment.
async fn of(place: &Place, name: &str) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(place.admin.clone(), &place.namespace);
    until("the pod is there", async || {
        let list = pods.list(&ListParams::default().labels(&format!("app={name}"))).await.unwrap();
        list.items.first().map(|pod| gates(pod).into_iter().map(str::to_owned).collect())
    })
    .await
}

#[tokio::test]
async fn new_pods_of_chosen_deployments_get_the_gate_and_no_others() {
    let (place, plain) = (Place::new().await, Place::new().await);
    install(&place.admin, &InstallOptions { readiness_gate: true, ..InstallOptions::default() }).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(place.admin.clone());
    let label = Patch::Merge(json!({"metadata": {"labels": {(names::READINESS_GATE_LABEL): "enabled"}}}));
    namespaces.patch(&place.namespace, &PatchParams::default(), &label).await.unwrap();
    // Policy and label reach admission a moment later.
    let pods: Api<Pod> = Api::namespaced(place.admin.clone(), &place.namespace);
    let mut probe: Pod = serde_json::from_value(json!({
        "metadata": {"generateName": "probe-", "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true},
        ]},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    }))
    .unwrap();
    let dry = PostParams { dry_run: true, field_manager: None };
    until("the gate is in force", async || {
        let answer = pods.create(&dry, &probe).await.unwrap();
        (gates(&answer) == [names::READINESS_GATE]).then_some(())
    })
    .await;

    let ours = names::READINESS_GATE;
    for (name, label, own, expected) in [
        ("plain", None, &[][..], &[ours][..]),
        ("other-gate", None, &["example.com/x"][..], &["example.com/x", ours][..]),
        ("has-it", None, &[ours][..], &[ours][..]),
        ("disabled", Some("disabled"), &[][..], &[][..]),
    ] {
        place.create_from(deployment(name, label, own)).await;
        assert_eq!(of(&place, name).await, expected, "{name}");
    }
    // Elsewhere only who asks for it.
    for (name, label, expected) in
        [("plain", None, &[][..]), ("enabled", Some("enabled"), &[ours][..]), ("odd", Some("yes"), &[][..])]
    {
        plain.create_from(deployment(name, label, &[])).await;
        assert_eq!(of(&plain, name).await, expected, "{name}");
    }
    // Pods that no ReplicaSet controls.
    for owner in [
        None,
        Some(("batch/v1", "Job", true)),
        Some(("apps/v1", "StatefulSet", true)),
        Some(("apps/v1", "ReplicaSet", false)),
    ] {
        probe.metadata.owner_references = owner.map(|(version, kind, controller)| {
            serde_json::from_value(json!([
                {"apiVersion": version, "kind": kind, "name": "r", "uid": "u", "controller": controller},
            ]))
            .unwrap()
        });
        assert!(gates(&pods.create(&dry, &probe).await.unwrap()).is_empty(), "{owner:?}");
    }
}
