//! Passing requests on, and their answers back.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State as Shared;
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};
use http::{Request, StatusCode, header};
use kube::Client;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, Instant, sleep_until};

use super::request::{Watch, end_to_end};
use super::{Resources, State, WatchFault};

pub(super) struct Relay {
    /// Adds the proxy's credentials.
    pub(super) own: Client,
    /// Adds none.
    pub(super) bare: Client,
    pub(super) resources: Arc<Resources>,
}

/// One request of the client.
pub(super) async fn take(Shared(relay): Shared<Arc<Relay>>, request: Request<Body>) -> Response {
    let Some(watch) = Watch::of(request.method(), request.uri()) else { return relay.pass(request).await };
    let resource = relay.resources.get(&watch.resource);
    // Before it counts: whoever waits for the next watch and cuts it must not miss it.
    let mut state = resource.subscribe();
    resource.send_modify(|state| state.begun += 1);
    let State { fault, cuts, .. } = *state.borrow_and_update();
    match fault {
        WatchFault::BlackHole => std::future::pending().await,
        WatchFault::Gone if watch.resumes => {
            let headers = [(header::CONTENT_TYPE, "application/json")];
            (StatusCode::GONE, headers, gone().to_string()).into_response()
        }
        WatchFault::Expired if watch.resumes => {
            let event = json!({ "type": "ERROR", "object": gone() });
            ([(header::CONTENT_TYPE, "application/json")], format!("{event}\n")).into_response()
        }
        _ => {
            let (parts, body) = relay.pass(request).await.into_parts();
            if !parts.status.is_success() {
                return Response::from_parts(parts, body);
            }
            let running = Running::new(resource);
            Response::from_parts(parts, Body::from_stream(spoiled(body, state, cuts, running)))
        }
    }
}

/// What the API server says about a version that it does not know any more.
fn gone() -> serde_json::Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410,
        "message": "too old resource version: the proxy says so",
    })
}

impl Relay {
    async fn pass(&self, request: Request<Body>) -> Response {
        let (mut parts, body) = request.into_parts();
        end_to_end(&mut parts.headers);
        let client = if parts.headers.contains_key(header::AUTHORIZATION) { &self.bare } else { &self.own };
        let answer = async {
            // Read in full first, so that a client which dies while it writes has written nothing.
            let body = axum::body::to_bytes(body, usize::MAX).await?;
            anyhow::Ok(client.send(Request::from_parts(parts, body.into())).await?)
        };
        match answer.await {
            Ok(answer) => {
                let (mut parts, body) = answer.into_parts();
                end_to_end(&mut parts.headers);
                Response::from_parts(parts, Body::new(body))
            }
            Err(error) => (StatusCode::BAD_GATEWAY, format!("proxy: {error:#}")).into_response(),
        }
    }
}

/// The answer to a watch with its fault. `cuts` is how often such watches had been cut when it
/// began.
fn spoiled(
    body: Body,
    state: watch::Receiver<State>,
    cuts: u64,
    running: Running,
) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + 'static {
    let (sender, chunks) = mpsc::unbounded_channel();
    tokio::spawn(collect(body, sender));
    stream::unfold(Some(Spoiled { chunks, waiting: None, state, cuts, _running: running }), |spoiled| async move {
        let mut spoiled = spoiled?;
        let chunk = spoiled.next().await?;
        let rest = chunk.is_ok().then_some(spoiled);
        Some((chunk, rest))
    })
}

/// Counts a watch for as long as it is relayed.
struct Running(watch::Sender<State>);

impl Running {
    fn new(resource: watch::Sender<State>) -> Self {
        resource.send_modify(|state| state.running += 1);
        Self(resource)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|state| state.running -= 1);
    }
}

/// What came from the API server, and when; `None` is its end.
type Chunk = (Instant, Option<Result<Bytes, axum::Error>>);

/// Reads on whatever the client gets to see, so that a delay does not slow the API server down.
async fn collect(body: Body, sender: mpsc::UnboundedSender<Chunk>) {
    let mut body = body.into_data_stream();
    loop {
        let chunk = tokio::select! {
            () = sender.closed() => return,
            chunk = body.next() => chunk,
        };
        let end = chunk.is_none();
        if sender.send((Instant::now(), chunk)).is_err() || end {
            return;
        }
    }
}

struct Spoiled {
    chunks: mpsc::UnboundedReceiver<Chunk>,
    /// The next one to go on, in its time.
    waiting: Option<Chunk>,
    state: watch::Receiver<State>,
    cuts: u64,
    _running: Running,
}

impl Spoiled {
    /// `None` at the orderly end.
    async fn next(&mut self) -> Option<Result<Bytes, axum::Error>> {
        loop {
            let State { fault, cuts, .. } = *self.state.borrow_and_update();
            if cuts != self.cuts {
                return Some(Err(axum::Error::new(std::io::Error::other("cut by the proxy"))));
            }
            let delay = match fault {
                WatchFault::BlackHole => std::future::pending().await,
                WatchFault::Delay(delay) => delay,
                WatchFault::None | WatchFault::Gone | WatchFault::Expired => Duration::ZERO,
            };
            let due = self.waiting.as_ref().map(|(arrived, _)| *arrived + delay);
            tokio::select! {
                biased;
                changed = self.state.changed() => changed.ok()?,
                chunk = self.chunks.recv(), if due.is_none() => self.waiting = Some(chunk?),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    return self.waiting.take().and_then(|(_, chunk)| chunk);
                }
            }
        }
    }
}
