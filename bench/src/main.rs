//! `bench`: in-place updates by Interlock, by a client that only issues the necessary writes, and by the native rolling
//! update, interleaved on one real control plane; and the controller at rest. docs/performance.md says what is measured
//! and how.
//!
//! Exit codes: 0 measured, 1 with `--check`: a figure is missed, 2 it could not run.

mod governed;
mod null;
mod observer;
mod process;
mod report;
mod rest;
mod round;
mod say;
mod stage;
mod workload;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;

use crate::{
    report::{Machine, Report},
    rest::Rest,
    round::{Case, Contender, Round},
    say::Say,
    stage::Stage,
};

/// Measures Interlock on a real control plane with simulated nodes.
#[derive(Debug, Parser)]
#[command(
    name = "bench",
    after_help = "Exit codes: 0 measured, 1 with --check: a figure is missed, 2 it could not run"
)]
struct Args {
    /// Pods of each Deployment that is updated; each number is a case
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [100, 1000])]
    pods: Vec<usize>,
    /// maxUnavailable of the updates; each value is a case
    #[arg(long, value_name = "VALUE", value_delimiter = ',', default_values_t = ["25%".to_owned(), "100%".to_owned()])]
    max_unavailable: Vec<String>,
    /// How often each case is repeated
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeat: usize,
    /// Only these contenders: interlock, null, native
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Numbers of pods with which the controller is looked at at rest
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1000, 10_000])]
    rest: Vec<usize>,
    /// No look at the controller at rest
    #[arg(long)]
    no_rest: bool,
    /// A short form: 100 pods once, at rest with 100 and 300
    #[arg(long)]
    quick: bool,
    /// Where the figures go as JSON. Absent: bench.json beside this program
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail when a figure is missed
    #[arg(long)]
    check: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut args = Args::parse();
    if args.quick {
        (args.pods, args.repeat, args.rest) = (vec![100], 1, vec![100, 300]);
    }
    if args.no_rest {
        args.rest.clear();
    }
    match run(&args, Say::new()).await {
        Ok(report) if args.check && report.checks.iter().any(|c| !c.met) => ExitCode::from(1),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("could not run: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn run(args: &Args, say: Say) -> Result<Report> {
    let begin = load()?;
    let (mut rounds, mut rest, mut version) = (Vec::new(), Vec::new(), String::new());
    for &pods in &args.pods {
        let stage = Stage::open().await?;
        version = stage.version().await?;
        say.line(format_args!("Kubernetes {version} is ready; making three Deployments of {pods} pods"));
        let outcome = updates(&stage, args, pods, &mut rounds, say).await;
        stage.close(outcome.is_err()).await;
        outcome?;
    }
    if !args.rest.is_empty() {
        let stage = Stage::open().await?;
        version = stage.version().await?;
        let outcome = rest::measure(&stage, &args.rest, args.quick, say).await;
        stage.close(outcome.is_err()).await;
        rest = outcome?;
    }
    finish(args, begin, version, rounds, rest)
}

/// All cases with this number of pods. The contenders take turns, so that what else the machine does meets all alike.
async fn updates(stage: &Stage, args: &Args, pods: usize, rounds: &mut Vec<Round>, say: Say) -> Result<()> {
    let wanted = |c: &Contender| args.only.is_empty() || args.only.iter().any(|name| name == c.name());
    let contenders: Vec<Contender> = Contender::ALL.into_iter().filter(wanted).collect();
    round::prepare(stage, pods, &contenders).await?;
    let controller = round::controller(stage).await?;
    let mut version = 0;
    for max_unavailable in &args.max_unavailable {
        let case = Case { pods, max_unavailable: max_unavailable.clone() };
        round::configure(stage, &case, &contenders).await?;
        for repetition in 1..=args.repeat {
            let mut turn = contenders.clone();
            let first = (repetition - 1) % turn.len().max(1);
            turn.rotate_left(first);
            version += 1;
            for contender in turn {
                let round = round::measure(stage, &controller, &case, contender, repetition, version)
                    .await
                    .with_context(|| format!("{} of {pods} pods, {max_unavailable}", contender.name()))?;
                say.line(format_args!(
                    "{pods} pods, {max_unavailable}, round {repetition}: {} {:.2} s, {:.3} s not ready per pod",
                    contender.name(),
                    round.wall_seconds,
                    round.not_ready_seconds_per_pod
                ));
                rounds.push(round);
            }
        }
    }
    controller.stop().await
}

fn finish(args: &Args, begin: f64, kubernetes: String, rounds: Vec<Round>, rest: Vec<Rest>) -> Result<Report> {
    let machine = Machine {
        date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        kubernetes,
        interlock: env!("CARGO_PKG_VERSION"),
        cpus: std::thread::available_parallelism()?.get(),
        load: [begin, load()?],
    };
    let report = Report::new(machine, rounds, rest);
    let path = match &args.json {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("bench.json"),
    };
    fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    print!("{}", report.table());
    println!("\nwritten to {}", path.display());
    Ok(report)
}

/// The machine's load average of the last minute.
fn load() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    text.split_whitespace().next().and_then(|word| word.parse().ok()).context("/proc/loadavg cannot be read")
}
