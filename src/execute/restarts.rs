//! What is written for a RollingRestart: its status and its events. What it does to Deployments and pods are effects like others.

use interlock_core::{
    api::restart::RollingRestartStatus,
    restart::{Restart, Told},
};
use kube::Api;
use serde_json::json;

use super::{Executor, Failure, json_patch, params, result_of};
use crate::{
    observe::{
        Item, Key,
        object::{Object, RestartKind},
    },
    publish::events::About,
};

impl Executor {
    /// Replaces the status of a RollingRestart, over the version that was planned with.
    pub async fn restart_status(
        &self,
        key: &Key,
        resource_version: &str,
        status: &RollingRestartStatus,
    ) -> Result<(), Failure> {
        let what = format!("restart/{}", key.name);
        let api: Api<Object<RestartKind>> = self.api(key);
        let patch = json!([
            {"op": "add", "path": "/metadata/resourceVersion", "value": resource_version},
            {"op": "add", "path": "/status", "value": status},
        ]);
        let patch = json_patch::<Object<RestartKind>>(&what, patch)?;
        let result = self.call(&what, api.patch_status(&key.name, &params(), &patch)).await;
        self.metrics.write_of("RestartStatus", result_of(&result));
        let restart = result?;
        self.observe.learn(&restart, Some(&Item::Restart(key.clone())));
        Ok(())
    }

    /// An event on a RollingRestart.
    pub async fn tell_of_restart(&self, restart: &Restart, told: &Told) -> Result<(), Failure> {
        let Restart { namespace, name, uid, .. } = restart;
        let about = About { kind: ("interlock.dev/v1alpha1", "RollingRestart"), namespace, name, uid };
        self.tell(about, told.warning, told.reason.as_str(), &told.message).await
    }
}
