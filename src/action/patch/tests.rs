#![allow(clippy::pedantic, clippy::format_push_string, reason = "as in the roots of test programs")]
use apiserver::store::Part;
use interlock_core::{
    api::run::StepOutcome,
    effect::{Call, HookCall},
};

use super::{super::fixture::*, *};

/// A Deployment and a pod.
fn plane() -> (Plane, ObjectRef, ObjectRef) {
    let plane = Plane::new();
    let mut deployment = apiserver::objects::deployment("web", 1);
    deployment["metadata"]["labels"] = json!({"team": "a", "old": "x"});
    deployment["metadata"]["annotations"] = json!({"note": "before"});
    deployment["spec"]["selector"] =
        json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]});
    deployment["spec"]["template"]["metadata"]["labels"] = json!({"app": "web", "tier": "front"});
    let deployment = plane.put("deployments", deployment);
    let metadata = json!({"name": "web-1", "labels": {"app": "web", "tier": "front", "pod-template-hash": "h"}});
    let pod = plane
        .put("pods", json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "r.test/x:v1"}]}}));
    let of = |name: &str, uid: String| ObjectRef { name: name.into(), uid };
    (plane, of("web", deployment), of("web-1", pod))
}

fn hook(target: PatchTarget) -> PatchHook {
    let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    PatchHook {
        target,
        labels: map(&[("team", "b"), ("new", "y")]),
        annotations: map(&[("note", "now")]),
        remove: vec!["old".into()],
        undo_on_revert: false,
    }
}

fn of(call_: Call, deployment: &ObjectRef, pod: Option<&ObjectRef>) -> HookCall {
    HookCall { deployment: deployment.clone(), pod: pod.cloned(), ..call("k", call_) }
}

fn patched() -> (StepOutcome, String) {
    (StepOutcome::Succeeded, "Patched".into())
}

fn failed(reason: &str) -> (StepOutcome, String) {
    (StepOutcome::Failed, reason.into())
}

#[tokio::test(start_paused = true)]
async fn written_once_and_nothing_else_is_touched() {
    let (plane, deployment, pod) = plane();
    let before = plane.get("deployments", "web").unwrap();
    for _ in 0..2 {
        assert_eq!(plane.run(of(Call::Patch(hook(PatchTarget::Deployment)), &deployment, None)).await, patched());
    }
    let now = plane.get("deployments", "web").unwrap();
    assert_eq!(now["metadata"]["labels"], json!({"team": "b", "new": "y"}));
    assert_eq!(now["metadata"]["annotations"], json!({"note": "now"}));
    assert_eq!(now["spec"], before["spec"]);
    assert_eq!(plane.writes(), ["PATCH deployments"]);

    assert_eq!(plane.run(of(Call::Patch(hook(PatchTarget::Pod)), &deployment, Some(&pod))).await, patched());
    let now = plane.get("pods", "web-1").unwrap();
    assert_eq!(
        now["metadata"]["labels"],
        json!({"app": "web", "tier": "front", "pod-template-hash": "h", "team": "b", "new": "y"})
    );
    assert_eq!(plane.run(of(Call::Patch(hook(PatchTarget::Pod)), &deployment, None)).await, failed("InvalidHook"));
}

