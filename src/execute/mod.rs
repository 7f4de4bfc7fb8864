//! The only writer: one function per effect. It carries out and chooses nothing; what a write returned goes into the
//! cache before anybody plans again.

mod failure;
mod policies;
mod restarts;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use interlock_core::{
    api::{
        names,
        run::{HookRunSpec, HookRunStatus},
    },
    effect::{DeploymentPurpose, Effect, HookCall, Mirror, ReplicaSetPurpose},
    plan::StatusWrite,
    time::Time,
};
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};

pub use self::failure::Failure;
use crate::{
    action::Actions,
    observe::{
        DEPLOYMENT_LABEL, Item, Key, Observe, Version, Watched, label_value,
        object::{DeploymentKind, Kind, Object, PodKind, ReplicaSetKind, RunKind},
    },
    publish::{
        events::{About, DEPLOYMENTS, event},
        metrics::{Metrics, WriteResult, effect_kind},
    },
};

/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);
/// So many pod writes go side by side.
pub const SIDE_BY_SIDE: usize = 16;

/// Asked before every write: may this process still write?
pub type Fence = Arc<dyn Fn() -> bool + Send + Sync>;

/// The Deployment whose plan is carried out.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Namespace and name.
    pub key: Key,
    /// UID.
    pub uid: String,
    /// Whose plan it is: that is not planned again because of what it writes itself.
    pub by: Item,
}

impl Subject {
    /// A Deployment whose own plan is carried out.
    pub fn new(key: Key, uid: String) -> Self {
        Self { by: Item::Deployment(key.clone()), key, uid }
    }
}

/// Carries out effects.
pub struct Executor {
    client: Client,
    fence: Fence,
    observe: Arc<Observe>,
    actions: Arc<Actions>,
    metrics: Metrics,
    instance: String,
}

impl Executor {
    /// An executor. `instance` names this process in events.
    pub fn new(
        client: Client,
        fence: Fence,
        observe: Arc<Observe>,
        actions: Arc<Actions>,
        metrics: Metrics,
        instance: String,
    ) -> Self {
        Self { client, fence, observe, actions, metrics, instance }
    }

    /// Carries out effects in order; neighbouring writes to different pods go side by side. The first failure ends it, once those
    /// in flight have ended. Returns whether anything was written that can change the next plan.
    pub async fn perform(&self, subject: &Subject, effects: Vec<Effect>) -> Result<bool, Failure> {
        let mut wrote = false;
        let mut effects = effects.into_iter().peekable();
        while let Some(effect) = effects.next() {
            if pod_of(&effect).is_none() {
                wrote |= self.one(subject, effect).await?;
                continue;
            }
            let mut neighbours = vec![effect];
            while let Some(next) = effects.next_if(|next| pod_of(next).is_some()) {
                neighbours.push(next);
            }
            let mut running = stream::iter(by_pod(neighbours))
                .map(|effects| self.in_order(subject, effects))
                .buffer_unordered(SIDE_BY_SIDE);
            let mut failed = None;
            while let Some(result) = running.next().await {
                match result {
                    Ok(written) => wrote |= written,
                    Err(failure) => failed = failed.or(Some(failure)),
                }
            }
            if let Some(failure) = failed {
                return Err(failure);
            }
        }
        Ok(wrote)
    }

    /// Carries out effects one after the other.
    pub async fn in_order(&self, subject: &Subject, effects: Vec<Effect>) -> Result<bool, Failure> {
        let mut wrote = false;
        for effect in effects {
            wrote |= self.one(subject, effect).await?;
        }
        Ok(wrote)
    }

    /// Stores the status of a run.
    pub async fn status(&self, subject: &Subject, write: StatusWrite) -> Result<(), Failure> {
        let StatusWrite { run, resource_version, status, urgent: _ } = write;
        let effect = Effect::RecordStatus { run, resource_version, status: Box::new(status) };
        self.one(subject, effect).await.map(drop)
    }

