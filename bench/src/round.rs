//! One update by one contender, measured from outside.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use devcluster::Event;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    governed, null,
    observer::Observer,
    stage::{Controller, Stage, is_ours},
    workload,
};

/// Name of every Deployment here.
const NAME: &str = "web";
/// The controller counts here how long it takes from an event to the write that it causes.
const FIRST_WRITE: &str = "interlock_event_to_write_seconds_bucket";

/// Who updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contender {
    /// The controller.
    Interlock,
    /// The client that only issues the necessary writes.
    Null,
    /// The Deployment controller's rolling update.
    Native,
}

impl Contender {
    pub(crate) const ALL: [Self; 3] = [Self::Interlock, Self::Null, Self::Native];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interlock => "interlock",
            Self::Null => "null",
            Self::Native => "native",
        }
    }

    fn namespace(self) -> &'static str {
        match self {
            Self::Interlock => "bench-interlock",
            Self::Null => "bench-null",
            Self::Native => "bench-native",
        }
    }
}

/// What is compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Case {
    pub(crate) pods: usize,
    /// As in a Deployment, such as `25%`.
    pub(crate) max_unavailable: String,
}

impl Case {
    /// The most pods that may be unavailable.
    fn most(&self) -> usize {
        let number: usize = self.max_unavailable.trim_end_matches('%').parse().unwrap_or(1);
        let pods = if self.max_unavailable.ends_with('%') { self.pods * number / 100 } else { number };
        pods.max(1)
    }
}

/// The figures of one update.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Round {
    #[serde(flatten)]
    pub(crate) case: Case,
    pub(crate) contender: Contender,
    pub(crate) repetition: usize,
    /// From the user's write (the null client: from its start) to the end.
    pub(crate) wall_seconds: f64,
    /// Ready pods that were missing, integrated over the run, per pod.
    pub(crate) not_ready_seconds_per_pod: f64,
    pub(crate) pods_created: usize,
    pub(crate) pods_deleted: usize,
    /// CPU of the API server.
    pub(crate) api_server_cpu_ms_per_pod: f64,
    /// Only of the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) controller: Option<Own>,
}

/// What only the controller has.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Own {
    pub(crate) cpu_ms_per_pod: f64,
    pub(crate) peak_rss_mib: f64,
    /// Writes by kind, its Lease left out.
    pub(crate) writes: BTreeMap<String, usize>,
    pub(crate) pod_writes_per_pod: f64,
    pub(crate) other_writes: usize,
    /// Writes that were answered with an error: code and kind.
    pub(crate) refused: BTreeMap<String, usize>,
    pub(crate) first_write: Option<Latency>,
}

/// From an event to the first write that it causes, in milliseconds. Upper bounds: the controller counts in buckets.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Latency {
    pub(crate) samples: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// Makes a Deployment of so many pods for each contender and waits until all pods are available.
pub(crate) async fn prepare(stage: &Stage, pods: usize, contenders: &[Contender]) -> Result<()> {
    for contender in Contender::ALL {
        workload::namespace(&stage.client, contender.namespace()).await?;
    }
    governed::policy(&stage.client, Contender::Interlock.namespace()).await?;
    for contender in contenders {
        let object = workload::deployment(NAME, pods, &workload::image(0));
        workload::create(&stage.client, contender.namespace(), object).await?;
    }
    for contender in contenders {
        workload::complete(&stage.client, contender.namespace(), NAME).await?;
    }
    if contenders.contains(&Contender::Null) {
        // The null client changes pods behind the back of this one's controller.
        let pause = json!({"spec": {"paused": true}});
        workload::patch(&stage.client, Contender::Null.namespace(), NAME, &pause).await?;
    }
    Ok(())
}

/// The controller of these rounds: it sees the pods of its own Deployment only.
pub(crate) async fn controller(stage: &Stage) -> Result<Controller> {
    let mut controller = stage.start(Some(Contender::Interlock.namespace())).await?;
    controller.ready().await?;
    governed::enforced(&stage.client, Contender::Interlock.namespace()).await?;
    Ok(controller)
}

/// Sets maxUnavailable for all contenders.
pub(crate) async fn configure(stage: &Stage, case: &Case, contenders: &[Contender]) -> Result<()> {
    governed::max_unavailable(&stage.client, Contender::Interlock.namespace(), &case.max_unavailable).await?;
    if !contenders.contains(&Contender::Native) {
        return Ok(());
    }
    let strategy = json!({"spec": {"strategy": {"rollingUpdate": {
        "maxUnavailable": case.max_unavailable, "maxSurge": workload::MAX_SURGE,
    }}}});
    workload::patch(&stage.client, Contender::Native.namespace(), NAME, &strategy).await
}

