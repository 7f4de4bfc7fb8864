//! What is held when Interlock goes, and how a hold ends without the controller.

use std::cmp::Reverse;

use interlock_core::{api::names, template::Template};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Done, FIELD_MANAGER, Line, words};

/// How often a write that lost a race is planned again.
const ATTEMPTS: usize = 20;

/// A held Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Who holds it.
    pub by: String,
}

/// Everything that is held, in all namespaces.
///
/// # Errors
/// The list was refused.
pub async fn list_held(client: &Client) -> kube::Result<Vec<Held>> {
    let all: Api<Deployment> = Api::all(client.clone());
    Ok(all.list(&ListParams::default()).await?.items.iter().filter_map(held).collect())
}

fn held(deployment: &Deployment) -> Option<Held> {
    let by = deployment.annotations().get(names::HELD_BY)?;
    let paused = deployment.spec.paused.unwrap_or_default();
    paused.then(|| Held {
        namespace: deployment.namespace().unwrap_or_default(),
        name: deployment.name_any(),
        by: by.clone(),
    })
}

/// The JSON merge patch that ends a hold, for a Deployment of this `metadata.resourceVersion`. It counts if it comes
/// from somebody with verb `release` on `hookruns.interlock.dev` in that namespace and leaves the template alone.
/// `unpause` is false where the user's own pause outlives the hold (`interlock.dev/resume: "false"`).
pub fn release_patch(resource_version: &str, unpause: bool) -> Value {
    json!({
        "metadata": {
            "resourceVersion": resource_version,
            "annotations": {
                (names::RELEASE): resource_version,
                (names::HELD_BY): null,
                (names::HELD_AT): null,
                (names::RESUME): null,
            },
        },
        "spec": {"paused": !unpause},
    })
}

impl Held {
    /// The object for people.
    pub(super) fn label(&self) -> String {
        format!("deployment/{} -n {}", self.name, self.namespace)
    }

