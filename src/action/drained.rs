//! A drained pod: no EndpointSlice of its namespace shows it as ready any more.
//!
//! A live list decides: a cache may be behind, and then the pod would still get requests while its container is
//! replaced. Until then the slice that shows it is watched by its name, so that many pods at a time do not list all slices
//! again and again. Slices of a Service with `publishNotReadyAddresses` do not count: they show every pod as ready, whatever
//! it says of itself. Reason: `Drained`.

use std::collections::BTreeMap;

use kube::{api::ListParams, core::DynamicObject};
use serde_json::Value;

use super::{
    Attempt, End, INVALID_HOOK,
    cluster::{Pause, SERVICES, SLICES, Seen, Trouble},
};

/// Label of a slice with the name of its Service.
const SERVICE: &str = "kubernetes.io/service-name";
/// Carries out one attempt.
pub(super) async fn attempt(attempt: &Attempt<'_>) -> End {
    let Some(pod) = &attempt.call.pod else { return End::failed(INVALID_HOOK) };
    let api = attempt.cluster.api(&attempt.call.namespace, SLICES);
    let (mut pause, mut regardless) = (Pause::default(), BTreeMap::new());
    loop {
        match shown(attempt, &pod.uid, &mut regardless).await {
            Ok(None) => return End::succeeded("Drained"),
            Ok(Some(slice)) => {
                let mut follow = attempt.cluster.follow(&api, &slice);
                while let Seen::There(slice) = follow.next().await {
                    if !ready(&slice, &pod.uid) {
                        break;
                    }
                }
            }
            Err(_) => pause.take().await,
        }
    }
}

/// A slice that counts and shows the pod as ready.
async fn shown(
    attempt: &Attempt<'_>,
    uid: &str,
    regardless: &mut BTreeMap<String, bool>,
) -> Result<Option<String>, Trouble> {
    let (cluster, namespace) = (attempt.cluster, &attempt.call.namespace);
    for slice in cluster.list(&cluster.api(namespace, SLICES), ListParams::default()).await? {
        if !ready(&slice, uid) {
            continue;
        }
        let Some(service) = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE)) else {
            return Ok(slice.metadata.name);
        };
        if !regardless.contains_key(service) {
            let publishes = match cluster.get(&cluster.api(namespace, SERVICES), service).await {
                Ok(found) => found.data.pointer("/spec/publishNotReadyAddresses") == Some(&Value::Bool(true)),
                Err(Trouble::Missing) => false,
                Err(trouble) => return Err(trouble),
            };
            regardless.insert(service.clone(), publishes);
        }
        if regardless.get(service) == Some(&false) {
            return Ok(slice.metadata.name);
        }
    }
    Ok(None)
}

/// An endpoint that does not say whether it is ready is ready.
fn ready(slice: &DynamicObject, uid: &str) -> bool {
    let endpoints = slice.data.get("endpoints").and_then(Value::as_array).into_iter().flatten();
    endpoints
        .filter(|endpoint| endpoint.pointer("/targetRef/uid").is_some_and(|u| u == uid))
        .any(|endpoint| endpoint.pointer("/conditions/ready") != Some(&Value::Bool(false)))
}

#[cfg(test)]
mod tests;
