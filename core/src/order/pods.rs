//! Pods by label or owner.

use crate::world::Pods;

/// There are some, and all are ready. Pods that are being deleted or have finished were left out before.
pub fn pods(pods: &Pods) -> Result<(), String> {
    match &pods.not_ready {
        _ if pods.total == 0 => Err("has no pods".into()),
        Some(name) => Err(format!("has {} of {} pods ready, {name} is not", pods.ready, pods.total)),
        None => Ok(()),
    }
}
