//! When a pod was really updated, by what a real kubelet published, and when the done rule says so.

use tokio::time::Instant;

use devcluster::Registry;
use interlock::observe::facts;
use interlock_core::{
    pod::replaced,
    world::{Baseline, Container, ContainerState, Pod},
};

use apiserver::observer::Sight;

/// One write of ours into one pod and all events of the pod until the next.
#[derive(Debug)]
pub struct Update {
    /// What each event showed of the container statuses, for messages.
    pub events: Vec<String>,
    /// The first event at which the done rule says done.
    pub said_at: Option<usize>,
    /// The first event that shows it done.
    pub true_at: Option<usize>,
}

/// All updates of the pods of an app, in order of their beginning.
pub fn updates(sights: &[Sight], app: &str, registry: &Registry) -> Vec<Update> {
    let mut all: Vec<(String, Baseline, Update)> = Vec::new();
    let started = sights.first().map_or_else(Instant::now, |s| s.at);
    for sight in sights.iter().filter(|s| s.app == app && !s.deleted) {
        let json = &*sight.pod;
        let Some(pod) = facts::pod::pod(json) else { continue };
        let Some(baseline) = pod.baseline.clone() else { continue };
        let at = match all.iter().rposition(|(uid, b, _)| *uid == pod.uid && *b == baseline) {
            Some(at) => at,
            None => {
                let update = Update { events: Vec::new(), said_at: None, true_at: None };
                all.push((pod.uid.clone(), baseline.clone(), update));
                all.len() - 1
            }
        };
        let update = &mut all[at].2;
        let event = update.events.len();
        update.events.push(format!(
            "{} ms: generation {}, observed {}, {} {}",
            sight.at.duration_since(started).as_millis(),
            pod.generation,
            pod.observed_generation,
            json["status"]["containerStatuses"],
            json["status"]["initContainerStatuses"]
        ));
        // By the observer's own clock, since the rule waits in one case only, which does not occur here.
        if update.said_at.is_none() && replaced(&pod, baseline.at) {
            update.said_at = Some(event);
        }
        if update.true_at.is_none() && is_true(&pod, &baseline, registry) {
            update.true_at = Some(event);
        }
    }
    all.into_iter().map(|(_, _, update)| update).collect()
}

/// Whether every changed container runs with the digest that the registry has for the image, in another container than
/// before, and is ready; and whether resources are those that were asked for. This is the truth on a node where
/// nobody else changes pods: the registry knows what each name means.
fn is_true(pod: &Pod, baseline: &Baseline, registry: &Registry) -> bool {
    let replaced = |c: &Container| {
        let Some(was) = baseline.was.get(&c.name) else { return true };
        c.status.as_ref().is_some_and(|status| {
            let running = matches!(status.state, ContainerState::Running { .. });
            let wanted = wanted_digest(&c.image, registry);
            running && status.ready && status.id != was.id && wanted.is_some_and(|w| status.image_id.ends_with(&w))
        })
    };
    let resized = |c: &Container| c.status_resources.as_ref().is_none_or(|have| *have == c.resources);
    let noticed = pod.observed_generation > baseline.generation || pod.generation == baseline.generation;
    noticed && pod.resize.is_none() && pod.containers.iter().all(|c| replaced(c) && resized(c))
}

fn wanted_digest(image: &str, registry: &Registry) -> Option<String> {
    if let Some((_, digest)) = image.split_once('@') {
        return Some(digest.to_owned());
    }
    let (name, tag) = image.rsplit_once(':')?;
    registry.digest(name.rsplit('/').next()?, tag).ok()
}
