//! What a failing test shows.

use kube::api::ListParams;
use serde_json::{Value, json};

use super::env::{Env, containers, revision};

impl Env {
    /// Everything of the namespace in a few lines.
    pub async fn picture(&self) -> String {
        let mut text = String::new();
        let list = self.deployments().list(&ListParams::default()).await.unwrap();
        for d in list.items.iter().map(|d| serde_json::to_value(d).unwrap()) {
            let name = d["metadata"]["name"].as_str().unwrap();
            text += &format!(
                "deployment {name} gen {} {:?} paused {} replicas {} annotations {} status {}\n",
                d["metadata"]["generation"],
                containers(&d["spec"]["template"]["spec"]),
                d["spec"]["paused"],
                d["spec"]["replicas"],
                d["metadata"]["annotations"],
                short(&d["status"])
            );
            for s in self.sets(name).await {
                text += &format!(
                    "  replicaset {} r{} {:?} replicas {} status {} annotations {}\n",
                    s["metadata"]["name"],
                    revision(&s),
                    containers(&s["spec"]["template"]["spec"]),
                    s["spec"]["replicas"],
                    s["status"],
                    s["metadata"]["annotations"]
                );
            }
            for p in self.pods(name).await {
                text += &format!(
                    "  pod {} {:?} {} {}\n",
                    p["metadata"]["name"],
                    containers(&p["spec"]),
                    p["metadata"]["annotations"]["interlock.dev/update"],
                    p["status"]["containerStatuses"][0]["state"]
                );
            }
            for r in self.runs(name).await {
                let mut status = r["status"].clone();
                status["owed"] = json!(status["owed"].as_array().map(Vec::len));
                let conditions: Vec<String> = status["conditions"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|c| format!("{}={}/{}", c["type"], c["status"], c["reason"]))
                    .collect();
                status["conditions"] = json!(conditions.join(" "));
                text += &format!("  run {} #{} {status}\n", r["metadata"]["name"], r["spec"]["sequence"]);
            }
        }
        text += &format!(
            "  last writes: {:?}\n",
            self.gate.writes().iter().rev().take(12).map(|w| w.what.clone()).collect::<Vec<_>>()
        );
        text
    }
}

fn short(status: &Value) -> Value {
    let mut status = status.clone();
    status["conditions"] = json!(
        status["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|c| format!("{}={} {}", c["type"], c["status"], c["reason"]))
            .collect::<Vec<_>>()
    );
    status
}
