//! Names that appear on objects: the API group, annotations, labels, condition types.

/// API group of the custom resources.
pub const GROUP: &str = "interlock.dev";
/// API version of the custom resources.
pub const VERSION: &str = "v1alpha1";

/// Deployment: hooks without a HookPolicy (a YAML list of hooks).
pub const HOOKS: &str = "interlock.dev/hooks";
/// Deployment: what it waits for (see [`super::reference::Reference`]), comma separated.
pub const AFTER: &str = "interlock.dev/after";
/// Deployment: name of the HookPolicy that governs it.
pub const POLICY: &str = "interlock.dev/policy";

/// Deployment: `"never"` keeps every RollingRestart from it.
pub const RESTARTS: &str = "interlock.dev/restarts";
/// Pod template: UID of the RollingRestart that made the pods anew.
pub const RESTART: &str = "interlock.dev/restart";
/// Pod template: the same as `kubectl rollout restart` writes it, a time.
pub const KUBECTL_RESTART: &str = "kubectl.kubernetes.io/restartedAt";

/// Deployment: who holds it (a HookPolicy's name or `annotation`). Written by admission only.
pub const HELD_BY: &str = "interlock.dev/held-by";
/// Deployment: the generation on which the hold was made. Marks that name another one are copies.
pub const HELD_AT: &str = "interlock.dev/held-at";
/// Deployment: `"false"` while the user's own pause outlives the hold.
pub const RESUME: &str = "interlock.dev/resume";
/// Deployment: equals the resourceVersion it replaces in the write that ends a hold.
pub const RELEASE: &str = "interlock.dev/release";
/// The marks of a hold, in the order in which they are written.
pub const MARKS: [&str; 4] = [HELD_BY, HELD_AT, RESUME, RELEASE];

/// Pod: what our last in-place update of this pod started from, and where it goes (JSON).
pub const UPDATE: &str = "interlock.dev/update";
/// Pod: what a `podGate` waits for now: PreparingUpdate, Updating, Updated.
pub const POD_STATE: &str = "interlock.dev/state";
/// Pod: the readiness gate by which a pod leaves the EndpointSlices before its containers are replaced.
pub const READINESS_GATE: &str = "interlock.dev/in-place-update-ready";
/// Job and pod of a hook: the key of the attempt, as an annotation, and a hash of it, as a label.
pub const HOOK_KEY: &str = "interlock.dev/hook-key";
/// Deployment or pod: what `patch` hooks with `undoOnRevert` replaced (JSON), by the run that did.
pub const UNDO: &str = "interlock.dev/undo";
/// Pod or Namespace label: `enabled` asks for the readiness gate in new pods, `disabled` on a pod goes before its namespace.
pub const READINESS_GATE_LABEL: &str = "interlock.dev/readiness-gate";
/// ReplicaSet label: made by us to keep a revision in the history. A label, since `rollout undo` copies annotations.
pub const HISTORY_LABEL: &str = "interlock.dev/history";
/// ReplicaSet label: an empty copy that keeps the template that ran last the youngest while nothing runs.
pub const COPY_LABEL: &str = "interlock.dev/copy";

/// Value of [`HELD_BY`] when no HookPolicy but the Deployment's own annotations hold it.
pub const BY_ANNOTATION: &str = "annotation";

/// Label that the Deployment controller gives ReplicaSets and their pods.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";
/// Annotation with a ReplicaSet's or Deployment's revision.
pub const REVISION: &str = "deployment.kubernetes.io/revision";
/// Annotation with the revisions that a ReplicaSet had before, by which its template came back.
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// Annotations that the Deployment controller keeps on ReplicaSets for its own arithmetic. On a ReplicaSet made by
/// us a stale value wedges the Deployment for ever.
pub const DEPLOYMENT_PREFIX: &str = "deployment.kubernetes.io/";
/// The Deployment's replicas when its controller last scaled this ReplicaSet.
pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// kubectl's copy of what was applied.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Condition type on the Deployment: an update is held.
pub const CONDITION_HELD: &str = "interlock.dev/Held";
/// Condition type on the Deployment: outcome of its last run.
pub const CONDITION_SUCCEEDED: &str = "interlock.dev/Succeeded";

/// Field manager of all writes by the controller.
pub const FIELD_MANAGER: &str = "interlock";

/// Is this annotation one of the hold's marks?
pub fn is_mark(key: &str) -> bool {
    MARKS.contains(&key)
}
