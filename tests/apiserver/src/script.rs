//! Stories that end the same in this process and on a real control plane: what somebody does, and what they wait for before
//! they do the next thing.

use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::{Picture, Stage, json::text, objects};

/// One line of a story about the Deployment `web`.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// So many replicas of the first image.
    Create(i64),
    Image(&'static str),
    Env(&'static str),
    Scale(i64),
    /// A scale-up and another image in one write.
    ScaleWithImage(i64, &'static str),
    DeletePod,
    DeleteRunningSet,
    Pause,
    Resume,
    /// Somebody's file says `paused: false`, and is applied.
    ApplyUnpaused,
    Undo,
    HistoryLimit(i64),
    PolicyGone,
    PolicyBack,
    /// A decision about the latest run.
    Decide(&'static str),
    /// Wait: complete, all of it the same, nothing open.
    Well,
    /// Wait: the Deployment controller calls it complete.
    Complete,
    /// Wait: held, and so many runs were made for it.
    Held(usize),
    /// Wait: a pod is to run this image.
    Shows(&'static str),
    /// Wait: the latest run stands still for this reason.
    Stalled(&'static str),
    /// Wait: at 0, with what ran last as the youngest.
    Asleep,
}

use Step::{
    ApplyUnpaused, Asleep, Complete, Create, Decide, DeletePod, DeleteRunningSet, Env, Held, HistoryLimit, Image,
    Pause, PolicyBack, PolicyGone, Resume, Scale, ScaleWithImage, Shows, Stalled, Undo, Well,
};

/// The stories, by name.
pub const SCRIPTS: [(&str, &[Step]); 14] = [
    ("in place", &[Create(2), Well, Image("v2"), Well]),
    ("in place twice", &[Create(3), Well, Image("v2"), Well, Image("v3"), Well]),
    ("native", &[Create(2), Well, Env("e1"), Well, Image("v2"), Well]),
    ("undo in place", &[Create(2), Well, Image("v2"), Well, Undo, Well]),
    ("undo natively", &[Create(2), Well, Env("e1"), Well, Undo, Well]),
    ("asleep", &[Create(2), Well, Image("v2"), Well, Scale(0), Asleep, ScaleWithImage(2, "v3"), Well]),
    ("scaled", &[Create(1), Well, Scale(3), Well, Image("v2"), Well, Scale(1), Well]),
    ("a pod deleted", &[Create(2), Well, DeletePod, Well, Image("v2"), Well]),
    ("paused by the user", &[Create(2), Well, Pause, Image("v2"), Complete, Resume, Well]),
    (
        "applied over the hold",
        &[Create(2), Well, Image("bad-pull1"), Stalled("PodFailing"), ApplyUnpaused, Held(1), Image("v2"), Well],
    ),
    ("bad, then good", &[Create(3), Well, Image("bad-ready1"), Shows("bad-ready1"), Image("v2"), Well]),
    (
        "bad natively, then good",
        &[
            Create(2),
            Well,
            Env("e1"),
            Well,
            Image("bad-pull1"),
            Stalled("PodFailing"),
            Decide("Abort"),
            Image("v2"),
            Well,
        ],
    ),
    ("policy gone and back", &[Create(2), Well, PolicyGone, Image("v2"), Complete, PolicyBack, Image("v3"), Well]),
    (
        "short history",
        &[Create(1), Well, HistoryLimit(1), Image("v2"), Well, Image("v3"), Well, DeleteRunningSet, Well],
    ),
];

impl Step {
    /// Does it, or waits for it. `policy` is what comes back.
    pub async fn play(self, stage: &Stage, policy: &Value) {
        let web = "web";
        match self {
            Create(replicas) => {
                let object = serde_json::from_value(objects::deployment(web, replicas)).unwrap();
                stage.deployments().create(&kube::api::PostParams::default(), &object).await.unwrap();
            }
            Image(version) => stage.patch(web, objects::set_image(version)).await,
            Env(value) => stage.patch(web, objects::set_env(value)).await,
            Scale(replicas) => stage.scale(web, replicas).await,
            ScaleWithImage(replicas, version) => {
                let mut patch = objects::set_image(version);
                patch["spec"]["replicas"] = json!(replicas);
                stage.patch(web, patch).await;
            }
            DeletePod => {
                let mut pods = stage.pods(web).await;
                pods.sort_by_key(|p| text(p, "/metadata/name").to_owned());
                stage.pods_api().delete(text(&pods[0], "/metadata/name"), &DeleteParams::default()).await.unwrap();
                stage
                    .until("the pod is gone", 10, || async {
                        !stage.uids(web).await.contains(text(&pods[0], "/metadata/uid"))
                    })
                    .await;
            }
            DeleteRunningSet => {
                let sets = stage.sets(web).await;
                let running = sets.iter().find(|s| s["spec"]["replicas"] != 0).unwrap();
                let name = text(running, "/metadata/name");
                stage.replica_sets().delete(name, &DeleteParams::background()).await.unwrap();
                let old = text(running, "/metadata/uid");
                stage
                    .until("another one and its pods are there", 20, || async {
                        let p = stage.look(web).await;
                        p.sets.iter().all(|s| text(s, "/metadata/uid") != old)
                            && p.pods.iter().all(|pod| crate::json::controller(pod, "ReplicaSet") != old)
                            && p.complete()
                    })
                    .await;
            }
            Pause => stage.patch(web, json!({"spec": {"paused": true}})).await,
            Resume | ApplyUnpaused => stage.patch(web, json!({"spec": {"paused": false}})).await,
            Undo => stage.undo(web).await,
            HistoryLimit(limit) => stage.patch(web, json!({"spec": {"revisionHistoryLimit": limit}})).await,
            PolicyGone => stage.policy_gone("p").await,
            PolicyBack => stage.policy(policy.clone()).await,
            Decide(action) => stage.decide(web, action, None).await,
            Well => self.wait(stage, |p| p.unwell().is_none()).await,
            Complete => {
                self.wait(stage, |p| {
                    let seen = crate::json::int(&p.deployment, "/status/observedGeneration");
                    seen >= crate::json::int(&p.deployment, "/metadata/generation")
                        && (p.complete() || p.deployment["spec"]["paused"] == true)
                })
                .await;
            }
            Held(runs) => self.wait(stage, |p| p.held() && p.runs.len() == runs).await,
            Shows(version) => {
                let image = objects::image(version);
                self.wait(stage, |p| p.pods.iter().any(|pod| text(pod, "/spec/containers/0/image") == image)).await;
            }
            Stalled(reason) => self.wait(stage, |p| p.run()["status"]["stall"]["reason"] == reason).await,
            Asleep => {
                self.wait(stage, |p| {
                    let template = &p.deployment["spec"]["template"]["spec"];
                    let mut equal = p.sets.iter().filter(|s| s["spec"]["template"]["spec"] == *template);
                    let copy = |s: &Value| {
                        !s["metadata"]["labels"]["interlock.dev/copy"].is_null() && crate::stage::revision(s) > 0
                    };
                    p.complete() && p.pods.is_empty() && equal.next().is_some_and(copy) && equal.next().is_none()
                })
                .await;
            }
        }
    }

    async fn wait(self, stage: &Stage, is: impl Fn(&Picture) -> bool) {
        stage.until(&format!("{self:?}"), 90, || async { is(&stage.look("web").await) }).await;
    }
}
