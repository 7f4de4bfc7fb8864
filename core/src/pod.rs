//! One pod: does it run the wanted template, is it on its way there, has it arrived, is it failing?
//!
//! The done rule is that of what a real kubelet (1.37) was seen to do: the first status after a patch already has
//! the new observedGeneration and `Ready`, while the old container still runs; an image string may never equal the
//! one of the spec; a restart count does not move on a failed pull. See docs/done-rule.md.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    api::policy::Tolerance,
    classify::{self, Wanted},
    image,
    planted::{Bug, planted},
    template::Template,
    time::Time,
    world::{Container, ContainerState, ContainerStatus, Pod, Resize, Resources, Was},
};

/// What pods are to be like, prepared once per plan.
#[derive(Clone, Debug)]
pub struct Target {
    /// Hash of the template.
    pub hash: String,
    containers: BTreeMap<String, Wanted>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    /// Keys of template metadata that may change in place, as patterns.
    in_place_metadata: Vec<String>,
    /// Listed keys that some known template has: those may be removed from a pod.
    known: (BTreeSet<String>, BTreeSet<String>),
    /// Containers whose cpu or memory differs between what runs and the target.
    resized: BTreeSet<String>,
}

/// What has to be written into a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Containers whose image changes: index into `pod.containers`, new image.
    pub images: Vec<(usize, String)>,
    /// Labels: new value, or `None` to remove.
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations: new value, or `None` to remove.
    pub annotations: BTreeMap<String, Option<String>>,
    /// Containers whose resources change: index into `pod.containers`, new resources.
    pub resources: Vec<(usize, Resources)>,
}

impl Difference {
    /// Nothing to do?
    pub fn is_empty(&self) -> bool {
        self.images.is_empty() && self.labels.is_empty() && self.annotations.is_empty() && self.resources.is_empty()
    }

    /// Does it restart a container?
    pub fn restarts(&self) -> bool {
        !self.images.is_empty()
    }
}

impl Target {
    /// Prepares a target. `others` are all templates that pods may show parts of.
    pub fn new<'a>(
        template: &Template,
        runs: Option<&Template>,
        others: impl Iterator<Item = &'a Template>,
        in_place_metadata: &[String],
    ) -> Self {
        let containers = classify::containers(template);
        let (labels, annotations) = classify::metadata(template);
        let mut known = (BTreeSet::new(), BTreeSet::new());
        if !in_place_metadata.is_empty() {
            for other in others {
                let (l, a) = classify::metadata(other);
                known.0.extend(l.into_keys().filter(|k| classify::listed(in_place_metadata, k)));
                known.1.extend(a.into_keys().filter(|k| classify::listed(in_place_metadata, k)));
            }
        }
        let before = runs.map(classify::containers).unwrap_or_default();
        let resized = containers
            .iter()
            .filter(|(name, want)| before.get(*name).is_some_and(|b| b.resources != want.resources))
            .map(|(name, _)| name.clone())
            .collect();
        Self {
            hash: template.hash().to_owned(),
            containers,
            labels,
            annotations,
            in_place_metadata: in_place_metadata.to_vec(),
            known,
            resized,
        }
    }

    /// What has to be written so that this pod is like the target.
    pub fn difference(&self, pod: &Pod) -> Difference {
        let ours = pod.baseline.as_ref().filter(|b| b.target == self.hash);
        let foreign = pod.baseline.as_ref().is_some_and(|b| b.target != self.hash);
        let mut difference = Difference::default();
        for (index, container) in pod.containers.iter().enumerate() {
            let Some(want) = self.containers.get(&container.name) else { continue };
            if container.image != want.image {
                // Admission may rewrite what we write (mirrors, digests). A pod that we have put to this target is
                // right whatever the string is, unless it shows the image from before again.
                let rewritten = ours.is_some_and(|b| {
                    b.was
                        .get(&container.name)
                        .is_none_or(|was| was.spec != container.image || b.generation == pod.generation)
                });
                if !rewritten {
                    difference.images.push((index, want.image.clone()));
                }
            }
            if (foreign || self.resized.contains(&container.name)) && !covers(&container.resources, &want.resources) {
                difference.resources.push((index, want.resources.clone()));
            }
        }
        if !self.in_place_metadata.is_empty() {
            difference.labels = self.metadata(&self.labels, &self.known.0, &pod.labels);
            difference.annotations = self.metadata(&self.annotations, &self.known.1, &pod.annotations);
        }
        difference
    }

    fn metadata(
        &self,
        want: &BTreeMap<String, String>,
        known: &BTreeSet<String>,
        have: &BTreeMap<String, String>,
    ) -> BTreeMap<String, Option<String>> {
        let set = want
            .iter()
            .filter(|(k, v)| classify::listed(&self.in_place_metadata, k) && have.get(*k) != Some(v))
            .map(|(k, v)| (k.clone(), Some(v.clone())));
        let gone = known.iter().filter(|k| !want.contains_key(*k) && have.contains_key(*k)).map(|k| (k.clone(), None));
        set.chain(gone).collect()
    }
}

