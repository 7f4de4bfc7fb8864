//! When a component is settled, so that what comes after it may start.

use crate::{
    time::Time,
    world::{Component, RunState},
};

/// Why a component is not settled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsettled {
    /// A sentence without the component's name.
    pub why: String,
    /// When that may change by the clock alone.
    pub wake: Option<Time>,
}

/// The rule of DESIGN section 6 for Deployments: no hold, no run in progress or failed; observedGeneration current,
/// updated == desired == total, available == desired, no pod of an older ReplicaSet; quiet for `settle_seconds`.
/// Desired 0 is settled once nothing is left to do.
pub fn settled(component: Option<&Component>, settle_seconds: i64, now: Time) -> Result<(), Unsettled> {
    let not = |why: String| Err(Unsettled { why, wake: None });
    let Some(c) = component else { return not("does not exist".into()) };
    if c.deleting {
        return not("is being deleted".into());
    }
    match c.run {
        Some(RunState::Failed) => return not("has failed to update".into()),
        Some(RunState::InProgress) => return not("is being updated".into()),
        Some(RunState::Over) | None => {}
    }
    if c.held {
        return not("is held".into());
    }
    let s = &c.status;
    if s.observed_generation < c.generation {
        return not(format!(
            "has a status that is behind (observed generation {} of {})",
            s.observed_generation, c.generation
        ));
    }
    if s.updated != c.replicas || s.replicas != c.replicas {
        return not(format!("has {} of {} pods updated, {} in total", s.updated, c.replicas, s.replicas));
    }
    if s.available != c.replicas {
        return not(format!("has {} of {} pods available", s.available, c.replicas));
    }
    if c.old_pods > 0 {
        return not(format!("has {} pods of an older template left", c.old_pods));
    }
    if let Some(changed) = c.changed
        && c.replicas > 0
    {
        let at = changed.plus_seconds(settle_seconds);
        if at > now {
            return Err(Unsettled { why: "has just settled".into(), wake: Some(at) });
        }
    }
    Ok(())
}
