//! A layer in the controller's client: it sees every write and can hold one up while a test does something, or answer
//! in the server's place.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use axum::body::{Body, Bytes, HttpBody};
use futures::future::BoxFuture;
use http::{Method, Request, Response};

use tokio::sync::{mpsc, oneshot};
use tower::{BoxError, Layer, Service, ServiceExt};

/// One write of the controller.
#[derive(Clone, Debug)]
pub struct Write {
    /// What it does, such as `PATCH pods`, `POST hookruns`, `PATCH hookruns/status`.
    pub what: String,
    /// Was it answered with success?
    pub accepted: bool,
}

/// When the controller is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

/// What the controller is told instead of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write is not made; this status is the answer.
    Code(u16),
    /// The write is made; its answer is lost.
    Lost,
}

/// A write that waits for the test to go on.
pub struct Stopped {
    go: oneshot::Sender<()>,
}

impl Stopped {
    /// Lets the controller go on.
    pub fn go_on(self) {
        let _ = self.go.send(());
    }
}

struct Trap {
    moment: Moment,
    /// `None`: any write but those to the status of policies, whose time nobody can foresee.
    what: Option<String>,
    nth: usize,
    seen: usize,
    tell: mpsc::UnboundedSender<Stopped>,
}

/// The test's handle.
#[derive(Clone, Default)]
pub struct Gate {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    traps: Mutex<Vec<Trap>>,
    answers: Mutex<Vec<(Answer, usize)>>,
    writes: Mutex<Vec<Write>>,
}

impl Gate {
    /// The controller will stop at the `nth` write of this kind; the receiver gets it.
    pub fn stop_at(&self, moment: Moment, what: &str, nth: usize) -> mpsc::UnboundedReceiver<Stopped> {
        self.trap(moment, Some(what.to_owned()), nth)
    }

    /// The controller will stop at its `nth` write from now on.
    pub fn stop_at_any(&self, moment: Moment, nth: usize) -> mpsc::UnboundedReceiver<Stopped> {
        self.trap(moment, None, nth)
    }

    /// The `nth` write from now on gets this answer.
    pub fn answer_any(&self, answer: Answer, nth: usize) {
        self.inner.answers.lock().unwrap().push((answer, nth));
    }

    /// What has not happened yet does not happen any more.
    pub fn forget(&self) {
        self.inner.traps.lock().unwrap().clear();
        self.inner.answers.lock().unwrap().clear();
    }

    fn trap(&self, moment: Moment, what: Option<String>, nth: usize) -> mpsc::UnboundedReceiver<Stopped> {
        let (tell, hear) = mpsc::unbounded_channel();
        self.inner.traps.lock().unwrap().push(Trap { moment, what, nth, seen: 0, tell });
        hear
    }

    /// The answer that is due for this write.
    fn answer(&self, what: &str) -> Option<Answer> {
        if what.contains("hookpolicies") {
            return None;
        }
        let mut answers = self.inner.answers.lock().unwrap();
        for (_, left) in answers.iter_mut() {
            *left = left.saturating_sub(1);
        }
        let due = answers.iter().position(|(_, left)| *left == 0)?;
        Some(answers.remove(due).0)
    }

    /// All writes so far.
    pub fn writes(&self) -> Vec<Write> {
        self.inner.writes.lock().unwrap().clone()
    }

    /// How many writes of this kind there were.
    pub fn count(&self, what: &str) -> usize {
        self.writes().iter().filter(|w| w.what == what).count()
    }

    fn trapped(&self, moment: Moment, what: &str) -> Option<mpsc::UnboundedSender<Stopped>> {
        let mut traps = self.inner.traps.lock().unwrap();
        let fits = |t: &Trap| t.what.as_ref().map_or(!what.contains("hookpolicies"), |w| w == what);
        let mut due = None;
        for trap in traps.iter_mut().filter(|t| t.moment == moment && fits(t)) {
            trap.seen += 1; // of all traps, also when another one has sprung
            if trap.seen == trap.nth && due.is_none() {
                due = Some(trap.tell.clone());
            }
        }
        due
    }

    async fn pass(&self, moment: Moment, write: &Write) {
        if let Some(tell) = self.trapped(moment, &write.what) {
            let (go, wait) = oneshot::channel();
            if tell.send(Stopped { go }).is_ok() {
                let _ = wait.await;
            }
        }
    }
}

/// `PATCH pods`, `PATCH hookruns/status`: the verb and the resource with its subresource.
fn what(method: &Method, path: &str) -> String {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let rest = match parts.iter().position(|p| *p == "namespaces") {
        Some(at) => &parts[(at + 2).min(parts.len())..],
        None => &parts[parts.len().saturating_sub(2)..],
    };
    match rest {
        [resource, _name, sub, ..] => format!("{method} {resource}/{sub}"),
        [resource, ..] => format!("{method} {resource}"),
        [] => format!("{method}"),
    }
}

impl<S> Layer<S> for Gate {
    type Service = Gated<S>;
    fn layer(&self, service: S) -> Gated<S> {
        Gated { gate: self.clone(), service: Arc::new(tokio::sync::Mutex::new(service)) }
    }
}

pub struct Gated<S> {
    gate: Gate,
    service: Arc<tokio::sync::Mutex<S>>,
}

async fn send<S, A, B>(service: &tokio::sync::Mutex<S>, request: Request<A>) -> Result<Response<Body>, BoxError>
where
    S: Service<Request<A>, Response = Response<B>, Error = BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let answer = {
        let mut service = service.lock().await;
        service.ready().await?.call(request)
    };
    answer.await.map(|answer| answer.map(Body::new))
}

impl<S, A, B> Service<Request<A>> for Gated<S>
where
    S: Service<Request<A>, Response = Response<B>, Error = BoxError> + Send + 'static,
    S::Future: Send,
    A: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (gate, service) = (self.gate.clone(), self.service.clone());
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let dry = request.uri().query().is_some_and(|q| q.contains("dryRun"));
            if request.method() == Method::GET
                || dry
                || path.contains("/events")
                || path.contains("/leases")
                || path.contains("selfsubject")
            {
                return send(&service, request).await;
            }
            let mut write = Write { what: what(request.method(), &path), accepted: false };
            gate.pass(Moment::Before, &write).await;
            let answer = match gate.answer(&write.what) {
                Some(Answer::Code(code)) => {
                    let status = serde_json::json!({
                        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
                        "reason": "", "message": "the server rejected our request: a test said so",
                    });
                    let body = Body::from(status.to_string().into_bytes());
                    Ok(Response::builder().status(code).header("content-type", "application/json").body(body).unwrap())
                }
                Some(Answer::Lost) => {
                    let _ = send(&service, request).await;
                    Err("the connection was lost".into())
                }
                None => send(&service, request).await,
            };
            write.accepted = answer.as_ref().is_ok_and(|answer| answer.status().is_success());
            gate.inner.writes.lock().unwrap().push(write.clone());
            gate.pass(Moment::After, &write).await;
            answer
        })
    }
}
