//! The receiver of the hooks: it records each call and answers 200.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Context, Result};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::say::Say;

/// One call of a hook.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// When it arrived.
    pub(crate) at: Instant,
    /// Path of the URL without the slash: the hook.
    pub(crate) hook: String,
    /// The Deployment that it speaks of.
    pub(crate) deployment: String,
    /// Its `Idempotency-Key`.
    pub(crate) key: String,
}

/// How many calls of this hook there were for this Deployment.
pub(crate) fn count(calls: &[Call], hook: &str, deployment: &str) -> usize {
    calls.iter().filter(|call| call.hook == hook && call.deployment == deployment).count()
}

/// How many different, non-empty keys there are.
pub(crate) fn keys(calls: &[Call]) -> usize {
    calls.iter().map(|call| call.key.as_str()).filter(|key| !key.is_empty()).collect::<BTreeSet<_>>().len()
}

/// The running receiver. It ends with the process.
#[derive(Clone)]
pub(crate) struct Receiver {
    authority: String,
    shared: Shared,
}

#[derive(Clone)]
struct Shared {
    say: Say,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Receiver {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) async fn start(say: Say) -> Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .await
            .context("the hook receiver cannot listen on 127.0.0.1")?;
        let authority = listener.local_addr()?.to_string();
        let shared = Shared { say, calls: Arc::default() };
        let router = Router::new().fallback(take).with_state(shared.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { authority, shared })
    }

    /// `HOST:PORT`.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// All calls so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn take(State(shared): State<Shared>, uri: Uri, headers: HeaderMap, body: Bytes) -> StatusCode {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let call = Call {
        at: Instant::now(),
        hook: uri.path().trim_start_matches('/').to_owned(),
        deployment: body.get("deployment").and_then(Value::as_str).unwrap_or_default().to_owned(),
        key: headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned(),
    };
    shared.say.line(format_args!("{}: hook {} called", call.deployment, call.hook));
    shared.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    StatusCode::OK
}
