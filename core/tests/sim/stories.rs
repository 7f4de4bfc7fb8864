//! What the stories share.

use interlock_core::{api::run::Outcome, plan::State};
use serde_json::{Value, json};

use super::{Sim, plain_policy, policy, policy_with};

pub fn governed(replicas: i64) -> Sim {
    Sim::running(1, replicas, "app:v1", vec![policy("p", plain_policy())])
}

pub fn with(replicas: i64, more: Value) -> Sim {
    Sim::running(1, replicas, "app:v1", vec![policy("p", policy_with(more))])
}

pub fn outcome(sim: &Sim) -> Option<Outcome> {
    sim.runs.iter().max_by_key(|r| r.spec.sequence)?.status.ended.as_ref().map(|e| e.outcome)
}

pub fn images(sim: &Sim) -> Vec<String> {
    let mut all: Vec<String> = sim.pods.iter().map(|p| p.pod.containers[0].image.clone()).collect();
    all.sort();
    all
}

pub fn turns(sim: &mut Sim, n: usize) {
    for _ in 0..n {
        sim.turn();
        sim.now = sim.now.plus_millis(20);
    }
}

pub fn state(sim: &mut Sim) -> State {
    sim.plan_now().report.state
}

pub fn waits_for(sim: &mut Sim) -> String {
    sim.plan_now().report.waiting_for.map(|w| w.reason).unwrap_or_default()
}

pub fn http(name: &str, phase: &str, retries: i64, failure: &str) -> Value {
    json!({"name": name, "phase": phase, "http": {"url": "http://hook.test/"}, "retries": retries, "failure": failure})
}
