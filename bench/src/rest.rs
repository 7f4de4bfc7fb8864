//! A controller at rest: what it costs to look after many Deployments to which nothing happens, and how soon a new one
//! acts.

use std::time::Duration;

use anyhow::{Context, Result};
use devcluster::{Event, Mark};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::{
    governed,
    round::{kib, number},
    say::Say,
    stage::{Controller, Stage, is_any_of_ours, is_ours},
    workload,
};

const NAMESPACE: &str = "bench-rest";
/// Pods of one Deployment.
const EACH: usize = 100;
/// Requests at rest are counted over this time: longer than a watch lasts.
const QUIET: Duration = Duration::from_mins(2);
/// After a start, until memory is looked at.
const SETTLE: Duration = Duration::from_secs(10);
/// How often the start is measured.
const STARTS: usize = 3;

/// The figures for one number of pods.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rest {
    pub(crate) pods: usize,
    pub(crate) deployments: usize,
    /// Resident, some seconds after the start.
    pub(crate) rss_mib: f64,
    /// The most while it started.
    pub(crate) peak_rss_mib: f64,
    /// More than with no pods at all, per pod. What its Deployment and ReplicaSet cost is in it.
    pub(crate) kib_per_pod: f64,
    pub(crate) requests_per_minute: f64,
    /// Of these, writes but those to its Lease.
    pub(crate) writes_per_minute: f64,
    pub(crate) cpu_ms_per_minute: f64,
    /// From the start of the process to its first write for an update that was held while no controller ran: the
    /// median.
    pub(crate) start_to_first_action_seconds: f64,
}

/// Measures with each of these numbers of pods, which must grow.
pub(crate) async fn measure(stage: &Stage, sizes: &[usize], quick: bool, say: Say) -> Result<Vec<Rest>> {
    workload::namespace(&stage.client, NAMESPACE).await?;
    governed::policy(&stage.client, NAMESPACE).await?;
    let controller = started(stage).await?;
    sleep(SETTLE).await;
    let empty = controller.process.resident_kib()?;
    say.line(format_args!("at rest without pods: {:.1} MiB", kib(empty)));
    controller.stop().await?;
    let mut all = Vec::new();
    let mut there = 0;
    for &pods in sizes {
        let deployments = pods.div_ceil(EACH);
        grow(stage, there, deployments, say).await?;
        there = deployments;
        all.push(one(stage, deployments, empty, quick, say).await?);
    }
    Ok(all)
}

async fn one(stage: &Stage, deployments: usize, empty: u64, quick: bool, say: Say) -> Result<Rest> {
    let pods = deployments * EACH;
    let mut starts = Vec::new();
    for round in 0..if quick { 1 } else { STARTS } {
        starts.push(start_to_action(stage, deployments, pods + round).await?);
    }
    say.line(format_args!("{pods} pods: start to first action {starts:.2?} s"));
    starts.sort_by(f64::total_cmp);
    let controller = started(stage).await?;
    sleep(SETTLE).await;
    let rss = controller.process.resident_kib()?;
    let peak = controller.process.peak_kib()?;
    let mark = stage.cluster.audit_mark().await?;
    let (since, cpu) = (Instant::now(), controller.process.cpu_seconds()?);
    sleep(QUIET).await;
    let minutes = since.elapsed().as_secs_f64() / 60.0;
    let cpu = controller.process.cpu_seconds()? - cpu;
    let requests = stage.requests(mark).await?;
    controller.stop().await?;
    let count = |test: &dyn Fn(&Event) -> bool| number(requests.iter().filter(|e| test(e)).count());
    let rest = Rest {
        pods,
        deployments,
        rss_mib: kib(rss),
        peak_rss_mib: kib(peak),
        kib_per_pod: kib(rss.saturating_sub(empty)) * 1024.0 / number(pods),
        requests_per_minute: count(&is_any_of_ours) / minutes,
        writes_per_minute: count(&|e| is_ours(e) && e.is_write()) / minutes,
        cpu_ms_per_minute: cpu * 1000.0 / minutes,
        start_to_first_action_seconds: starts.get(starts.len() / 2).copied().unwrap_or(f64::INFINITY),
    };
    say.line(format_args!(
        "{pods} pods in {deployments} Deployments at rest: {:.1} MiB, {:.2} KiB per pod, {:.0} requests per minute",
        rest.rss_mib, rest.kib_per_pod, rest.requests_per_minute
    ));
    Ok(rest)
}

async fn started(stage: &Stage) -> Result<Controller> {
    let mut controller = stage.start(None).await?;
    controller.ready().await?;
    Ok(controller)
}

/// Makes Deployments until there are so many, and waits for their pods.
async fn grow(stage: &Stage, from: usize, to: usize, say: Say) -> Result<()> {
    say.line(format_args!("making {} more pods", (to - from) * EACH));
    for index in from..to {
        let object = workload::deployment(&name(index), EACH, &workload::image(0));
        workload::create(&stage.client, NAMESPACE, object).await?;
    }
    let end = Instant::now() + Duration::from_mins(20);
    while workload::available(&stage.client, NAMESPACE).await? < to * EACH {
        anyhow::ensure!(Instant::now() < end, "{} pods are not available after 20 minutes", to * EACH);
        sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

fn name(index: usize) -> String {
    format!("web-{index:04}")
}

/// An update is held while no controller runs; then one starts. Returns the seconds from there to its first write for
/// it, by the API server's own record.
async fn start_to_action(stage: &Stage, deployments: usize, version: usize) -> Result<f64> {
    let last = name(deployments - 1);
    let image = workload::image(version);
    workload::patch(&stage.client, NAMESPACE, &last, &workload::set_image(&image)).await?;
    let mark: Mark = stage.cluster.audit_mark().await?;
    let start = jiff::Timestamp::now();
    let controller = stage.start(None).await?;
    let first = |event: &Event| is_ours(event) && event.resource == "hookruns" && event.verb == "create";
    let event = stage.cluster.audit()?.wait_for(mark, Duration::from_mins(2), first).await?;
    let seconds = event.received.duration_since(start).as_secs_f64();
    workload::complete(&stage.client, NAMESPACE, &last).await.context("the update after the start")?;
    sleep(Duration::from_secs(3)).await;
    controller.stop().await?;
    Ok(seconds)
}
