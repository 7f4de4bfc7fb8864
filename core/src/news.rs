//! Which changes of an object can lead to another plan. A pod that is updated changes five times, and only the last of these
//! changes, when it is done, lets anything happen: the others need not be planned for.
//!
//! This only says when to plan. A plan always sees what is there, whether it was told of it or not.

use crate::{
    api::policy::Tolerance,
    pod::{Evidence, failing, folded_at, replaced, serves},
    time::Time,
    world::{Container, ContainerStatus, Deployment, Pod, ReplicaSet, Resources, Run, Was},
};

/// Whatever passes for a failure under some tolerance does under this one.
const NONE_TOLERATED: Tolerance = Tolerance { seconds: 0, restarts: i64::MIN };

/// Does this change of a pod of a Deployment call for a plan? `heading`: what [`heading`] says of the Deployment.
pub fn of_pod(before: &Pod, after: &Pod, heading: Option<&str>) -> bool {
    if !same_but_status(before, after) {
        return true;
    }
    if before.ready == after.ready
        && before.ready_since == after.ready_since
        && before.containers_ready == after.containers_ready
        && before.observed_generation == after.observed_generation
        && statuses(before).eq(statuses(after))
    {
        return false;
    }
    // On both sides it waits for its containers to be replaced, whatever the time, and nothing says that they will not be.
    let waits = |pod: &Pod| {
        !replaced(pod, Time(i64::MAX)) && matches!(failing(pod, &NONE_TOLERATED, Time(i64::MAX)), Evidence::None)
    };
    // Whether a pod that waits serves meanwhile only matters if it is to be changed once more.
    let serving = before.gate.is_none() && heading.is_some_and(|goal| arrives(after, goal))
        || serves(before) == serves(after) && before.containers_ready == after.containers_ready;
    !(waits(before) && waits(after) && folded_at(before) == folded_at(after) && serving)
}

/// The template (its hash) that the pods of this Deployment are put to, while nothing else can be planned for one that shows it:
/// an update goes on, is not stalled, and no hooks of single pods have a say. `runs`: all runs of the Deployment.
pub fn heading<'a>(deployment: &'a Deployment, runs: impl Iterator<Item = &'a Run>) -> Option<&'a str> {
    let run = runs.max_by_key(|run| (run.spec.sequence, &run.name))?;
    let goal = deployment.template.hash();
    let goes_on = deployment.held()
        && run.spec.target == goal
        && run.status.ended.is_none()
        && run.status.stall.is_none()
        && !run.spec.settings.hooks.iter().any(|hook| hook.phase.of_pod());
    goes_on.then_some(goal)
}

/// Does this change of a ReplicaSet call for a plan of its Deployment?
pub fn of_replica_set(before: &ReplicaSet, after: &ReplicaSet, deployment: &Deployment) -> bool {
    // How many of its pods are available only counts once the hold has ended, but whether any are.
    let mut but = after.clone();
    but.resource_version.clone_from(&before.resource_version);
    if deployment.held() && (after.available > 0) == (before.available > 0) {
        but.available = before.available;
    }
    but != *before
}

/// Does this change of a Deployment call for a plan of it? Others may wait for it all the same.
pub fn of_deployment(before: &Deployment, after: &Deployment) -> bool {
    let mut but = after.clone();
    but.resource_version.clone_from(&before.resource_version);
    if after.held() {
        // What its controller counts is how a released update ends.
        but.status.replicas = before.status.replicas;
        but.status.updated = before.status.updated;
        but.status.available = before.status.available;
        but.status.terminating = before.status.terminating;
    }
    but != *before
}

/// Was it put to this template, and does it show no image from before? Then no image of it is written again.
fn arrives(pod: &Pod, goal: &str) -> bool {
    let shows = |c: &Container, was: &Was| was.spec != c.image;
    pod.baseline.as_ref().is_some_and(|b| {
        b.target == goal && pod.containers.iter().all(|c| b.was.get(&c.name).is_none_or(|was| shows(c, was)))
    })
}

fn statuses(pod: &Pod) -> impl Iterator<Item = (&Option<Resources>, &Option<ContainerStatus>)> {
    pod.containers.iter().map(|c| (&c.status_resources, &c.status))
}

/// Is everything the same but the version and what its kubelet reports of readiness and containers?
fn same_but_status(before: &Pod, after: &Pod) -> bool {
    let Pod {
        name,
        uid,
        resource_version: _,
        owner,
        generation,
        observed_generation: _,
        created,
        labels,
        annotations,
        has_annotations,
        baseline,
        containers,
        ready: _,
        ready_since: _,
        containers_ready: _,
        resize,
        scheduled,
        node,
        ip,
        finalizers,
        gate,
    } = before;
    let same = |(before, after): (&Container, &Container)| {
        let Container { name, init, index, image, resources, status_resources: _, status: _ } = before;
        (name, init, index, image, resources)
            == (&after.name, &after.init, &after.index, &after.image, &after.resources)
    };
    (name, uid, owner, generation, created)
        == (&after.name, &after.uid, &after.owner, &after.generation, &after.created)
        && (labels, annotations, has_annotations) == (&after.labels, &after.annotations, &after.has_annotations)
        && (baseline, resize, gate, scheduled) == (&after.baseline, &after.resize, &after.gate, &after.scheduled)
        && (node, ip, finalizers) == (&after.node, &after.ip, &after.finalizers)
        && containers.len() == after.containers.len()
        && containers.iter().zip(&after.containers).all(same)
}
