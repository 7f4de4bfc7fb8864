//! A hook receiver on loopback that records what it is told.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use apiserver::calls::Call;
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

#[derive(Clone)]
pub struct Receiver {
    pub url: String,
    inner: Arc<Inner>,
}

struct Inner {
    calls: Mutex<Vec<Call>>,
    accepted: Mutex<Vec<String>>,
    answers: Mutex<VecDeque<u16>>,
    open: watch::Sender<bool>,
    arrived: Notify,
}

impl Receiver {
    pub async fn start() -> Self {
        let inner = Arc::new(Inner {
            calls: Mutex::default(),
            accepted: Mutex::default(),
            answers: Mutex::default(),
            open: watch::channel(true).0,
            arrived: Notify::new(),
        });
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(take).with_state(inner.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, inner }
    }

    /// The next answers, then 200 again.
    pub fn answer(&self, codes: impl IntoIterator<Item = u16>) {
        self.inner.answers.lock().unwrap().extend(codes);
    }

    /// Calls are taken but not answered until `open`.
    pub fn close(&self) {
        self.inner.open.send_replace(false);
    }

    pub fn open(&self) {
        self.inner.open.send_replace(true);
    }

    pub fn calls(&self) -> Vec<Call> {
        self.inner.calls.lock().unwrap().clone()
    }

    /// Keys of the calls that were answered with success, as often as they were.
    pub fn accepted(&self) -> Vec<String> {
        self.inner.accepted.lock().unwrap().clone()
    }

    /// Waits until so many calls have arrived.
    pub async fn arrived(&self, count: usize) {
        let wait = async {
            loop {
                let notified = self.inner.arrived.notified();
                if self.calls().len() >= count {
                    return;
                }
                notified.await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(150), wait).await;
        assert!(in_time.is_ok(), "{} hook calls in 30 s, {count} were awaited", self.calls().len());
    }
}

async fn take(State(inner): State<Arc<Inner>>, uri: Uri, headers: HeaderMap, body: Bytes) -> StatusCode {
    let answer = inner.answers.lock().unwrap().pop_front().unwrap_or(200);
    let call = Call {
        at: Instant::now(),
        path: uri.path().to_owned(),
        key: headers.get("idempotency-key").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let key = call.key.clone();
    inner.calls.lock().unwrap().push(call);
    inner.arrived.notify_waiters();
    let mut open = inner.open.subscribe();
    // Ends here if the caller hangs up.
    let _ = open.wait_for(|open| *open).await;
    if (200..300).contains(&answer) {
        inner.accepted.lock().unwrap().push(key);
    }
    StatusCode::from_u16(answer).unwrap()
}
