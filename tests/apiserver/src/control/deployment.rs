//! The Deployment controller (Kubernetes 1.37, pkg/controller/deployment: sync.go, rolling.go, recreate.go, progress.go,
//! util/deployment_util.go), on its own view of Deployments and ReplicaSets. What it writes, it writes by the version
//! that it has seen.

use std::{sync::Arc, time::Duration};

use interlock_core::{api::names, template::Template};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{Lag, View, on, think};
use crate::{
    json::{annotation, at, child, drop_key, int, list, same_template, text},
    kinds,
    refusal::Refusal,
    store::{Caller, Part, Preconditions, Store},
};

const US: &str = "deployment-controller";
const MAX: &str = "deployment.kubernetes.io/max-replicas";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// First and longest pause after a failed sync.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(5));

pub(super) async fn run(store: Arc<Store>, lag: Lag, mut switch: watch::Receiver<bool>) {
    let mut view = View::new(&store, &["deployments", "replicasets"], lag);
    let mut failures = 0;
    let mut timer = None;
    loop {
        view.wait(timer).await;
        on(&mut switch).await;
        think(&store).await;
        view.take();
        let all: Vec<Value> = view.of("deployments").map(|d| Value::clone(d)).collect();
        let mut failed = false;
        for d in all {
            let sets = view.owned("replicasets", "Deployment", text(&d, "/metadata/uid"));
            failed |= Sync { store: &store, d, sets }.sync().is_err();
        }
        failures = if failed { failures + 1 } else { 0 };
        timer = failed.then(|| Instant::now() + RETRY.0.saturating_mul(1 << failures.min(12)).min(RETRY.1));
    }
}

fn age(set: &Value) -> (String, String) {
    (text(set, "/metadata/creationTimestamp").to_owned(), text(set, "/metadata/name").to_owned())
}

fn replicas(set: &Value) -> i64 {
    int(set, "/spec/replicas")
}

fn revision(set: &Value) -> i64 {
    annotation(set, names::REVISION).and_then(|r| r.parse().ok()).unwrap_or(0)
}

fn uid(set: &Value) -> &str {
    text(set, "/metadata/uid")
}

fn sum(sets: &[Value], field: &str) -> i64 {
    sets.iter().map(|s| int(s, field)).sum()
}

/// A number or a percentage of the replicas.
fn scaled(value: &Value, replicas: i64, up: bool) -> i64 {
    let Some(percent) = value.as_str().and_then(|t| t.trim_end_matches('%').parse::<i64>().ok()) else {
        return value.as_i64().unwrap_or(0);
    };
    if up { (replicas * percent + 99) / 100 } else { replicas * percent / 100 }
}

struct Sync<'a> {
    store: &'a Store,
    d: Value,
    sets: Vec<Value>,
}

type Done<T = ()> = Result<T, Refusal>;

