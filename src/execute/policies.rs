//! What is written for a HookPolicy: its status, and dry runs that show whether its hold is in force.

use interlock_core::api::policy::HookPolicyStatus;
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Executor, Failure, json_patch, params, result_of};
use crate::observe::{
    Item, Key,
    object::{DeploymentKind, Object, PolicyKind},
};

/// Name of the admission policy that holds, and of its binding.
const HOLD: &str = "interlock-hold";

impl Executor {
    /// Replaces the status of a HookPolicy. Nobody else writes it, and it names the generation that it speaks of.
    pub async fn policy_status(&self, key: &Key, status: &HookPolicyStatus) -> Result<(), Failure> {
        let what = format!("policy/{}", key.name);
        let api: Api<Object<PolicyKind>> = self.api(key);
        let patch =
            json_patch::<Object<PolicyKind>>(&what, json!([{"op": "add", "path": "/status", "value": status}]))?;
        let result = self.call(&what, api.patch_status(&key.name, &params(), &patch)).await;
        self.metrics.write_of("PolicyStatus", result_of(&result));
        let policy = result?;
        self.observe.learn(&policy, Some(&Item::Policy(key.clone())));
        Ok(())
    }

    /// What the API server would make of this change of a Deployment. Nothing is written.
    pub async fn dry_run(&self, key: &Key, patch: Value) -> Result<Value, Failure> {
        let api: Api<Object<DeploymentKind>> = self.api(key);
        let params = PatchParams { dry_run: true, ..params() };
        let what = format!("deployment/{} (dry run)", key.name);
        self.call(&what, api.patch(&key.name, &params, &Patch::Strategic(patch))).await.map(|object| object.json)
    }

    /// Why a dry run did not come back held: a reason and a message for condition `Enforced`.
    pub async fn why_not_held(&self) -> (&'static str, String) {
        let install = "run: kubectl interlock install";
        let policies: Api<MutatingAdmissionPolicy> = Api::all(self.client.clone());
        match self.call("admission policy", policies.get_opt(HOLD)).await {
            Ok(Some(_)) => {}
            Ok(None) => {
                let message = format!(
                    "MutatingAdmissionPolicy {HOLD} is not there, or the API server does not serve admissionregistration.k8s.io/v1 \
                     mutatingadmissionpolicies (Kubernetes 1.36 does); {install}"
                );
                return ("HoldNotInstalled", message);
            }
            Err(failure) => return ("NotHeld", format!("a dry run was not held, and why is not known: {failure}")),
        }
        let bindings: Api<MutatingAdmissionPolicyBinding> = Api::all(self.client.clone());
        match self.call("admission policy binding", bindings.get_opt(HOLD)).await {
            Ok(None) => ("HoldNotBound", format!("MutatingAdmissionPolicyBinding {HOLD} is not there; {install}")),
            Ok(Some(_)) | Err(_) => (
                "NotHeld",
                "a dry run of a template change was not held; a new policy takes effect within moments".to_owned(),
            ),
        }
    }
}
