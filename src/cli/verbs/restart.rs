//! `restart`: makes a RollingRestart, and follows it.

mod decide;
mod show;

use std::{collections::BTreeMap, pin::pin, time::Duration};

pub use decide::{Action, decide};
use futures::StreamExt as _;
use interlock_core::api::{
    policy::{DisruptionBudgets, Selector},
    restart::{ContainerImage, Mark, RollingRestartSpec, TargetState, Window},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
pub use show::explain;

use crate::{
    api::RollingRestart,
    cli::{
        connect::Connection,
        exit::{Exit, Failure},
        output, random_id,
    },
};

/// A watch that fails so often in a row is given up, and pauses so long in between.
const MOST_FAILURES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(1);

/// What a restart is to be like.
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub struct RestartArgs {
    /// Only Deployments with these labels, such as app=web,tier=front. Absent: all of the namespace
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = labels)]
    selector: Option<BTreeMap<String, String>>,
    /// Leave those whose running pods all have this container with this image, injected ones included
    #[arg(long, value_name = "NAME=IMAGE", value_parser = container)]
    skip_image: Vec<ContainerImage>,
    /// Instead of a restart: change the image of this injected container in the running pods
    #[arg(long, value_name = "NAME=IMAGE", value_parser = container, conflicts_with = "kubectl_mark")]
    sidecar: Vec<ContainerImage>,
    /// So many Deployments at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..=100))]
    max_concurrent: i64,
    /// Seconds between the end of one and the start of the next
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..=86400))]
    pause: i64,
    /// Seconds without progress after which a Deployment has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(i64).range(1..=86400))]
    deadline: i64,
    /// Restart also those that have no ready pod meanwhile
    #[arg(long)]
    allow_downtime: bool,
    /// Do not wait for PodDisruptionBudgets
    #[arg(long)]
    ignore_budgets: bool,
    /// Write the annotation of `kubectl rollout restart` instead of our own
    #[arg(long)]
    kubectl_mark: bool,
    /// Start Deployments only from these times on, as cron has them: "0 2 * * 1-5"
    #[arg(long, value_name = "CRON", requires = "window_seconds")]
    window: Option<String>,
    /// For how long a window stays open
    #[arg(long, value_name = "SECONDS", requires = "window", value_parser = clap::value_parser!(i64).range(60..=604_800))]
    window_seconds: Option<i64>,
    /// Time zone of the window
    #[arg(long, value_name = "NAME", default_value = "Etc/UTC", requires = "window")]
    time_zone: String,
    /// Name of the RollingRestart. Absent: one is made
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only list what would happen
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    /// Follow it to its end
    #[arg(long)]
    wait: bool,
    /// How long to follow it, such as 90s, 5m or 1h30m
    #[arg(long, default_value = "24h", value_parser = crate::cli::plugin::timeout)]
    timeout: Duration,
}

fn container(text: &str) -> Result<ContainerImage, String> {
    match text.split_once('=') {
        Some((name, image)) if !name.is_empty() && !image.is_empty() => {
            Ok(ContainerImage { name: name.to_owned(), image: image.to_owned() })
        }
        _ => Err("write it like istio-proxy=registry.example/proxy:1.2".to_owned()),
    }
}

fn labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').ok_or("write it like app=web,tier=front")?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    };
    text.split(',').map(pair).collect()
}

impl RestartArgs {
    fn spec(&self) -> RollingRestartSpec {
        RollingRestartSpec {
            selector: self.selector.clone().map(|match_labels| Selector { match_labels, ..Selector::default() }),
            sidecars: self.sidecar.clone(),
            skip_when: self.skip_image.clone(),
            mark: self.kubectl_mark.then_some(Mark::Kubectl),
            allow_downtime: self.allow_downtime,
            disruption_budgets: if self.ignore_budgets {
                DisruptionBudgets::Ignore
            } else {
                DisruptionBudgets::Respect
            },
            pause_seconds: self.pause,
            max_concurrent: self.max_concurrent,
            settle_seconds: 2,
            progress_deadline_seconds: self.deadline,
            window: self.window.clone().zip(self.window_seconds).map(|(schedule, duration_seconds)| Window {
                schedule,
                duration_seconds,
                time_zone: self.time_zone.clone(),
            }),
            dry_run: self.dry_run,
            decisions: Vec::new(),
        }
    }
}

