//! `wait`: the test of the order gate for scripts. What it waits for and how is [`crate::wait`].

use std::{fmt, time::Duration};

use interlock_core::api::reference::{Reference, WorkloadKind};
use kube::{Api, api::ListParams};

use crate::{
    cli::{
        connect::Connection,
        exit::{Exit, Failure},
        output, read,
    },
    observe::object::{DaemonSetKind, DeploymentKind, JobKind, Kind, Object, RunKind, StatefulSetKind},
    wait::{self, Error, For, Options, Outcome},
};

/// Options of the verb.
#[derive(Debug, clap::Args)]
pub struct WaitArgs {
    /// Deployments, StatefulSets, DaemonSets, Jobs (deploy/NAME, sts/NAME, ds/NAME, job/NAME), or pods by label or owner
    /// (pods/KEY=VALUE, pods/owner=KIND/NAME). With --selector: the kinds to select from
    #[arg(value_name = "TYPE/NAME", required_unless_present = "selector")]
    targets: Vec<String>,
    /// Labels of what is waited for; Deployments, unless kinds are given. Selected once, at the start
    #[arg(short = 'l', long, value_name = "KEY=VALUE")]
    selector: Option<String>,
    /// started: its turn has come and its first pod exists. settled: all pods are as wanted. gone: deleted, with its pods
    #[arg(long = "for", value_enum, default_value = "settled")]
    wait_for: Until,
    /// For all of them together, such as 90s, 5m or 1h30m; 0: look once
    #[arg(long, default_value = "5m", value_parser = crate::cli::plugin::timeout)]
    timeout: Duration,
    /// What has settled must also have been quiet for so long, or a crash loop passes between two crashes
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = crate::cli::plugin::timeout)]
    settle: Duration,
    /// Repeats the line about what is waited for after so long. Nothing else: the waiting is done by watches
    #[arg(long, value_name = "TIME", value_parser = crate::cli::plugin::timeout)]
    interval: Option<Duration>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Until {
    Started,
    Settled,
    Gone,
}

impl From<Until> for For {
    fn from(until: Until) -> Self {
        match until {
            Until::Started => Self::Started,
            Until::Settled => Self::Settled,
            Until::Gone => Self::Gone,
        }
    }
}

/// Shows a target the way kubectl does.
struct Shown<'a>(&'a Reference);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Reference::Workload(kind, name) => write!(f, "{}/{name}", kind.word()),
            other @ (Reference::Labels(_) | Reference::Owner(_)) => other.fmt(f),
        }
    }
}

/// The kind that one of kubectl's words stands for.
fn kind(word: &str) -> Option<WorkloadKind> {
    Some(match word {
        "deploy" | "deployment" | "deployments" | "deployment.apps" | "deployments.apps" => WorkloadKind::Deployment,
        "sts" | "statefulset" | "statefulsets" | "statefulset.apps" | "statefulsets.apps" => WorkloadKind::StatefulSet,
        "ds" | "daemonset" | "daemonsets" | "daemonset.apps" | "daemonsets.apps" => WorkloadKind::DaemonSet,
        "job" | "jobs" | "job.batch" | "jobs.batch" => WorkloadKind::Job,
        _ => return None,
    })
}

/// A target as kubectl takes it; a bare name is a Deployment.
fn target(text: &str) -> Result<Reference, Failure> {
    let canonical = match text.split_once('/') {
        Some((word, name)) => match kind(word) {
            Some(kind) => format!("{}/{name}", kind.word()),
            None if matches!(word, "pod" | "po") => format!("pods/{name}"),
            None => text.to_owned(),
        },
        None => text.to_owned(),
    };
    canonical.parse().map_err(Failure::usage)
}

