//! The null client: it only issues the writes that an in-place update cannot do without, and knows nothing of holds,
//! crashes or other people. One JSON patch per pod, [`SIDE_BY_SIDE`] at once, within maxUnavailable, then it waits until each
//! is done by the same rule as Interlock. It works on a paused Deployment, whose controller leaves the pods alone, and leaves
//! the template as it is: there is no commit.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream::FuturesUnordered};
use interlock::observe::{
    facts,
    object::{Object, PodKind},
};
use interlock_core::{
    api::policy::Tolerance,
    pod::{Stage, stage},
    time::Time,
    world::{Baseline, Pod, Was},
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::json;

/// As many writes at once as Interlock allows itself.
const SIDE_BY_SIDE: usize = 16;

/// Puts all pods of a namespace to an image.
pub(crate) async fn update(client: Client, namespace: &str, image: &str, max_unavailable: usize) -> Result<()> {
    let pods: Api<Object<PodKind>> = Api::namespaced(client, namespace);
    let list = pods.list(&ListParams::default()).await?;
    let mut version = list.metadata.resource_version.clone().unwrap_or_default();
    let mut all: BTreeMap<String, Pod> =
        list.items.iter().filter_map(|o| facts::pod::pod(&o.json)).map(|p| (p.name.clone(), p)).collect();
    let mut waiting: Vec<String> = all.keys().rev().cloned().collect();
    let mut moving: BTreeSet<String> = BTreeSet::new();
    let mut baselines: BTreeMap<String, Baseline> = BTreeMap::new();
    let mut writes = FuturesUnordered::new();
    loop {
        let mut events = Box::pin(pods.watch(&WatchParams::default().timeout(290), &version).await?).fuse();
        loop {
            while writes.len() < SIDE_BY_SIDE
                && moving.len() < max_unavailable
                && let Some(name) = waiting.pop()
            {
                let pod = all.get(&name).context("a pod is unknown")?;
                baselines.insert(name.clone(), baseline(pod));
                moving.insert(name.clone());
                writes.push(write(&pods, pod, image)?.boxed());
            }
            if waiting.is_empty() && moving.is_empty() {
                return Ok(());
            }
            let object = futures::select! {
                answer = writes.select_next_some() => answer?,
                event = events.try_next() => match event? {
                    Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                        version = kube::ResourceExt::resource_version(&object).unwrap_or(version);
                        object
                    }
                    Some(WatchEvent::Deleted(_)) => bail!("a pod was deleted under the null client"),
                    Some(WatchEvent::Bookmark(_)) => continue,
                    Some(WatchEvent::Error(status)) => bail!("the null client's watch ended: {}", status.message),
                    None => break,
                },
            };
            let Some(mut pod) = facts::pod::pod(&object.json) else { continue };
            let newer =
                all.get(&pod.name).is_none_or(|known| number(&known.resource_version) <= number(&pod.resource_version));
            if !newer {
                continue;
            }
            let name = pod.name.clone();
            if moving.contains(&name) && pod.containers.iter().any(|c| c.image == image) {
                pod.baseline = baselines.get(&name).cloned();
                if stage(&pod, false, 0, &Tolerance::default(), now()) == Stage::Done {
                    moving.remove(&name);
                }
            }
            all.insert(name, pod);
        }
    }
}

fn write<'a>(
    pods: &'a Api<Object<PodKind>>,
    pod: &Pod,
    image: &str,
) -> Result<impl Future<Output = Result<Object<PodKind>>> + use<'a>> {
    let container = pod.containers.first().context("a pod without a container")?;
    let operations = serde_json::from_value(json!([
        {"op": "test", "path": "/spec/containers/0/image", "value": container.image},
        {"op": "replace", "path": "/spec/containers/0/image", "value": image},
    ]))?;
    let (name, patch) = (pod.name.clone(), Patch::<()>::Json(operations));
    Ok(async move { Ok(pods.patch(&name, &PatchParams::default(), &patch).await?) })
}

/// What Interlock writes into the pod, kept in memory.
fn baseline(pod: &Pod) -> Baseline {
    let was = pod.containers.iter().map(|c| {
        let status = c.status.clone().unwrap_or_default();
        let was = Was {
            spec: c.image.clone(),
            id: status.id,
            image: status.image,
            image_id: status.image_id,
            restarts: status.restarts,
        };
        (c.name.clone(), Box::new(was))
    });
    Baseline { target: String::new(), generation: pod.generation, at: now(), tries: 1, quiet: true, was: was.collect() }
}

fn now() -> Time {
    Time(jiff::Timestamp::now().as_millisecond())
}

fn number(resource_version: &str) -> u64 {
    resource_version.parse().unwrap_or(0)
}
