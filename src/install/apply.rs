//! `interlock install`: server-side apply, in an order in which nothing is ever half in force.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::apps::v1::Deployment, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::DynamicObject,
    runtime::{conditions, wait::await_condition},
};
use serde_json::{Value, json};

use super::{
    Done, FIELD_MANAGER, Failed, InstallOptions, Line, label,
    manifests::{Parts, api},
    words,
};
use interlock_core::api::names;

/// How long a definition may take until it is served.
const ESTABLISHED_WITHIN: Duration = Duration::from_mins(1);
/// How long a new admission policy may take until it is in force. Usually it is a tenth of a second.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks at whether it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Installs everything. Running it again changes only what differs.
///
/// # Errors
/// An API server without the policies that the hold is made of, a namespace that cannot be used, a refused write.
pub async fn install(client: &Client, options: &InstallOptions) -> Result<Vec<Line>, Failed> {
    let mut lines = Vec::new();
    match carry_out(client, options, &mut lines).await {
        Ok(()) => Ok(lines),
        Err((message, source)) => Err(Failed { lines, message, source }),
    }
}

type Stop = (String, Option<kube::Error>);

async fn carry_out(client: &Client, options: &InstallOptions, lines: &mut Vec<Line>) -> Result<(), Stop> {
    let parts = Parts::new(options).map_err(|error| (format!("{error:#}"), None))?;
    check_server(client).await?;
    let Parts { namespace, definitions, rights, guards, hold, controller, gate } = parts;
    for object in &namespace {
        lines.push(apply_namespace(client, object).await?);
    }
    for object in &definitions {
        lines.push(apply(client, object).await?);
    }
    for object in &definitions {
        established(client, object).await?;
    }
    for object in rights.iter().chain(&guards).chain(&hold) {
        lines.push(apply(client, object).await?);
    }
    lines.push(match prove_hold(client).await {
        Ok(()) => Line::new(Done::Verified, "hold")
            .note("a server-side dry run of a Deployment with annotation interlock.dev/after comes back paused"),
        Err(message) => Line::new(Done::NotVerified, "hold").note(message),
    });
    // Last: it finds everything that it needs.
    for object in controller.iter().chain(&gate) {
        lines.push(apply(client, object).await?);
    }
    Ok(())
}

/// Refuses a server on which the hold cannot exist.
async fn check_server(client: &Client) -> Result<(), Stop> {
    let serves = async |version: &str| -> Result<bool, Stop> {
        match client.list_api_group_resources(&format!("admissionregistration.k8s.io/{version}")).await {
            Ok(list) => Ok(list.resources.iter().any(|resource| resource.name == "mutatingadmissionpolicies")),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(("the API server does not answer".to_owned(), Some(error))),
        }
    };
    if serves("v1").await? {
        return Ok(());
    }
    let version =
        client.apiserver_version().await.map_or_else(|_| "of unknown version".to_owned(), |info| info.git_version);
    let found = if serves("v1beta1").await? {
        "serves MutatingAdmissionPolicy only as v1beta1, the form of 1.34 and 1.35 behind a feature gate"
    } else {
        "does not serve MutatingAdmissionPolicy"
    };
    Err((
        format!(
            "this API server ({version}) {found}. Interlock holds updates with admissionregistration.k8s.io/v1 \
             MutatingAdmissionPolicy, which is on from Kubernetes 1.36; nothing was changed"
        ),
        None,
    ))
}

/// A namespace that was there before, without our label, is left alone, so that uninstall does not delete it.
async fn apply_namespace(client: &Client, object: &Value) -> Result<Line, Stop> {
    let (namespaces, name) = api(client, object);
    let there = namespaces.get_opt(&name).await.map_err(|error| failed(object, error))?;
    match there {
        Some(there) if there.metadata.labels.as_ref().and_then(|labels| labels.get(PART_OF)).is_none() => {
            Ok(Line::new(Done::Unchanged, label(object)).note("it was there before; uninstall will leave it"))
        }
        Some(_) | None => apply(client, object).await,
    }
}

/// Label of everything that an installation brings.
pub(super) const PART_OF: &str = "app.kubernetes.io/part-of";

async fn apply(client: &Client, object: &Value) -> Result<Line, Stop> {
    let (api, name) = api(client, object);
    let fail = |error| failed(object, error);
    let before = api.get_opt(&name).await.map_err(fail)?;
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let after = api.patch(&name, &params, &Patch::Apply(object)).await.map_err(fail)?;
    let done = match before.map(essence) {
        None => Done::Created,
        Some(before) if before == essence(after) => Done::Unchanged,
        Some(_) => Done::Configured,
    };
    Ok(Line::new(done, label(object)))
}

/// What an installation is about. A controller may have written the status in between, so the resourceVersion alone
/// does not tell.
fn essence(mut object: DynamicObject) -> DynamicObject {
    object.metadata.resource_version = None;
    object.metadata.managed_fields = None;
    if let Some(data) = object.data.as_object_mut() {
        data.remove("status");
    }
    object
}

async fn established(client: &Client, object: &Value) -> Result<(), Stop> {
    let (_, name) = api(client, object);
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let wait = await_condition(definitions, &name, conditions::is_crd_established());
    match tokio::time::timeout(ESTABLISHED_WITHIN, wait).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err((format!("definition {name} cannot be watched: {error}"), None)),
        Err(_) => Err((
            format!(
                "definition {name} is not Established after {} s; see its conditions: kubectl get crd {name} -o yaml",
                ESTABLISHED_WITHIN.as_secs()
            ),
            None,
        )),
    }
}

fn failed(object: &Value, error: kube::Error) -> Stop {
    (format!("{}: {}", label(object), words(&error)), Some(error))
}

/// Shows by a server-side dry run that the hold is in force: a Deployment with a predecessor must come back paused.
///
/// # Errors
/// Why it could not be shown: a webhook that refuses dry runs, a quota, or really no hold.
pub async fn prove_hold(client: &Client) -> Result<(), String> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let probe = probe().map_err(|error| error.to_string())?;
    let params = PostParams { dry_run: true, field_manager: Some(FIELD_MANAGER.to_owned()) };
    let until = tokio::time::Instant::now() + IN_FORCE_WITHIN;
    loop {
        let message = match deployments.create(&params, &probe).await {
            Ok(answer) if held(&answer) => return Ok(()),
            Ok(_) => "a server-side dry run of a Deployment with a predecessor came back unheld".to_owned(),
            Err(kube::Error::Api(status)) => format!("the server-side dry run was refused: {}", status.message),
            Err(error) => error.to_string(),
        };
        if tokio::time::Instant::now() >= until {
            return Err(message);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn held(deployment: &Deployment) -> bool {
    let marked = |annotations: &BTreeMap<String, String>| annotations.contains_key(names::HELD_BY);
    deployment.spec.paused.unwrap_or_default() && deployment.metadata.annotations.as_ref().is_some_and(marked)
}

fn probe() -> Result<Deployment, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {"name": "interlock-install-probe", "annotations": {(names::AFTER): "nothing"}},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "interlock-install-probe"}},
            "template": {
                "metadata": {"labels": {"app": "interlock-install-probe"}},
                "spec": {"containers": [{"name": "probe", "image": "probe"}]},
            },
        },
    }))
}