/// Has the pod every value that is wanted? Values that admission added are not ours to judge.
fn covers(have: &Resources, want: &Resources) -> bool {
    let within = |have: &BTreeMap<String, String>, want: &BTreeMap<String, String>| {
        want.iter().all(|(k, v)| have.get(k) == Some(v))
    };
    within(&have.requests, &want.requests) && within(&have.limits, &want.limits)
}

/// Where a pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not yet like the target, and available (or on its way to be, on its old template).
    Old {
        /// Is it available now?
        available: bool,
    },
    /// Like the target; its containers have not all been replaced, or are not ready or not available yet.
    Moving {
        /// When it will be available if nothing happens, or when its failure will be believed.
        wake: Option<Time>,
        /// Why it is thought to fail.
        failing: Option<String>,
    },
    /// Like the target, and available.
    Done,
}

/// Seconds after which a waiting reason is believed although its message does not name the new image: right after a
/// patch the status still carries the reason of the old one (seen on a real kubelet).
const BELIEVE_AFTER_SECONDS: i64 = 3;
/// Seconds after which a container that was never replaced counts as right, when the kubelet folded two quick
/// patches into one and what it runs is what is wanted.
const FOLDED_AFTER_SECONDS: i64 = 5;

/// Seconds after which a container that waits between two attempts is known to have been stopped for the new image.
const STOPPED_AFTER_SECONDS: i64 = 10;

/// Where this pod stands on its way to the target.
pub fn stage(pod: &Pod, differs: bool, min_ready_seconds: i64, tolerance: &Tolerance, now: Time) -> Stage {
    if differs {
        // Ready by the old container says nothing while an earlier write of ours is still to restart it.
        let available = replaced(pod, now) && available_at(pod, min_ready_seconds).is_some_and(|at| at <= now);
        return Stage::Old { available };
    }
    if replaced(pod, now) {
        match available_at(pod, min_ready_seconds) {
            Some(at) if at <= now => return Stage::Done,
            Some(at) => return Stage::Moving { wake: Some(at), failing: None },
            None => {}
        }
    }
    let (failing, wake) = match failing(pod, tolerance, now) {
        Evidence::None => (None, folded_at(pod).filter(|at| *at > now)),
        Evidence::Believed(why) => (Some(why), None),
        Evidence::Until(at) => (None, Some(at)),
    };
    Stage::Moving { wake, failing }
}

/// Is it ready? Right after its readiness gate was shut its status still says so.
pub const fn serves(pod: &Pod) -> bool {
    pod.ready && !matches!(pod.gate, Some(false))
}

/// When the pod is (or becomes) available: ready for `minReadySeconds`, counted from the start of its youngest
/// container, since `Ready` need not flip when a container without a probe is replaced. `None`: not ready.
pub fn available_at(pod: &Pod, min_ready_seconds: i64) -> Option<Time> {
    if !serves(pod) {
        return None;
    }
    if min_ready_seconds <= 0 {
        return Some(Time(i64::MIN));
    }
    let started = pod.containers.iter().filter_map(|c| match &c.status.as_ref()?.state {
        ContainerState::Running { since } => *since,
        ContainerState::Waiting { .. } | ContainerState::Terminated(_) => None,
    });
    Some(started.chain(pod.ready_since).max().unwrap_or(pod.created).plus_seconds(min_ready_seconds))
}

