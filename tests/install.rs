//! Installation and removal on a real control plane. The tests share one cluster and take turns: there is only one
//! installation in a cluster.

use std::time::Duration;

use devcluster::{Cluster, Component};
use interlock::install::{
    Done, FailurePolicy, InstallOptions, Line, OnUninstall, UninstallOptions, install, manifests, uninstall,
};
use k8s_openapi::{
    api::{
        admissionregistration::v1::MutatingAdmissionPolicy,
        apps::v1::Deployment,
        core::v1::{Namespace, Pod},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

const PATIENCE: Duration = Duration::from_secs(90);

async fn turn() -> (MutexGuard<'static, ()>, &'static Cluster, Client) {
    static TURN: Mutex<()> = Mutex::const_new(());
    let guard = TURN.lock().await;
    let cluster = Cluster::shared().await.unwrap();
    let client = cluster.client().await.unwrap();
    (guard, cluster, client)
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = look().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < end, "not after {} s: {what}", PATIENCE.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn removal(held: OnUninstall) -> UninstallOptions {
    UninstallOptions { namespace: "interlock-system".to_owned(), held }
}

fn text(lines: &[Line]) -> String {
    lines.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn all(lines: &[Line], done: Done) -> bool {
    lines.iter().all(|line| line.done == done)
}

/// A Deployment with two available pods whose update to image `app:2` is held.
async fn held(client: &Client, namespace: &str) -> Api<Deployment> {
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let object = serde_json::from_value(json!({
        "metadata": {"name": "web", "annotations": {"interlock.dev/hooks": "[]"}},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": "app:1"}]},
            },
        },
    }))
    .unwrap();
    deployments.create(&PostParams::default(), &object).await.unwrap();
    available(&deployments).await;
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "app", "image": "app:2"}]}}}});
    let after = deployments.patch("web", &PatchParams::default(), &Patch::Merge(image)).await.unwrap();
    assert_eq!(after.spec.paused, Some(true));
    deployments
}

async fn available(deployments: &Api<Deployment>) {
    until("two pods are available", async || {
        let deployment = deployments.get("web").await.unwrap();
        let status = deployment.status?;
        (status.available_replicas == Some(2)
            && status.updated_replicas == Some(2)
            && status.replicas == Some(2)
            && status.observed_generation == deployment.metadata.generation)
            .then_some(())
    })
    .await;
}

async fn pods(client: &Client, namespace: &str) -> Vec<(String, String)> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut found: Vec<_> = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .map(|pod| (pod.uid().unwrap(), pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap()))
        .collect();
    found.sort();
    found
}

