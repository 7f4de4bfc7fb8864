//! Sizes of ReplicaSets outside of a rollout (sync.go).

use interlock_core::api::names;
use serde_json::{Value, json};

use super::{Done, MAX, Sync, age, replicas, sum};
use crate::json::{annotation, int};

impl Sync<'_> {
    pub(super) fn scaling_event(&mut self) -> Done<bool> {
        self.revise(false)?;
        let desired = self.desired();
        let other = |s: &&Value| {
            annotation(s, names::DESIRED_REPLICAS).and_then(|d| d.parse::<i64>().ok()).is_some_and(|d| d != desired)
        };
        Ok(self.sets.iter().filter(|s| replicas(s) > 0).any(|s| other(&s)))
    }

    /// Returns whether the size changed.
    pub(super) fn scale_set(&mut self, set: &Value, to: i64, force: bool) -> Done<bool> {
        if !force && replicas(set) == to {
            return Ok(false);
        }
        let mut new = set.clone();
        new["spec"]["replicas"] = json!(to);
        self.annotate_replicas(&mut new);
        if new == *set {
            return Ok(false);
        }
        self.update_set(new)?;
        Ok(replicas(set) != to)
    }

    pub(super) fn scale(&mut self, new: Option<&Value>) -> Done {
        let old = self.old_sets(new);
        let all: Vec<Value> = old.iter().chain(new).cloned().collect();
        let mut active: Vec<Value> = all.iter().filter(|s| replicas(s) > 0).cloned().collect();
        let one = match active.as_slice() {
            [] => new.or_else(|| old.iter().max_by_key(|s| age(s))),
            [one] => Some(one),
            [..] => None,
        };
        if let Some(one) = one {
            return self.scale_set(&one.clone(), self.desired(), false).map(drop);
        }
        if active.is_empty() {
            return Ok(());
        }
        let desired = self.desired();
        let saturated = new.is_some_and(|n| {
            replicas(n) == desired
                && annotation(n, names::DESIRED_REPLICAS) == Some(&desired.to_string())
                && int(n, "/status/availableReplicas") == desired
        });
        if saturated {
            for set in old.iter().filter(|s| replicas(s) > 0) {
                self.scale_set(set, 0, false)?;
            }
            return Ok(());
        }
        if self.recreate() {
            return Ok(());
        }
        // In proportion; what is left over goes to the largest.
        let (surge, _) = self.limits();
        let allowed = if desired > 0 { desired + surge } else { 0 };
        let add = allowed - sum(&active, "/spec/replicas");
        if add > 0 {
            active.sort_by_key(|s| std::cmp::Reverse((replicas(s), age(s))));
        } else {
            active.sort_by_key(|s| (std::cmp::Reverse(replicas(s)), age(s)));
        }
        let mut sizes = Vec::new();
        let mut added = 0;
        for set in &active {
            let part = if add == 0 || add == added { 0 } else { self.fraction(set) };
            let part = if add > 0 { part.min(add - added) } else { part.max(add - added) };
            added += part;
            sizes.push(replicas(set) + part);
        }
        if add != 0 {
            sizes[0] = (sizes[0] + add - added).max(0);
        }
        for (set, size) in active.iter().zip(sizes) {
            self.scale_set(set, size, true)?;
        }
        Ok(())
    }

    pub(super) fn fraction(&self, set: &Value) -> i64 {
        if self.desired() == 0 {
            return -replicas(set);
        }
        let before = annotation(set, MAX).and_then(|m| m.parse::<i64>().ok()).filter(|m| *m > 0);
        let before = before.unwrap_or_else(|| int(&self.d, "/status/replicas"));
        if before == 0 {
            return 0;
        }
        let (surge, _) = self.limits();
        #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
        let size = ((replicas(set) * (self.desired() + surge)) as f64 / before as f64).round() as i64;
        size - replicas(set)
    }
}
