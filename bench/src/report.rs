//! The figures as a table, as JSON, and against what is promised.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::Serialize;

use crate::{
    rest::Rest,
    round::{Case, Contender, Own, Round},
};

/// Where it was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) kubernetes: String,
    pub(crate) interlock: &'static str,
    pub(crate) cpus: usize,
    /// Load averages of the last minute at the begin and at the end. The bench alone makes about its number of CPUs.
    pub(crate) load: [f64; 2],
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) rounds: Vec<Round>,
    pub(crate) cases: Vec<Summary>,
    pub(crate) rest: Vec<Rest>,
    pub(crate) checks: Vec<Check>,
}

/// The medians of one case.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    #[serde(flatten)]
    pub(crate) case: Case,
    pub(crate) contenders: BTreeMap<&'static str, Line>,
    /// Interlock's wall time in times of another's, of the same repetition.
    pub(crate) wall_ratio: BTreeMap<&'static str, f64>,
    /// The same of seconds not ready per pod.
    pub(crate) not_ready_ratio: BTreeMap<&'static str, f64>,
}

/// The medians of one contender.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line {
    pub(crate) wall_seconds: f64,
    pub(crate) not_ready_seconds_per_pod: f64,
    pub(crate) pods_created: f64,
    pub(crate) api_server_cpu_ms_per_pod: f64,
}

/// One thing that is promised.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Check {
    pub(crate) what: String,
    pub(crate) measured: f64,
    /// At most so much.
    pub(crate) limit: f64,
    pub(crate) met: bool,
}

impl Check {
    fn new(what: String, measured: f64, limit: f64) -> Self {
        Self { what, measured, limit, met: measured <= limit }
    }
}

/// The one in the middle; of an even number the higher of both.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn worst(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

impl Report {
    pub(crate) fn new(machine: Machine, rounds: Vec<Round>, rest: Vec<Rest>) -> Self {
        let mut cases: Vec<Case> = rounds.iter().map(|r| r.case.clone()).collect();
        cases.dedup();
        let cases: Vec<Summary> = cases.iter().map(|case| summary(case, &rounds)).collect();
        let mut checks: Vec<Check> = cases.iter().flat_map(|case| checks(case, &rounds)).collect();
        for (small, large) in rest.iter().zip(rest.iter().skip(1)) {
            #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
            let more = (large.pods - small.pods) as f64;
            let kib = (large.rss_mib - small.rss_mib) * 1024.0 / more;
            checks.push(Check::new(
                format!("KiB per cached pod, from {} to {} pods", small.pods, large.pods),
                kib,
                1.0,
            ));
        }
        for rest in &rest {
            let what = format!("start to first action at {} pods, seconds", rest.pods);
            checks.push(Check::new(what, rest.start_to_first_action_seconds, 2.0));
            checks.push(Check::new(
                format!("writes per minute at rest with {} pods", rest.pods),
                rest.writes_per_minute,
                1.0,
            ));
        }
        Self { machine, rounds, cases, rest, checks }
    }

    /// The report for people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let Machine { date, kubernetes, interlock, cpus, load } = &self.machine;
        writeln!(
            out,
            "{date}, Kubernetes {kubernetes}, Interlock {interlock}, {cpus} CPUs, load {:.1} to {:.1}\n",
            load[0], load[1]
        )?;
        if !self.cases.is_empty() {
            writeln!(
                out,
                "{:>5} {:>6} {:<10} {:>8} {:>7} {:>11} {:>7} {:>8} {:>13}",
                "pods", "maxUn.", "who", "wall s", "ratio", "not ready s", "ratio", "created", "API CPU ms/pod"
            )?;
        }
        for case in &self.cases {
            for contender in Contender::ALL {
                let Some(line) = case.contenders.get(contender.name()) else { continue };
                let ratio = |of: &BTreeMap<&'static str, f64>| {
                    of.get(contender.name()).map_or_else(String::new, |r| format!("{r:.2}"))
                };
                writeln!(
                    out,
                    "{:>5} {:>6} {:<10} {:>8.2} {:>7} {:>11.3} {:>7} {:>8} {:>13.2}",
                    case.case.pods,
                    case.case.max_unavailable,
                    contender.name(),
                    line.wall_seconds,
                    ratio(&case.wall_ratio),
                    line.not_ready_seconds_per_pod,
                    ratio(&case.not_ready_ratio),
                    line.pods_created,
                    line.api_server_cpu_ms_per_pod,
                )?;
            }
        }
        writeln!(out, "(medians; ratio: Interlock's figure in times of this one's, of the same repetition)\n")?;
        for case in &self.cases {
            for (round, own) in owned(&case.case, &self.rounds) {
                writeln!(
                    out,
                    "{} pods, {}, round {}: {:.2} ms CPU per pod, peak {:.1} MiB, event to write {}",
                    case.case.pods,
                    case.case.max_unavailable,
                    round.repetition,
                    own.cpu_ms_per_pod,
                    own.peak_rss_mib,
                    own.first_write.map_or_else(
                        || "not measured".to_owned(),
                        |l| format!("p50 {} ms, p99 {} ms ({} samples)", l.p50_ms, l.p99_ms, l.samples)
                    ),
                )?;
                writeln!(out, "  writes {}; refused {}", list(&own.writes), list(&own.refused))?;
            }
        }
        for rest in &self.rest {
            writeln!(
                out,
                "at rest, {} pods in {} Deployments: {:.1} MiB (start: {:.1}), {:.2} KiB per pod, {:.0} requests and {:.0} writes per minute, \
                 {:.0} ms CPU per minute, start to first action {:.2} s",
                rest.pods,
                rest.deployments,
                rest.rss_mib,
                rest.peak_rss_mib,
                rest.kib_per_pod,
                rest.requests_per_minute,
                rest.writes_per_minute,
                rest.cpu_ms_per_minute,
                rest.start_to_first_action_seconds,
            )?;
        }
        writeln!(out)?;
        for check in &self.checks {
            let word = if check.met { "met   " } else { "MISSED" };
            writeln!(out, "{word} {}: {:.2} (at most {})", check.what, check.measured, check.limit)?;
        }
        Ok(())
    }
}