/// Nothing of ours is left, and Deployments can be written.
async fn gone(client: &Client, deployments: &Api<Deployment>) {
    let policies: Api<MutatingAdmissionPolicy> = Api::all(client.clone());
    assert_eq!(policies.list(&ListParams::default()).await.unwrap().items.len(), 0);
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    assert_eq!(definitions.list(&ListParams::default()).await.unwrap().items.len(), 0);
    assert!(Api::<Namespace>::all(client.clone()).get_opt("interlock-system").await.unwrap().is_none());
    let label = json!({"metadata": {"labels": {"after": "uninstall"}}});
    deployments.patch("web", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
}

#[tokio::test]
async fn installing_twice_changes_nothing_and_what_differs_is_put_right() {
    let (_turn, _, client) = turn().await;
    let options = InstallOptions { image: Some("interlock:test".to_owned()), ..InstallOptions::default() };
    let lines = install(&client, &options).await.unwrap();
    let (hold, objects): (Vec<_>, Vec<_>) = lines.iter().cloned().partition(|line| line.object == "hold");
    assert!(all(&objects, Done::Created) && all(&hold, Done::Verified) && hold.len() == 1, "{}", text(&lines));
    assert_eq!(lines.len(), manifests(&options).unwrap().len() + 1);

    let lines = install(&client, &options).await.unwrap();
    let objects: Vec<_> = lines.iter().filter(|line| line.object != "hold").cloned().collect();
    assert!(all(&objects, Done::Unchanged), "{}", text(&lines));

    let ignore = InstallOptions { failure_policy: FailurePolicy::Ignore, ..options };
    let lines = install(&client, &ignore).await.unwrap();
    let changed: Vec<_> = lines.iter().filter(|line| line.done == Done::Configured).map(ToString::to_string).collect();
    assert_eq!(
        changed,
        [
            "mutatingadmissionpolicy/interlock-hold configured",
            "mutatingadmissionpolicy/interlock-hold-annotated configured",
            "mutatingadmissionpolicy/interlock-sticky configured",
        ]
    );
    uninstall(&client, &removal(OnUninstall::Release)).await.unwrap();
}

#[tokio::test]
async fn uninstall_release_lets_what_is_held_roll() {
    let (_turn, cluster, client) = turn().await;
    install(&client, &InstallOptions::default()).await.unwrap();
    let deployments = held(&client, "release").await;
    let lines = uninstall(&client, &removal(OnUninstall::Release)).await.unwrap();
    assert!(text(&lines).contains("deployment/web -n release released"), "{}", text(&lines));
    available(&deployments).await;
    assert!(pods(&client, "release").await.iter().all(|(_, image)| image == "app:2"));
    gone(&client, &deployments).await;
    // A new start is when a policy without its definition would begin to refuse every write.
    cluster.restart(Component::ApiServer).await.unwrap();
    let label = json!({"metadata": {"labels": {"after": "restart"}}});
    deployments.patch("web", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();

    // Again: nothing is there, and that is no error.
    let lines = uninstall(&client, &removal(OnUninstall::Release)).await.unwrap();
    assert!(all(&lines, Done::Absent), "{}", text(&lines));
}

#[tokio::test]
async fn uninstall_keep_leaves_what_is_held_paused_and_a_new_installation_finds_it_held() {
    let (_turn, _, client) = turn().await;
    install(&client, &InstallOptions::default()).await.unwrap();
    let deployments = held(&client, "keep").await;
    let before = pods(&client, "keep").await;
    let lines = uninstall(&client, &removal(OnUninstall::Keep)).await.unwrap();
    assert!(text(&lines).contains("kubectl rollout resume deployment/web -n keep"), "{}", text(&lines));
    gone(&client, &deployments).await;
    assert_eq!(deployments.get("web").await.unwrap().spec.paused, Some(true));
    assert_eq!(pods(&client, "keep").await, before);

    install(&client, &InstallOptions::default()).await.unwrap();
    let resume = Patch::Merge(json!({"spec": {"paused": false}}));
    let after = deployments.patch("web", &PatchParams::default(), &resume).await.unwrap();
    assert_eq!(after.spec.paused, Some(true));
    // Once more without us it goes on as it was told.
    uninstall(&client, &removal(OnUninstall::Keep)).await.unwrap();
    deployments.patch("web", &PatchParams::default(), &resume).await.unwrap();
    available(&deployments).await;
}

#[tokio::test]
async fn uninstall_revert_puts_back_template_and_pods() {
    let (_turn, _, client) = turn().await;
    install(&client, &InstallOptions::default()).await.unwrap();
    let deployments = held(&client, "revert").await;
    let before = pods(&client, "revert").await;
    // One pod has been updated in place already.
    let all: Api<Pod> = Api::namespaced(client.clone(), "revert");
    let name = all.list(&ListParams::default()).await.unwrap().items[0].name_any();
    let update = json!({
        "metadata": {"annotations": {"interlock.dev/update": "{}"}},
        "spec": {"containers": [{"name": "app", "image": "app:2"}]},
    });
    all.patch(&name, &PatchParams::default(), &Patch::Strategic(update)).await.unwrap();

    let lines = uninstall(&client, &removal(OnUninstall::Revert)).await.unwrap();
    assert!(
        text(&lines).contains(&format!("deployment/web -n revert reverted: put back in place: pod/{name}")),
        "{}",
        text(&lines)
    );
    available(&deployments).await;
    assert_eq!(pods(&client, "revert").await, before);
    let web = deployments.get("web").await.unwrap();
    assert!(!web.spec.paused.unwrap_or_default());
    gone(&client, &deployments).await;
}

/// With the gate a pod is ready only when a controller says so. When Interlock goes, nobody would.
#[tokio::test]
async fn uninstall_leaves_no_pod_behind_its_readiness_gate() {
    use interlock_core::api::names::{READINESS_GATE, READINESS_GATE_LABEL};
    let (_turn, _, client) = turn().await;
    install(&client, &InstallOptions { readiness_gate: true, ..InstallOptions::default() }).await.unwrap();
    let object: Namespace =
        serde_json::from_value(json!({"metadata": {"name": "gated", "labels": {(READINESS_GATE_LABEL): "enabled"}}}))
            .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "gated");
    let gated = |pod: &Pod| {
        let mut gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
        gates.any(|gate| gate.condition_type == READINESS_GATE)
    };
    let pod = json!({
        "metadata": {"generateName": "web-", "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true},
        ]},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    });
    let pod = serde_json::from_value(pod).unwrap();
    let probe = PostParams { dry_run: true, field_manager: None };
    until("the gate is in force", async || gated(&pods.create(&probe, &pod).await.unwrap()).then_some(())).await;
    let set: k8s_openapi::api::apps::v1::ReplicaSet = serde_json::from_value(json!({
        "metadata": {"name": "set"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": "app:1"}]},
        }},
    }))
    .unwrap();
    Api::namespaced(client.clone(), "gated").create(&PostParams::default(), &set).await.unwrap();
    let name = until("a pod with the gate", async || {
        let list = pods.list(&ListParams::default()).await.unwrap();
        list.items.iter().find(|pod| gated(pod)).map(kube::ResourceExt::name_any)
    })
    .await;

    let lines = uninstall(&client, &removal(OnUninstall::Release)).await.unwrap();
    assert!(text(&lines).contains(&format!("pod/{name} -n gated set ready")), "{}", text(&lines));
    let status = pods.get(&name).await.unwrap().status.unwrap();
    let condition = status.conditions.into_iter().flatten().find(|c| c.type_ == READINESS_GATE).unwrap();
    assert_eq!(condition.status, "True");
    until("new pods have no gate", async || (!gated(&pods.create(&probe, &pod).await.unwrap())).then_some(())).await;
    Api::<Namespace>::all(client.clone()).delete("gated", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_namespace_that_was_there_before_stays() {
    let (_turn, _, client) = turn().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let object = serde_json::from_value(json!({"metadata": {"name": "platform"}})).unwrap();
    namespaces.create(&PostParams::default(), &object).await.unwrap();
    let options = InstallOptions { namespace: "platform".to_owned(), ..InstallOptions::default() };
    install(&client, &options).await.unwrap();
    let removal = UninstallOptions { namespace: "platform".to_owned(), held: OnUninstall::Release };
    let lines = uninstall(&client, &removal).await.unwrap();
    assert!(text(&lines).contains("namespace/platform kept"), "{}", text(&lines));
    assert!(namespaces.get("platform").await.unwrap().metadata.deletion_timestamp.is_none());
    namespaces.delete("platform", &DeleteParams::default()).await.unwrap();
}

/// A server that knows the policies only in another version, or not at all.
#[tokio::test]
async fn an_older_server_is_refused_before_anything_is_written() {
    for (beta, said) in [(true, "v1beta1"), (false, "does not serve MutatingAdmissionPolicy")] {
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| async move {
            assert_eq!(request.method(), "GET", "nothing may be written");
            let resources = |names: &[&str]| -> Vec<_> {
                names
                    .iter()
                    .map(
                        |name| json!({"name": name, "singularName": "", "namespaced": false, "kind": "X", "verbs": []}),
                    )
                    .collect()
            };
            let body = match request.uri().path() {
                "/apis/admissionregistration.k8s.io/v1" => {
                    json!({"kind": "APIResourceList", "groupVersion": "admissionregistration.k8s.io/v1",
                           "resources": resources(&["validatingadmissionpolicies"])})
                }
                "/apis/admissionregistration.k8s.io/v1beta1" if beta => {
                    json!({"kind": "APIResourceList", "groupVersion": "admissionregistration.k8s.io/v1beta1",
                           "resources": resources(&["mutatingadmissionpolicies"])})
                }
                "/version" => json!({
                    "major": "1", "minor": "34", "gitVersion": "v1.34.4", "gitCommit": "", "gitTreeState": "",
                    "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
                }),
                _ => {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                                        "message": "not found", "reason": "NotFound", "metadata": {}});
                    let body = kube::client::Body::from(status.to_string().into_bytes());
                    return http::Response::builder().status(404).body(body);
                }
            };
            http::Response::builder().body(kube::client::Body::from(body.to_string().into_bytes()))
        });
        let failed = install(&Client::new(service, "default"), &InstallOptions::default()).await.unwrap_err();
        assert!(failed.message.contains(said) && failed.message.contains("v1.34.4"), "{failed}");
        assert!(failed.lines.is_empty());
    }
}
