//! Writing kubeconfig files and turning them into clients.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use crate::certs::Identity;

/// Writes a kubeconfig with one context. It holds a private key, so only the user may read it.
///
/// `ca` is the PEM text of the certificate authority; a `server` that starts with `http://` needs
/// none.
pub(crate) fn write(path: &Path, server: &str, ca: &str, identity: &Identity) -> Result<()> {
    let mut cluster = json!({ "server": server });
    if server.starts_with("https://") {
        cluster["certificate-authority-data"] = STANDARD.encode(ca).into();
    }
    let user = json!({
        "client-certificate-data": STANDARD.encode(&identity.cert),
        "client-key-data": STANDARD.encode(&identity.key),
    });
    // JSON is YAML, so every reader of kubeconfig files takes it.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "devcluster", "cluster": cluster }],
        "users": [{ "name": "user", "user": user }],
        "contexts": [{ "name": "devcluster", "context": { "cluster": "devcluster", "user": "user" } }],
        "current-context": "devcluster",
    });
    write_private(path, &serde_json::to_string_pretty(&config)?)
}

/// Writes a file that only the user may read. It appears complete under its name, never half
/// written.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let write = || -> std::io::Result<()> {
        // A name of its own: several tests may write the same file at the same time. Its mode is 0600.
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        file.write_all(text.as_bytes())?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// The client configuration of a kubeconfig file, current context.
pub(crate) async fn config(path: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("cannot use {}", path.display()))
}

/// A client for this configuration which calls itself `agent`.
pub(crate) fn client(mut config: Config, agent: &str) -> Result<Client> {
    config.headers.push((http::header::USER_AGENT, agent.parse().context("the user agent is not a header value")?));
    Client::try_from(config).context("cannot make a client")
}
