#![allow(clippy::pedantic, clippy::format_push_string, reason = "as in the roots of test programs")]
use std::time::Duration;

use apiserver::store::Part;
use interlock_core::{
    api::run::{ObjectRef, StepOutcome},
    effect::{Call, HookCall},
};

use super::{super::fixture::*, *};

/// A Deployment with pods on these nodes, one each.
fn plane(nodes: &[&str]) -> (Plane, ObjectRef) {
    let plane = Plane::new();
    let deployment = plane.put("deployments", apiserver::objects::deployment("web", 1));
    let spec = plane.get("deployments", "web").unwrap()["spec"].clone();
    let labels = json!({"app": "web"});
    let owner = |kind: &str, uid: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": uid, "controller": true}]);
    let set = json!({
        "metadata": {"name": "web-a", "labels": labels, "ownerReferences": owner("Deployment", &deployment)},
        "spec": {"replicas": 1, "selector": spec["selector"], "template": spec["template"]},
    });
    let set = plane.put("replicasets", set);
    for (number, node) in nodes.iter().enumerate() {
        pod(&plane, &format!("web-{number}"), node, &owner("ReplicaSet", &set), "Running");
    }
    // Pods that do not count: another owner, ended, on no node yet.
    pod(&plane, "other", "n-other", &owner("ReplicaSet", "another"), "Running");
    pod(&plane, "ended", "n-ended", &owner("ReplicaSet", &set), "Failed");
    pod(&plane, "nowhere", "", &owner("ReplicaSet", &set), "Pending");
    (plane, ObjectRef { name: "web".into(), uid: deployment })
}

fn pod(plane: &Plane, name: &str, node: &str, owners: &Value, phase: &str) {
    let mut spec =
        json!({"containers": [{"name": "c", "image": "r.test/x:v1"}], "imagePullSecrets": [{"name": "added"}]});
    if !node.is_empty() {
        spec["nodeName"] = json!(node);
    }
    let metadata = json!({"name": name, "labels": {"app": "web"}, "ownerReferences": owners});
    plane.put("pods", json!({"metadata": metadata, "spec": spec, "status": {"phase": phase}}));
}

fn pull(deployment: &ObjectRef, max_concurrent: i64) -> HookCall {
    let call_ = Call::PrePull {
        hook: PrePullHook { max_concurrent },
        images: set(&["r.test/a:v2", "r.test/b:v2"]),
        pull_secrets: set(&["own"]),
        match_labels: [("app".to_owned(), "web".to_owned())].into(),
    };
    HookCall { deployment: deployment.clone(), ..call("k", call_) }
}

fn ours(plane: &Plane) -> Vec<std::sync::Arc<Value>> {
    plane.all("pods").into_iter().filter(|p| p["metadata"]["ownerReferences"][0]["kind"] == "HookRun").collect()
}

fn node_of(pod: &Value) -> String {
    pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()
}

/// The kubelet of our pod on a node says something of each container.
fn kubelet(plane: &Plane, pod: &Value, phase: &str, states: &[Value]) {
    let statuses: Vec<Value> = states
        .iter()
        .enumerate()
        .map(|(number, state)| {
            let mut status = json!({"name": format!("image-{number}"), "imageID": "", "state": state});
            if state.get("terminated").is_some() {
                status["imageID"] = json!("r.test/a@sha256:ab");
            }
            status
        })
        .collect();
    let name = pod["metadata"]["name"].as_str().unwrap();
    plane
        .edit("pods", name, Part::Status, |pod| pod["status"] = json!({"phase": phase, "containerStatuses": statuses}));
}

fn waiting(reason: &str) -> Value {
    json!({"waiting": {"reason": reason}})
}

fn started() -> Value {
    json!({"terminated": {"exitCode": 128, "reason": "StartError"}})
}

/// A pod of ours on every node, a few at a time, each gone when its node is done.
#[tokio::test(start_paused = true)]
async fn each_node_once_and_not_too_many_at_a_time() {
    let (plane, deployment) = plane(&["n1", "n2", "n2", "n3", "n4", "n5"]);
    let attempt = plane.start(pull(&deployment, 2), &CancellationToken::new());
    let mut seen = BTreeSet::new();
    while !attempt.is_finished() {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = ours(&plane);
        assert!(now.len() <= 2, "{}", now.len());
        for pod in now {
            assert!(seen.insert(node_of(&pod)) || pod["status"]["phase"] != "Pending");
            kubelet(&plane, &pod, "Pending", &[waiting("ErrImagePull"), waiting("ContainerCreating")]);
            tokio::time::sleep(Duration::from_millis(50)).await;
            kubelet(&plane, &pod, "Failed", &[started(), waiting("CreateContainerConfigError")]);
        }
    }
    assert_eq!(attempt.await.unwrap(), (StepOutcome::Succeeded, "Pulled".into()));
    assert_eq!(seen, set(&["n1", "n2", "n3", "n4", "n5"]));
    assert!(ours(&plane).is_empty());
    assert_eq!(plane.writes().iter().filter(|w| *w == "POST pods").count(), 5);
}

