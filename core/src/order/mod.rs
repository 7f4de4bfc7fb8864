//! When a component is settled, so that what comes after it may start. One file per kind.

mod daemon_set;
pub mod graph;
mod job;
mod pods;
mod stateful_set;

pub use self::{daemon_set::daemon_set, job::job, pods::pods, stateful_set::stateful_set};
use crate::{
    template::Template,
    time::Time,
    world::{Component, Predecessor, RunState, Standing},
};

/// Why a component is not settled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsettled {
    /// A sentence without the component's name.
    pub why: String,
    /// When that may change by the clock alone.
    pub wake: Option<Time>,
}

impl Unsettled {
    fn because(why: impl Into<String>) -> Self {
        Self { why: why.into(), wake: None }
    }
}

/// What is asked of a predecessor beside the rule of its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// It must have been quiet for so many seconds.
    pub settle_seconds: i64,
    /// A label (key and value) that its template, or each of its pods, must have.
    pub release: Option<(String, String)>,
    /// None of its pods may still be terminating.
    pub old_pods_gone: bool,
}

impl Terms {
    /// The label that makes up the release of a component with this template. `None`: the template lacks it, so there is
    /// nothing that a predecessor could be compared with.
    pub fn release_of(template: &Template, key: &str) -> Option<(String, String)> {
        let labels = template.json().get("metadata")?.get("labels")?;
        Some((key.to_owned(), labels.get(key)?.as_str()?.to_owned()))
    }
}

/// Has a predecessor settled on these terms? `None`: there is none of this name.
pub fn met(predecessor: Option<&Predecessor>, terms: &Terms, now: Time) -> Result<(), Unsettled> {
    let Some(predecessor) = predecessor else { return Err(Unsettled::because("does not exist")) };
    let changed = match &predecessor.standing {
        Standing::Unread => return Err(Unsettled::because("has not been read yet")),
        Standing::Deployment(component) => {
            settled(Some(component), terms.settle_seconds, now)?;
            None
        }
        Standing::StatefulSet(set) => {
            stateful_set(set).map_err(Unsettled::because)?;
            set.changed.filter(|_| set.replicas > 0)
        }
        Standing::DaemonSet(set) => {
            daemon_set(set).map_err(Unsettled::because)?;
            set.changed.filter(|_| set.desired > 0)
        }
        Standing::Job(run) => {
            job(run).map_err(Unsettled::because)?;
            run.changed
        }
        Standing::Pods(found) => {
            pods(found).map_err(Unsettled::because)?;
            found.changed
        }
    };
    if let Some((key, value)) = &terms.release {
        match predecessor.labels.get(key) {
            Some(found) if found == value => {}
            Some(found) => {
                return Err(Unsettled::because(format!("is of another release, {key} is {found} and not {value}")));
            }
            None => {
                return Err(Unsettled::because(format!("has no template label {key}, so its release is not known")));
            }
        }
    }
    if terms.old_pods_gone && predecessor.leaving > 0 {
        return Err(Unsettled::because(format!("has {} pods that are still terminating", predecessor.leaving)));
    }
    quiet(changed, terms.settle_seconds, now)
}

/// Quiet for so many seconds since the last visible change.
fn quiet(changed: Option<Time>, settle_seconds: i64, now: Time) -> Result<(), Unsettled> {
    match changed.map(|changed| changed.plus_seconds(settle_seconds)) {
        Some(at) if at > now => Err(Unsettled { why: "has just settled".into(), wake: Some(at) }),
        Some(_) | None => Ok(()),
    }
}

/// The rule of DESIGN section 6 for Deployments: no hold, no run in progress or failed; observedGeneration current,
/// updated == desired == total, available == desired, no pod of an older ReplicaSet; quiet for `settle_seconds`.
/// Desired 0 is settled once nothing is left to do.
pub fn settled(component: Option<&Component>, settle_seconds: i64, now: Time) -> Result<(), Unsettled> {
    let not = |why: String| Err(Unsettled::because(why));
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
        return not(behind(s.observed_generation, c.generation));
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
    quiet(c.changed.filter(|_| c.replicas > 0), settle_seconds, now)
}

fn behind(observed: i64, generation: i64) -> String {
    format!("has a status that is behind (observed generation {observed} of {generation})")
}