impl Sync<'_> {
    fn desired(&self) -> i64 {
        replicas(&self.d)
    }

    fn recreate(&self) -> bool {
        text(&self.d, "/spec/strategy/type") == "Recreate"
    }

    fn limits(&self) -> (i64, i64) {
        let part =
            |name: &str, up| scaled(at(&self.d, &format!("/spec/strategy/rollingUpdate/{name}")), self.desired(), up);
        let (surge, unavailable) = (part("maxSurge", true), part("maxUnavailable", false));
        if self.recreate() {
            return (0, 0);
        }
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        (surge, unavailable.min(self.desired()))
    }

    fn key(&self) -> (&'static kinds::Kind, String, String) {
        let of = |p| text(&self.d, p).to_owned();
        (kinds::of("deployments"), of("/metadata/namespace"), of("/metadata/name"))
    }

    /// The status and the annotations of the Deployment as we have them.
    fn update_status(&mut self) -> Done {
        let (kind, namespace, name) = self.key();
        let sent = self.d.clone();
        self.d = self.store.update(Caller::system(US), (kind, &namespace, &name), Part::Status, |_| Ok(sent))?;
        Ok(())
    }

    /// A ReplicaSet as we have it. Returns it as it is stored.
    fn update_set(&mut self, set: Value) -> Done<Value> {
        let (namespace, name) = (text(&set, "/metadata/namespace").to_owned(), text(&set, "/metadata/name").to_owned());
        let target = (kinds::of("replicasets"), namespace.as_str(), name.as_str());
        let stored = self.store.update(Caller::system(US), target, Part::Main, |_| Ok(set))?;
        if let Some(seen) = self.sets.iter_mut().find(|s| uid(s) == uid(&stored)) {
            *seen = stored.clone();
        }
        Ok(stored)
    }

    /// The oldest that equals the template.
    fn new_set(&self) -> Option<Value> {
        let template = &self.d["spec"]["template"];
        self.sets.iter().filter(|s| same_template(&s["spec"]["template"], template)).min_by_key(|s| age(s)).cloned()
    }

    /// All but the new one, oldest first.
    fn old_sets(&self, new: Option<&Value>) -> Vec<Value> {
        let mut old: Vec<Value> = self.sets.iter().filter(|s| new.is_none_or(|n| uid(n) != uid(s))).cloned().collect();
        old.sort_by_key(age);
        old
    }

    fn condition(&self, type_: &str) -> Option<&Value> {
        list(&self.d, "/status/conditions").iter().find(|c| c["type"] == type_)
    }

    fn set_condition(&self, status: &mut Value, type_: &str, is: &str, reason: &str, message: &str) {
        let conditions = list(status, "/conditions");
        let before = conditions.iter().find(|c| c["type"] == type_);
        if before.is_some_and(|c| c["status"] == is && c["reason"] == reason) {
            return;
        }
        let now = self.store.stamp();
        let flipped = before.filter(|c| c["status"] == is).map_or(json!(now), |c| c["lastTransitionTime"].clone());
        let new = json!({"type": type_, "status": is, "reason": reason, "message": message,
            "lastUpdateTime": now, "lastTransitionTime": flipped});
        let mut all: Vec<Value> = conditions.iter().filter(|c| c["type"] != type_).cloned().collect();
        all.push(new);
        status["conditions"] = json!(all);
    }

    fn sync(&mut self) -> Done {
        if !at(&self.d, "/metadata/deletionTimestamp").is_null() {
            return Ok(());
        }
        self.check_paused()?;
        let paused = self.d["spec"]["paused"] == true;
        if paused || self.scaling_event()? {
            let new = self.revise(false)?;
            self.scale(new.as_ref())?;
            if paused {
                self.clean_up(new.as_ref())?;
            }
            return self.sync_status(new.as_ref(), false);
        }
        if self.recreate() { self.roll_by_recreation() } else { self.roll() }
    }

    fn check_paused(&mut self) -> Done {
        let reason = self.condition("Progressing").map(|c| text(c, "/reason").to_owned()).unwrap_or_default();
        if reason == "ProgressDeadlineExceeded" {
            return Ok(());
        }
        let paused = self.d["spec"]["paused"] == true;
        let (reason, message) = match (paused, reason == "DeploymentPaused") {
            (true, false) => ("DeploymentPaused", "Deployment is paused"),
            (false, true) => ("DeploymentResumed", "Deployment is resumed"),
            (true, true) | (false, false) => return Ok(()),
        };
        let mut status = self.d["status"].clone();
        self.set_condition(&mut status, "Progressing", "Unknown", reason, message);
        self.d["status"] = status;
        self.update_status()
    }

    fn scaling_event(&mut self) -> Done<bool> {
        self.revise(false)?;
        let desired = self.desired();
        let other = |s: &&Value| {
            annotation(s, names::DESIRED_REPLICAS).and_then(|d| d.parse::<i64>().ok()).is_some_and(|d| d != desired)
        };
        Ok(self.sets.iter().filter(|s| replicas(s) > 0).any(|s| other(&s)))
    }

    /// The new ReplicaSet with its annotations as they should be; made if it is not there and that is asked for.
    fn revise(&mut self, create: bool) -> Done<Option<Value>> {
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
                let mut status = self.d["status"].clone();
                let message = format!("Found new replica set {:?}", text(&copy, "/metadata/name"));
                self.set_condition(&mut status, "Progressing", "True", "FoundNewReplicaSet", &message);
                self.d["status"] = status;
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
                let mut status = self.d["status"].clone();
                let message = format!("Failed to create new replica set {name:?}: {}", refusal.message);
                self.set_condition(&mut status, "Progressing", "False", "ReplicaSetCreateError", &message);
                self.d["status"] = status;
                self.update_status()?;
                return Err(refusal);
            }
        };
        self.sets.push(created.clone());
        self.set_revision(highest);
        let mut status = self.d["status"].clone();
        let message = format!("Created new replica set {name:?}");
        self.set_condition(&mut status, "Progressing", "True", "NewReplicaSetCreated", &message);
        self.d["status"] = status;
        self.update_status()?;
        Ok(Some(created))
    }

    fn fresh_set(&self, revision: i64) -> Value {
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
    fn annotate(&self, set: &mut Value, next: i64) {
        let had = annotation(set, names::REVISION).map(str::to_owned);
        let old = revision(set);
        let mut history = annotation(set, HISTORY).unwrap_or_default().to_owned();
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
                annotations.insert(HISTORY.into(), json!(history + &had));
            }
        }
    }

    fn annotate_replicas(&self, set: &mut Value) {
        let (surge, _) = self.limits();
        let annotations = child(&mut set["metadata"], "annotations");
        annotations.insert(names::DESIRED_REPLICAS.into(), json!(self.desired().to_string()));
        annotations.insert(MAX.into(), json!((self.desired() + surge).to_string()));
    }

    fn set_revision(&mut self, to: i64) -> bool {
        let to = json!(to.to_string());
        let annotations = child(&mut self.d["metadata"], "annotations");
        annotations.insert(names::REVISION.into(), to.clone()) != Some(to)
    }

    /// Returns whether the size changed.
    fn scale_set(&mut self, set: &Value, to: i64, force: bool) -> Done<bool> {
        if !force && replicas(set) == to {
            return Ok(false);
        }
        let mut new = set.clone();
        new["spec"]["replicas"] = json!(to);
        self.annotate_replicas(&mut new);
        if new == *set {
            return Ok(false);
        }
        self.update_set(new)?;
        Ok(replicas(set) != to)
    }

    fn scale(&mut self, new: Option<&Value>) -> Done {
        let old = self.old_sets(new);
        let all: Vec<Value> = old.iter().chain(new).cloned().collect();
        let mut active: Vec<Value> = all.iter().filter(|s| replicas(s) > 0).cloned().collect();
        let one = match active.as_slice() {
            [] => new.or_else(|| old.iter().max_by_key(|s| age(s))),
            [one] => Some(one),
            [..] => None,
        };
        if let Some(one) = one {
            return self.scale_set(&one.clone(), self.desired(), false).map(drop);
        }
        if active.is_empty() {
            return Ok(());
        }
        let desired = self.desired();
        let saturated = new.is_some_and(|n| {
            replicas(n) == desired
                && annotation(n, names::DESIRED_REPLICAS) == Some(&desired.to_string())
                && int(n, "/status/availableReplicas") == desired
        });
        if saturated {
            for set in old.iter().filter(|s| replicas(s) > 0) {
                self.scale_set(set, 0, false)?;
            }
            return Ok(());
        }
        if self.recreate() {
            return Ok(());
        }
        // In proportion; what is left over goes to the largest.
        let (surge, _) = self.limits();
        let allowed = if desired > 0 { desired + surge } else { 0 };
        let add = allowed - sum(&active, "/spec/replicas");
        if add > 0 {
            active.sort_by_key(|s| std::cmp::Reverse((replicas(s), age(s))));
        } else {
            active.sort_by_key(|s| (std::cmp::Reverse(replicas(s)), age(s)));
        }
        let mut sizes = Vec::new();
        let mut added = 0;
        for set in &active {
            let part = if add == 0 || add == added { 0 } else { self.fraction(set) };
            let part = if add > 0 { part.min(add - added) } else { part.max(add - added) };
            added += part;
            sizes.push(replicas(set) + part);
        }
        if add != 0 {
            sizes[0] = (sizes[0] + add - added).max(0);
        }
        for (set, size) in active.iter().zip(sizes) {
            self.scale_set(set, size, true)?;
        }
        Ok(())
    }

    fn fraction(&self, set: &Value) -> i64 {
        if self.desired() == 0 {
            return -replicas(set);
        }
        let before = annotation(set, MAX).and_then(|m| m.parse::<i64>().ok()).filter(|m| *m > 0);
        let before = before.unwrap_or_else(|| int(&self.d, "/status/replicas"));
        if before == 0 {
            return 0;
        }
        let (surge, _) = self.limits();
        #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
        let size = ((replicas(set) * (self.desired() + surge)) as f64 / before as f64).round() as i64;
        size - replicas(set)
    }

    fn clean_up(&mut self, new: Option<&Value>) -> Done {
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

    fn complete(&self, status: &Value) -> bool {
        let of = |f: &str| int(status, f);
        of("/updatedReplicas") == self.desired()
            && of("/replicas") == self.desired()
            && of("/availableReplicas") == self.desired()
            && of("/observedGeneration") >= int(&self.d, "/metadata/generation")
    }

    fn roll(&mut self) -> Done {
        let Some(new) = self.revise(true)? else { return Ok(()) };
        let (surge, _) = self.limits();
        let desired = self.desired();
        if replicas(&new) != desired {
            let to = if replicas(&new) > desired {
                desired
            } else {
                let room = (desired + surge - sum(&self.sets, "/spec/replicas")).max(0);
                replicas(&new) + room.min(desired - replicas(&new))
            };
            if self.scale_set(&new, to, false)? {
                return self.sync_status(Some(&new), true);
            }
        }
        // A failure here ends neither the sync nor its status (rolling.go).
        if self.scale_down_old(&new).unwrap_or(false) {
            return self.sync_status(Some(&new), true);
        }
        if self.complete(&self.d["status"]) {
            self.clean_up(Some(&new))?;
        }
        self.sync_status(Some(&new), true)
    }

    fn scale_down_old(&mut self, new: &Value) -> Done<bool> {
        let (_, unavailable) = self.limits();
        let least = self.desired() - unavailable;
        let mut old: Vec<Value> = self.old_sets(Some(new)).into_iter().filter(|s| replicas(s) > 0).collect();
        let all = sum(&old, "/spec/replicas") + replicas(new);
        let most = all - least - (replicas(new) - int(new, "/status/availableReplicas"));
        if old.is_empty() || most <= 0 {
            return Ok(false);
        }
        let mut unhealthy = 0;
        for set in &mut old {
            let part = (most - unhealthy).min(replicas(set) - int(set, "/status/availableReplicas"));
            if part > 0 {
                self.scale_set(set, replicas(set) - part, false)?;
                unhealthy += part;
                if let Some(stored) = self.sets.iter().find(|s| uid(s) == uid(set)) {
                    *set = stored.clone();
                }
            }
        }
        let available = sum(&old, "/status/availableReplicas") + int(new, "/status/availableReplicas");
        let (spare, mut healthy) = (available - least, 0);
        for set in &old {
            let part = (spare - healthy).min(replicas(set));
            if part > 0 {
                self.scale_set(set, replicas(set) - part, false)?;
                healthy += part;
            }
        }
        Ok(unhealthy + healthy > 0)
    }

    fn roll_by_recreation(&mut self) -> Done {
        let mut new = self.revise(false)?;
        let mut scaled = false;
        for set in self.old_sets(new.as_ref()).into_iter().filter(|s| replicas(s) > 0) {
            scaled |= self.scale_set(&set, 0, false)?;
        }
        let old = self.old_sets(new.as_ref());
        let pods = self.store.list("pods", Some(text(&self.d, "/metadata/namespace"))).0;
        let running = pods.iter().any(|p| old.iter().any(|s| crate::json::controller(p, "ReplicaSet") == uid(s)));
        if scaled || running || sum(&old, "/status/replicas") > 0 {
            return self.sync_status(new.as_ref(), true);
        }
        if new.is_none() {
            new = self.revise(true)?;
        }
        if let Some(new) = &new {
            self.scale_set(new, self.desired(), false)?;
        }
        if self.complete(&self.d["status"]) {
            self.clean_up(new.as_ref())?;
        }
        self.sync_status(new.as_ref(), true)
    }

    fn sync_status(&mut self, new: Option<&Value>, rollout: bool) -> Done {
        let new = new.and_then(|n| self.sets.iter().find(|s| uid(s) == uid(n)));
        let old_status = self.d["status"].clone();
        let mut status = old_status.clone();
        let available = sum(&self.sets, "/status/availableReplicas");
        let unavailable = (sum(&self.sets, "/spec/replicas") - available).max(0);
        status["observedGeneration"] = self.d["metadata"]["generation"].clone();
        for (field, value) in [
            ("replicas", sum(&self.sets, "/status/replicas")),
            ("updatedReplicas", new.map_or(0, |n| int(n, "/status/replicas"))),
            ("readyReplicas", sum(&self.sets, "/status/readyReplicas")),
            ("availableReplicas", available),
            ("unavailableReplicas", unavailable),
        ] {
            if value == 0 {
                drop_key(&mut status, field);
            } else {
                status[field] = json!(value);
            }
        }
        let (_, most) = self.limits();
        let (is, reason, message) = if available >= self.desired() - most {
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        self.set_condition(&mut status, "Available", is, reason, message);
        if rollout {
            let name = new.map_or("", |n| text(n, "/metadata/name")).to_owned();
            self.progress(&old_status, &mut status, &name);
            let failure = new
                .into_iter()
                .chain(&self.sets)
                .find_map(|s| list(s, "/status/conditions").iter().find(|c| c["type"] == "ReplicaFailure").cloned());
            match failure {
                Some(f) => {
                    self.set_condition(&mut status, "ReplicaFailure", "True", text(&f, "/reason"), text(&f, "/message"))
                }
                None => {
                    if let Some(all) = status["conditions"].as_array_mut() {
                        all.retain(|c| c["type"] != "ReplicaFailure");
                    }
                }
            }
        }
        if status == old_status {
            return Ok(());
        }
        self.d["status"] = status;
        self.update_status()
    }

    /// The progress deadline is not timed: nothing of Interlock depends on it.
    fn progress(&self, old: &Value, status: &mut Value, name: &str) {
        let of = |s: &Value, f: &str| int(s, f);
        let available = self.condition("Progressing").is_some_and(|c| c["reason"] == "NewReplicaSetAvailable");
        if available && of(status, "/replicas") == of(status, "/updatedReplicas") {
            return;
        }
        let others = |s: &Value| of(s, "/replicas") - of(s, "/updatedReplicas");
        let more = |f: &str| of(status, f) > of(old, f);
        if self.complete(status) {
            let message = format!("ReplicaSet {name:?} has successfully progressed.");
            self.set_condition(status, "Progressing", "True", "NewReplicaSetAvailable", &message);
        } else if more("/updatedReplicas")
            || others(status) < others(old)
            || more("/readyReplicas")
            || more("/availableReplicas")
        {
            let message = format!("ReplicaSet {name:?} is progressing.");
            self.set_condition(status, "Progressing", "True", "ReplicaSetUpdated", &message);
        }
    }
}