#[tokio::test(start_paused = true)]
async fn the_pod_needs_nothing_and_may_nothing() {
    let (plane, deployment) = plane(&["n1"]);
    let attempt = plane.start(pull(&deployment, 5), &CancellationToken::new());
    until(|| !ours(&plane).is_empty()).await;
    let pod = ours(&plane).pop().unwrap();
    let spec = &pod["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "added"}, {"name": "own"}]));
    let images: Vec<&Value> = spec["containers"].as_array().unwrap().iter().map(|c| &c["image"]).collect();
    assert_eq!(images, ["r.test/a:v2", "r.test/b:v2"]);
    for container in spec["containers"].as_array().unwrap() {
        assert_eq!(container["imagePullPolicy"], "IfNotPresent");
        assert_eq!(container["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(container["command"], json!([NO_COMMAND]));
    }
    // Never a pod that the Deployment, its ReplicaSets or its Services take for theirs.
    assert_eq!(pod["metadata"]["labels"].get("app"), None);
    attempt.abort();
}

#[test]
fn judged_by_the_pull() {
    let status = |state: Value| json!({"imageID": "", "state": state});
    for reason in
        ["CreateContainerError", "CreateContainerConfigError", "RunContainerError", "StartError", "PostStartHookError"]
    {
        assert!(pulled(&status(waiting(reason))), "{reason}");
    }
    for reason in PULLING.iter().chain(&["InvalidImageName", "ErrImageNeverPull"]) {
        assert!(!pulled(&status(waiting(reason))), "{reason}");
    }
    assert!(!pulled(&status(json!({}))));
    assert!(pulled(&status(json!({"running": {}}))));
    assert!(pulled(&json!({"imageID": "x", "state": waiting("CrashLoopBackOff")})));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_pulled_ends_it_and_nothing_is_left() {
    for (state, want) in [
        (waiting("InvalidImageName"), (StepOutcome::Failed, "InvalidImageName")),
        (waiting("ImagePullBackOff"), (StepOutcome::TimedOut, "ImagePull")),
        (waiting("ContainerCreating"), (StepOutcome::TimedOut, "Timeout")),
    ] {
        let (plane, deployment) = plane(&["n1", "n2"]);
        let attempt = plane.start(pull(&deployment, 5), &CancellationToken::new());
        until(|| ours(&plane).len() == 2).await;
        kubelet(&plane, &ours(&plane)[1], "Pending", &[started(), state]);
        assert_eq!(attempt.await.unwrap(), (want.0, want.1.to_owned()));
        assert!(ours(&plane).is_empty());
    }
    let (plane, deployment) = plane(&[]);
    assert_eq!(plane.run(pull(&deployment, 5)).await, (StepOutcome::Succeeded, "Pulled".into()));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_pod_is_made_again_and_a_node_that_is_gone_is_not_chased() {
    let (plane, deployment) = plane(&["n1", "n2"]);
    let attempt = plane.start(pull(&deployment, 5), &CancellationToken::new());
    until(|| ours(&plane).len() == 2).await;
    let of = |node: &str| ours(&plane).into_iter().find(|p| node_of(p) == node);
    let first = of("n1").unwrap();
    plane.edit("pods", first["metadata"]["name"].as_str().unwrap(), Part::Status, |p| {
        p["status"] = json!({"phase": "Failed", "reason": "OutOfpods"})
    });
    until(|| of("n1").is_some_and(|p| p["metadata"]["uid"] != first["metadata"]["uid"])).await;
    kubelet(&plane, &of("n1").unwrap(), "Failed", &[started(), started()]);
    let second = of("n2").unwrap();
    plane.delete("pods", "web-1");
    plane.delete("pods", second["metadata"]["name"].as_str().unwrap());
    assert_eq!(attempt.await.unwrap(), (StepOutcome::Succeeded, "Pulled".into()));
    assert!(ours(&plane).is_empty());
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_it_goes_on_with_the_same_pods_and_a_cancelled_one_takes_them_away() {
    let (plane, deployment) = plane(&["n1", "n2"]);
    let first = plane.start(pull(&deployment, 5), &CancellationToken::new());
    until(|| ours(&plane).len() == 2).await;
    first.abort();
    let uids =
        |plane: &Plane| ours(plane).iter().map(|p| p["metadata"]["uid"].clone().to_string()).collect::<BTreeSet<_>>();
    let before = uids(&plane);
    let stop = CancellationToken::new();
    let again = plane.start(pull(&deployment, 5), &stop);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(uids(&plane), before);
    stop.cancel();
    assert_eq!(again.await.unwrap(), (StepOutcome::Cancelled, "Cancelled".into()));
    assert!(ours(&plane).is_empty());

    let lost = plane.start(pull(&deployment, 5), &CancellationToken::new());
    until(|| ours(&plane).len() == 2).await;
    lost.abort();
    cancelled(&plane.cluster, "ns", "another key").await;
    assert_eq!(ours(&plane).len(), 2);
    cancelled(&plane.cluster, "ns", "k").await;
    assert!(ours(&plane).is_empty());
}
