//! The API server, as runners use it.

use std::time::Duration;

use futures::{StreamExt as _, stream::BoxStream};
use interlock_core::{api::names, time::Time};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchParams},
    core::{DynamicObject, ObjectList, WatchEvent},
};
use serde_json::Value;

use crate::{controller::Clock, execute::Fence};

/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);
/// A watch is begun anew so often. Shorter than the silence after which the client gives a connection up.
const WATCH_SECONDS: u32 = 45;
/// Pauses after trouble: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// Objects per page of a list.
const PAGE: u32 = 100;

/// Group, version, kind and plural.
pub(super) type Resource = (&'static str, &'static str, &'static str, &'static str);

pub(super) const PODS: Resource = ("", "v1", "Pod", "pods");
pub(super) const SECRETS: Resource = ("", "v1", "Secret", "secrets");
pub(super) const CONFIG_MAPS: Resource = ("", "v1", "ConfigMap", "configmaps");
pub(super) const SERVICES: Resource = ("", "v1", "Service", "services");
pub(super) const SLICES: Resource = ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
pub(super) const JOBS: Resource = ("batch", "v1", "Job", "jobs");
pub(super) const DEPLOYMENTS: Resource = ("apps", "v1", "Deployment", "deployments");
pub(super) const REPLICA_SETS: Resource = ("apps", "v1", "ReplicaSet", "replicasets");

/// The API server, with what every write of a runner asks first, and the planner's clock. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    fence: Fence,
    clock: Clock,
}

/// A call that came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no such object.
    Missing,
    /// There is one of this name already.
    Exists,
    /// A precondition does not hold any more.
    Lost,
    /// A quota is used up, which may pass.
    Quota,
    /// Refused for good.
    Refused,
    /// No answer, or one that may pass. A write may have been carried out.
    Unknown,
}

/// What is seen of an object that is followed.
pub(super) enum Seen {
    /// As it is.
    There(DynamicObject),
    /// It was deleted; its last state.
    Deleted(DynamicObject),
    /// There is none of this name.
    Missing,
}

impl Cluster {
    /// `fence` is asked before every write.
    pub fn new(client: Client, fence: Fence, clock: Clock) -> Self {
        Self { client, fence, clock }
    }

    /// Now.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    pub(super) fn api(&self, namespace: &str, (group, version, kind, plural): Resource) -> Api<DynamicObject> {
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version,
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    /// An object; [`Trouble::Missing`] if there is none.
    pub(super) async fn get(&self, api: &Api<DynamicObject>, name: &str) -> Result<DynamicObject, Trouble> {
        asked(api.get(name)).await
    }