/// The done rule, but for availability: has every container that our last write changed been replaced by one of the
/// wanted image, running and ready, and has a resize been carried out?
pub fn replaced(pod: &Pod, now: Time) -> bool {
    if planted(Bug::DoneByGenerationAndReady) {
        return pod.observed_generation >= pod.generation && pod.ready;
    }
    let Some(baseline) = &pod.baseline else {
        // Never touched by us: made from its template.
        return pod.observed_generation >= pod.generation || pod.observed_generation == 0;
    };
    // The API server counts one generation for one write that changes the spec.
    if pod.observed_generation < baseline.generation.saturating_add(1).min(pod.generation) {
        return false;
    }
    if pod.resize.is_some() {
        return false;
    }
    pod.containers.iter().all(|container| {
        let resized = container.status_resources.as_ref().is_none_or(|have| covers(have, &container.resources));
        resized
            && match baseline.was.get(&container.name) {
                Some(was) => container_replaced(container, was, baseline.quiet, now.millis_since(baseline.at)),
                None => true,
            }
    })
}

/// Is this container still to be replaced by our last write?
pub fn awaits(pod: &Pod, name: &str, now: Time) -> bool {
    pod.baseline.as_ref().is_some_and(|b| {
        let container = pod.containers.iter().find(|c| c.name == name);
        container.zip(b.was.get(name)).is_some_and(|(container, was)| {
            pod.observed_generation <= b.generation
                || !container_replaced(container, was, b.quiet, now.millis_since(b.at))
        })
    })
}

fn container_replaced(container: &Container, was: &Was, quiet: bool, millis: i64) -> bool {
    let Some(status) = &container.status else { return false };
    if container.image == was.spec {
        // Admission gave back what was there: nothing restarts.
        return status.ready;
    }
    if !matches!(status.state, ContainerState::Running { .. }) || !status.ready {
        return false;
    }
    if status.id == was.id {
        // Two quick patches that the kubelet folded into one: what runs was never anything else.
        return !quiet
            && image::same(&was.image, &container.image)
            && image::same(&status.image, &container.image)
            && millis >= FOLDED_AFTER_SECONDS * 1000;
    }
    has_image(container, status, was, quiet)
}

/// Is the container that a status shows one of the wanted image?
fn has_image(container: &Container, status: &ContainerStatus, was: &Was, quiet: bool) -> bool {
    let by_name = || image::same(&status.image, &container.image);
    let by_digest = || {
        image::digest(&container.image)
            .is_some_and(|d| status.image_id.ends_with(d) || digest_of(&status.image_id) == Some(d))
    };
    let unchanged = || status.image == was.image && status.image_id == was.image_id;
    // A name whose digest the node knows under another one is covered by none of the three. Then our own record that
    // nothing else was in flight has to do: another container than before can only be the wanted one.
    let shown_anew = || !image::same(&status.image, &was.image) && !image::same(&status.image, &was.spec);
    by_name() || by_digest() || unchanged() || (quiet && image::digest(&container.image).is_none() && shown_anew())
}

/// Has the kubelet carried out the last change of the pod's images, whatever came of it? Each changed container was
/// started with its image, even if it crashed or never got ready, or cannot be pulled. Then nothing is in flight that a
/// later change could be taken for.
pub fn carried_out(pod: &Pod, now: Time) -> bool {
    // Between failed pulls the kubelet speaks of CrashLoopBackOff and names no image. So does a status in which the old
    // container was in it before and the change has only been seen, but not for long.
    let long_ago = pod.baseline.as_ref().is_some_and(|b| now.millis_since(b.at) >= STOPPED_AFTER_SECONDS * 1000);
    pod.containers.iter().all(|container| {
        let Some(status) = &container.status else { return false };
        let started = match &pod.baseline {
            Some(baseline) => baseline.was.get(&container.name).is_none_or(|was| {
                pod.observed_generation > baseline.generation
                    && status.id != was.id
                    && has_image(container, status, was, baseline.quiet)
            }),
            None => status.ready || (!status.id.is_empty() && image::same(&status.image, &container.image)),
        };
        let failed = match &status.state {
            ContainerState::Waiting { reason, message } => {
                image::named(message, &container.image) || (reason == "CrashLoopBackOff" && long_ago)
            }
            ContainerState::Running { .. } | ContainerState::Terminated(_) => false,
        };
        started || failed
    })
}

/// Is no earlier change of this pod in flight? Else the next one is harder to judge.
pub(crate) fn quiet(pod: &Pod, now: Time) -> bool {
    let arrived = replaced(pod, now) && available_at(pod, 0).is_some();
    pod.observed_generation >= pod.generation && (arrived || carried_out(pod, now))
}

fn digest_of(image_id: &str) -> Option<&str> {
    image::digest(image_id)
}

