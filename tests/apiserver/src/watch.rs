//! Watches, and what can go wrong with them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::body::Bytes;
use futures::Stream;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use crate::{
    json::text,
    kinds::Kind,
    refusal::Refusal,
    selector::Selector,
    server::{Query, Server},
    store::{Store, What},
};

/// What happens to the watches of one resource of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every open one ends with an error of the connection; new ones are well.
    Cut,
    /// Every open one is told that its version is too old; new ones are well.
    Gone,
    /// Nothing ever comes over those that are open, not even their end; new ones are well.
    BlackHole,
    /// Every event comes so much later, until this is replaced by another delay.
    Delay(Duration),
}

/// The faults in force. Cheap to clone.
#[derive(Clone)]
pub struct Faults(Arc<Inner>);

struct Inner {
    all: Mutex<Vec<(String, String, Fault, usize)>>,
    changed: watch::Sender<usize>,
}

impl Default for Faults {
    fn default() -> Self {
        Self(Arc::new(Inner { all: Mutex::default(), changed: watch::channel(0).0 }))
    }
}

impl Faults {
    /// Something happens to the watches of a resource of a user, from now on.
    pub fn happens(&self, user: &str, plural: &str, fault: Fault) {
        let mut all = self.0.all.lock().unwrap_or_else(PoisonError::into_inner);
        let number = all.len() + 1;
        all.push((user.to_owned(), plural.to_owned(), fault, number));
        self.0.changed.send_replace(number);
    }

    fn count(&self) -> usize {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// What ends or silences a watch that began when there had been so many faults, and how late events are.
    fn of(&self, user: &str, plural: &str, since: usize) -> (Option<Fault>, Duration) {
        let all = self.0.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = || all.iter().filter(|(u, p, _, _)| u == user && p == plural).map(|(_, _, fault, at)| (*fault, *at));
        let hit = mine().find(|(fault, at)| *at > since && !matches!(fault, Fault::Delay(_))).map(|(fault, _)| fault);
        let late = mine().rev().find_map(|(f, _)| if let Fault::Delay(d) = f { Some(d) } else { None });
        (hit, late.unwrap_or_default())
    }
}

/// One watch.
pub struct Watch {
    store: Arc<Store>,
    faults: Faults,
    user: String,
    kind: &'static Kind,
    namespace: Option<String>,
    selector: Selector,
    cursor: usize,
    /// Events to be sent before those of the log.
    first: VecDeque<Value>,
    begun_at: usize,
    end: Instant,
    over: bool,
}

impl Watch {
    pub(crate) fn begin(
        server: &Server,
        user: &str,
        kind: &'static Kind,
        namespace: Option<&str>,
        selector: Selector,
        query: &Query,
    ) -> Result<Self, Refusal> {
        let store = Arc::clone(&server.store);
        let initial = query.get("sendInitialEvents") == "true";
        if initial
            && (query.get("resourceVersionMatch") != "NotOlderThan" || query.get("allowWatchBookmarks") != "true")
        {
            return Err(Refusal::bad_request(
                "sendInitialEvents needs resourceVersionMatch=NotOlderThan and bookmarks",
            ));
        }
        let version: u64 = match query.get("resourceVersion") {
            "" => 0,
            text => text.parse().map_err(|_| Refusal::bad_request(format!("invalid resource version {text:?}")))?,
        };
        let mut first = VecDeque::new();
        let cursor = if initial || version == 0 {
            let cursor = store.log_len();
            let (objects, now) = store.list(kind.plural, namespace);
            first.extend(
                objects.iter().filter(|o| selector.matches(o)).map(|o| json!({"type": "ADDED", "object": **o})),
            );
            if initial {
                first.push_back(bookmark(kind, now, true));
            }
            cursor
        } else {
            // The answer is a watch whose only event says so.
            store.position(version).unwrap_or_else(|refusal| {
                first.push_back(json!({"type": "ERROR", "object": refusal.body()}));
                usize::MAX
            })
        };
        let seconds = query.get("timeoutSeconds").parse().unwrap_or(1800);
        Ok(Self {
            store,
            faults: server.faults.clone(),
            user: user.to_owned(),
            kind,
            namespace: namespace.map(str::to_owned),
            selector,
            cursor,
            first,
            begun_at: server.faults.count(),
            end: Instant::now() + Duration::from_secs(seconds),
            over: false,
        })
    }

