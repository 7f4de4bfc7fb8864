//! The new ReplicaSet, the old ones, revisions and the history (sync.go, util/deployment_util.go).

use interlock_core::{api::names, template::Template};
use serde_json::{Value, json};

use super::{Done, MAX, Sync, US, age, replicas, revision, sum, uid};
use crate::{
    json::{annotation, at, child, int, same_template, text},
    kinds,
    store::{Caller, Preconditions},
};

impl Sync<'_> {
    /// The oldest that equals the template.
    pub(super) fn new_set(&self) -> Option<Value> {
        let template = &self.d["spec"]["template"];
        self.sets.iter().filter(|s| same_template(&s["spec"]["template"], template)).min_by_key(|s| age(s)).cloned()
    }

    /// All but the new one, oldest first.
    pub(super) fn old_sets(&self, new: Option<&Value>) -> Vec<Value> {
        let mut old: Vec<Value> = self.sets.iter().filter(|s| new.is_none_or(|n| uid(n) != uid(s))).cloned().collect();
        old.sort_by_key(age);
        old
    }

    /// The new ReplicaSet with its annotations as they should be; made if it is not there and that is asked for.
    pub(super) fn revise(&mut self, create: bool) -> Done<Option<Value>> {
        let found = self.new_set();
        let highest = self.old_sets(found.as_ref()).iter().map(revision).max().unwrap_or(0) + 1;
        if let Some(set) = found {
            let mut copy = set.clone();
            self.annotate(&mut copy, highest);
            if copy["spec"]["minReadySeconds"] != self.d["spec"]["minReadySeconds"] {
                copy["spec"]["minReadySeconds"] = self.d["spec"]["minReadySeconds"].clone();
            }
            if copy["metadata"]["annotations"] != set["metadata"]["annotations"] || copy["spec"] != set["spec"] {
                return self.update_set(copy).map(Some);
            }
            let mut write = self.set_revision(revision(&copy));
            if self.condition("Progressing").is_none() {
                let message = format!("Found new replica set {:?}", text(&copy, "/metadata/name"));
                self.set_progressing("True", "FoundNewReplicaSet", &message);
                write = true;
            }
            if write {
                self.update_status()?;
            }
            return Ok(Some(copy));
        }
        if !create {
            return Ok(None);
        }
        let set = self.fresh_set(highest);
        let (kind, namespace) = (kinds::of("replicasets"), text(&self.d, "/metadata/namespace").to_owned());
        let name = text(&set, "/metadata/name").to_owned();
        let created = match self.store.create(Caller::system(US), kind, &namespace, set) {
            Ok(created) => created,
            Err(refusal) if refusal.reason == "AlreadyExists" => {
                // Not in our view yet, or another template with the same name.
                let Some(other) = self.sets.iter().find(|s| text(s, "/metadata/name") == name) else {
                    return Err(refusal);
                };
                if same_template(&other["spec"]["template"], &self.d["spec"]["template"]) {
                    other.clone()
                } else {
                    self.d["status"]["collisionCount"] = json!(int(&self.d, "/status/collisionCount") + 1);
                    self.update_status()?;
                    return Err(refusal);
                }
            }
            Err(refusal) => {
                let message = format!("Failed to create new replica set {name:?}: {}", refusal.message);
                self.set_progressing("False", "ReplicaSetCreateError", &message);
                self.update_status()?;
                return Err(refusal);
            }
        };
        self.sets.push(created.clone());
        self.set_revision(highest);
        let message = format!("Created new replica set {name:?}");
        self.set_progressing("True", "NewReplicaSetCreated", &message);
        self.update_status()?;
        Ok(Some(created))
    }

    pub(super) fn fresh_set(&self, revision: i64) -> Value {
        let template = Template::new(self.d["spec"]["template"].clone());
        let collisions = int(&self.d, "/status/collisionCount");
        let hash =
            if collisions == 0 { template.hash().to_owned() } else { format!("{}c{collisions}", template.hash()) };
        let template = template.with_hash_label(&hash);
        let mut selector = at(&self.d, "/spec/selector").clone();
        child(&mut selector, "matchLabels").insert(names::POD_TEMPLATE_HASH.into(), json!(hash));
        let (surge, _) = self.limits();
        let room = (self.desired() + surge - sum(&self.sets, "/spec/replicas")).clamp(0, self.desired());
        let mut set = json!({
            "metadata": {
                "name": format!("{}-{hash}", text(&self.d, "/metadata/name")),
                "labels": at(&template, "/metadata/labels"),
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "Deployment", "name": self.d["metadata"]["name"],
                    "uid": self.d["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "replicas": if self.recreate() { self.desired() } else { room },
                "minReadySeconds": self.d["spec"]["minReadySeconds"],
                "selector": selector,
                "template": template,
            },
        });
        self.annotate(&mut set, revision);
        self.annotate_replicas(&mut set);
        set
    }

    /// Copies the Deployment's annotations, removes none, and counts the revision.
    pub(super) fn annotate(&self, set: &mut Value, next: i64) {
        let had = annotation(set, names::REVISION).map(str::to_owned);
        let old = revision(set);
        let mut history = annotation(set, names::REVISION_HISTORY).unwrap_or_default().to_owned();
        let annotations = child(&mut set["metadata"], "annotations");
        for (key, value) in at(&self.d, "/metadata/annotations").as_object().into_iter().flatten() {
            if !key.starts_with(names::DEPLOYMENT_PREFIX) && key != names::LAST_APPLIED {
                annotations.insert(key.clone(), value.clone());
            }
        }
        if old < next {
            annotations.insert(names::REVISION.into(), json!(next.to_string()));
            if let Some(had) = had {
                if !history.is_empty() {
                    history.push(',');
                }
                annotations.insert(names::REVISION_HISTORY.into(), json!(history + &had));
            }
        }
    }

    pub(super) fn annotate_replicas(&self, set: &mut Value) {
        let (surge, _) = self.limits();
        let annotations = child(&mut set["metadata"], "annotations");
        annotations.insert(names::DESIRED_REPLICAS.into(), json!(self.desired().to_string()));
        annotations.insert(MAX.into(), json!((self.desired() + surge).to_string()));
    }

    pub(super) fn set_revision(&mut self, to: i64) -> bool {
        let to = json!(to.to_string());
        let annotations = child(&mut self.d["metadata"], "annotations");
        annotations.insert(names::REVISION.into(), to.clone()) != Some(to)
    }

    pub(super) fn clean_up(&mut self, new: Option<&Value>) -> Done {
        let mut old = self.old_sets(new);
        let limit = usize::try_from(int(&self.d, "/spec/revisionHistoryLimit")).unwrap_or(0);
        let excess = old.len().saturating_sub(limit);
        old.sort_by_key(revision);
        for set in old.into_iter().take(excess) {
            let unseen = int(&set, "/metadata/generation") > int(&set, "/status/observedGeneration");
            if int(&set, "/status/replicas") != 0 || replicas(&set) != 0 || unseen {
                continue;
            }
            let target = (kinds::of("replicasets"), text(&set, "/metadata/namespace"), text(&set, "/metadata/name"));
            let deleted = self.store.delete(Caller::system(US), target, Preconditions::default());
            if let Err(refusal) = deleted
                && refusal.code != 404
            {
                return Err(refusal);
            }
        }
        Ok(())
    }
}
