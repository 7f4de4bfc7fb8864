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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What the update starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Plain,
    /// revisionHistoryLimit 0: the Deployment controller deletes every ReplicaSet that it may.
    NoHistory,
    /// An older, empty ReplicaSet equals the target.
    OlderEqual,
    /// A quota refuses any pod beyond the replicas.
    Quota,
}

impl Start {
    async fn make(self, env: &Env) {
        let mut deployment = objects::deployment("web", 3);
        if self == Self::NoHistory {
            deployment["spec"]["revisionHistoryLimit"] = json!(0);
        }
        env.create(deployment).await;
        match self {
            Self::Plain | Self::NoHistory => {}
            Self::OlderEqual => {
                for (runs, version) in [(1, "v2"), (2, "v1")] {
                    env.patch("web", objects::set_image(version)).await;
                    env.until("a run begins", 20, || async { env.runs("web").await.len() == runs }).await;
                    env.ended("web", "Succeeded").await;
                    env.all_well("web").await;
                }
            }
            Self::Quota => env.quota("pods", "3").await,
        }
    }

    /// Not everything can happen everywhere.
    fn allows(self, act: Act, step: &str) -> bool {
        match self {
            Self::Plain => true,
            Self::NoHistory => step != "after-barrier",
            Self::OlderEqual => true,
            // A ReplicaSet controller that met a quota backs off for up to 1,000 s; these acts do not meet it.
            Self::Quota => !matches!(act, Act::ScaleUp | Act::ScaleToZeroAndUp | Act::MainDeleted),
        }
    }
}

async fn one(act: Act, start: Start, step: (&'static str, Moment, &'static str, usize)) {
    let (name, moment, what, nth) = step;
    let env = Env::with_policy(&format!("st-{name}")).await;
    start.make(&env).await;
    let runs = env.runs("web").await.len();
    if what == "hook" {
        let calls = env.receiver.calls().len();
        env.receiver.close();
        env.patch("web", objects::set_image("v2")).await;
        env.receiver.arrived(calls + 1).await;
        act.carry_out(&env).await;
        env.receiver.open();
    } else {
        let mut stops = env.gate.stop_at(moment, what, nth);
        env.patch("web", objects::set_image("v2")).await;
        let stop = tokio::time::timeout(std::time::Duration::from_secs(150), stops.recv()).await;
        let stop = stop
            .unwrap_or_else(|_| {
                panic!(
                    "{act:?} from {start:?} at {name}: the controller never came to {what} #{nth}: {:?}",
                    env.gate.writes()
                )
            })
            .unwrap();
        act.carry_out(&env).await;
        stop.go_on();
    }
    env.all_well("web").await;
    env.assert_hooks_first("web", &["v1"]);
    let list = env.runs_api().list(&ListParams::default()).await.unwrap();
    assert!(list.items.len() <= runs + 3, "{act:?} from {start:?} at {name}: {} runs", list.items.len());
}

/// All steps for one act, a few at a time. The short form takes every fourth step from the less usual starts.
async fn everywhere(act: Act) {
    use futures::stream::{self, StreamExt};
    let long = std::env::var_os("INTERLOCK_LONG").is_some();
    let points = [Start::Plain, Start::NoHistory, Start::OlderEqual, Start::Quota].into_iter().flat_map(|start| {
        STEPS
            .into_iter()
            .enumerate()
            .filter(move |(index, step)| {
                start.allows(act, step.0)
                    && (long || start == Start::Plain || (index + act as usize + start as usize).is_multiple_of(4))
            })
            .map(move |(_, step)| (start, step))
    });
    stream::iter(points).for_each_concurrent(4, |(start, step)| one(act, start, step)).await;
}

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
