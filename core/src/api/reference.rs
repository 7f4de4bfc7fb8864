//! What a component can wait for, as `after` names it.

use std::{collections::BTreeMap, fmt, str::FromStr};

/// Regular expression of a [`Reference`] for schemas. [`Reference::from_str`] takes exactly what it takes.
pub const PATTERN: &str = r"^((deployment|statefulset|daemonset|job)/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$|^pods/owner=[a-z][a-z0-9]*/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$|^pods/([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?=([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?(&([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?=([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?)*$";

/// Longest reference, in bytes.
pub const LONGEST: usize = 512;

/// A kind that a component can wait for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkloadKind {
    /// A Deployment.
    Deployment,
    /// A StatefulSet.
    StatefulSet,
    /// A DaemonSet.
    DaemonSet,
    /// A Job.
    Job,
}

impl WorkloadKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Deployment, Self::StatefulSet, Self::DaemonSet, Self::Job];

    /// The word in a reference.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::StatefulSet => "statefulset",
            Self::DaemonSet => "daemonset",
            Self::Job => "job",
        }
    }
}

/// What a component waits for, in its own namespace.
///
/// | written | means |
/// | --- | --- |
/// | `etcd`, `deployment/etcd` | a Deployment |
/// | `statefulset/etcd`, `daemonset/agent`, `job/migrate` | one of these |
/// | `pods/app=etcd`, `pods/app=etcd&tier=data` | all pods with these labels |
/// | `pods/owner=etcdcluster/main` | all pods whose controller, or its controller, is this object, whatever their names |
///
/// The value of a label has no slash, so `pods/owner=x` is a label and `pods/owner=x/y` an owner.
///
/// ```
/// use interlock_core::api::reference::Reference;
///
/// let etcd: Reference = "deployment/etcd".parse()?;
/// assert_eq!(etcd, Reference::deployment("etcd"));
/// assert_eq!(etcd.to_string(), "etcd");
/// assert!("replicaset/etcd".parse::<Reference>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reference {
    /// An object of a kind, by name.
    Workload(WorkloadKind, String),
    /// Pods with all of these labels.
    Labels(BTreeMap<String, String>),
    /// Pods by the kind (lower case) and name of their controller, or of its controller.
    Owner(String),
}

impl Reference {
    /// A Deployment.
    pub fn deployment(name: impl Into<String>) -> Self {
        Self::Workload(WorkloadKind::Deployment, name.into())
    }

    /// The name, if it is a Deployment.
    pub fn as_deployment(&self) -> Option<&str> {
        match self {
            Self::Workload(WorkloadKind::Deployment, name) => Some(name),
            Self::Workload(..) | Self::Labels(_) | Self::Owner(_) => None,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(WorkloadKind::Deployment, name) => f.write_str(name),
            Self::Workload(kind, name) => write!(f, "{}/{name}", kind.word()),
            Self::Labels(labels) => {
                f.write_str("pods/")?;
                for (n, (key, value)) in labels.iter().enumerate() {
                    write!(f, "{}{key}={value}", if n == 0 { "" } else { "&" })?;
                }
                Ok(())
            }
            Self::Owner(owner) => write!(f, "pods/owner={owner}"),
        }
    }
}

impl FromStr for Reference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("`{}...` is longer than {LONGEST} bytes", crate::pod::clip(text, 40)));
        }
        let Some((kind, rest)) = text.split_once('/') else {
            return object_name(text).map(Self::deployment).map_err(|why| format!("`{text}`: {why}"));
        };
        if let Some(kind) = WorkloadKind::ALL.into_iter().find(|known| known.word() == kind) {
            let name = object_name(rest).map_err(|why| format!("`{text}`: {why}"))?;
            return Ok(Self::Workload(kind, name));
        }
        if kind != "pods" {
            return Err(format!(
                "`{text}`: a component can wait for deployment/, statefulset/, daemonset/, job/ or pods/, not for `{kind}/`"
            ));
        }
        if let Some((kind, name)) = rest.strip_prefix("owner=").and_then(|owner| owner.split_once('/')) {
            let good = kind.starts_with(|c: char| c.is_ascii_lowercase())
                && kind.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            if !good {
                return Err(format!(
                    "`{text}`: write the owner's kind in lower case, as in pods/owner=etcdcluster/main"
                ));
            }
            let name = object_name(name).map_err(|why| format!("`{text}`: {why}"))?;
            return Ok(Self::Owner(format!("{kind}/{name}")));
        }
        let mut labels = BTreeMap::new();
        for pair in rest.split('&') {
            let (key, value) =
                pair.split_once('=').filter(|(key, value)| label_key(key) && label_value(value)).ok_or_else(|| {
                    format!("`{text}`: write pods/KEY=VALUE (more labels after &) or pods/owner=KIND/NAME")
                })?;
            labels.insert(key.to_owned(), value.to_owned());
        }
        Ok(Self::Labels(labels))
    }
}

fn object_name(text: &str) -> Result<String, String> {
    if text.len() > 253 {
        return Err("a name has at most 253 characters".to_owned());
    }
    if lower(text) {
        Ok(text.to_owned())
    } else {
        Err("that cannot be a name: lower case letters, digits, - and .".to_owned())
    }
}

/// Names and prefixes of label keys.
fn lower(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.bytes().all(|b| inner(b) || b == b'-' || b == b'.') && ends(text, inner)
}

fn word(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric();
    text.bytes().all(|b| inner(b) || matches!(b, b'-' | b'_' | b'.')) && ends(text, inner)
}

fn ends(text: &str, good: impl Fn(u8) -> bool) -> bool {
    text.bytes().next().is_some_and(&good) && text.bytes().next_back().is_some_and(good)
}

fn label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => lower(prefix) && word(name),
        None => word(text),
    }
}

fn label_value(text: &str) -> bool {
    text.is_empty() || word(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written() {
        for text in [
            "etcd",
            "a.b-c",
            "statefulset/etcd",
            "daemonset/agent",
            "job/migrate",
            "pods/app=etcd",
            "pods/app=",
            "pods/app=etcd&tier=Data_1",
            "pods/app.kubernetes.io/name=etcd",
            "pods/owner=me",
            "pods/owner=etcdcluster/main",
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), text);
        }
        assert_eq!("deployment/etcd".parse(), Ok(Reference::deployment("etcd")));
        assert_eq!("pods/owner=me".parse(), Ok(Reference::Labels(BTreeMap::from([("owner".into(), "me".into())]))));
    }

    #[test]
    fn what_is_none_says_why() {
        for (text, said) in [
            ("", "cannot be a name"),
            ("Etcd", "cannot be a name"),
            ("deployment/", "cannot be a name"),
            ("deployment/a/b", "cannot be a name"),
            ("replicaset/x", "not for `replicaset/`"),
            ("Deployment/x", "not for `Deployment/`"),
            ("pods/", "pods/KEY=VALUE"),
            ("pods/app", "pods/KEY=VALUE"),
            ("pods/=x", "pods/KEY=VALUE"),
            ("pods/a=b&", "pods/KEY=VALUE"),
            ("pods/a=b/c", "pods/KEY=VALUE"),
            ("pods/owner=Kind/x", "in lower case"),
            ("pods/owner=kind/", "cannot be a name"),
        ] {
            let why = text.parse::<Reference>().unwrap_err();
            assert!(why.contains(said), "{text}: {why}");
        }
        "a".repeat(600).parse::<Reference>().unwrap_err();
    }
}
