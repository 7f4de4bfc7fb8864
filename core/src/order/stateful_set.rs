//! StatefulSets.

use super::behind;
use crate::world::StatefulSet;

/// The rule of `kubectl rollout status`: status current; every desired pod ready; then, with a partition, as many pods
/// updated as it lets through, else all pods at the revision that is wanted. Beyond it: with `minReadySeconds` pods must be
/// available, and not only ready. With OnDelete, which kubectl refuses to tell of, pods are replaced when somebody deletes
/// them: ready pods are enough, whatever their revision.
pub fn stateful_set(set: &StatefulSet) -> Result<(), String> {
    if set.deleting {
        return Err("is being deleted".into());
    }
    if set.observed_generation == 0 || set.observed_generation < set.generation {
        return Err(behind(set.observed_generation, set.generation));
    }
    if set.ready < set.replicas {
        return Err(format!("has {} of {} pods ready", set.ready, set.replicas));
    }
    if set.min_ready_seconds > 0 && set.available < set.replicas {
        return Err(format!("has {} of {} pods available", set.available, set.replicas));
    }
    if set.on_delete {
        return Ok(());
    }
    if set.partition > 0 {
        let wanted = set.replicas.saturating_sub(set.partition).max(0);
        return if set.updated < wanted {
            Err(format!(
                "has {} of {wanted} pods updated, {} stay as they are by its partition",
                set.updated, set.partition
            ))
        } else {
            Ok(())
        };
    }
    if set.update_revision != set.current_revision {
        return Err(format!("has {} of {} pods updated", set.updated, set.replicas));
    }
    Ok(())
}
