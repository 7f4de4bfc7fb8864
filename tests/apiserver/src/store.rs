//! The objects, their versions, and the log of all changes: what an API server with etcd keeps.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use crate::{
    admission,
    json::{at, child, drop_key, int, list, text},
    kinds::{self, Kind},
    refusal::Refusal,
    rng::Rng,
    rules,
};

/// Plural, namespace, name.
pub type Ref = (&'static str, String, String);

/// The wall clock at the start of every story: 2027-01-15T08:00:00Z.
pub const EPOCH_MILLIS: i64 = 1_800_000_000_000;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Added,
    Modified,
    Deleted,
}

/// One change.
#[derive(Clone, Debug)]
pub struct Entry {
    pub version: u64,
    pub at: Instant,
    pub kind: &'static Kind,
    pub what: What,
    /// After the change; of a deleted one its last state, with the version of the deletion.
    pub object: Arc<Value>,
    pub before: Option<Arc<Value>>,
    /// Who wrote.
    pub by: String,
}

impl Entry {
    pub fn key(&self) -> Ref {
        key(self.kind, &self.object)
    }
}

fn key(kind: &Kind, object: &Value) -> Ref {
    (kind.plural, text(object, "/metadata/namespace").to_owned(), text(object, "/metadata/name").to_owned())
}

/// What of an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Main,
    Status,
    Resize,
    /// The node that a pod is put on: no change of what was asked for.
    Binding,
}

/// Who writes, and how.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub name: &'a str,
    /// Has verb `release` on hookruns.
    pub may_release: bool,
    /// Nothing is stored.
    pub dry_run: bool,
}

impl<'a> Caller<'a> {
    /// A part of the control plane.
    pub fn system(name: &'a str) -> Self {
        Self { name, may_release: false, dry_run: false }
    }
}

/// Conditions of a deletion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preconditions<'a> {
    pub uid: Option<&'a str>,
    pub resource_version: Option<&'a str>,
    pub grace: Option<i64>,
}

pub struct Store {
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
    start: Instant,
}

struct Inner {
    objects: BTreeMap<Ref, Arc<Value>>,
    log: Vec<Entry>,
    version: u64,
    compacted: u64,
    uids: u64,
    rng: Rng,
}

impl Store {
    pub fn new(seed: u64) -> Arc<Self> {
        let inner = Inner {
            objects: BTreeMap::new(),
            log: Vec::new(),
            version: 100,
            compacted: 100,
            uids: 0,
            rng: Rng(seed ^ 0x5eed),
        };
        Arc::new(Self { inner: Mutex::new(inner), changed: watch::channel(0).0, start: Instant::now() })
    }

    /// When the story began, which is [`EPOCH_MILLIS`] on the wall clock.
    pub fn start(&self) -> Instant {
        self.start
    }

    pub fn now(&self) -> jiff::Timestamp {
        let millis = EPOCH_MILLIS + i64::try_from(self.start.elapsed().as_millis()).unwrap();
        jiff::Timestamp::from_millisecond(millis).unwrap()
    }

    /// Now, in whole seconds, as objects carry it.
    pub fn stamp(&self) -> String {
        jiff::Timestamp::from_second(self.now().as_second()).unwrap().to_string()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Told of every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// A number below `n`, by the seed.
    pub fn random(&self, n: usize) -> usize {
        self.lock().rng.below(n)
    }

    /// A duration of up to so many milliseconds, by the seed.
    pub fn jitter(&self, millis: u64) -> Duration {
        Duration::from_millis(self.random(usize::try_from(millis).unwrap_or(0) + 1) as u64)
    }

    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// The log from a position on.
    pub fn log(&self, from: usize) -> Vec<Entry> {
        self.lock().log.get(from..).unwrap_or_default().to_vec()
    }

    pub fn log_len(&self) -> usize {
        self.lock().log.len()
    }

    /// Calls for each entry from a position on, until it says no; returns the new position.
    pub fn each_from(&self, from: usize, mut take: impl FnMut(&Entry) -> bool) -> usize {
        let inner = self.lock();
        let mut position = from;
        for entry in inner.log.iter().skip(from) {
            if !take(entry) {
                break;
            }
            position += 1;
        }
        position
    }

    /// The position after all entries up to a version. Refused if entries after it are not kept any more.
    pub fn position(&self, version: u64) -> Result<usize, Refusal> {
        let inner = self.lock();
        if version < inner.compacted {
            return Err(Refusal::gone(version));
        }
        Ok(inner.log.partition_point(|e| e.version <= version))
    }

    /// Watches from before now are told that they are too old.
    pub fn compact(&self) {
        let mut inner = self.lock();
        inner.compacted = inner.version;
    }

    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.lock().objects.get(&(kinds::of(plural).plural, namespace.to_owned(), name.to_owned())).cloned()
    }

