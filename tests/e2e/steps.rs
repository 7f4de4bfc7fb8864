//! At each step of an update, each of the things that people do. The end is always the same: all pods run the
//! Deployment's template, none ran it before its hooks, one ReplicaSet, nothing stuck.

use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::harness::{Env, Moment, objects};

/// Where the controller is stopped.
const STEPS: [(&str, Moment, &str, usize); 11] = [
    ("held", Moment::Before, "POST hookruns", 1),
    ("hook", Moment::Before, "hook", 1),
    ("pod1", Moment::Before, "PATCH pods", 1),
    ("pod2", Moment::Before, "PATCH pods", 2),
    ("pod3", Moment::Before, "PATCH pods", 3),
    ("intent", Moment::After, "PATCH pods", 3),
    ("before-commit", Moment::Before, "PATCH replicasets", 1),
    ("after-commit", Moment::After, "PATCH replicasets", 1),
    ("after-barrier", Moment::Before, "POST replicasets", 1),
    ("before-release", Moment::Before, "PATCH deployments", 1),
    ("after-release", Moment::After, "PATCH deployments", 1),
];

/// What is done there.
#[derive(Clone, Copy, Debug)]
enum Act {
    ScaleUp,
    ScaleToZeroAndUp,
    PodDeleted,
    MainDeleted,
    NewTemplate,
    TemplateBack,
    PolicyDeleted,
    UserPause,
}

impl Act {
    async fn carry_out(self, env: &Env) {
        match self {
            Self::ScaleUp => env.scale("web", 5).await,
            Self::ScaleToZeroAndUp => {
                env.scale("web", 0).await;
                env.until("the pods are gone", 20, || async { env.pods("web").await.is_empty() }).await;
                env.scale("web", 3).await;
            }
            Self::PodDeleted => {
                let pod = env.pods("web").await[0]["metadata"]["name"].as_str().unwrap().to_owned();
                env.pods_api().delete(&pod, &DeleteParams::default()).await.unwrap();
            }
            Self::MainDeleted => {
                let sets = env.sets("web").await;
                let main = sets.iter().find(|s| s["spec"]["replicas"] != 0).unwrap();
                env.replica_sets()
                    .delete(main["metadata"]["name"].as_str().unwrap(), &DeleteParams::background())
                    .await
                    .unwrap();
            }
            Self::NewTemplate => env.patch("web", objects::set_image("v3")).await,
            Self::TemplateBack => env.patch("web", objects::set_image("v1")).await,
            Self::PolicyDeleted => {
                env.policies().delete("p", &DeleteParams::default()).await.unwrap();
            }
            Self::UserPause => {
                env.patch(
                    "web",
                    json!({"metadata": {"annotations": {"interlock.dev/resume": "false"}}, "spec": {"paused": true}}),
                )
                .await;
                // Nothing more of the update may happen now, and then the user goes on.
                env.patch(
                    "web",
                    json!({"metadata": {"annotations": {"interlock.dev/resume": null}}, "spec": {"paused": false}}),
                )
                .await;
            }
        }
    }
}

async fn one(act: Act, step: (&'static str, Moment, &'static str, usize)) {
    let (name, moment, what, nth) = step;
    let env = Env::with_policy(&format!("st-{name}")).await;
    env.create(objects::deployment("web", 3)).await;
    if what == "hook" {
        env.receiver.close();
        env.patch("web", objects::set_image("v2")).await;
        tokio::time::timeout(std::time::Duration::from_secs(20), env.receiver.arrived(1))
            .await
            .expect("the hook is called");
        act.carry_out(&env).await;
        env.receiver.open();
    } else {
        let mut stops = env.gate.stop_at(moment, what, nth);
        env.patch("web", objects::set_image("v2")).await;
        let stop = tokio::time::timeout(std::time::Duration::from_secs(30), stops.recv()).await;
        let stop = stop
            .unwrap_or_else(|_| {
                panic!("{act:?} at {name}: the controller never came to {what} #{nth}: {:?}", env.gate.writes())
            })
            .unwrap();
        act.carry_out(&env).await;
        stop.go_on();
    }
    env.all_well("web").await;
    env.assert_hooks_first("web", &["v1"]);
    let list = env.runs_api().list(&ListParams::default()).await.unwrap();
    assert!(list.items.len() <= 3, "{act:?} at {name}: {} runs", list.items.len());
}

/// All steps for one act, a few at a time.
async fn everywhere(act: Act) {
    use futures::stream::{self, StreamExt};
    stream::iter(STEPS).for_each_concurrent(4, |step| one(act, step)).await;
}

/// fluxcd/flagger#1563, #634: replica changes start or restart an update.
#[tokio::test]
async fn scale_up_at_each_step() {
    everywhere(Act::ScaleUp).await;
}

#[tokio::test]
async fn scale_to_zero_and_up_at_each_step() {
    everywhere(Act::ScaleToZeroAndUp).await;
}

/// kruise#2274: a write to an older view of the pod leaves it updating for ever.
#[tokio::test]
async fn pod_deleted_at_each_step() {
    everywhere(Act::PodDeleted).await;
}

#[tokio::test]
async fn main_replica_set_deleted_at_each_step() {
    everywhere(Act::MainDeleted).await;
}

#[tokio::test]
async fn new_template_at_each_step() {
    everywhere(Act::NewTemplate).await;
}

/// kubevela/kubevela#7170: a rollback is ignored while paused at a step. kruise#418: stuck during the grace period.
#[tokio::test]
async fn template_back_at_each_step() {
    everywhere(Act::TemplateBack).await;
}

/// openkruise/rollouts#272: deleting the policy un-pauses and rolls.
#[tokio::test]
async fn policy_deleted_at_each_step() {
    everywhere(Act::PolicyDeleted).await;
}

#[tokio::test]
async fn user_pause_at_each_step() {
    everywhere(Act::UserPause).await;
}
