//! `demo`: Interlock's main job on a real control plane, as a person would do it with `kubectl` and `interlock`; this
//! program itself only looks. Ends with a table of facts.
//!
//! Exit codes: 0 all as promised, 1 not as promised, 2 it could not run.

mod facts;
mod manifests;
mod observer;
mod parts;
mod programs;
mod receiver;
mod runs;
mod say;
mod setup;
mod sight;
mod steps;

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    observer::Observer,
    parts::Parts,
    programs::Show,
    receiver::Receiver,
    say::Say,
    setup::{NAMESPACE, Stage},
    steps::Steps,
};

/// Shows plain Deployments held, hooked and updated in place, one component after the other, on a real control plane.
///
/// With DEVCLUSTER_USE_KUBECONFIG=1 it uses the cluster of KUBECONFIG, else it starts one.
#[derive(Debug, Parser)]
#[command(name = "demo", after_help = "Exit codes: 0 all as promised, 1 not as promised, 2 it could not run")]
struct Args {
    /// Leave everything running until Ctrl-C, and say how to look around
    #[arg(long)]
    keep: bool,
}

/// How it went.
enum Verdict {
    AsPromised,
    NotAsPromised,
    CouldNotRun,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::AsPromised => Self::SUCCESS,
            Verdict::NotAsPromised => Self::from(1),
            Verdict::CouldNotRun => Self::from(2),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let say = Say::new();
    match run(&args, say).await {
        Ok(verdict) => verdict.into(),
        Err(error) => {
            say.line(format_args!("could not run: {error:#}"));
            Verdict::CouldNotRun.into()
        }
    }
}

async fn run(args: &Args, say: Say) -> Result<Verdict> {
    let mut parts = Parts::new(say);
    let mut stage = tokio::select! {
        stage = prepare(&mut parts, say) => stage?,
        name = asked_to_end() => anyhow::bail!("{name}"),
    };
    let started = tokio::select! {
        started = start(&mut stage, &mut parts) => started,
        name = asked_to_end() => Err(anyhow::anyhow!("{name}")),
    };
    let (receiver, observer) = match started {
        Ok(both) => both,
        Err(error) => {
            say.line(format_args!("could not run: {error:#}"));
            end_of_log(&stage, say);
            stage.close(true).await;
            return Ok(Verdict::CouldNotRun);
        }
    };

    let mut facts = Vec::new();
    let (controller, shared) = stage.split();
    let steps = Steps::new(say, shared, receiver, observer)?;
    let (outcome, interrupted) = tokio::select! {
        outcome = steps.all(&mut parts, &mut facts) => (outcome, false),
        why = Stage::controller_ended(controller) => (Err(anyhow::anyhow!(why)), false),
        name = asked_to_end() => (Err(anyhow::anyhow!("{name}")), true),
    };
    parts.end();
    if let Err(error) = &outcome {
        if interrupted {
            say.line(error);
        } else {
            say.line(say.red(&format!("FAILED: {error:#}")));
            explain(&stage, &steps_names()?).await;
            end_of_log(&stage, say);
        }
    }
    if !facts.is_empty() {
        say.text(format_args!("\n{}", facts::table(&facts, say)));
    }
    say.text(parts.table());
    let failed = facts.iter().filter(|fact| !fact.ok).count();
    let verdict = match (&outcome, interrupted) {
        (_, true) => Verdict::CouldNotRun,
        (Ok(()), false) if failed == 0 => Verdict::AsPromised,
        (Ok(()) | Err(_), false) => Verdict::NotAsPromised,
    };
    match &verdict {
        Verdict::AsPromised => say.line(format_args!("all {} facts are as promised", facts.len())),
        Verdict::NotAsPromised => {
            let cut_short = if outcome.is_err() { "it did not come to its end; " } else { "" };
            let text = format!("{cut_short}{failed} of {} facts are not as promised", facts.len());
            say.line(say.red(&text));
        }
        Verdict::CouldNotRun => say.line("interrupted: cleaning up"),
    }
    if args.keep && !interrupted {
        look_around(&stage, say);
        let (controller, _) = stage.split();
        let why = tokio::select! {
            name = asked_to_end() => name.to_owned(),
            why = Stage::controller_ended(controller) => why,
        };
        say.line(format_args!("{why}: cleaning up"));
    }
    stage.close(matches!(verdict, Verdict::NotAsPromised)).await;
    say.line(format_args!("done in {:.0} s", say.elapsed().as_secs_f64()));
    Ok(verdict)
}