    fn api(&self, client: &Client) -> Api<Deployment> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    /// Ends the hold.
    pub(super) async fn release(&self, client: &Client) -> Result<Line, Stop> {
        let deployments = self.api(client);
        for _ in 0..ATTEMPTS {
            let Some(deployment) = self.still_held(&deployments).await? else {
                return Ok(Line::new(Done::Released, self.label()).note("its hold ended meanwhile"));
            };
            let own_pause = deployment.annotations().get(names::RESUME).is_some_and(|resume| resume == "false");
            let patch = release_patch(&deployment.resource_version().unwrap_or_default(), !own_pause);
            match deployments.patch(&self.name, &params(), &Patch::Merge(&patch)).await {
                Ok(after) if held(&after).is_some() => {
                    return Err((
                        format!(
                            "{} stays held: ending a hold needs verb release on hookruns.interlock.dev in its namespace",
                            self.label()
                        ),
                        None,
                    ));
                }
                Ok(_) => {
                    let line = Line::new(Done::Released, self.label());
                    return Ok(if own_pause { line.note("it stays paused, as its user wanted") } else { line });
                }
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Err((format!("{} changes too fast; run it again", self.label()), None))
    }

    /// Puts the template back to the one that runs, and changed pods with it, then ends the hold.
    pub(super) async fn revert(&self, client: &Client) -> Result<Line, Stop> {
        let deployments = self.api(client);
        let mut restored = Vec::new();
        for _ in 0..ATTEMPTS {
            let Some(deployment) = self.still_held(&deployments).await? else {
                return Ok(Line::new(Done::Released, self.label()).note("its hold ended meanwhile"));
            };
            let Some(running) = self.running(client, &deployment).await? else {
                return Ok(Line::new(Done::Kept, self.label())
                    .note(format!("nothing ran before, so it stays paused; {}", self.how_to_go_on())));
            };
            let template = template_of(&running);
            if template != template_of(&deployment) {
                // The sticky policy keeps it held through this write.
                let patch = json!([
                    {"op": "test", "path": "/metadata/resourceVersion", "value": deployment.resource_version()},
                    {"op": "replace", "path": "/spec/template", "value": template.json()},
                ]);
                let patch: json_patch::Patch =
                    serde_json::from_value(patch).map_err(|error| (error.to_string(), None))?;
                match deployments.patch(&self.name, &params(), &Patch::<()>::Json(patch)).await {
                    Ok(_) => {}
                    // A failed test is 422.
                    Err(error) if is_conflict(&error) || code(&error) == Some(422) => continue,
                    Err(error) => return Err(self.failed(error)),
                }
            }
            restored = self.restore_pods(client, &running).await?;
            break;
        }
        let mut line = self.release(client).await?;
        if line.done == Done::Released && line.note.is_empty() {
            line.done = Done::Reverted;
            if !restored.is_empty() {
                line.note = format!("put back in place: {}", restored.join(", "));
            }
        }
        Ok(line)
    }

    /// How to go on with one that was left paused.
    pub(super) fn how_to_go_on(&self) -> String {
        format!("go on with: kubectl rollout resume deployment/{} -n {}", self.name, self.namespace)
    }

    async fn still_held(&self, deployments: &Api<Deployment>) -> Result<Option<Deployment>, Stop> {
        let deployment = deployments.get_opt(&self.name).await.map_err(|error| self.failed(error))?;
        Ok(deployment.filter(|deployment| held(deployment).is_some()))
    }

    /// The ReplicaSet that runs: the one with most available pods, else with most pods, else the youngest revision.
    async fn running(&self, client: &Client, deployment: &Deployment) -> Result<Option<ReplicaSet>, Stop> {
        let all: Api<ReplicaSet> = Api::namespaced(client.clone(), &self.namespace);
        let all = all.list(&ListParams::default()).await.map_err(|error| self.failed(error))?;
        Ok(all
            .items
            .into_iter()
            .filter(|set| owned(set.owner_references(), deployment.metadata.uid.as_deref()))
            .min_by_key(|set| {
                let available = set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or_default();
                let replicas = set.spec.replicas.unwrap_or_default();
                let revision: i64 =
                    set.annotations().get(names::REVISION).and_then(|revision| revision.parse().ok()).unwrap_or(0);
                Reverse((available, replicas, revision))
            }))
    }

    /// Gives pods that an update in place has changed the images of their ReplicaSet again. Returns their names.
    async fn restore_pods(&self, client: &Client, set: &ReplicaSet) -> Result<Vec<String>, Stop> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &self.namespace);
        let wanted = template_of(set);
        let mut restored = Vec::new();
        for pod in pods.list(&ListParams::default()).await.map_err(|error| self.failed(error))?.items {
            if !pod.annotations().contains_key(names::UPDATE)
                || !owned(pod.owner_references(), set.metadata.uid.as_deref())
            {
                continue;
            }
            let Some(patch) = images_back(&pod, &wanted) else { continue };
            match pods.patch(&pod.name_any(), &params(), &Patch::Strategic(patch)).await {
                Ok(_) => restored.push(format!("pod/{}", pod.name_any())),
                Err(error) if code(&error) == Some(404) => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(restored)
    }

    fn failed(&self, error: kube::Error) -> Stop {
        (format!("{}: {}", self.label(), words(&error)), Some(error))
    }
}

/// What stops a removal: a sentence and its cause.
pub(super) type Stop = (String, Option<kube::Error>);

fn params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

fn code(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}

fn is_conflict(error: &kube::Error) -> bool {
    code(error) == Some(409)
}

fn owned(owners: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference], uid: Option<&str>) -> bool {
    owners.iter().any(|owner| owner.controller == Some(true) && Some(owner.uid.as_str()) == uid)
}

/// The pod template of a Deployment or ReplicaSet.
fn template_of(object: &impl serde::Serialize) -> Template {
    let object = serde_json::to_value(object).unwrap_or_default();
    Template::new(object.pointer("/spec/template").cloned().unwrap_or_default())
}

/// The strategic merge patch that gives a pod the images of the template; `None` if it has them.
fn images_back(pod: &Pod, template: &Template) -> Option<Value> {
    let pod = serde_json::to_value(pod).ok()?;
    let mut spec = serde_json::Map::new();
    for list in ["containers", "initContainers"] {
        let at = |object: &Value| object.get("spec").and_then(|spec| spec.get(list)).and_then(Value::as_array).cloned();
        let wanted = at(template.json()).unwrap_or_default();
        let differing: Vec<Value> = at(&pod)
            .unwrap_or_default()
            .iter()
            .filter_map(|container| {
                let wanted = wanted.iter().find(|wanted| wanted.get("name") == container.get("name"))?;
                let image = wanted.get("image").filter(|image| Some(*image) != container.get("image"))?;
                Some(json!({"name": container.get("name"), "image": image}))
            })
            .collect();
        if !differing.is_empty() {
            spec.insert(list.to_owned(), Value::Array(differing));
        }
    }
    (!spec.is_empty()).then(|| json!({"spec": spec}))
}