    pub(crate) fn stream(self) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static {
        futures::stream::unfold(self, |mut watch| async move {
            let chunk = watch.next().await?;
            Some((chunk, watch))
        })
    }

    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        if self.over {
            return None;
        }
        let mut changes = self.store.changes();
        let mut faults = self.faults.0.changed.subscribe();
        loop {
            changes.borrow_and_update();
            faults.borrow_and_update();
            let (hit, late) = self.faults.of(&self.user, self.kind.plural, self.begun_at);
            match hit {
                Some(Fault::BlackHole) => std::future::pending().await,
                Some(Fault::Cut) => {
                    self.over = true;
                    return Some(Err(std::io::Error::other("the connection was cut")));
                }
                Some(Fault::Gone) => {
                    self.over = true;
                    let error = json!({"type": "ERROR", "object": Refusal::gone(1).body()});
                    return Some(Ok(line([error])));
                }
                Some(Fault::Delay(_)) | None => {}
            }
            if !self.first.is_empty() {
                self.over = self.cursor == usize::MAX;
                return Some(Ok(line(self.first.drain(..))));
            }
            let (events, due) = self.due(late);
            if !events.is_empty() {
                return Some(Ok(line(events)));
            }
            let wake = due.unwrap_or(self.end).min(self.end);
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                _ = faults.changed() => {}
                () = tokio::time::sleep_until(wake) => {
                    if Instant::now() >= self.end {
                        self.over = true;
                        return Some(Ok(line([bookmark(self.kind, self.seen(), false)])));
                    }
                }
            }
        }
    }

    /// The version up to which everything has been sent.
    fn seen(&self) -> u64 {
        let mut version = 0;
        if self.cursor == 0 {
            return self.store.version();
        }
        self.store.each_from(self.cursor - 1, |entry| {
            version = entry.version;
            false
        });
        version
    }

    /// Events that may be sent now, and when the next one may.
    fn due(&mut self, late: Duration) -> (Vec<Value>, Option<Instant>) {
        let (mut events, mut next, now) = (Vec::new(), None, Instant::now());
        self.cursor = self.store.each_from(self.cursor, |entry| {
            if entry.at + late > now {
                next = Some(entry.at + late);
                return false;
            }
            let ours = entry.kind.plural == self.kind.plural
                && self.namespace.as_deref().is_none_or(|ns| ns == text(&entry.object, "/metadata/namespace"));
            if ours {
                let was = entry.before.as_ref().is_some_and(|o| self.selector.matches(o));
                let is = entry.what != What::Deleted && self.selector.matches(&entry.object);
                let what = match (was, is) {
                    (false, true) => Some("ADDED"),
                    (true, true) => Some("MODIFIED"),
                    (true, false) => Some("DELETED"),
                    (false, false) => None,
                };
                events.extend(what.map(|what| json!({"type": what, "object": *entry.object})));
            }
            true
        });
        (events, next)
    }
}

fn bookmark(kind: &Kind, version: u64, initial: bool) -> Value {
    let mut metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    if initial {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    json!({"type": "BOOKMARK", "object": {"kind": kind.kind, "apiVersion": kind.api_version(), "metadata": metadata}})
}

fn line(events: impl IntoIterator<Item = Value>) -> Bytes {
    let mut text = String::new();
    for event in events {
        text.push_str(&event.to_string());
        text.push('\n');
    }
    Bytes::from(text)
}