/// One update. `version` makes an image that differs from the one before.
pub(crate) async fn measure(
    stage: &Stage,
    controller: &Controller,
    case: &Case,
    contender: Contender,
    repetition: usize,
    version: usize,
) -> Result<Round> {
    let (client, namespace) = (&stage.client, contender.namespace());
    let own_client = stage.cluster.client_with_agent("interlock-bench-null").await?;
    // What the round before has left to do for others is not counted here.
    sleep(Duration::from_secs(2)).await;
    controller.process.forget_peak().context("the peak of memory cannot be measured anew")?;
    let observer = Observer::start(client.clone(), namespace, case.pods).await?;
    let before = (stage.api_server()?.cpu_seconds()?, controller.process.cpu_seconds()?, controller.metrics().await?);
    let mark = stage.cluster.audit_mark().await?;
    let image = workload::image(version);

    let start = Instant::now();
    match contender {
        Contender::Interlock => governed::update(client, namespace, NAME, &image).await?,
        Contender::Null => null::update(own_client, namespace, &image, case.most()).await?,
        Contender::Native => {
            workload::patch(client, namespace, NAME, &workload::set_image(&image)).await?;
            workload::complete(client, namespace, NAME).await?;
        }
    }
    let wall = start.elapsed().as_secs_f64();

    let api_server = stage.api_server()?.cpu_seconds()? - before.0;
    let own_cpu = controller.process.cpu_seconds()? - before.1;
    let peak = controller.process.peak_kib()?;
    let metrics = controller.metrics().await?;
    // Its last writes (the mirrored condition, the event) follow the end of the run.
    sleep(Duration::from_secs(1)).await;
    let requests = stage.requests(mark).await?;
    let seen = observer.finish().await?;
    let pods = number(case.pods);
    let controller = (contender == Contender::Interlock).then(|| {
        let ours: Vec<&Event> = requests.iter().filter(|e| is_ours(e) && e.is_write()).collect();
        let patched = ours.iter().filter(|e| e.resource == "pods" && e.verb == "patch").count();
        Own {
            cpu_ms_per_pod: own_cpu * 1000.0 / pods,
            peak_rss_mib: kib(peak),
            pod_writes_per_pod: number(patched) / pods,
            other_writes: ours.len() - patched,
            writes: counted(ours.iter().map(|e| kind(e))),
            refused: counted(ours.iter().filter(|e| !e.is_success()).map(|e| format!("{} {}", e.code, kind(e)))),
            first_write: latency(&before.2, &metrics),
        }
    });
    Ok(Round {
        case: case.clone(),
        contender,
        repetition,
        wall_seconds: wall,
        not_ready_seconds_per_pod: seen.missing / pods,
        pods_created: seen.created,
        pods_deleted: seen.deleted,
        api_server_cpu_ms_per_pod: api_server * 1000.0 / pods,
        controller,
    })
}

fn kind(event: &Event) -> String {
    let subresource = if event.subresource.is_empty() { String::new() } else { format!("/{}", event.subresource) };
    format!("{} {}{subresource}", event.verb, event.resource)
}

fn counted(names: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_insert(0) += 1;
    }
    counts
}

/// Quantiles of what was added to the histogram between two looks at it.
fn latency(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> Option<Latency> {
    let mut buckets: Vec<(f64, f64)> = after
        .iter()
        .filter(|(series, _)| series.starts_with(FIRST_WRITE))
        .filter_map(|(series, count)| {
            let bound = series.split("le=\"").nth(1)?.split('"').next()?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
            Some((bound, count - before.get(series).copied().unwrap_or(0.0)))
        })
        .collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total = buckets.last()?.1;
    let quantile =
        |q: f64| buckets.iter().find(|(_, count)| *count >= total * q).map_or(f64::INFINITY, |(b, _)| b * 1000.0);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    (total > 0.0).then(|| Latency { samples: total as u64, p50_ms: quantile(0.5), p99_ms: quantile(0.99) })
}

/// A count as a number to calculate with.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn number(count: usize) -> f64 {
    count as f64
}

/// KiB as MiB.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn kib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded_down_to_at_least_one() {
        for (pods, text, most) in [(1000, "25%", 250), (1000, "100%", 1000), (3, "25%", 1), (10, "4", 4)] {
            assert_eq!(Case { pods, max_unavailable: text.to_owned() }.most(), most);
        }
    }

    #[test]
    fn quantiles_are_of_what_was_added() {
        let text = |counts: [f64; 3]| {
            ["0.001", "0.01", "+Inf"]
                .iter()
                .zip(counts)
                .map(|(le, n)| (format!("{FIRST_WRITE}{{le=\"{le}\"}}"), n))
                .collect()
        };
        let found = latency(&text([5.0, 5.0, 5.0]), &text([65.0, 104.0, 105.0])).unwrap();
        assert_eq!((found.samples, found.p50_ms.to_string(), found.p99_ms.to_string()), (100, "1".into(), "10".into()));
        assert!(latency(&text([1.0, 1.0, 1.0]), &text([1.0, 1.0, 1.0])).is_none());
    }
}
