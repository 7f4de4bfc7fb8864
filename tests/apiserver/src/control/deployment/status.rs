//! The status and its conditions (progress.go, sync.go).

use serde_json::{Value, json};

use super::{Done, Sync, sum, uid};
use crate::json::{drop_key, int, list, text};

impl Sync<'_> {
    pub(super) fn condition(&self, type_: &str) -> Option<&Value> {
        list(&self.d, "/status/conditions").iter().find(|c| c["type"] == type_)
    }

    pub(super) fn set_condition(&self, status: &mut Value, type_: &str, is: &str, reason: &str, message: &str) {
        let conditions = list(status, "/conditions");
        let before = conditions.iter().find(|c| c["type"] == type_);
        if before.is_some_and(|c| c["status"] == is && c["reason"] == reason) {
            return;
        }
        let now = self.store.stamp();
        let flipped = before.filter(|c| c["status"] == is).map_or(json!(now), |c| c["lastTransitionTime"].clone());
        let new = json!({"type": type_, "status": is, "reason": reason, "message": message,
            "lastUpdateTime": now, "lastTransitionTime": flipped});
        let mut all: Vec<Value> = conditions.iter().filter(|c| c["type"] != type_).cloned().collect();
        all.push(new);
        status["conditions"] = json!(all);
    }

    /// The condition as we have it; it is not written yet.
    pub(super) fn set_progressing(&mut self, is: &str, reason: &str, message: &str) {
        let mut status = self.d["status"].take();
        self.set_condition(&mut status, "Progressing", is, reason, message);
        self.d["status"] = status;
    }

    pub(super) fn check_paused(&mut self) -> Done {
        let reason = self.condition("Progressing").map(|c| text(c, "/reason").to_owned()).unwrap_or_default();
        if reason == "ProgressDeadlineExceeded" {
            return Ok(());
        }
        let paused = self.d["spec"]["paused"] == true;
        let (reason, message) = match (paused, reason == "DeploymentPaused") {
            (true, false) => ("DeploymentPaused", "Deployment is paused"),
            (false, true) => ("DeploymentResumed", "Deployment is resumed"),
            (true, true) | (false, false) => return Ok(()),
        };
        self.set_progressing("Unknown", reason, message);
        self.update_status()
    }

    pub(super) fn complete(&self, status: &Value) -> bool {
        let of = |f: &str| int(status, f);
        of("/updatedReplicas") == self.desired()
            && of("/replicas") == self.desired()
            && of("/availableReplicas") == self.desired()
            && of("/observedGeneration") >= int(&self.d, "/metadata/generation")
    }

    pub(super) fn sync_status(&mut self, new: Option<&Value>, rollout: bool) -> Done {
        let new = new.and_then(|n| self.sets.iter().find(|s| uid(s) == uid(n)));
        let old_status = self.d["status"].clone();
        let mut status = old_status.clone();
        let available = sum(&self.sets, "/status/availableReplicas");
        let unavailable = (sum(&self.sets, "/spec/replicas") - available).max(0);
        status["observedGeneration"] = self.d["metadata"]["generation"].clone();
        for (field, value) in [
            ("replicas", sum(&self.sets, "/status/replicas")),
            ("updatedReplicas", new.map_or(0, |n| int(n, "/status/replicas"))),
            ("readyReplicas", sum(&self.sets, "/status/readyReplicas")),
            ("availableReplicas", available),
            ("unavailableReplicas", unavailable),
        ] {
            if value == 0 {
                drop_key(&mut status, field);
            } else {
                status[field] = json!(value);
            }
        }
        let (_, most) = self.limits();
        let (is, reason, message) = if available >= self.desired() - most {
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        self.set_condition(&mut status, "Available", is, reason, message);
        if rollout {
            let name = new.map_or("", |n| text(n, "/metadata/name")).to_owned();
            self.progress(&old_status, &mut status, &name);
            let failure = new
                .into_iter()
                .chain(&self.sets)
                .find_map(|s| list(s, "/status/conditions").iter().find(|c| c["type"] == "ReplicaFailure").cloned());
            match failure {
                Some(f) => {
                    self.set_condition(&mut status, "ReplicaFailure", "True", text(&f, "/reason"), text(&f, "/message"))
                }
                None => {
                    if let Some(all) = status["conditions"].as_array_mut() {
                        all.retain(|c| c["type"] != "ReplicaFailure");
                    }
                }
            }
        }
        if status == old_status {
            return Ok(());
        }
        self.d["status"] = status;
        self.update_status()
    }

    /// The progress deadline is not timed: nothing of Interlock depends on it.
    pub(super) fn progress(&self, old: &Value, status: &mut Value, name: &str) {
        let of = |s: &Value, f: &str| int(s, f);
        let available = self.condition("Progressing").is_some_and(|c| c["reason"] == "NewReplicaSetAvailable");
        if available && of(status, "/replicas") == of(status, "/updatedReplicas") {
            return;
        }
        let others = |s: &Value| of(s, "/replicas") - of(s, "/updatedReplicas");
        let more = |f: &str| of(status, f) > of(old, f);
        if self.complete(status) {
            let message = format!("ReplicaSet {name:?} has successfully progressed.");
            self.set_condition(status, "Progressing", "True", "NewReplicaSetAvailable", &message);
        } else if more("/updatedReplicas")
            || others(status) < others(old)
            || more("/readyReplicas")
            || more("/availableReplicas")
        {
            let message = format!("ReplicaSet {name:?} is progressing.");
            self.set_condition(status, "Progressing", "True", "ReplicaSetUpdated", &message);
        }
    }
}