    async fn one(&self, subject: &Subject, effect: Effect) -> Result<bool, Failure> {
        let (kind, writes) = (effect_kind(&effect), is_write(&effect));
        let result = self.dispatch(subject, effect).await;
        let outcome = match &result {
            Ok(_) => Some(WriteResult::Ok),
            Err(failure) => failure.result(),
        };
        if let Some(outcome) = outcome
            && writes
        {
            self.metrics.write_of(kind, outcome);
        }
        result
    }

    async fn dispatch(&self, subject: &Subject, effect: Effect) -> Result<bool, Failure> {
        match effect {
            Effect::CreateRun { name, spec } => self.create_run(subject, &name, *spec).await?,
            Effect::RecordStatus { run, resource_version, status } => {
                self.record_status(subject, &run, &resource_version, *status).await?;
            }
            Effect::DeleteRun { name, uid } => self.delete_run(subject, &name, uid).await?,
            Effect::PatchPod { name, patch } => {
                self.patch_json::<PodKind>(subject, &format!("pod/{name}"), &name, patch).await?;
            }
            Effect::ResizePod { name, patch } => self.resize_pod(subject, &name, patch).await?,
            Effect::SetReadinessGate { name, uid, open, since } => {
                self.set_readiness_gate(subject, &name, &uid, open, since).await?;
            }
            Effect::CreateReplicaSet { purpose, object } => self.create_replica_set(subject, purpose, object).await?,
            Effect::PatchReplicaSet { name, patch } => {
                self.patch_json::<ReplicaSetKind>(subject, &format!("replicaset/{name}"), &name, patch).await?;
            }
            Effect::DeleteReplicaSet { name, uid, resource_version } => {
                self.delete_replica_set(subject, &name, uid, resource_version).await?;
            }
            Effect::PatchDeployment { purpose, patch } => self.patch_deployment(subject, purpose, patch).await?,
            Effect::MirrorConditions { conditions } => self.mirror_conditions(subject, conditions).await?,
            Effect::StartHook(call) => {
                self.start_hook(subject, *call)?;
                return Ok(false);
            }
            Effect::CancelHooks(keys) => {
                self.actions.cancel(&subject.key, &keys);
                return Ok(false);
            }
            Effect::Event { warning, reason, message } => {
                self.event(subject, warning, &reason, &message).await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn create_run(&self, subject: &Subject, name: &str, spec: HookRunSpec) -> Result<(), Failure> {
        let what = format!("run/{name}");
        let object = json!({
            "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
            "kind": "HookRun",
            "metadata": {
                "name": name,
                "namespace": &*subject.key.namespace,
                "labels": {DEPLOYMENT_LABEL: label_value(&subject.key.name)},
                "ownerReferences": [{
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "name": &*subject.key.name,
                    "uid": subject.uid,
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": spec,
        });
        let api: Api<Object<RunKind>> = self.api(&subject.key);
        let run = self.call(&what, api.create(&post(), &Object::new(object))).await?;
        self.learn(subject, &run);
        Ok(())
    }

    async fn record_status(
        &self,
        subject: &Subject,
        run: &str,
        resource_version: &str,
        status: HookRunStatus,
    ) -> Result<(), Failure> {
        let what = format!("status/{run}");
        // Replaces the status whole: a merge patch would keep what is no longer there.
        let patch = json!([
            {"op": "add", "path": "/metadata/resourceVersion", "value": resource_version},
            {"op": "add", "path": "/status", "value": status},
        ]);
        let api: Api<Object<RunKind>> = self.api(&subject.key);
        let patch = json_patch::<Object<RunKind>>(&what, patch)?;
        let stored = self.call(&what, api.patch_status(run, &params(), &patch)).await?;
        self.learn(subject, &stored);
        self.actions.recorded(&subject.key, run, &status);
        Ok(())
    }

    async fn delete_run(&self, subject: &Subject, name: &str, uid: String) -> Result<(), Failure> {
        let api: Api<Object<RunKind>> = self.api(&subject.key);
        let params = delete(uid.clone(), None);
        self.call(&format!("run/{name}"), api.delete(name, &params)).await?;
        let key = Key::new(&subject.key.namespace, name);
        self.observe.forget::<RunKind>(&key, &gone(uid), Some(&subject.by));
        Ok(())
    }

    /// JSON patch of an object by name; its own `test` operations are the precondition.
    async fn patch_json<K: Watched>(
        &self,
        subject: &Subject,
        what: &str,
        name: &str,
        patch: Value,
    ) -> Result<(), Failure> {
        let api: Api<Object<K>> = self.api(&subject.key);
        let patch = json_patch::<Object<K>>(what, patch)?;
        let object = self.call(what, api.patch(name, &params(), &patch)).await?;
        self.learn(subject, &object);
        Ok(())
    }

    async fn resize_pod(&self, subject: &Subject, name: &str, patch: Value) -> Result<(), Failure> {
        let what = format!("resize/{name}");
        let api: Api<Object<PodKind>> = self.api(&subject.key);
        let patch = json_patch::<Object<PodKind>>(&what, patch)?;
        let pod = self.call(&what, api.patch_subresource("resize", name, &params(), &patch)).await?;
        self.learn(subject, &pod);
        Ok(())
    }

    async fn set_readiness_gate(
        &self,
        subject: &Subject,
        name: &str,
        uid: &str,
        open: bool,
        since: Time,
    ) -> Result<(), Failure> {
        let (status, reason) = if open { ("True", "Serving") } else { ("False", "UpdatingInPlace") };
        let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [{
            "type": names::READINESS_GATE, "status": status, "reason": reason, "lastTransitionTime": since.whole_seconds(),
        }]}});
        let api: Api<Object<PodKind>> = self.api(&subject.key);
        let patch = Patch::Strategic(patch);
        let pod = self.call(&format!("gate/{name}"), api.patch_status(name, &params(), &patch)).await?;
        self.learn(subject, &pod);
        Ok(())
    }

    async fn create_replica_set(
        &self,
        subject: &Subject,
        purpose: ReplicaSetPurpose,
        object: Value,
    ) -> Result<(), Failure> {
        let object: Object<ReplicaSetKind> = Object::new(object);
        let what = format!("replicaset/{}", kube::ResourceExt::name_any(&object));
        tracing::info!(deployment = %subject.key, ?purpose, %what, "creating a ReplicaSet");
        let api: Api<Object<ReplicaSetKind>> = self.api(&subject.key);
        let set = self.call(&what, api.create(&post(), &object)).await?;
        self.learn(subject, &set);
        Ok(())
    }

    async fn delete_replica_set(
        &self,
        subject: &Subject,
        name: &str,
        uid: String,
        resource_version: String,
    ) -> Result<(), Failure> {
        let api: Api<Object<ReplicaSetKind>> = self.api(&subject.key);
        let params = delete(uid.clone(), Some(resource_version));
        self.call(&format!("replicaset/{name}"), api.delete(name, &params)).await?;
        let key = Key::new(&subject.key.namespace, name);
        self.observe.forget::<ReplicaSetKind>(&key, &gone(uid), Some(&subject.by));
        Ok(())
    }

    async fn patch_deployment(
        &self,
        subject: &Subject,
        purpose: DeploymentPurpose,
        patch: Value,
    ) -> Result<(), Failure> {
        tracing::info!(deployment = %subject.key, ?purpose, "patching the Deployment");
        let api: Api<Object<DeploymentKind>> = self.api(&subject.key);
        let deployment = self.call("deployment", api.patch(&subject.key.name, &params(), &Patch::Merge(patch))).await?;
        self.learn(subject, &deployment);
        Ok(())
    }

    async fn mirror_conditions(&self, subject: &Subject, conditions: BTreeMap<String, Mirror>) -> Result<(), Failure> {
        let conditions: Vec<Value> = conditions
            .into_iter()
            .map(|(type_, mirror)| {
                let Mirror { status, reason, message, since } = mirror;
                let since = since.whole_seconds();
                json!({"type": type_, "status": status, "reason": reason, "message": message,
                    "lastTransitionTime": since, "lastUpdateTime": since})
            })
            .collect();
        let api: Api<Object<DeploymentKind>> = self.api(&subject.key);
        let patch = json!({"metadata": {"uid": subject.uid}, "status": {"conditions": conditions}});
        let patch = Patch::Strategic(patch);
        let deployment = self.call("conditions", api.patch_status(&subject.key.name, &params(), &patch)).await?;
        self.learn(subject, &deployment);
        Ok(())
    }

    fn start_hook(&self, subject: &Subject, call: HookCall) -> Result<(), Failure> {
        self.may_write()?;
        self.actions.start(&subject.key, call);
        Ok(())
    }

    /// Nothing depends on an event: one that cannot be written is logged, and the plan goes on.
    async fn event(&self, subject: &Subject, warning: bool, reason: &str, message: &str) -> Result<(), Failure> {
        let Subject { key, uid, .. } = subject;
        let about = About { kind: DEPLOYMENTS, namespace: &key.namespace, name: &key.name, uid };
        self.tell(about, warning, reason, message).await
    }

    /// The same on an object of any kind.
    async fn tell(&self, about: About<'_>, warning: bool, reason: &str, message: &str) -> Result<(), Failure> {
        let event = event(about, &self.instance, warning, reason, message);
        let api: Api<Event> = Api::namespaced(self.client.clone(), about.namespace);
        match self.call("event", api.create(&post(), &event)).await {
            Ok(_) => Ok(()),
            Err(Failure::Fenced) => Err(Failure::Fenced),
            Err(failure) => {
                tracing::warn!(?about, reason, %failure, "an event could not be written");
                Ok(())
            }
        }
    }

    /// Only the leader writes.
    fn may_write(&self) -> Result<(), Failure> {
        #[cfg(test)]
        if tests::planted_lease_check_removed() {
            return Ok(());
        }
        if (self.fence)() { Ok(()) } else { Err(Failure::Fenced) }
    }

    async fn call<T>(&self, what: &str, call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
        self.may_write()?;
        match tokio::time::timeout(CALL, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Failure::of(what, &error)),
            Err(_) => Err(Failure::timeout(what, CALL)),
        }
    }

    fn api<K: Kind>(&self, key: &Key) -> Api<Object<K>> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    fn learn<K: Watched>(&self, subject: &Subject, object: &Object<K>) {
        self.observe.learn(object, Some(&subject.by));
    }
}

/// Does it ask the API server for something?
pub fn is_write(effect: &Effect) -> bool {
    !matches!(effect, Effect::StartHook(_) | Effect::CancelHooks(_))
}

/// The pod that an effect writes to.
pub fn pod_of(effect: &Effect) -> Option<&str> {
    match effect {
        Effect::PatchPod { name, patch: _ }
        | Effect::ResizePod { name, patch: _ }
        | Effect::SetReadinessGate { name, uid: _, open: _, since: _ } => Some(name),
        _ => None,
    }
}

/// Effects on pods, those on the same pod together and in their order: the second write of a pod builds on the first.
pub fn by_pod(effects: Vec<Effect>) -> Vec<Vec<Effect>> {
    let mut groups: Vec<Vec<Effect>> = Vec::new();
    let mut index: HashMap<String, usize> = HashMap::new();
    for effect in effects {
        let name = pod_of(&effect).unwrap_or_default();
        let at = *index.entry(name.to_owned()).or_insert(groups.len());
        match groups.get_mut(at) {
            Some(group) => group.push(effect),
            None => groups.push(vec![effect]),
        }
    }
    groups
}

fn result_of<T>(result: &Result<T, Failure>) -> WriteResult {
    match result {
        Ok(_) => WriteResult::Ok,
        Err(failure) => failure.result().unwrap_or(WriteResult::Transient),
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

fn post() -> PostParams {
    PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

fn delete(uid: String, resource_version: Option<String>) -> DeleteParams {
    DeleteParams::background().preconditions(Preconditions { uid: Some(uid), resource_version })
}

fn gone(uid: String) -> Version {
    Version { uid: uid.into(), resource_version: "".into() }
}

fn json_patch<T: serde::Serialize>(what: &str, operations: Value) -> Result<Patch<T>, Failure> {
    serde_json::from_value(operations).map(Patch::Json).map_err(|error| Failure::Refused {
        what: what.to_owned(),
        message: format!("the patch is no JSON patch: {error}"),
    })
}