fn list(counts: &BTreeMap<String, usize>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    counts.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

fn of<'a>(case: &'a Case, rounds: &'a [Round], contender: Contender) -> impl Iterator<Item = &'a Round> + Clone {
    rounds.iter().filter(move |r| r.case == *case && r.contender == contender)
}

fn owned<'a>(case: &'a Case, rounds: &'a [Round]) -> impl Iterator<Item = (&'a Round, &'a Own)> + Clone {
    of(case, rounds, Contender::Interlock).filter_map(|r| Some((r, r.controller.as_ref()?)))
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn summary(case: &Case, rounds: &[Round]) -> Summary {
    let line = |contender: Contender| {
        let of = || of(case, rounds, contender);
        let line = Line {
            wall_seconds: median(of().map(|r| r.wall_seconds)),
            not_ready_seconds_per_pod: median(of().map(|r| r.not_ready_seconds_per_pod)),
            pods_created: median(of().map(|r| r.pods_created as f64)),
            api_server_cpu_ms_per_pod: median(of().map(|r| r.api_server_cpu_ms_per_pod)),
        };
        (contender.name(), line)
    };
    let took_part = |contender: &Contender| of(case, rounds, *contender).next().is_some();
    let ratio = |figure: fn(&Round) -> f64| {
        [Contender::Null, Contender::Native]
            .into_iter()
            .filter(took_part)
            .map(|other| {
                let pairs = of(case, rounds, Contender::Interlock).filter_map(|ours| {
                    let other = of(case, rounds, other).find(|r| r.repetition == ours.repetition)?;
                    Some(figure(ours) / figure(other))
                });
                (other.name(), median(pairs))
            })
            .collect()
    };
    Summary {
        case: case.clone(),
        contenders: Contender::ALL.into_iter().filter(took_part).map(line).collect(),
        wall_ratio: ratio(|r| r.wall_seconds),
        not_ready_ratio: ratio(|r| r.not_ready_seconds_per_pod),
    }
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn checks(summary: &Summary, rounds: &[Round]) -> Vec<Check> {
    let case = &summary.case;
    let name = format!("{} pods, {}", case.pods, case.max_unavailable);
    let own = || owned(case, rounds).map(|(_, own)| own);
    let check = |what: &str, measured: f64, limit: f64| Check::new(format!("{name}: {what}"), measured, limit);
    let ratios = [("wall time", &summary.wall_ratio), ("seconds not ready", &summary.not_ready_ratio)];
    let ratios = ratios.into_iter().flat_map(|(figure, of)| {
        let limits = BTreeMap::from([("null", 1.2), ("native", 1.0)]);
        of.iter()
            .filter_map(move |(who, ratio)| Some((format!("{figure} in times of {who}'s"), *ratio, *limits.get(who)?)))
    });
    let mut checks: Vec<Check> = ratios.map(|(what, ratio, limit)| check(&what, ratio, limit)).collect();
    if own().next().is_none() {
        return checks;
    }
    checks.extend([
        check("writes per pod", worst(own().map(|o| o.pod_writes_per_pod)), 1.0),
        check("other writes of a run", worst(own().map(|o| o.other_writes as f64)), 25.0),
        check("refused writes", worst(own().map(|o| o.refused.values().sum::<usize>() as f64)), 0.0),
        check("pods created", worst(of(case, rounds, Contender::Interlock).map(|r| r.pods_created as f64)), 0.0),
        check("peak RSS in MiB", worst(own().map(|o| o.peak_rss_mib)), 20.0),
        check("our CPU per pod in ms (median)", median(own().map(|o| o.cpu_ms_per_pod)), 3.0),
        check(
            "p99 from event to first write in ms (median)",
            median(own().map(|o| o.first_write.map_or(f64::INFINITY, |l| l.p99_ms))),
            10.0,
        ),
    ]);
    checks
}