/// Carries out the verb.
pub async fn run(connection: &Connection, args: &WaitArgs) -> Result<Exit, Failure> {
    let targets = match &args.selector {
        None => args.targets.iter().map(|text| target(text)).collect::<Result<Vec<_>, _>>()?,
        Some(selector) => selected(connection, &args.targets, selector).await?,
    };
    if targets.is_empty() {
        if matches!(args.wait_for, Until::Gone) {
            return Ok(Exit::Ok);
        }
        let selector = args.selector.as_deref().unwrap_or_default();
        let message = format!("nothing in namespace {} has the labels {selector}", connection.namespace);
        return Err(Failure::not_found(message));
    }
    let options = Options {
        wait_for: args.wait_for.into(),
        timeout: Some(args.timeout),
        settle: args.settle,
        interval: args.interval,
    };
    let tell = |target: &Reference, what: &str| eprintln!("Waiting for {}: {what}", Shown(target));
    let outcome = wait::wait(&connection.client, &connection.namespace, &targets, options, tell).await;
    match outcome.map_err(|error| unknown(&error, &connection.namespace))? {
        Outcome::Ready(hows) => {
            for (target, how) in targets.iter().zip(hows) {
                output::print(&format!("{} {how}\n", Shown(target)));
            }
            Ok(Exit::Ok)
        }
        Outcome::Failed { target, why } => Err(Failure::failed(format!("{} {why}", Shown(&target)))),
        Outcome::TimedOut { target, what } => {
            let message = format!("timed out after {}s: {}: {what}", args.timeout.as_secs(), Shown(&target));
            Err(Failure::timed_out(message))
        }
        Outcome::NotFound { target } => {
            let message = format!("{} does not exist in namespace {}", Shown(&target), connection.namespace);
            Err(Failure::not_found(message))
        }
    }
}

fn unknown(error: &Error, namespace: &str) -> Failure {
    match error {
        Error::Refused { resource, source } => {
            let failure = Failure::request(&format!("watch {resource}"), source);
            if *resource == RunKind::PLURAL { read::with_roles(failure, namespace) } else { failure }
        }
        Error::Read(error) => Failure::error(error.to_string()),
    }
}

/// What has these labels now, of these kinds.
async fn selected(connection: &Connection, words: &[String], selector: &str) -> Result<Vec<Reference>, Failure> {
    let mut kinds = Vec::new();
    for word in words.iter().flat_map(|word| word.split(',')) {
        let why =
            || Failure::usage(format!("with --selector only kinds can be given, such as deploy,sts; {word} is none"));
        kinds.push(kind(word).ok_or_else(why)?);
    }
    if kinds.is_empty() {
        kinds.push(WorkloadKind::Deployment);
    }
    let mut targets = Vec::new();
    for kind in kinds {
        let names = match kind {
            WorkloadKind::Deployment => names::<DeploymentKind>(connection, selector).await?,
            WorkloadKind::StatefulSet => names::<StatefulSetKind>(connection, selector).await?,
            WorkloadKind::DaemonSet => names::<DaemonSetKind>(connection, selector).await?,
            WorkloadKind::Job => names::<JobKind>(connection, selector).await?,
        };
        targets.extend(names.into_iter().map(|name| Reference::Workload(kind, name)));
    }
    Ok(targets)
}

async fn names<K: Kind>(connection: &Connection, selector: &str) -> Result<Vec<String>, Failure> {
    let api: Api<Object<K>> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let list = api.list(&ListParams::default().labels(selector)).await;
    let list = list.map_err(|e| Failure::request(&format!("list {}", K::PLURAL), &e))?;
    Ok(list.items.into_iter().map(|object| kube::ResourceExt::name_any(&object)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_kubectl_takes_them() {
        for (text, shown) in [
            ("web", "deployment/web"),
            ("deploy/web", "deployment/web"),
            ("deployments.apps/web", "deployment/web"),
            ("sts/db", "statefulset/db"),
            ("ds/agent", "daemonset/agent"),
            ("jobs.batch/migrate", "job/migrate"),
            ("pods/app=etcd", "pods/app=etcd"),
            ("pod/owner=etcdcluster/main", "pods/owner=etcdcluster/main"),
        ] {
            assert_eq!(Shown(&target(text).unwrap()).to_string(), shown);
        }
        for text in ["service/x", "deploy/", "Web", "pods/x"] {
            assert_eq!(target(text).unwrap_err().exit, Exit::Usage, "{text}");
        }
    }
}
