//! The kinds that are served.

/// A kind, and how its objects behave.
#[derive(Debug)]
pub struct Kind {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    /// Status is a subresource.
    pub status: bool,
    /// `metadata.generation` is kept.
    pub generation: bool,
}

impl Kind {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `deployments.apps`: the resource as the API server names it in its messages.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    pub fn custom(&self) -> bool {
        self.group == interlock_core::api::names::GROUP
    }
}

const fn kind(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
    (namespaced, status, generation): (bool, bool, bool),
) -> Kind {
    Kind { group, version, plural, kind, namespaced, status, generation }
}

static KINDS: [Kind; 20] = [
    kind("apps", "v1", "deployments", "Deployment", (true, true, true)),
    kind("apps", "v1", "replicasets", "ReplicaSet", (true, true, true)),
    kind("", "v1", "pods", "Pod", (true, true, true)),
    kind("apps", "v1", "statefulsets", "StatefulSet", (true, true, true)),
    kind("apps", "v1", "daemonsets", "DaemonSet", (true, true, true)),
    kind("batch", "v1", "jobs", "Job", (true, true, true)),
    kind("", "v1", "services", "Service", (true, true, false)),
    kind("", "v1", "configmaps", "ConfigMap", (true, false, false)),
    kind("", "v1", "secrets", "Secret", (true, false, false)),
    kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", (true, false, true)),
    kind("", "v1", "namespaces", "Namespace", (false, true, false)),
    kind("", "v1", "resourcequotas", "ResourceQuota", (true, true, false)),
    kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", (true, true, true)),
    kind("interlock.dev", "v1alpha1", "hookpolicies", "HookPolicy", (true, true, true)),
    kind("interlock.dev", "v1alpha1", "rollingrestarts", "RollingRestart", (true, true, true)),
    kind("interlock.dev", "v1alpha1", "hookruns", "HookRun", (true, true, true)),
    kind("events.k8s.io", "v1", "events", "Event", (true, false, false)),
    kind("coordination.k8s.io", "v1", "leases", "Lease", (true, false, false)),
    kind(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingadmissionpolicies",
        "MutatingAdmissionPolicy",
        (false, false, true),
    ),
    kind(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingadmissionpolicybindings",
        "MutatingAdmissionPolicyBinding",
        (false, false, true),
    ),
];

pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|k| (k.group, k.version, k.plural) == (group, version, plural))
}

/// A kind by its plural.
pub fn of(plural: &str) -> &'static Kind {
    KINDS.iter().find(|k| k.plural == plural).expect("a kind that is served")
}