/// Carries out the verb.
pub async fn run(connection: &Connection, args: &RestartArgs) -> Result<Exit, Failure> {
    let spec = args.spec();
    if let Some(problem) = interlock_core::validate::restart(&spec).first() {
        return Err(Failure::usage(problem.message.clone()));
    }
    let name = args.name.clone().unwrap_or_else(|| format!("restart-{}", random_id()));
    let api = api(connection);
    let made = RollingRestart::new(&name, spec);
    let made = api.create(&PostParams::default(), &made).await;
    let made = made.map_err(|e| Failure::request(&format!("make RollingRestart {name}"), &e))?;
    if args.dry_run {
        let followed = follow(connection, &name, args.timeout.min(Duration::from_secs(30)), false).await;
        let uid = made.uid().unwrap_or_default();
        let params = DeleteParams::background()
            .preconditions(kube::api::Preconditions { uid: Some(uid), resource_version: None });
        let deleted = api.delete(&name, &params).await;
        let (restart, exit) = followed?;
        output::print(&show::plan(&restart));
        deleted.map_err(|e| Failure::request(&format!("delete the dry run {name}"), &e))?;
        return Ok(exit);
    }
    if !args.wait {
        output::print(&format!(
            "rollingrestart/{name} made\nTo follow it: kubectl interlock explain restart/{name} -n {}\n",
            connection.namespace
        ));
        return Ok(Exit::Ok);
    }
    output::print(&format!("rollingrestart/{name} made\n"));
    let (restart, exit) = follow(connection, &name, args.timeout, true).await?;
    output::print(&show::end(&restart));
    Ok(exit)
}

fn api(connection: &Connection) -> Api<RollingRestart> {
    Api::namespaced(connection.client.clone(), &connection.namespace)
}

/// Watches a request until it has ended or stands still; each change of a Deployment is a line.
async fn follow(
    connection: &Connection,
    name: &str,
    timeout: Duration,
    tell: bool,
) -> Result<(RollingRestart, Exit), Failure> {
    let api = api(connection);
    let mut stream = pin!(kube::runtime::watcher::watch_object(api, name));
    let mut known: BTreeMap<String, TargetState> = BTreeMap::new();
    let mut waited = String::new();
    let (mut seen, mut failures) = (false, 0);
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        let next = tokio::time::timeout_at(deadline, stream.next()).await;
        let restart = match next {
            Err(_) => {
                let hint = if seen { "" } else { "; does a controller run that is not narrowed by a selector?" };
                return Err(Failure::timed_out(format!("rollingrestart/{name} has not ended in time{hint}")));
            }
            Ok(None) => return Err(Failure::error("the watch ended")),
            // The watch goes on by itself.
            Ok(Some(Err(_))) if failures < MOST_FAILURES => {
                failures += 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Ok(Some(Err(error))) => return Err(Failure::error(format!("cannot watch rollingrestart/{name}: {error}"))),
            Ok(Some(Ok(None))) if seen => return Err(Failure::not_found(format!("rollingrestart/{name} was deleted"))),
            Ok(Some(Ok(None))) => continue,
            Ok(Some(Ok(Some(restart)))) => restart,
        };
        failures = 0;
        let Some(status) = &restart.status else { continue };
        seen = true;
        if tell {
            for target in &status.targets {
                let before = known.insert(target.name.clone(), target.state);
                if before != Some(target.state) && target.state != TargetState::Pending {
                    output::print(&show::line(target, status.finished, status.total));
                }
            }
            let waits = status.waiting_for.as_ref().map(|w| w.what.clone()).unwrap_or_default();
            if waits != waited && !waits.is_empty() {
                output::print(&format!("  {waits}\n"));
            }
            waited = waits;
        }
        if let Some(exit) = show::verdict(status) {
            return Ok((restart, exit));
        }
    }
}
