//! The custom resources as kube sees them, their CustomResourceDefinitions, and what stands in annotations as text.
//!
//! The types of spec and status live in [`interlock_core::api`]; here they get `apiVersion`, `kind` and `metadata`.

pub mod annotation;
mod crd;

use std::borrow::Cow;

use interlock_core::api::{
    names,
    policy::{HookPolicySpec, HookPolicyStatus},
    restart::{RollingRestartSpec, RollingRestartStatus},
    run::{HookRunSpec, HookRunStatus},
};
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct as _};

pub use crd::{crds, definition};

/// One custom resource: the object, kube's view of it, and its JSON form with `apiVersion` and `kind`.
macro_rules! resource {
    ($(#[$doc:meta])* $kind:ident, $plural:literal, $spec:ty, $status:ty) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Deserialize)]
        pub struct $kind {
            /// `metadata`.
            #[serde(default)]
            pub metadata: ObjectMeta,
            /// `spec`.
            pub spec: $spec,
            /// `status`; `None` before the controller has written it.
            #[serde(default)]
            pub status: Option<$status>,
        }

        impl $kind {
            /// A new object with this name, for a namespace that the request will name.
            pub fn new(name: &str, spec: $spec) -> Self {
                Self { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, spec, status: None }
            }
        }

        impl kube::Resource for $kind {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                stringify!($kind).into()
            }
            fn group((): &()) -> Cow<'_, str> {
                names::GROUP.into()
            }
            fn version((): &()) -> Cow<'_, str> {
                names::VERSION.into()
            }
            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let Self { metadata, spec, status } = self;
                let mut object = serializer.serialize_struct(stringify!($kind), 4 + usize::from(status.is_some()))?;
                object.serialize_field("apiVersion", &<Self as kube::Resource>::api_version(&()))?;
                object.serialize_field("kind", stringify!($kind))?;
                object.serialize_field("metadata", metadata)?;
                object.serialize_field("spec", spec)?;
                if let Some(status) = status {
                    object.serialize_field("status", status)?;
                }
                object.end()
            }
        }
    };
}

resource! {
    /// Which updates are held, what runs before and after, how pods are updated and in which order.
    ///
    /// An object that a newer version wrote may not parse. To watch without tripping over one, use
    /// `Api<kube::core::DeserializeGuard<HookPolicy>>`.
    HookPolicy, "hookpolicies", HookPolicySpec, HookPolicyStatus
}

resource! {
    /// The durable record of one update. Made and reported by the controller; people add decisions.
    HookRun, "hookruns", HookRunSpec, HookRunStatus
}

resource! {
    /// A request to make the pods of the Deployments of a namespace anew one Deployment after the other, or to change a sidecar
    /// of theirs in place. Made by people, reported by the controller.
    RollingRestart, "rollingrestarts", RollingRestartSpec, RollingRestartStatus
}