    /// All objects that these parameters select, live.
    pub(super) async fn list(
        &self,
        api: &Api<DynamicObject>,
        params: ListParams,
    ) -> Result<Vec<DynamicObject>, Trouble> {
        let mut params = params.limit(PAGE);
        let mut all = Vec::new();
        loop {
            let ObjectList { metadata, items, .. } = asked(api.list(&params)).await?;
            all.extend(items);
            match metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(all),
            }
        }
    }

    /// Creates an object, once: nothing is sent again by itself.
    pub(super) async fn create(&self, api: &Api<DynamicObject>, object: Value) -> Result<DynamicObject, Trouble> {
        self.may_write().await;
        let object: DynamicObject = serde_json::from_value(object).map_err(|_| Trouble::Refused)?;
        let params = PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() };
        asked(api.create(&params, &object)).await
    }

    /// JSON merge patch. Preconditions are inside: `metadata.uid`, `metadata.resourceVersion`.
    pub(super) async fn merge(&self, api: &Api<DynamicObject>, name: &str, patch: &Value) -> Result<(), Trouble> {
        self.may_write().await;
        let params = PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        asked(api.patch(name, &params, &Patch::Merge(patch))).await.map(drop)
    }

    /// Deletes this very object, and what it owns in the background. It is gone already: done.
    pub(super) async fn delete(&self, api: &Api<DynamicObject>, object: &DynamicObject) -> Result<(), Trouble> {
        self.may_write().await;
        let (Some(name), Some(uid)) = (object.metadata.name.as_deref(), object.metadata.uid.clone()) else {
            return Err(Trouble::Missing);
        };
        let preconditions = Preconditions { uid: Some(uid), resource_version: None };
        let params = DeleteParams::background().preconditions(preconditions);
        match asked(api.delete(name, &params)).await {
            Ok(_) | Err(Trouble::Missing | Trouble::Lost) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// Deletes it, however often that has to be tried. For what is to be gone before an attempt counts as ended.
    pub(super) async fn delete_surely(&self, api: &Api<DynamicObject>, object: &DynamicObject) {
        let mut pause = Pause::default();
        while let Err(Trouble::Unknown | Trouble::Quota) = self.delete(api, object).await {
            pause.take().await;
        }
    }

    /// Follows an object by its name.
    pub(super) fn follow<'a>(&'a self, api: &'a Api<DynamicObject>, name: &'a str) -> Follow<'a> {
        Follow { cluster: self, api, name, watch: None, pause: Pause::default(), late: false }
    }

    /// Who may not write any more does nothing more: this process is about to end.
    async fn may_write(&self) {
        if !(self.fence)() {
            std::future::pending::<()>().await;
        }
    }
}

/// Shows every state of an object. Nothing is missed: the watch begins before the object is read.
pub(super) struct Follow<'a> {
    cluster: &'a Cluster,
    api: &'a Api<DynamicObject>,
    name: &'a str,
    watch: Option<BoxStream<'static, kube::Result<WatchEvent<DynamicObject>>>>,
    pause: Pause,
    /// A pause is due before anything is asked again.
    late: bool,
}

impl Follow<'_> {
    /// The next state that is seen.
    pub(super) async fn next(&mut self) -> Seen {
        loop {
            let Some(watch) = &mut self.watch else {
                if std::mem::replace(&mut self.late, true) {
                    self.pause.take().await;
                }
                let params = WatchParams::default().fields(&format!("metadata.name={}", self.name));
                self.watch = match asked(self.api.watch(&params.timeout(WATCH_SECONDS), "")).await {
                    Ok(watch) => Some(watch.boxed()),
                    Err(_) => None,
                };
                match self.cluster.get(self.api, self.name).await {
                    Ok(object) => return Seen::There(object),
                    Err(Trouble::Missing) => return Seen::Missing,
                    Err(_) => {
                        self.watch = None;
                        continue;
                    }
                }
            };
            let seen = match watch.next().await {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => Seen::There(object),
                Some(Ok(WatchEvent::Deleted(object))) => Seen::Deleted(object),
                Some(Ok(WatchEvent::Bookmark(_))) => continue,
                Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => {
                    self.watch = None;
                    continue;
                }
            };
            self.pause = Pause::default();
            return seen;
        }
    }
}

/// Pauses that grow.
pub(super) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(PAUSES.0)
    }
}

impl Pause {
    /// Takes the next one.
    pub(super) async fn take(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(PAUSES.1);
    }
}

async fn asked<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Trouble> {
    match tokio::time::timeout(CALL, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(of(&status)),
        Ok(Err(_)) | Err(_) => Err(Trouble::Unknown),
    }
}

fn of(status: &kube::core::Status) -> Trouble {
    match status.code {
        404 => Trouble::Missing,
        409 if status.reason == "AlreadyExists" => Trouble::Exists,
        409 => Trouble::Lost,
        403 if status.message.contains("exceeded quota") => Trouble::Quota,
        422 if status.message.contains("metadata.uid") => Trouble::Lost,
        400 | 403 | 405 | 413 | 415 | 422 => Trouble::Refused,
        _ => Trouble::Unknown,
    }
}
