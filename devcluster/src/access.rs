//! Requests behind some methods of [`crate::Cluster`].

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use http::Request;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{AuthInfo, Kubeconfig};
use kube::{Api, Client};
use serde_json::json;

use crate::audit::{AuditReader, Mark};
use crate::kubeconfig::write_private;

/// A day: longer than any test run.
const TOKEN_SECONDS: u32 = 24 * 60 * 60;

/// A token for a service account.
pub(crate) async fn token(client: Client, namespace: &str, name: &str) -> Result<String> {
    let request: TokenRequest =
        serde_json::from_value(json!({ "spec": { "audiences": [], "expirationSeconds": TOKEN_SECONDS } }))?;
    let answer = Api::<ServiceAccount>::namespaced(client, namespace)
        .create_token_request(name, &PostParams::default(), &request)
        .await
        .with_context(|| format!("no token for service account {namespace}/{name}"))?;
    answer.status.and_then(|status| status.token).context("the API server answered without a token")
}

/// Writes a copy of the kubeconfig `from` in which the token takes the place of the user's
/// credentials.
pub(crate) fn with_token(from: &Path, token: &str, to: &Path) -> Result<()> {
    let mut config = Kubeconfig::read_from(from)?;
    let auth: AuthInfo = serde_json::from_value(json!({ "token": token }))?;
    for user in &mut config.auth_infos {
        user.auth_info = Some(auth.clone());
    }
    write_private(to, &serde_json::to_string_pretty(&config)?)
}

/// A position behind everything that was answered before, see [`crate::Cluster::audit_mark`].
pub(crate) async fn audit_mark(client: Client, audit: &AuditReader) -> Result<Mark> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let before = audit.mark()?;
    // Other processes may mark the same log, so the number alone is not enough.
    let uri = format!("/version?devcluster-mark={}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    client.request_text(Request::get(&uri).body(Vec::new())?).await?;
    audit.wait_for(before, Duration::from_secs(10), |event| event.uri == uri && event.is_complete()).await?;
    audit.mark()
}
