//! Which object a command is about: `deploy/NAME`, as kubectl takes it.

use std::{fmt, str::FromStr};

/// A Deployment named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(pub String);

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = match text.split_once('/') {
            None => text,
            Some(("deploy" | "deployment" | "deployments" | "deployment.apps" | "deployments.apps", name)) => name,
            Some((kind, _)) => {
                return Err(format!("{kind} is not supported: only Deployments can be named here, as deploy/NAME"));
            }
        };
        let good = !name.is_empty()
            && name.len() <= 253
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
            && !name.starts_with(['-', '.'])
            && !name.ends_with(['-', '.']);
        if good { Ok(Self(name.to_owned())) } else { Err(format!("{name:?} cannot be the name of a Deployment")) }
    }
}

/// What a decision is about: an update of a Deployment, or a RollingRestart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decidable {
    /// A Deployment.
    Deployment(Target),
    /// Name of a RollingRestart.
    Restart(String),
}

impl FromStr for Decidable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((
                "restart" | "rrst" | "rollingrestart" | "rollingrestarts" | "rollingrestarts.interlock.dev",
                name,
            )) => name.parse::<Target>().map(|t| Self::Restart(t.0)).map_err(|_| format!("{name:?} cannot be a name")),
            _ => text.parse().map(Self::Deployment),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deployment/{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_kubectls_forms_and_refuses_other_kinds() {
        for text in ["web", "deploy/web", "deployment/web", "deployments/web", "deployments.apps/web"] {
            assert_eq!(text.parse::<Target>().unwrap().0, "web");
        }
        assert!("statefulset/web".parse::<Target>().unwrap_err().contains("statefulset is not supported"));
        for text in ["", "deploy/", "deploy/a/b", "Web", "-x", "a b", "../x", "x."] {
            text.parse::<Target>().unwrap_err();
        }
    }
}