#[tokio::test(start_paused = true)]
async fn keys_that_no_hook_changes() {
    let (plane, deployment, pod) = plane();
    let label = |key: &str| PatchHook { labels: [(key.to_owned(), "x".to_owned())].into(), ..PatchHook::default() };
    let annotation =
        |key: &str| PatchHook { annotations: [(key.to_owned(), "x".to_owned())].into(), ..PatchHook::default() };
    let remove = |key: &str| PatchHook { remove: vec![key.to_owned()], ..PatchHook::default() };
    for target in [PatchTarget::Deployment, PatchTarget::Pod] {
        for (hook, reason) in [
            (label("interlock.dev/x"), "KeyRefused"),
            (annotation("interlock.dev/held-by"), "KeyRefused"),
            (annotation("a.interlock.dev/x"), "KeyRefused"),
            (remove("interlock.dev/hooks"), "KeyRefused"),
            (annotation("deployment.kubernetes.io/revision"), "KeyRefused"),
            (label("app"), "SelectorLabel"),
            (label("tier"), "SelectorLabel"),
            (label("pod-template-hash"), "SelectorLabel"),
            (remove("app"), "SelectorLabel"),
        ] {
            let hook = PatchHook { target, ..hook };
            assert_eq!(
                plane.run(of(Call::Patch(hook.clone()), &deployment, Some(&pod))).await,
                failed(reason),
                "{hook:?}"
            );
        }
        // Others that only look like them.
        for hook in [annotation("xinterlock.dev/x"), annotation("app"), label("interlock.dev.example.com/x")] {
            let hook = PatchHook { target, ..hook };
            assert_eq!(plane.run(of(Call::Patch(hook), &deployment, Some(&pod))).await, patched());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_object_of_the_same_name_is_left_alone() {
    let (plane, deployment, pod) = plane();
    let other = |object: &ObjectRef| ObjectRef { uid: "another".into(), ..object.clone() };
    let call_pod = of(Call::Patch(hook(PatchTarget::Pod)), &deployment, Some(&other(&pod)));
    assert_eq!(plane.run(call_pod).await, failed("ObjectGone"));
    let call_deployment = of(Call::Patch(hook(PatchTarget::Deployment)), &other(&deployment), None);
    assert_eq!(plane.run(call_deployment).await, failed("ObjectGone"));
    plane.delete("pods", "web-1");
    assert_eq!(plane.run(of(Call::Patch(hook(PatchTarget::Pod)), &deployment, Some(&pod))).await, failed("ObjectGone"));
    let undo = of(Call::Undo(hook(PatchTarget::Pod)), &deployment, Some(&pod));
    assert_eq!(plane.run(undo).await, (StepOutcome::Succeeded, "Undone".into()));
    assert_eq!(plane.writes(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn undo_puts_back_what_this_run_replaced_and_nothing_else() {
    let (plane, deployment, _) = plane();
    let hook = PatchHook { undo_on_revert: true, ..hook(PatchTarget::Deployment) };
    let before = plane.get("deployments", "web").unwrap()["metadata"].clone();
    // A second attempt of the same run does not take what the first one wrote for what was there before.
    for hook in
        [hook.clone(), PatchHook { annotations: [("note".to_owned(), "again".to_owned())].into(), ..hook.clone() }]
    {
        assert_eq!(plane.run(of(Call::Patch(hook), &deployment, None)).await, patched());
    }
    plane.edit("deployments", "web", Part::Main, |d| d["metadata"]["labels"]["mine"] = json!("z"));
    for _ in 0..2 {
        let undo = of(Call::Undo(hook.clone()), &deployment, None);
        assert_eq!(plane.run(undo).await, (StepOutcome::Succeeded, "Undone".into()));
    }
    let now = plane.get("deployments", "web").unwrap()["metadata"].clone();
    assert_eq!(now["annotations"], before["annotations"]);
    assert_eq!(now["labels"], json!({"team": "a", "old": "x", "mine": "z"}));
    assert_eq!(plane.writes().len(), 3);

    // What an earlier run kept is no business of this one, and goes with the next patch.
    assert_eq!(plane.run(of(Call::Patch(hook.clone()), &deployment, None)).await, patched());
    let mut next = of(Call::Undo(hook.clone()), &deployment, None);
    next.run.uid = "another run".into();
    assert_eq!(plane.run(next.clone()).await, (StepOutcome::Succeeded, "Undone".into()));
    assert_eq!(plane.get("deployments", "web").unwrap()["metadata"]["labels"]["team"], "b");
    next.call = Call::Patch(PatchHook { undo_on_revert: false, ..hook });
    assert_eq!(plane.run(next).await, patched());
    assert_eq!(plane.get("deployments", "web").unwrap()["metadata"]["annotations"], json!({"note": "now"}));
}

/// Somebody writes between our read and our write: read again.
#[tokio::test(start_paused = true)]
async fn a_write_that_lost_a_race_is_planned_again() {
    let (plane, deployment, _) = plane();
    let kept = plane.server.keep_write("interlock", 1);
    let attempt = plane.start(
        of(Call::Patch(hook(PatchTarget::Deployment)), &deployment, None),
        &tokio_util::sync::CancellationToken::new(),
    );
    let write = kept.await.unwrap();
    plane.edit("deployments", "web", Part::Main, |d| d["metadata"]["annotations"]["note"] = json!("theirs"));
    write.arrive();
    assert_eq!(attempt.await.unwrap(), patched());
    assert_eq!(plane.get("deployments", "web").unwrap()["metadata"]["annotations"]["note"], "now");
    assert_eq!(plane.writes().len(), 2);
}
