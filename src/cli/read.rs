//! What the commands read: as the user, as it is now.

use interlock_core::{
    api::names,
    world::{Deployment, Policy, ReplicaSet, Run},
};
use kube::{Api, api::ListParams};
use serde_json::Value;

use super::{connect::Connection, exit::Failure, target::Target};
use crate::observe::{
    DEPLOYMENT_LABEL, facts, label_value,
    object::{DeploymentKind, Kind, Object, PolicyKind, ReplicaSetKind, RunKind},
};

/// Objects per page of a list.
const PAGE: u32 = 250;

/// A Deployment; exit 4 if there is none.
pub async fn deployment(connection: &Connection, target: &Target) -> Result<Deployment, Failure> {
    let api: Api<Object<DeploymentKind>> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let found = api.get_opt(&target.0).await.map_err(|e| Failure::request(&format!("read {target}"), &e))?;
    found.map(|object| facts::deployment::deployment(&object.json)).ok_or_else(|| absent(connection, target))
}

/// Exit 4, in words.
pub fn absent(connection: &Connection, target: &Target) -> Failure {
    Failure::not_found(format!("{target} does not exist in namespace {}", connection.namespace))
}

/// All Deployments of the namespace, or of all.
pub async fn deployments(connection: &Connection, all: bool) -> Result<Vec<Deployment>, Failure> {
    let objects = list::<DeploymentKind>(connection, all, ListParams::default()).await?;
    Ok(objects.iter().map(facts::deployment::deployment).collect())
}

/// HookPolicies of the namespace, or of all, with the namespace of each.
pub async fn policies(connection: &Connection, all: bool) -> Result<Vec<(String, Policy)>, Failure> {
    let objects = list::<PolicyKind>(connection, all, ListParams::default()).await?;
    Ok(objects
        .iter()
        .map(|object| {
            (
                facts::json::text(facts::json::field(object, "metadata"), "namespace").to_owned(),
                facts::policy::policy(object),
            )
        })
        .collect())
}

/// HookRuns of the namespace, or of all. One that cannot be read (of a newer version) is left out.
pub async fn runs(connection: &Connection, all: bool) -> Result<Vec<Run>, Failure> {
    let objects = list::<RunKind>(connection, all, ListParams::default()).await?;
    Ok(objects.iter().filter_map(|object| facts::run::run(object).ok()).collect())
}

/// The HookRuns of one Deployment, the latest last.
pub async fn runs_of(connection: &Connection, deployment: &Deployment) -> Result<Vec<Run>, Failure> {
    let label = format!("{DEPLOYMENT_LABEL}={}", label_value(&deployment.name));
    let objects = list::<RunKind>(connection, false, ListParams::default().labels(&label)).await?;
    let mut runs: Vec<Run> = objects
        .iter()
        .filter_map(|object| facts::run::run(object).ok())
        .filter(|run| run.spec.deployment.uid == deployment.uid)
        .collect();
    runs.sort_by(|a, b| (a.spec.sequence, &a.name).cmp(&(b.spec.sequence, &b.name)));
    Ok(runs)
}

/// The ReplicaSets of one Deployment, the highest revision last.
pub async fn replica_sets(connection: &Connection, deployment: &Deployment) -> Result<Vec<ReplicaSet>, Failure> {
    let labels: Vec<String> = deployment.match_labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let objects = list::<ReplicaSetKind>(connection, false, ListParams::default().labels(&labels.join(","))).await?;
    let mut found: Vec<ReplicaSet> = objects
        .iter()
        .filter(|object| {
            facts::json::controller(facts::json::field(object, "metadata"), "Deployment") == deployment.uid
        })
        .map(facts::replicaset::replica_set)
        .collect();
    found.sort_by(|a, b| (a.revision(), a.created, &a.name).cmp(&(b.revision(), b.created, &b.name)));
    Ok(found)
}

/// What could be read, or why it may not be. Failures of other kinds stay what they are.
pub fn if_allowed<T>(outcome: Result<T, Failure>) -> Result<Result<T, String>, Failure> {
    match outcome {
        Ok(read) => Ok(Ok(read)),
        Err(failure) if failure.forbidden => Ok(Err(failure.message)),
        Err(failure) => Err(failure),
    }
}

/// How somebody gets the right to read what Interlock keeps.
pub fn roles(namespace: &str) -> String {
    format!(
        "cluster role interlock-view gives the right (interlock-edit and interlock-decide too): kubectl create rolebinding \
         interlock-view --clusterrole=interlock-view --user=NAME -n {namespace}"
    )
}

/// The same failure, with how the right is got if that is what lacks.
pub fn with_roles(failure: Failure, namespace: &str) -> Failure {
    if failure.forbidden {
        Failure { message: format!("{}; {}", failure.message, roles(namespace)), ..failure }
    } else {
        failure
    }
}

async fn list<K: Kind>(connection: &Connection, all: bool, params: ListParams) -> Result<Vec<Value>, Failure> {
    let client = connection.client.clone();
    let api: Api<Object<K>> = if all { Api::all(client) } else { Api::namespaced(client, &connection.namespace) };
    let mut params = params.limit(PAGE);
    let mut objects = Vec::new();
    loop {
        let page = api.list(&params).await.map_err(|e| {
            let failure = Failure::request(&format!("list {}", K::PLURAL), &e);
            if K::GROUP == names::GROUP { with_roles(failure, &connection.namespace) } else { failure }
        })?;
        objects.extend(page.items.into_iter().map(|object| object.json));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(objects),
        }
    }
}