fn folded_candidate(pod: &Pod) -> bool {
    pod.baseline.as_ref().is_some_and(|b| {
        !b.quiet
            && pod.containers.iter().any(|c| {
                b.was.get(&c.name).is_some_and(|was| {
                    c.status.as_ref().is_some_and(|s| s.id == was.id) && image::same(&was.image, &c.image)
                })
            })
    })
}

/// When a container that is still the one of before counts as the wanted one, if it ever does.
pub fn folded_at(pod: &Pod) -> Option<Time> {
    pod.baseline.as_ref().filter(|_| folded_candidate(pod)).map(|b| b.at.plus_seconds(FOLDED_AFTER_SECONDS))
}

/// What a pod says of its own failure.
pub(crate) enum Evidence {
    /// Nothing.
    None,
    /// Something that is believed from then on.
    Until(Time),
    /// Why it is believed.
    Believed(String),
}

/// Is a container of this pod failing, by its own words? `Err`: why. `Ok`: when what it says now will be believed.
pub fn failure(pod: &Pod, tolerance: &Tolerance, now: Time) -> Result<Option<Time>, String> {
    match failing(pod, tolerance, now) {
        Evidence::None => Ok(None),
        Evidence::Until(at) => Ok(Some(at)),
        Evidence::Believed(why) => Err(why),
    }
}

/// Is a container of the wanted image failing, by its own words?
pub(crate) fn failing(pod: &Pod, tolerance: &Tolerance, now: Time) -> Evidence {
    let since = pod.baseline.as_ref().map_or(pod.created, |b| b.at);
    let seen = pod.baseline.as_ref().is_none_or(|b| pod.observed_generation > b.generation);
    if !seen {
        return Evidence::None;
    }
    if let Some(Resize::Infeasible(message)) = &pod.resize {
        return Evidence::Believed(format!("resize infeasible: {message}"));
    }
    let mut until: Option<Time> = None;
    for container in &pod.containers {
        let Some(status) = &container.status else { continue };
        let was = pod.baseline.as_ref().and_then(|b| b.was.get(&container.name));
        if pod.baseline.is_some() && was.is_none() {
            continue;
        }
        // Crashes count only if they are of the new container: exit code and id stand in lastState.
        let crashed = match (&status.state, &status.last) {
            (ContainerState::Terminated(t), _) | (_, Some(t)) => was.is_none_or(|was| t.id != was.id).then_some(t),
            _ => None,
        };
        let base = was.map_or(0, |was| was.restarts.saturating_add(1));
        if let Some(terminated) = crashed
            && status.restarts.saturating_sub(base) > tolerance.restarts
            && !status.ready
        {
            return Evidence::Believed(format!(
                "container {} crashed {} times, last with exit code {} ({})",
                container.name,
                status.restarts.saturating_sub(base),
                terminated.exit_code,
                terminated.reason
            ));
        }
        let ContainerState::Waiting { reason, message } = &status.state else { continue };
        if matches!(reason.as_str(), "" | "ContainerCreating" | "PodInitializing")
            || (reason == "CrashLoopBackOff" && crashed.is_some())
        {
            continue;
        }
        let names_it = image::named(message, &container.image);
        // The kubelet says why the image before could not be pulled until it has tried the new one, however long that
        // takes on a busy node.
        if !names_it && was.is_some_and(|was| image::named(message, &was.spec)) {
            continue;
        }
        let hopeless = matches!(reason.as_str(), "InvalidImageName" | "ErrImageNeverPull");
        // A healthy image that comes back soon waits in CrashLoopBackOff too: without a crash of its own only the
        // deadline decides.
        if reason == "CrashLoopBackOff" && !names_it {
            continue;
        }
        let patience = if hopeless {
            if names_it { 0 } else { BELIEVE_AFTER_SECONDS }
        } else {
            tolerance.seconds.max(if names_it { 0 } else { BELIEVE_AFTER_SECONDS })
        };
        let at = since.plus_seconds(patience);
        if at <= now {
            return Evidence::Believed(format!("container {}: {reason}: {}", container.name, clip(message, 300)));
        }
        until = Some(until.map_or(at, |u| u.min(at)));
    }
    until.map_or(Evidence::None, Evidence::Until)
}

/// At most so many characters of a text.
pub fn clip(text: impl Into<String>, most: usize) -> String {
    let text = text.into();
    if text.chars().count() <= most { text } else { text.chars().take(most).chain("...".chars()).collect() }
}
