//! A read-only OCI registry over HTTP on 127.0.0.1.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;

use super::images::{self, Blob, Tag};

/// The name under which pods name the registry. Every other name leads to it too, so `web:v1` (which stands for
/// `docker.io/library/web:v1`) can be pulled without a network.
const HOST: &str = "registry.test";

const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// The image registry of a real node. It has every repository, and in each of them these tags, where `…` is anything:
///
/// | tag | image |
/// | --- | --- |
/// | `v1…` to `v9…` | answers every HTTP request on port 8080 (`PORT`) with its tag; `/ready` says when it is ready |
/// | `crash…` | ends at once with exit code 7 |
/// | `never-ready…` | like `v1`, but `/ready` answers 503 |
/// | `deaf…` | like `v1`, but it ignores SIGTERM |
/// | `slow5…` | like `v1`, but the registry takes 5 (or another number of) seconds to hand it out |
/// | `v1…-again` | another tag of the digest of `v1…` |
///
/// Any other tag is unknown (404).
pub struct Registry {
    port: u16,
    shared: Arc<Shared>,
    server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

struct Shared {
    layer: Blob,
    /// All that was made so far, by digest.
    blobs: Mutex<HashMap<String, Blob>>,
}

impl Shared {
    fn blob(&self, digest: &str) -> Option<Blob> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }

    fn manifest(&self, repository: &str, tag: Tag<'_>) -> Blob {
        let (config, manifest) = images::image(&self.layer, repository, tag);
        let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        blobs.insert(config.digest.clone(), config);
        blobs.insert(manifest.digest.clone(), manifest.clone());
        manifest
    }
}

impl Registry {
    /// Starts a registry whose images hold this program.
    pub(crate) fn start(program: &std::path::Path) -> Result<Self> {
        let program = std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
        let layer = images::layer(&program);
        let blobs = Mutex::new(HashMap::from([(layer.digest.clone(), layer.clone())]));
        let shared = Arc::new(Shared { layer, blobs });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let app = Router::new()
            .route("/v2/", axum::routing::get(|| async {}))
            .route("/v2/{*path}", axum::routing::get(serve))
            .with_state(shared.clone());
        // A thread of its own: a cluster may be used from several async runtimes, one after the other.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("devcluster-registry".into()).spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                tokio::select! {
                    _ = axum::serve(listener, app) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { port, shared, server: Some((stop, thread)) })
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The name of an image, for a pod.
    pub fn image(&self, repository: &str, tag: &str) -> String {
        format!("{HOST}/{repository}:{tag}")
    }

    /// The digest of an image, `sha256:...`.
    ///
    /// # Errors
    /// When there is no such tag.
    pub fn digest(&self, repository: &str, tag: &str) -> Result<String> {
        let tag = Tag::parse(tag).with_context(|| format!("the registry has no tag {tag:?}"))?;
        Ok(self.shared.manifest(repository, tag).digest)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.server.take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

/// `GET` and `HEAD` of `/v2/REPOSITORY/manifests/TAG-OR-DIGEST` and `/v2/REPOSITORY/blobs/DIGEST`.
async fn serve(State(shared): State<Arc<Shared>>, Path(path): Path<String>) -> Response {
    let mut parts = path.rsplitn(3, '/');
    let (reference, kind, repository) = (parts.next(), parts.next(), parts.next());
    let (Some(reference), Some(kind), Some(repository)) = (reference, kind, repository) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let blob = match (kind, shared.blob(reference), Tag::parse(reference)) {
        ("manifests" | "blobs", Some(blob), _) => Some(blob),
        ("manifests", None, Some(tag)) => {
            tokio::time::sleep(tag.delay).await;
            Some(shared.manifest(repository, tag))
        }
        _ => None,
    };
    if let Some(blob) = blob {
        let length = blob.bytes.len().to_string();
        let headers = [(CONTENT_TYPE, blob.media_type.to_owned()), (CONTENT_LENGTH, length), (DIGEST, blob.digest)];
        (headers, blob.bytes).into_response()
    } else {
        let unknown = r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#;
        (StatusCode::NOT_FOUND, [(CONTENT_TYPE, "application/json")], unknown).into_response()
    }
}
