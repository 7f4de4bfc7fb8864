//! Updates of every kind, each with the end that it has to reach.

use apiserver::{Picture, objects};
use serde_json::{Value, json};

use inproc::{Env, difference, story};
use tally::Tally;

/// A story of one update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// The smallest: one pod.
    OnePod,
    /// Two pods one after the other, a hook before and one after.
    TwoPods,
    /// A change that only the native way can make.
    Native,
    /// Back to what runs while a hook is still awaited.
    Return,
    /// At 0 replicas, then scaled up.
    Zero,
    /// A Deployment whose predecessor is not there yet.
    Birth,
    /// A bad image whose pods are put back.
    Revert,
    /// The next image while the first is being put in place.
    Superseded,
    /// One hook of each phase and kind that the planner decides, and the drain.
    Hooked,
}

/// One check: is the end the same as without trouble?
pub fn same(tally: &Tally, wanted: &Value, have: &Value) -> Result<(), String> {
    tally.checks(1);
    if have == wanted {
        return Ok(());
    }
    tally.failure();
    Err(difference(wanted, have))
}

pub const ALL: [Scenario; 9] = [
    Scenario::OnePod,
    Scenario::TwoPods,
    Scenario::Native,
    Scenario::Return,
    Scenario::Zero,
    Scenario::Birth,
    Scenario::Revert,
    Scenario::Superseded,
    Scenario::Hooked,
];

/// Two pods with our readiness gate.
fn gated() -> Value {
    let mut deployment = objects::deployment("web", 2);
    deployment["spec"]["template"]["spec"]["readinessGates"] =
        json!([{"conditionType": "interlock.dev/in-place-update-ready"}]);
    deployment
}

/// Hooks of all phases.
fn hooked() -> Value {
    let http = |name: &str, phase: &str| {
        let url = format!("http://hook.test/{name}");
        json!({"name": name, "phase": phase, "http": {"url": url}, "timeoutSeconds": 20})
    };
    json!({
        "update": {"drain": {"readinessGate": true, "seconds": 1}},
        "hooks": [
            http("before", "PreUpdate"),
            {"name": "ok", "phase": "PreUpdate", "approval": {"timeoutSeconds": 3, "onTimeout": "Approve"}},
            http("pod-before", "PrePod"),
            {"name": "pause", "phase": "PrePod", "wait": {"seconds": 1}},
            {"name": "keep", "phase": "PrePod", "podGate": {"labels": {"keep": "yes"}, "markPodNotReady": true}},
            http("pod-after", "PostPod"),
            http("after", "PostUpdate"),
            http("tell", "OnFailure"),
        ],
    })
}

fn policy(more: Value) -> Value {
    let mut policy = objects::policy("p", "http://hook.test");
    json_patch::merge(&mut policy["spec"], &more);
    policy
}

impl Scenario {
    /// Everything up to the moment from which writes are counted.
    pub async fn prepare(self, seed: u64) -> Env {
        let env = Env::new(seed);
        let wait = json!([{"name": "wait", "phase": "PreUpdate", "wait": {"seconds": 30}}]);
        env.put(match self {
            Self::Return => policy(json!({"hooks": wait})),
            Self::Birth => policy(json!({"order": [{"name": "first"}, {"name": "web", "after": ["first"]}]})),
            Self::Revert => policy(json!({"update": {"failure": "Revert"}})),
            Self::Hooked => policy(hooked()),
            _ => policy(json!({})),
        });
        env.start();
        match self {
            Self::OnePod | Self::Return => env.create(objects::deployment("web", 1)).await,
            Self::TwoPods | Self::Native | Self::Revert | Self::Superseded | Self::Zero => {
                env.create(objects::deployment("web", 2)).await;
            }
            Self::Birth => {}
            Self::Hooked => {
                env.keep("keep", "yes");
                env.create(gated()).await;
            }
        }
        if self == Self::Zero {
            env.patch("web", objects::set_image("v2")).await;
            env.end("web", |p| p.run()["status"]["ended"]["outcome"] == "Succeeded").await;
        }
        env.quiet().await;
        env
    }

