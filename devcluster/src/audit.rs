//! Reading the API server's audit log: who asked for what, exactly counted.
//!
//! The log holds one entry per request when it is answered, and for a watch or another long request
//! one more when its answer begins ([`Stage::ResponseStarted`]). Request and response bodies are
//! not in it.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The policy that the API server runs with.
pub(crate) const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// When in the life of a request an entry was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// The request arrived. Left out by the cluster's policy.
    RequestReceived,
    /// The answer of a long-running request (a watch, an exec) has begun.
    ResponseStarted,
    /// The request is answered in full.
    ResponseComplete,
    /// The API server failed inside.
    Panic,
}

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The same for all entries of one request.
    pub audit_id: String,
    /// When the entry was written.
    pub stage: Stage,
    /// Who authenticated, for example `system:serviceaccount:interlock:interlock`.
    pub user: String,
    /// Whom that user impersonated, if anybody.
    pub impersonated_user: Option<String>,
    /// What the client calls itself; empty if it sent nothing.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, ...
    pub verb: String,
    /// API group of the resource; empty for the core group and for requests without a resource.
    pub group: String,
    /// Plural name, for example `pods`; empty for a request without a resource, such as `/readyz`.
    pub resource: String,
    /// For example `status`; empty without one.
    pub subresource: String,
    /// Namespace of the object; empty for cluster-wide requests.
    pub namespace: String,
    /// Name of the object; empty for lists, and for a `create`, where Kubernetes does not log it,
    /// unless it has one.
    pub name: String,
    /// The path with its query.
    pub uri: String,
    /// HTTP status of the answer; 0 if there is none yet.
    pub code: u16,
    /// When the request arrived.
    pub received: Timestamp,
    /// When this stage was reached.
    pub staged: Timestamp,
}

impl Event {
    /// Whether the request changes objects: create, update, patch, delete or deletecollection.
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// Whether the request is answered; entries of the same request before that are not counted
    /// twice with this.
    pub fn is_complete(&self) -> bool {
        self.stage == Stage::ResponseComplete
    }

    /// Whether the answer is a success (2xx).
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// In whose name the request was carried out: the impersonated user, else the authenticated
    /// one.
    pub fn acting_user(&self) -> &str {
        self.impersonated_user.as_deref().unwrap_or(&self.user)
    }

    /// Whether it is about this resource, without a subresource: `pods`, or with one:
    /// `pods/status`.
    pub fn is_about(&self, resource: &str) -> bool {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        self.resource == resource && self.subresource == subresource
    }

    /// Parses one line of the log; `None` for a line that is not an entry.
    pub fn parse(line: &str) -> Option<Self> {
        let raw: Raw = serde_json::from_str(line).ok()?;
        let object = raw.object_ref.unwrap_or_default();
        Some(Self {
            audit_id: raw.audit_id,
            stage: raw.stage,
            user: raw.user.username,
            impersonated_user: raw.impersonated_user.map(|user| user.username),
            user_agent: raw.user_agent,
            verb: raw.verb,
            group: object.api_group,
            resource: object.resource,
            subresource: object.subresource,
            namespace: object.namespace,
            name: object.name,
            uri: raw.request_uri,
            code: raw.response_status.map_or(0, |status| status.code),
            received: raw.request_received_timestamp,
            staged: raw.stage_timestamp,
        })
    }
}

