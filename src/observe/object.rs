//! Objects as this crate reads and writes them: any kind, as pruned JSON, so that nothing a newer server adds is lost
//! and nothing that somebody wrote makes reading fail.

use std::{borrow::Cow, fmt, marker::PhantomData};

use k8s_openapi::NamespaceResourceScope;
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeSeed};
use serde_json::Value;

use super::{
    facts::json::text,
    shape::{self, Shape},
};

/// A kind of namespaced object, and which part of it is read.
pub trait Kind: Clone + fmt::Debug + Send + Sync + 'static {
    /// API group; empty for the core group.
    const GROUP: &'static str;
    /// API version.
    const VERSION: &'static str;
    /// Kind.
    const KIND: &'static str;
    /// Plural, as in URLs.
    const PLURAL: &'static str;
    /// What is kept of it.
    const SHAPE: Shape;
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $group:literal, $version:literal, $kind:literal, $plural:literal, $shape:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub enum $name {}
        impl Kind for $name {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = $version;
            const KIND: &'static str = $kind;
            const PLURAL: &'static str = $plural;
            const SHAPE: Shape = $shape;
        }
    )*};
}

kinds! {
    /// Deployments.
    DeploymentKind = "apps", "v1", "Deployment", "deployments", shape::WHOLE;
    /// ReplicaSets.
    ReplicaSetKind = "apps", "v1", "ReplicaSet", "replicasets", shape::WHOLE;
    /// StatefulSets, slim.
    StatefulSetKind = "apps", "v1", "StatefulSet", "statefulsets", shape::WORKLOAD;
    /// DaemonSets, slim.
    DaemonSetKind = "apps", "v1", "DaemonSet", "daemonsets", shape::WORKLOAD;
    /// Jobs, slim.
    JobKind = "batch", "v1", "Job", "jobs", shape::WORKLOAD;
    /// Pods, slim.
    PodKind = "", "v1", "Pod", "pods", shape::POD;
    /// Pods, of which only the version matters.
    PodVersionKind = "", "v1", "Pod", "pods", shape::VERSION;
    /// PodDisruptionBudgets.
    BudgetKind = "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", shape::WHOLE;
    /// HookPolicies.
    PolicyKind = "interlock.dev", "v1alpha1", "HookPolicy", "hookpolicies", shape::WHOLE;
    /// RollingRestarts.
    RestartKind = "interlock.dev", "v1alpha1", "RollingRestart", "rollingrestarts", shape::WHOLE;
    /// HookRuns.
    RunKind = "interlock.dev", "v1alpha1", "HookRun", "hookruns", shape::WHOLE;
}

/// An object of a kind.
#[derive(Clone, Debug)]
pub struct Object<K> {
    /// What kube wants to know of it: name, namespace, UID and resourceVersion only.
    meta: ObjectMeta,
    /// The object, pruned when it was read.
    pub json: Value,
    kind: PhantomData<K>,
}

impl<K: Kind> Object<K> {
    /// Wraps a JSON object as it is.
    pub fn new(json: Value) -> Self {
        let field =
            |name: &str| json.get("metadata").map(|m| text(m, name)).filter(|t| !t.is_empty()).map(ToOwned::to_owned);
        let meta = ObjectMeta {
            name: field("name"),
            namespace: field("namespace"),
            uid: field("uid"),
            resource_version: field("resourceVersion"),
            ..ObjectMeta::default()
        };
        Self { meta, json, kind: PhantomData }
    }
}

impl<'de, K: Kind> Deserialize<'de> for Object<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        (&K::SHAPE).deserialize(deserializer).map(Self::new)
    }
}

impl<K: Kind> Serialize for Object<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

impl<K: Kind> Resource for Object<K> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        K::KIND.into()
    }
    fn group((): &()) -> Cow<'_, str> {
        K::GROUP.into()
    }
    fn version((): &()) -> Cow<'_, str> {
        K::VERSION.into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        K::PLURAL.into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}
