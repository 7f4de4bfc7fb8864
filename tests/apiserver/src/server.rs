//! Requests and answers: the part of HTTP that kube's client speaks.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::body::Body as Answer;
use http::{Method, Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::{
    json::text,
    kinds::{self, Kind},
    patch,
    refusal::Refusal,
    selector::Selector,
    store::{Caller, Part, Preconditions, Store},
    watch::{Faults, Watch},
};

/// Users with verb `release`.
const MAY_RELEASE: [&str; 4] = ["interlock", "admin", "one", "two"];

/// One request that has been answered.
#[derive(Clone, Debug)]
pub struct Asked {
    pub user: String,
    pub method: String,
    pub path: String,
    pub code: u16,
    pub dry_run: bool,
}

impl Asked {
    /// Is it a write that could change something?
    pub fn write(&self) -> bool {
        self.method != "GET" && !self.dry_run
    }
}

/// The server. Cheap to clone.
#[derive(Clone)]
pub struct Server {
    pub store: Arc<Store>,
    pub faults: Faults,
    asked: Arc<Mutex<Vec<Asked>>>,
    network: Arc<Network>,
    /// A request and its answer each take up to so many milliseconds.
    latency: u64,
}

/// What becomes of requests on their way.
#[derive(Default)]
struct Network {
    /// Users and resources whose requests get no answer for now.
    muted: watch::Sender<BTreeSet<(String, String)>>,
    /// The write of this user after so many more is kept on its way until somebody lets it go.
    keep: Mutex<Option<(String, usize, oneshot::Sender<Kept>)>>,
}

/// A write that is on its way, whatever becomes of who sent it.
pub struct Kept {
    /// Verb and path.
    pub what: String,
    go: oneshot::Sender<()>,
}

impl Kept {
    /// It arrives.
    pub fn arrive(self) {
        let _ = self.go.send(());
    }
}

impl Server {
    pub fn new(seed: u64, latency: u64) -> Self {
        let store = Store::new(seed);
        let system = Caller::system("install");
        for plural in ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"] {
            let object = json!({"metadata": {"name": "interlock-hold"}, "spec": {}});
            store.create(system, kinds::of(plural), "", object).expect("an empty store");
        }
        Self { store, faults: Faults::default(), asked: Arc::default(), network: Arc::default(), latency }
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Requests as a user, as a service for kube's client.
    pub fn service(
        &self,
        user: &str,
    ) -> impl tower::Service<Request<Body>, Response = Response<Answer>, Error = Infallible, Future: Send + 'static>
    + Clone
    + Send
    + 'static {
        let (server, user) = (self.clone(), user.to_owned());
        tower::service_fn(move |request: Request<Body>| {
            let (server, user) = (server.clone(), user.clone());
            async move {
                // What is on its way arrives, whatever becomes of who sent it.
                let answer = tokio::spawn(async move { server.answer(&user, request).await });
                Ok(answer.await.expect("an answer"))
            }
        })
    }

    /// A client as a user.
    pub fn client(&self, user: &str) -> Client {
        Client::new(self.service(user), "default")
    }

    /// Requests of a user about a resource get no answer, until this is called with `false`.
    pub fn mute(&self, user: &str, plural: &str, yes: bool) {
        let key = (user.to_owned(), plural.to_owned());
        self.network.muted.send_modify(|muted| {
            if yes {
                muted.insert(key);
            } else {
                muted.remove(&key);
            }
        });
    }

    /// Keeps the `nth` write of a user from now on, Leases, events and policies aside, on its way.
    pub fn keep_write(&self, user: &str, nth: usize) -> oneshot::Receiver<Kept> {
        let (tell, hear) = oneshot::channel();
        *self.network.keep.lock().unwrap() = Some((user.to_owned(), nth, tell));
        hear
    }

    /// Waits as long as a request is kept on its way.
    async fn travel(&self, user: &str, method: &Method, uri: &http::Uri) {
        let path = uri.path();
        let mut muted = self.network.muted.subscribe();
        let is = |muted: &BTreeSet<(String, String)>| {
            muted.iter().any(|(u, p)| u == user && path.contains(&format!("/{p}")))
        };
        let _ = muted.wait_for(|muted| !is(muted)).await;
        let counts = ["/leases", "/events", "/hookpolicies"].iter().all(|other| !path.contains(other));
        let dry = uri.query().is_some_and(|q| q.contains("dryRun"));
        if *method == Method::GET || !counts || dry {
            return;
        }
        let due = {
            let mut keep = self.network.keep.lock().unwrap();
            if let Some((who, left, _)) = keep.as_mut()
                && who == user
            {
                *left = left.saturating_sub(1);
            }
            keep.take_if(|(who, left, _)| who == user && *left == 0)
        };
        if let Some((_, _, tell)) = due {
            let (go, wait) = oneshot::channel();
            if tell.send(Kept { what: format!("{method} {path}"), go }).is_ok() {
                let _ = wait.await;
            }
        }
    }

    async fn answer(&self, user: &str, request: Request<Body>) -> Response<Answer> {
        self.pass_time().await;
        let (parts, body) = request.into_parts();
        self.travel(user, &parts.method, &parts.uri).await;
        let bytes = body.collect_bytes().await.unwrap_or_default();
        let content_type =
            parts.headers.get(http::header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let query = Query::read(parts.uri.query().unwrap_or_default());
        let result = Path::read(parts.uri.path())
            .and_then(|path| self.handle(user, &parts.method, &path, &query, content_type, &bytes));
        let (code, body) = match result {
            Ok(Reply::Object(code, value)) => (code, Answer::from(value.to_string())),
            Ok(Reply::Watch(watch)) => (200, Answer::from_stream(watch.stream())),
            Err(refusal) => (refusal.code, Answer::from(refusal.body().to_string())),
        };
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(Asked {
            user: user.to_owned(),
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            code,
            dry_run: query.has("dryRun"),
        });
        self.pass_time().await;
        Response::builder().status(code).header(http::header::CONTENT_TYPE, "application/json").body(body).unwrap()
    }

    async fn pass_time(&self) {
        let pause = self.store.jitter(self.latency);
        if pause > Duration::ZERO {
            tokio::time::sleep(pause).await;
        }
    }

    fn handle(
        &self,
        user: &str,
        method: &Method,
        path: &Path,
        query: &Query,
        content_type: &str,
        bytes: &[u8],
    ) -> Result<Reply, Refusal> {
        let Path { kind, namespace, name, sub } = path;
        let by = Caller { name: user, may_release: MAY_RELEASE.contains(&user), dry_run: query.has("dryRun") };
        let parse = || -> Result<Value, Refusal> {
            // A server-side apply may be YAML; kube sends JSON, which is YAML too.
            serde_json::from_slice(bytes).map_err(|e| Refusal::bad_request(format!("the body is no JSON: {e}")))
        };
        let part = match sub.as_deref() {
            None => Part::Main,
            Some("status") if kind.status => Part::Status,
            Some("resize") if kind.plural == "pods" => Part::Resize,
            Some(_) => return Err(Refusal::no_path()),
        };
        let in_namespace = namespace.as_deref().unwrap_or_default();
        let Some(name) = name else {
            return match method.as_str() {
                "GET" => self.many(user, kind, namespace.as_deref(), query),
                "POST" => self.store.create(by, kind, in_namespace, parse()?).map(|o| Reply::Object(201, o)),
                _ => Err(Refusal::method()),
            };
        };
        let target = (*kind, in_namespace, name.as_str());
        match method.as_str() {
            "GET" => {
                let object =
                    self.store.get(kind.plural, in_namespace, name).ok_or_else(|| Refusal::not_found(kind, name))?;
                Ok(Reply::Object(200, Value::clone(&object)))
            }
            "PUT" => {
                let new = parse()?;
                self.store.update(by, target, part, |_| Ok(new)).map(|o| Reply::Object(200, o))
            }
            "PATCH" => {
                let patch = parse()?;
                let apply = content_type == "application/apply-patch+yaml";
                if apply && self.store.get(kind.plural, in_namespace, name).is_none() {
                    return self.store.create(by, kind, in_namespace, patch).map(|o| Reply::Object(201, o));
                }
                let edit = |old: &Value| patch::apply(kind, content_type, old, patch);
                self.store.update(by, target, part, edit).map(|o| Reply::Object(200, o))
            }
            "DELETE" => {
                let options = if bytes.is_empty() { Value::Null } else { parse()? };
                // Options in a body are all that counts.
                let dry_run = if options.is_null() { by.dry_run } else { !options["dryRun"].is_null() };
                let by = Caller { dry_run, ..by };
                let conditions = Preconditions {
                    uid: options["preconditions"]["uid"].as_str(),
                    resource_version: options["preconditions"]["resourceVersion"].as_str(),
                    grace: options["gracePeriodSeconds"].as_i64(),
                };
                let (object, gone) = self.store.delete(by, target, conditions)?;
                // Pods come back as objects, as do those that are not gone yet.
                if kind.plural == "pods" || !gone {
                    return Ok(Reply::Object(200, object));
                }
                let details = json!({"name": name, "group": kind.group, "kind": kind.plural, "uid": text(&object, "/metadata/uid")});
                Ok(Reply::Object(
                    200,
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}),
                ))
            }
            _ => Err(Refusal::method()),
        }
    }

    fn many(&self, user: &str, kind: &'static Kind, namespace: Option<&str>, query: &Query) -> Result<Reply, Refusal> {
        let selector = Selector::read(query.get("labelSelector"), query.get("fieldSelector"))?;
        if query.get("watch") == "true" {
            let watch = Watch::begin(self, user, kind, namespace, selector, query)?;
            return Ok(Reply::Watch(Box::new(watch)));
        }
        let (objects, version) = self.store.list(kind.plural, namespace);
        let skip: usize = query.get("continue").parse().unwrap_or(0);
        let limit: usize = query.get("limit").parse().ok().filter(|l| *l > 0).unwrap_or(usize::MAX);
        let all: Vec<&Arc<Value>> = objects.iter().filter(|o| selector.matches(o)).collect();
        let page: Vec<&Value> = all.iter().skip(skip).take(limit).map(|o| &***o).collect();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if all.len() > skip + page.len() {
            metadata["continue"] = json!((skip + page.len()).to_string());
        }
        let list = json!({
            "kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(), "metadata": metadata, "items": page,
        });
        Ok(Reply::Object(200, list))
    }
}

enum Reply {
    Object(u16, Value),
    Watch(Box<Watch>),
}

struct Path {
    kind: &'static Kind,
    namespace: Option<String>,
    name: Option<String>,
    sub: Option<String>,
}

impl Path {
    fn read(path: &str) -> Result<Self, Refusal> {
        let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(Refusal::no_path()),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && rest[0] != "status" => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let (plural, name, sub) = match rest {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some(*name), None),
            [plural, name, sub] => (*plural, Some(*name), Some(*sub)),
            _ => return Err(Refusal::no_path()),
        };
        let kind = kinds::find(group, version, plural).ok_or_else(Refusal::no_path)?;
        let own = str::to_owned;
        Ok(Self { kind, namespace: namespace.map(own), name: name.map(own), sub: sub.map(own) })
    }
}

/// The parameters of a request.
pub struct Query(BTreeMap<String, String>);

impl Query {
    fn read(query: &str) -> Self {
        let pairs = query.split('&').filter(|p| !p.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(key), decoded(value))
        });
        Self(pairs.collect())
    }

    /// Empty if it is not there.
    pub fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let hex: String = rest.by_ref().take(2).map(char::from).collect();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap_or(b'%'));
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
