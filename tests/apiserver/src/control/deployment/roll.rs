//! A rollout (rolling.go, recreate.go).

use serde_json::Value;

use super::{Done, Sync, replicas, sum, uid};
use crate::json::{controller, int, text};

impl Sync<'_> {
    pub(super) fn roll(&mut self) -> Done {
        let Some(new) = self.revise(true)? else { return Ok(()) };
        let (surge, _) = self.limits();
        let desired = self.desired();
        if replicas(&new) != desired {
            let to = if replicas(&new) > desired {
                desired
            } else {
                let room = (desired + surge - sum(&self.sets, "/spec/replicas")).max(0);
                replicas(&new) + room.min(desired - replicas(&new))
            };
            if self.scale_set(&new, to, false)? {
                return self.sync_status(Some(&new), true);
            }
        }
        // A failure here ends neither the sync nor its status (rolling.go).
        if self.scale_down_old(&new).unwrap_or(false) {
            return self.sync_status(Some(&new), true);
        }
        if self.complete(&self.d["status"]) {
            self.clean_up(Some(&new))?;
        }
        self.sync_status(Some(&new), true)
    }

    pub(super) fn scale_down_old(&mut self, new: &Value) -> Done<bool> {
        let (_, unavailable) = self.limits();
        let least = self.desired() - unavailable;
        let mut old: Vec<Value> = self.old_sets(Some(new)).into_iter().filter(|s| replicas(s) > 0).collect();
        let all = sum(&old, "/spec/replicas") + replicas(new);
        let most = all - least - (replicas(new) - int(new, "/status/availableReplicas"));
        if old.is_empty() || most <= 0 {
            return Ok(false);
        }
        let mut unhealthy = 0;
        for set in &mut old {
            let part = (most - unhealthy).min(replicas(set) - int(set, "/status/availableReplicas"));
            if part > 0 {
                self.scale_set(set, replicas(set) - part, false)?;
                unhealthy += part;
                if let Some(stored) = self.sets.iter().find(|s| uid(s) == uid(set)) {
                    *set = stored.clone();
                }
            }
        }
        let available = sum(&old, "/status/availableReplicas") + int(new, "/status/availableReplicas");
        let (spare, mut healthy) = (available - least, 0);
        for set in &old {
            let part = (spare - healthy).min(replicas(set));
            if part > 0 {
                self.scale_set(set, replicas(set) - part, false)?;
                healthy += part;
            }
        }
        Ok(unhealthy + healthy > 0)
    }

    pub(super) fn roll_by_recreation(&mut self) -> Done {
        let mut new = self.revise(false)?;
        let mut scaled = false;
        for set in self.old_sets(new.as_ref()).into_iter().filter(|s| replicas(s) > 0) {
            scaled |= self.scale_set(&set, 0, false)?;
        }
        let old = self.old_sets(new.as_ref());
        let pods = self.store.list("pods", Some(text(&self.d, "/metadata/namespace"))).0;
        let running = pods.iter().any(|p| old.iter().any(|s| controller(p, "ReplicaSet") == uid(s)));
        if scaled || running || sum(&old, "/status/replicas") > 0 {
            return self.sync_status(new.as_ref(), true);
        }
        if new.is_none() {
            new = self.revise(true)?;
        }
        if let Some(new) = &new {
            self.scale_set(new, self.desired(), false)?;
        }
        if self.complete(&self.d["status"]) {
            self.clean_up(new.as_ref())?;
        }
        self.sync_status(new.as_ref(), true)
    }
}
