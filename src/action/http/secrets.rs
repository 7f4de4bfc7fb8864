//! Secrets, read by name at the moment they are needed, and never shown.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::ByteString;
use kube::core::DynamicObject;

use super::Trouble;
use crate::action::cluster::{self, Cluster, SECRETS};

/// A value that no trace shows.
pub(super) struct Hidden(pub(super) Vec<u8>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Hidden {
    /// As text; a Secret that is none is named as invalid.
    pub(super) fn text(&self) -> Result<&str, Trouble> {
        std::str::from_utf8(&self.0).map_err(|_| Trouble::SecretInvalid)
    }
}

/// The Secrets of one attempt; each is read once.
pub(super) struct Secrets<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
    read: BTreeMap<String, DynamicObject>,
}

impl<'a> Secrets<'a> {
    pub(super) fn new(cluster: &'a Cluster, namespace: &'a str) -> Self {
        Self { cluster, namespace, read: BTreeMap::new() }
    }

    /// A key of a Secret.
    pub(super) async fn value(&mut self, name: &str, key: &str) -> Result<Hidden, Trouble> {
        if !self.read.contains_key(name) {
            // Kept as the JSON that it is: what a typed reader cannot read, it would write into the log.
            let secret = self.cluster.get(&self.cluster.api(self.namespace, SECRETS), name).await;
            let secret = secret.map_err(|trouble| match trouble {
                cluster::Trouble::Missing => Trouble::SecretMissing,
                _ => Trouble::SecretUnread,
            })?;
            self.read.insert(name.to_owned(), secret);
        }
        let data = self.read.get(name).and_then(|secret| secret.data.get("data")?.get(key));
        let value = data.ok_or(Trouble::SecretMissing)?;
        let ByteString(bytes) = serde_json::from_value(value.clone()).map_err(|_| Trouble::SecretInvalid)?;
        Ok(Hidden(bytes))
    }
}