/// The entry as Kubernetes writes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: Stage,
    #[serde(default, rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: RawUser,
    impersonated_user: Option<RawUser>,
    #[serde(default)]
    user_agent: String,
    object_ref: Option<RawObject>,
    response_status: Option<RawStatus>,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct RawUser {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawObject {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct RawStatus {
    #[serde(default)]
    code: u16,
}

/// A position in the audit log, from [`AuditReader::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

impl Mark {
    /// The begin of the log: everything since the cluster started.
    pub const START: Self = Self(0);
}

/// Reads the audit log of one cluster.
#[derive(Clone, Debug)]
pub struct AuditReader {
    path: PathBuf,
}

impl AuditReader {
    /// Reads this file, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The log file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The end of the log as it is now.
    ///
    /// An entry is written after its answer is sent, so entries of requests that were answered in
    /// the last milliseconds may still come behind the mark. Where that matters, use
    /// [`crate::Cluster::audit_mark`].
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn mark(&self) -> Result<Mark> {
        match std::fs::metadata(&self.path) {
            Ok(meta) => Ok(Mark(meta.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Mark::START),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.path.display())),
        }
    }

    /// All entries after `mark`, oldest first. Lines that are no entries, and a last line that is
    /// still being written, are left out.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn since(&self, mark: Mark) -> Result<Vec<Event>> {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = match File::open(&self.path) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(error),
            };
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(mark.0))?;
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().with_context(|| format!("cannot read {}", self.path.display()))?;
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text = String::from_utf8_lossy(&bytes[..complete]);
        Ok(text.lines().filter_map(Event::parse).collect())
    }

    /// The writes after `mark` (create, update, patch, delete, deletecollection), refused ones
    /// included.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn writes_since(&self, mark: Mark) -> Result<Vec<Event>> {
        let mut events = self.since(mark)?;
        events.retain(|event| event.is_write() && event.is_complete());
        Ok(events)
    }

    /// Waits until an entry after `mark` matches and returns it.
    ///
    /// # Errors
    /// When none came within `timeout`, or the log cannot be read.
    pub async fn wait_for(&self, mark: Mark, timeout: Duration, matches: impl Fn(&Event) -> bool) -> Result<Event> {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            if let Some(event) = self.since(mark)?.into_iter().find(&matches) {
                return Ok(event);
            }
            if tokio::time::Instant::now() >= deadline {
                bail!("no matching entry in {} within {timeout:?}", self.path.display());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LINE: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"a-1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/default/pods/web-1/status?fieldManager=x","verb":"patch","user":{"username":"admin","groups":["system:masters"]},"impersonatedUser":{"username":"dev"},"sourceIPs":["127.0.0.1"],"userAgent":"tester/1","objectRef":{"resource":"pods","namespace":"default","name":"web-1","apiVersion":"v1","subresource":"status"},"responseStatus":{"metadata":{},"code":409},"requestReceivedTimestamp":"2026-01-02T03:04:05.000006Z","stageTimestamp":"2026-01-02T03:04:05.010006Z","annotations":{}}"#;

    #[test]
    fn an_entry_is_parsed() {
        let event = Event::parse(LINE).unwrap();
        assert_eq!((event.user.as_str(), event.acting_user()), ("admin", "dev"));
        assert_eq!((event.user_agent.as_str(), event.verb.as_str()), ("tester/1", "patch"));
        assert!(event.is_write() && event.is_complete() && !event.is_success());
        assert!(event.is_about("pods/status") && !event.is_about("pods"));
        assert_eq!((event.namespace.as_str(), event.name.as_str(), event.code), ("default", "web-1", 409));
        assert_eq!(event.staged.duration_since(event.received).as_millis(), 10);
    }

    #[test]
    fn broken_and_unfinished_lines_are_left_out() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let reader = AuditReader::new(file.path());
        write!(file, "{LINE}\nnot an entry\n{}", &LINE[..100]).unwrap();
        assert_eq!(reader.since(Mark::START).unwrap().len(), 1);
        let mark = reader.mark().unwrap();
        write!(file, "{}\n{LINE}\n", &LINE[100..]).unwrap();
        // A mark inside a line: what is left of that line is no entry.
        assert_eq!(reader.since(mark).unwrap().len(), 1);
        assert_eq!(reader.writes_since(Mark::START).unwrap().len(), 3);
    }

    #[test]
    fn a_log_that_does_not_exist_yet_is_empty() {
        let reader = AuditReader::new("/nonexistent/audit.log");
        assert_eq!(reader.mark().unwrap(), Mark::START);
        assert!(reader.since(Mark::START).unwrap().is_empty());
    }
}