    /// What people do.
    pub async fn act(self, env: &Env) {
        match self {
            Self::OnePod | Self::TwoPods | Self::Hooked => env.patch("web", objects::set_image("v2")).await,
            Self::Native => env.patch("web", objects::set_env("e2")).await,
            Self::Return => {
                env.patch("web", objects::set_image("v2")).await;
                env.when("a hook is awaited", "web", |p| !p.run()["status"]["waitingFor"].is_null()).await;
                env.patch("web", objects::set_image("v1")).await;
            }
            Self::Zero => {
                env.scale("web", 0).await;
                // Whatever runs next must not be an old release: a copy of what ran takes its place, as the youngest.
                env.when("the copy has taken its place", "web", |p| {
                    let ran =
                        |s: &&Value| s["spec"]["template"]["spec"]["containers"][0]["image"] == objects::image("v2");
                    let of_v2: Vec<&Value> = p.sets.iter().filter(ran).collect();
                    p.pods.is_empty()
                        && p.complete()
                        && matches!(of_v2[..], [only] if !only["metadata"]["labels"]["interlock.dev/copy"].is_null())
                })
                .await;
                env.patch(
                    "web",
                    json!({"spec": {"replicas": 2, "template": objects::set_image("v3")["spec"]["template"]}}),
                )
                .await;
            }
            Self::Birth => {
                env.born(objects::deployment("web", 1)).await;
                env.when("it is held", "web", |p| p.held()).await;
                env.born(objects::deployment("first", 1)).await;
            }
            Self::Revert => env.patch("web", objects::set_image("bad-pull1")).await,
            Self::Superseded => {
                env.patch("web", objects::set_image("v2")).await;
                env.when("one pod is updated", "web", |p| {
                    p.pods.iter().any(|pod| pod["spec"]["containers"][0]["image"] == objects::image("v2"))
                })
                .await;
                env.patch("web", objects::set_image("v3")).await;
            }
        }
    }

    /// The end, as far as it can be told from one look. After a revert the Deployment stays held, and its pods are as before.
    fn over(self, p: &Picture) -> bool {
        let outcome = &p.run()["status"]["ended"]["outcome"];
        let old = |pod: &Value| pod["spec"]["containers"][0]["image"] == objects::image("v1");
        match self {
            Self::Revert => !p.run()["status"]["stall"].is_null() && p.pods.iter().all(old) && p.available() == 2,
            Self::Return => *outcome == "Returned" && p.unwell().is_none(),
            _ => *outcome == "Succeeded" && p.unwell().is_none(),
        }
    }

    /// Its end if `happens` comes before it begins.
    pub fn told(self, happens: impl Fn(&Env)) -> Value {
        story(async {
            let env = self.prepare(1).await;
            let (mark, calls) = (env.observer.mark(), env.hooks.calls().len());
            happens(&env);
            self.act(&env).await;
            self.ending(&env, mark, calls).await
        })
    }

    /// Waits for the end, and says what has to be the same whatever happened on the way.
    pub async fn ending(self, env: &Env, mark: usize, calls: usize) -> Value {
        env.end("web", |p| self.over(p)).await;
        let picture = env.picture_of("web");
        let mut ending = picture.ending(&env.observer, "web", mark, &env.hooks.calls()[calls..]);
        if self == Self::Birth {
            // A hold that ends before it could be told is never told: what it waits for may come while a write is tried again.
            if let Some(conditions) = ending["deployment"]["conditions"].as_array_mut() {
                conditions.retain(|condition| condition != "interlock.dev/Held=False/Released");
            }
        } else {
            // More than has to be ready is a matter of pace.
            ending["fewest ready"] = json!(env.observer.fewest_ready("web", mark).min(1));
        }
        ending
    }
}
