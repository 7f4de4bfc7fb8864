//! `interlock uninstall`: first nothing new is held, then what is held is seen to, then the rest goes, the definitions
//! only after the policies that need them are known to be gone.

use std::time::Duration;

use kube::{Client, api::DeleteParams};
use serde_json::Value;

use super::{
    Done, Failed, InstallOptions, Line, OnUninstall, UninstallOptions,
    apply::PART_OF,
    gate,
    held::{Stop, list_held},
    label,
    manifests::{Parts, api},
    words,
};

/// How long a removed policy may go on to refuse, and an object may take to go.
const GONE_WITHIN: Duration = Duration::from_mins(3);
/// Between two attempts at what a policy that is on its way out still refuses.
const TRY_EVERY: Duration = Duration::from_millis(200);

/// Removes everything, HookPolicies and HookRuns included. What is not there is no error, so it can be run again.
///
/// # Errors
/// A refused write or removal. Policies and definitions are never left in an order that blocks Deployment writes.
pub async fn uninstall(client: &Client, options: &UninstallOptions) -> Result<Vec<Line>, Failed> {
    let mut lines = Vec::new();
    match carry_out(client, options, &mut lines).await {
        Ok(()) => Ok(lines),
        Err((message, source)) => Err(Failed { lines, message, source }),
    }
}

async fn carry_out(client: &Client, options: &UninstallOptions, lines: &mut Vec<Line>) -> Result<(), Stop> {
    let UninstallOptions { namespace, held } = options;
    let everything = InstallOptions {
        namespace: namespace.clone(),
        image: Some(String::new()),
        readiness_gate: true,
        ..InstallOptions::default()
    };
    let Parts { namespace, definitions, rights, guards, hold, controller, gate } =
        Parts::new(&everything).map_err(|error| (format!("{error:#}"), None))?;

    // No more pods that wait for the controller; then nobody works on what is being taken away.
    for object in gate.iter().rev().chain(&controller) {
        lines.push(delete(client, object).await?);
    }
    // Nothing new is held; what is held stays so. Bindings stand last in the list and go first.
    let (sticky, holding): (Vec<_>, Vec<_>) = hold.iter().rev().partition(|object| name(object) == "interlock-sticky");
    for object in holding {
        lines.push(delete(client, object).await?);
    }
    see_to_held(client, *held, lines).await?;
    gate::open(client, lines).await?;
    for object in sticky {
        lines.push(delete(client, object).await?);
    }
    for object in guards.iter().rev() {
        lines.push(delete(client, object).await?);
    }
    for object in definitions.iter().chain(rights.iter().rev()) {
        lines.push(delete(client, object).await?);
    }
    for object in &namespace {
        lines.push(delete_own(client, object).await?);
    }
    Ok(())
}

async fn see_to_held(client: &Client, how: OnUninstall, lines: &mut Vec<Line>) -> Result<(), Stop> {
    let all = list_held(client)
        .await
        .map_err(|error| (format!("Deployments cannot be listed: {}", words(&error)), Some(error)))?;
    for held in all {
        lines.push(match how {
            OnUninstall::Release => held.release(client).await?,
            OnUninstall::Revert => held.revert(client).await?,
            OnUninstall::Keep => Line::new(Done::Kept, held.label())
                .note(format!("paused; {}, or install again and it is taken up", held.how_to_go_on())),
        });
    }
    Ok(())
}

fn name(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// Deletes an object and waits until it is gone.
async fn delete(client: &Client, object: &Value) -> Result<Line, Stop> {
    let (api, name) = api(client, object);
    let until = tokio::time::Instant::now() + GONE_WITHIN;
    let uid = loop {
        match api.delete(&name, &DeleteParams::background()).await {
            Ok(either) => {
                break either.either(|object| object.metadata.uid, |status| status.details.map(|details| details.uid));
            }
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Line::new(Done::Absent, label(object))),
            // The guard of the definitions was deleted a moment ago and may still be in force.
            Err(kube::Error::Api(status))
                if status.code == 403
                    && status.message.contains("interlock-crd-guard")
                    && tokio::time::Instant::now() < until =>
            {
                tokio::time::sleep(TRY_EVERY).await;
            }
            Err(error) => return Err((format!("{}: {}", label(object), words(&error)), Some(error))),
        }
    };
    loop {
        let there = api.get_metadata_opt(&name).await;
        match there.map_err(|error| (format!("{}: {}", label(object), words(&error)), Some(error)))? {
            Some(there) if there.metadata.uid == uid => {}
            Some(_) | None => return Ok(Line::new(Done::Deleted, label(object))),
        }
        if tokio::time::Instant::now() >= until {
            return Err((
                format!(
                    "{} is being deleted, but not gone after {} s; run it again",
                    label(object),
                    GONE_WITHIN.as_secs()
                ),
                None,
            ));
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
}

/// Deletes the namespace if an installation made it.
async fn delete_own(client: &Client, object: &Value) -> Result<Line, Stop> {
    let (namespaces, name) = api(client, object);
    let there = namespaces
        .get_opt(&name)
        .await
        .map_err(|error| (format!("{}: {}", label(object), words(&error)), Some(error)))?;
    match there {
        Some(there) if there.metadata.labels.as_ref().and_then(|labels| labels.get(PART_OF)).is_none() => {
            Ok(Line::new(Done::Kept, label(object)).note("it was there before Interlock"))
        }
        Some(_) | None => delete(client, object).await,
    }
}
