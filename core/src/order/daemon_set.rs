//! DaemonSets.

use super::behind;
use crate::world::DaemonSet;

/// The rule of `kubectl rollout status`: status current; a pod of the wanted template, and an available one, on every node
/// that should have one. With OnDelete, which kubectl refuses to tell of, pods are replaced when somebody deletes them:
/// available pods are enough. No node that should have one: settled.
pub fn daemon_set(set: &DaemonSet) -> Result<(), String> {
    if set.deleting {
        return Err("is being deleted".into());
    }
    if set.observed_generation == 0 || set.observed_generation < set.generation {
        return Err(behind(set.observed_generation, set.generation));
    }
    if !set.on_delete && set.updated < set.desired {
        return Err(format!("has {} of {} pods updated", set.updated, set.desired));
    }
    if set.available < set.desired {
        return Err(format!("has {} of {} pods available", set.available, set.desired));
    }
    Ok(())
}
