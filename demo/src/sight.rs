//! Pods as the watch showed them, event by event, and what follows from that. Pure, so that it can be tested.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use k8s_openapi::api::core::v1::Pod;

/// One pod as one event showed it.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    /// When this program saw it.
    pub(crate) at: Instant,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Its resourceVersion.
    pub(crate) version: String,
    /// Its label `app`: the component.
    pub(crate) app: String,
    /// Image of its container by spec.
    pub(crate) wanted: String,
    /// Image of its container by status.
    pub(crate) running: String,
    pub(crate) ready: bool,
    /// Restarts of its containers, added up.
    pub(crate) restarts: i64,
    /// It was deleted.
    pub(crate) gone: bool,
}

impl Sight {
    /// What an event says of a pod.
    pub(crate) fn new(pod: &Pod, gone: bool) -> Self {
        let (meta, status) = (&pod.metadata, pod.status.as_ref());
        let containers = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
        Self {
            at: Instant::now(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            app: meta.labels.as_ref().and_then(|labels| labels.get("app")).cloned().unwrap_or_default(),
            wanted: container.and_then(|container| container.image.clone()).unwrap_or_default(),
            running: containers.first().map(|container| container.image.clone()).unwrap_or_default(),
            ready: meta.deletion_timestamp.is_none()
                && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            restarts: containers.iter().map(|container| i64::from(container.restart_count)).sum(),
            gone,
        }
    }
}

/// The pods that exist, by UID.
pub(crate) type Picture<'a> = BTreeMap<&'a str, &'a Sight>;

/// The pods of a component that exist after these sights.
pub(crate) fn picture<'a>(sights: &'a [Sight], app: &str) -> Picture<'a> {
    let mut pods = BTreeMap::new();
    for sight in sights.iter().filter(|sight| sight.app == app) {
        see(&mut pods, sight);
    }
    pods
}

fn see<'a>(pods: &mut Picture<'a>, sight: &'a Sight) {
    if sight.gone {
        pods.remove(sight.uid.as_str());
    } else {
        pods.insert(&sight.uid, sight);
    }
}

/// The pictures of a component from `mark` on: the one at the mark, then one per event.
fn pictures<'a>(sights: &'a [Sight], app: &'a str, mark: usize) -> impl Iterator<Item = Picture<'a>> {
    let (before, after) = sights.split_at_checked(mark).unwrap_or((sights, &[]));
    let mut pods = picture(before, app);
    let first = pods.clone();
    std::iter::once(first).chain(after.iter().filter(move |sight| sight.app == app).map(move |sight| {
        see(&mut pods, sight);
        pods.clone()
    }))
}

/// How many of them are ready, and run `image` if one is given.
pub(crate) fn ready(pods: &Picture<'_>, image: Option<&str>) -> usize {
    pods.values().filter(|pod| pod.ready && image.is_none_or(|image| pod.running == image)).count()
}

/// The fewest ready pods of a component at any moment from `mark` on.
pub(crate) fn fewest_ready(sights: &[Sight], app: &str, mark: usize) -> usize {
    pictures(sights, app, mark).map(|pods| ready(&pods, None)).min().unwrap_or_default()
}

/// The most pods of a component that were not ready or had `image` at any moment from `mark` on.
pub(crate) fn most_in_doubt(sights: &[Sight], app: &str, mark: usize, image: &str) -> usize {
    pictures(sights, app, mark)
        .map(|pods| pods.values().filter(|pod| !pod.ready || pod.wanted == image).count())
        .max()
        .unwrap_or_default()
}

/// Pods of a component that came after `mark`, and pods that went after it.
pub(crate) fn born_and_gone(sights: &[Sight], app: &str, mark: usize) -> (usize, usize) {
    let (before, after) = sights.split_at_checked(mark).unwrap_or((sights, &[]));
    let uids = |sights: &'_ [Sight], gone: bool| -> BTreeSet<String> {
        let of_app = sights.iter().filter(|sight| sight.app == app && (!gone || sight.gone));
        of_app.map(|sight| sight.uid.clone()).collect()
    };
    let known = uids(before, false);
    (uids(after, false).difference(&known).count(), uids(after, true).len())
}

/// Pods of a component at `mark` that are still there at the end.
pub(crate) fn kept(sights: &[Sight], app: &str, mark: usize) -> usize {
    let before = picture(sights.get(..mark).unwrap_or(sights), app);
    picture(sights, app).keys().filter(|uid| before.contains_key(*uid)).count()
}

/// For each pod at `mark` that is still there: by how much its restarts grew.
pub(crate) fn restarts(sights: &[Sight], app: &str, mark: usize) -> Vec<i64> {
    let before = picture(sights.get(..mark).unwrap_or(sights), app);
    let now = picture(sights, app);
    now.iter().filter_map(|(uid, pod)| before.get(uid).map(|old| pod.restarts - old.restarts)).collect()
}

/// Index of the first sight from `mark` on that shows a pod of the component with this image in its spec.
pub(crate) fn first(sights: &[Sight], app: &str, mark: usize, image: &str) -> Option<usize> {
    let later = sights.iter().enumerate().skip(mark);
    later.filter(|(_, sight)| sight.app == app && !sight.gone && sight.wanted == image).map(|(index, _)| index).next()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A running pod.
    pub(crate) fn pod(app: &str, uid: &str, tag: &str, ready: bool, restarts: i64) -> Sight {
        let image = format!("r/{app}:{tag}");
        Sight {
            at: Instant::now(),
            name: uid.into(),
            uid: uid.into(),
            version: "1".into(),
            app: app.into(),
            wanted: image.clone(),
            running: image,
            ready,
            restarts,
            gone: false,
        }
    }

    /// Its end.
    pub(crate) fn gone(app: &str, uid: &str) -> Sight {
        Sight { gone: true, ..pod(app, uid, "v1", false, 0) }
    }

    #[test]
    fn the_worst_moment_counts_not_the_last() {
        let sights = [
            pod("a", "1", "v1", true, 0),
            pod("a", "2", "v1", true, 0),
            pod("b", "9", "v1", false, 0),
            pod("a", "1", "v2", false, 1),
            pod("a", "2", "v2", false, 1),
            pod("a", "1", "v2", true, 1),
            pod("a", "2", "v2", true, 1),
        ];
        assert_eq!(fewest_ready(&sights, "a", 2), 0);
        assert_eq!(fewest_ready(&sights, "a", 7), 2);
        assert_eq!(most_in_doubt(&sights, "a", 2, "r/a:v3"), 2);
        assert_eq!(most_in_doubt(&sights, "a", 7, "r/a:v2"), 2);
        assert_eq!(restarts(&sights, "a", 2), [1, 1]);
        assert_eq!(born_and_gone(&sights, "a", 2), (0, 0));
        assert_eq!(first(&sights, "a", 0, "r/a:v2"), Some(3));
    }

    #[test]
    fn a_pod_that_came_and_went_is_counted_twice_and_one_that_stayed_is_kept() {
        let sights = [
            pod("a", "1", "v1", true, 0),
            pod("a", "2", "v1", true, 0),
            pod("a", "3", "v1", true, 0),
            gone("a", "3"),
            gone("a", "1"),
            pod("a", "4", "v1", true, 0),
        ];
        assert_eq!(born_and_gone(&sights, "a", 2), (2, 2));
        assert_eq!(kept(&sights, "a", 2), 1);
        assert_eq!(ready(&picture(&sights, "a"), Some("r/a:v1")), 2);
        assert_eq!(ready(&picture(&sights, "a"), Some("r/a:v2")), 0);
    }
}
