//! Health, readiness and metrics over HTTP.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub mod health;
#[cfg(test)]
mod tests;

pub use health::Health;

use crate::publish::metrics::{self, Metrics};

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken, not ours, or not allowed.
    #[error("--listen {address}: cannot listen there: {why}; choose another address or port, or end what uses it")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system says.
        why: std::io::Error,
    },
    /// The listener failed.
    #[error("serving health and metrics ended: {0}")]
    Ended(std::io::Error),
}

/// A bound listener: from here on connections queue, and nobody else can take the port.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Binds.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let listener = TcpListener::bind(address).await.map_err(|why| ServeError::Bind { address, why })?;
        let address = listener.local_addr().map_err(|why| ServeError::Bind { address, why })?;
        Ok(Self { listener, address })
    }

    /// Where it listens: the port is known even if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`; requests that have begun are answered first.
    pub async fn run(self, health: Health, metrics: Metrics, stop: CancellationToken) -> Result<(), ServeError> {
        let ip = match self.address.ip() {
            ip if ip.is_unspecified() => "all addresses".to_owned(),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => ip.to_string(),
        };
        tracing::info!(%ip, port = self.address.port(), "serving /healthz, /readyz and /metrics");
        axum::serve(self.listener, router(health, metrics))
            .with_graceful_shutdown(stop.cancelled_owned())
            .await
            .map_err(ServeError::Ended)
    }
}

struct Shared {
    health: Health,
    metrics: Metrics,
}

fn router(health: Health, metrics: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render))
        .fallback(async || (StatusCode::NOT_FOUND, "not found; there are /healthz, /readyz and /metrics\n"))
        .with_state(Arc::new(Shared { health, metrics }))
}

async fn healthz(State(shared): State<Arc<Shared>>) -> Response {
    answer(shared.health.alive())
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    answer(shared.health.ready())
}

fn answer(state: Result<(), String>) -> Response {
    match state {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

async fn render(State(shared): State<Arc<Shared>>) -> Response {
    shared.metrics.leading(shared.health.leads());
    match shared.metrics.render() {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written\n").into_response(),
    }
}