async fn prepare(parts: &mut Parts, say: Say) -> Result<Stage> {
    parts.begin("a control plane: etcd, API server, controller manager, scheduler, simulated nodes");
    Stage::open(say).await
}

/// Installs, runs the controller, and begins to record.
async fn start(stage: &mut Stage, parts: &mut Parts) -> Result<(Receiver, Observer)> {
    let say = parts.say();
    parts.begin("install Interlock and run its controller");
    stage.install().await?;
    stage.run_controller().await?;
    let receiver = Receiver::start(say).await?;
    say.line(format_args!("a hook receiver listens on http://{}", receiver.authority()));
    let observer = Observer::start(stage.client.clone(), NAMESPACE, say).await?;
    runs::tell(stage.client.clone(), NAMESPACE, say);
    say.line(format_args!("an outside observer watches the pods of namespace {NAMESPACE}, every event"));
    Ok((receiver, observer))
}

/// Returns when somebody wants this program to end.
async fn asked_to_end() -> &'static str {
    let both = signal(SignalKind::interrupt()).and_then(|i| Ok((i, signal(SignalKind::terminate())?)));
    // Without signals the process is simply killed.
    let Ok((mut interrupt, mut terminate)) = both else { return std::future::pending().await };
    tokio::select! {
        _ = interrupt.recv() => "Ctrl-C",
        _ = terminate.recv() => "SIGTERM",
    }
}

fn steps_names() -> Result<Vec<String>> {
    Ok(manifests::stack().context("the examples")?.components.iter().map(manifests::Component::target).collect())
}

/// What the planner says of each component that has not settled.
async fn explain(stage: &Stage, targets: &[String]) {
    const WITHIN: Duration = Duration::from_secs(15);
    for target in targets {
        let wait = format!("interlock wait {target} --timeout=0");
        let settled = stage.programs.try_kubectl(&wait, Show::Nothing, WITHIN).await;
        if !settled.is_ok_and(|ended| ended.code == 0) {
            // It has been shown, and there is nothing to do about a failure to explain a failure.
            let _ = stage.programs.try_kubectl(&format!("interlock explain {target}"), Show::All, WITHIN).await;
        }
    }
}

fn end_of_log(stage: &Stage, say: Say) {
    let lines = stage.log_end(30);
    if !lines.is_empty() {
        say.line(format_args!("the end of {}:", stage.log().display()));
    }
    for line in lines {
        say.quote(&line);
    }
}

fn look_around(stage: &Stage, say: Say) {
    let path: Vec<String> = stage.programs.path().iter().map(|folder| folder.display().to_string()).collect();
    say.text(format_args!(
        "
Everything keeps running until Ctrl-C. In another terminal:

  export KUBECONFIG='{}'
  export PATH='{}':\"$PATH\"

  kubectl interlock status
  kubectl interlock explain deploy/mds
  kubectl set image deploy/mds mds=registry.example/mds:v4
  kubectl interlock wait deploy/mds
  kubectl interlock history deploy/mds
  kubectl get hookpolicies,hookruns
  kubectl rollout undo deploy/mds
  tail -f '{}'
",
        stage.programs.kubeconfig().display(),
        path.join(":"),
        stage.log().display(),
    ));
    if !stage.cluster.is_owned() {
        say.text(format_args!(
            "Ctrl-C removes from your cluster what this demo brought. If it is killed instead, this is left, and removed by:

  kubectl delete namespace {NAMESPACE}
  interlock uninstall --held=release    # unless Interlock was there before
"
        ));
    }
}