    /// All objects of a kind, in one namespace or everywhere, with the version of this view.
    pub fn list(&self, plural: &str, namespace: Option<&str>) -> (Vec<Arc<Value>>, u64) {
        let inner = self.lock();
        let plural = kinds::of(plural).plural;
        let from = (plural, namespace.unwrap_or_default().to_owned(), String::new());
        let of_kind =
            inner.objects.range(from..).take_while(|((p, n, _), _)| *p == plural && namespace.is_none_or(|ns| n == ns));
        (of_kind.map(|(_, o)| Arc::clone(o)).collect(), inner.version)
    }

    pub fn create(
        &self,
        by: Caller<'_>,
        kind: &'static Kind,
        namespace: &str,
        object: Value,
    ) -> Result<Value, Refusal> {
        let mut inner = self.lock();
        let mut new = object;
        let stamp = self.stamp();
        let prefix = text(&new, "/metadata/generateName").to_owned();
        if text(&new, "/metadata/name").is_empty() {
            if prefix.is_empty() {
                return Err(Refusal::invalid(
                    kind,
                    "",
                    "metadata.name",
                    "FieldValueRequired",
                    "Required value: name or generateName is required",
                ));
            }
            new["metadata"]["name"] = json!(format!("{prefix}{}", inner.suffix()));
        }
        let sent_in = text(&new, "/metadata/namespace");
        if kind.namespaced && !sent_in.is_empty() && sent_in != namespace {
            return Err(Refusal::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if !text(&new, "/metadata/resourceVersion").is_empty() {
            return Err(Refusal::bad_request("resourceVersion should not be set on objects to be created"));
        }
        new["apiVersion"] = json!(kind.api_version());
        new["kind"] = json!(kind.kind);
        inner.uids += 1;
        let uid = format!("00000000-0000-4000-8000-{:012x}", inner.uids);
        let metadata = child(&mut new, "metadata");
        if kind.namespaced {
            metadata.insert("namespace".into(), json!(namespace));
        }
        metadata.insert("uid".into(), json!(uid));
        metadata.insert("creationTimestamp".into(), json!(stamp));
        metadata.remove("deletionTimestamp");
        metadata.remove("managedFields");
        metadata.remove("generation");
        if kind.generation {
            metadata.insert("generation".into(), json!(1));
        }
        if kind.status {
            drop_key(&mut new, "status");
        }
        rules::tidy(kind, &mut new);
        rules::created(kind, &mut new);
        if kind.plural == "deployments" {
            admission::admit(&inner.policies(namespace), namespace, None, &mut new, by.may_release);
        }
        rules::valid(kind, &new)?;
        let key = key(kind, &new);
        if let Some(refusal) = inner.over_quota(kind, &key) {
            return Err(refusal);
        }
        if inner.objects.contains_key(&key) {
            return Err(Refusal::exists(kind, &key.2));
        }
        if !by.dry_run {
            inner.commit(by.name, kind, key, What::Added, &mut new);
            self.changed.send_replace(inner.version);
        }
        Ok(new)
    }

    /// Reads, changes and writes in one step. An edit that changes nothing writes nothing.
    pub fn update(
        &self,
        by: Caller<'_>,
        (kind, namespace, name): (&'static Kind, &str, &str),
        part: Part,
        edit: impl FnOnce(&Value) -> Result<Value, Refusal>,
    ) -> Result<Value, Refusal> {
        let mut inner = self.lock();
        let key: Ref = (kind.plural, namespace.to_owned(), name.to_owned());
        let Some(old) = inner.objects.get(&key).cloned() else { return Err(Refusal::not_found(kind, name)) };
        let mut new = edit(&old)?;
        rules::same_name(name, &new)?;
        let version = text(&new, "/metadata/resourceVersion");
        if !version.is_empty() && version != text(&old, "/metadata/resourceVersion") {
            return Err(Refusal::modified(kind, name));
        }
        let uid = text(&new, "/metadata/uid");
        if !uid.is_empty() && uid != text(&old, "/metadata/uid") {
            let why = format!("Invalid value: {uid:?}: field is immutable");
            return Err(Refusal::invalid(kind, name, "metadata.uid", "FieldValueInvalid", &why));
        }
        rules::restrict(kind, part, &old, &mut new);
        rules::tidy(kind, &mut new);
        if kind.plural == "deployments" {
            let policies = if part == Part::Main { inner.policies(namespace) } else { Vec::new() };
            admission::admit(&policies, namespace, Some(&old), &mut new, by.may_release);
        }
        rules::valid(kind, &new)?;
        rules::valid_update(kind, part, &old, &new)?;
        let annotations = kind.plural == "deployments"
            && part == Part::Main
            && at(&new, "/metadata/annotations") != at(&old, "/metadata/annotations");
        if kind.generation && part != Part::Binding && (new["spec"] != old["spec"] || annotations) {
            new["metadata"]["generation"] = json!(int(&old, "/metadata/generation") + 1);
        }
        if new == *old {
            return Ok(new);
        }
        if !by.dry_run {
            inner.commit(by.name, kind, key, What::Modified, &mut new);
            self.changed.send_replace(inner.version);
        }
        Ok(new)
    }

    /// Deletes, or marks as being deleted where somebody has to end it first. Returns the object, and whether it is gone.
    pub fn delete(
        &self,
        by: Caller<'_>,
        (kind, namespace, name): (&'static Kind, &str, &str),
        conditions: Preconditions<'_>,
    ) -> Result<(Value, bool), Refusal> {
        let mut inner = self.lock();
        let key: Ref = (kind.plural, namespace.to_owned(), name.to_owned());
        let Some(old) = inner.objects.get(&key).cloned() else { return Err(Refusal::not_found(kind, name)) };
        for (field, wanted, have) in [
            ("UID", conditions.uid, text(&old, "/metadata/uid")),
            ("ResourceVersion", conditions.resource_version, text(&old, "/metadata/resourceVersion")),
        ] {
            if let Some(wanted) = wanted
                && wanted != have
            {
                let why =
                    format!("Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {have}");
                return Err(Refusal::conflict(kind, name, &why));
            }
        }
        let mut object = Value::clone(&old);
        let grace = conditions.grace.unwrap_or_else(|| int(&old, "/spec/terminationGracePeriodSeconds"));
        let graceful = kind.plural == "pods" && grace > 0 && !text(&old, "/spec/nodeName").is_empty();
        if graceful {
            if at(&old, "/metadata/deletionTimestamp").is_null() && !by.dry_run {
                object["metadata"]["deletionTimestamp"] = json!(self.stamp());
                object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
                inner.commit(by.name, kind, key, What::Modified, &mut object);
                self.changed.send_replace(inner.version);
            }
            return Ok((object, false));
        }
        if !by.dry_run {
            inner.commit(by.name, kind, key, What::Deleted, &mut object);
            self.changed.send_replace(inner.version);
        }
        Ok((object, true))
    }
}

impl Inner {
    fn commit(&mut self, by: &str, kind: &'static Kind, key: Ref, what: What, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let stored = Arc::new(object.clone());
        let before = match what {
            What::Deleted => self.objects.remove(&key),
            What::Added | What::Modified => self.objects.insert(key, Arc::clone(&stored)),
        };
        let entry =
            Entry { version: self.version, at: Instant::now(), kind, what, object: stored, before, by: by.to_owned() };
        self.log.push(entry);
    }

    fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(self.rng.pick(LETTERS))).collect()
    }

    fn policies(&self, namespace: &str) -> Vec<(String, interlock_core::api::policy::HookPolicySpec)> {
        let of_namespace = self.objects.range(("hookpolicies", namespace.to_owned(), String::new())..);
        of_namespace
            .take_while(|((plural, ns, _), _)| *plural == "hookpolicies" && ns == namespace)
            .filter_map(|((_, _, name), o)| Some((name.clone(), serde_json::from_value(o["spec"].clone()).ok()?)))
            .collect()
    }

    fn over_quota(&self, kind: &'static Kind, key: &Ref) -> Option<Refusal> {
        let quotas = self.objects.iter().filter(|((plural, ns, _), _)| *plural == "resourcequotas" && *ns == key.1);
        for ((_, _, quota), object) in quotas {
            let names = [kind.plural.to_owned(), format!("count/{}", kind.qualified())];
            let Some((name, hard)) = names.iter().find_map(|n| Some((n, at(object, "/spec/hard").get(n)?.as_str()?)))
            else {
                continue;
            };
            let used = self.objects.keys().filter(|(plural, ns, _)| *plural == kind.plural && *ns == key.1).count();
            if hard.parse::<usize>().is_ok_and(|hard| used >= hard) {
                let why = format!(
                    "exceeded quota: {quota}, requested: {name}=1, used: {name}={used}, limited: {name}={hard}"
                );
                return Some(Refusal::forbidden(kind, &key.2, &why));
            }
        }
        None
    }
}

/// Is this object owned by one with this UID?
pub fn owned_by(object: &Value, uid: &str) -> bool {
    list(object, "/metadata/ownerReferences").iter().any(|o| o["uid"] == uid)
}
