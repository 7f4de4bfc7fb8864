//! `devcluster`: development clusters from the command line.

use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use devcluster::{Binaries, Binary, Named, State, Wanted, build_dir, can_run_real_node};

/// A real Kubernetes control plane on this machine, with simulated nodes, or a real one, and no container engine.
///
/// The first use builds Kubernetes from source (about ten minutes, once per machine). Binaries and
/// running clusters are kept in $INTERLOCK_CACHE, else in the user's cache folder. Ready binaries
/// are taken from the folder $DEVCLUSTER_BIN or $KUBEBUILDER_ASSETS.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Args)]
struct Name {
    /// Name of the cluster; several may run at once.
    #[arg(long, default_value = "default", env = "DEVCLUSTER_NAME")]
    name: String,
}

#[derive(Args)]
struct Up {
    #[command(flatten)]
    name: Name,
    /// How many simulated nodes it has, each with room for 5000 pods [default: 2, with --real-node 0].
    #[arg(long)]
    nodes: Option<usize>,
    /// With a real node: kubelet, containerd, and an image registry with test images
    /// (registry.test/NAME:v1 and others). Needs root.
    #[arg(long)]
    real_node: bool,
    /// End the cluster when this process ends.
    #[arg(long, value_name = "PID")]
    for_pid: Option<u32>,
}

impl Up {
    fn wanted(&self) -> Wanted {
        let nodes = self.nodes.unwrap_or(if self.real_node { 0 } else { 2 });
        Wanted { nodes, real_node: self.real_node, for_pid: self.for_pid }
    }
}

#[derive(Subcommand)]
enum Cmd {
    /// Start a cluster and wait until it is ready; nothing to do if it runs.
    Up(Up),
    /// End a cluster and delete its data.
    Down(Name),
    /// Show a running cluster.
    Status {
        #[command(flatten)]
        name: Name,
        /// How to show it.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// List the running clusters.
    List,
    /// Print shell commands that make kubectl use a cluster: eval "$(devcluster env)".
    Env(Name),
    /// Run the kubectl of the cluster's version against it.
    #[command(disable_help_flag = true)]
    Kubectl {
        #[command(flatten)]
        name: Name,
        /// Arguments of kubectl.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Build the binaries (all that a cluster needs, or those named) and print where they are.
    Build {
        /// For example kubectl.
        #[arg(value_parser = binary)]
        binaries: Vec<Binary>,
        /// Also what a real node needs, if this machine can run one.
        #[arg(long)]
        real_node: bool,
    },
    /// Own a cluster in the foreground until SIGTERM; what `up` runs in the background.
    #[command(hide = true)]
    Serve(Up),
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

fn binary(name: &str) -> Result<Binary, String> {
    Binary::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Binary::ALL.into_iter().map(Binary::name).collect();
        format!("there are: {}", names.join(", "))
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse().command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("devcluster: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Cmd) -> Result<()> {
    let mut out = io::stdout().lock();
    match command {
        Cmd::Up(up) => {
            let state = Named::new(&up.name.name)?.up(up.wanted()).await?;
            show(&mut out, &state)?;
            if io::stdout().is_terminal() {
                let name = if state.name == "default" { String::new() } else { format!(" --name {}", state.name) };
                writeln!(out, "\nUse it:  eval \"$(devcluster env{name})\"\nEnd it:  devcluster down{name}")?;
            }
        }
        Cmd::Down(name) => {
            let ran = Named::new(&name.name)?.down()?;
            let done = if ran { "ended" } else { "did not run" };
            eprintln!("devcluster: cluster {:?} {done}", name.name);
        }
        Cmd::Status { name, output } => {
            let state = Named::new(&name.name)?.running()?;
            match output {
                Output::Text => show(&mut out, &state)?,
                Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&state)?)?,
            }
        }
        Cmd::List => {
            for named in Named::all()? {
                if let Some(state) = named.state()? {
                    writeln!(out, "{}\t{}\t{}\tpid {}", state.name, state.version, state.server, state.pid)?;
                }
            }
        }
        Cmd::Env(name) => {
            let state = Named::new(&name.name)?.running()?;
            let bin = state.kubectl.parent().context("kubectl has no folder")?;
            writeln!(out, "export KUBECONFIG={}", quoted(&state.kubeconfig.display().to_string()))?;
            writeln!(out, "export DEVCLUSTER_AUDIT_LOG={}", quoted(&state.audit_log.display().to_string()))?;
            writeln!(out, "export PATH={}:\"$PATH\"", quoted(&bin.display().to_string()))?;
        }
        Cmd::Kubectl { name, args } => {
            let state = Named::new(&name.name)?.running()?;
            let error = Command::new(&state.kubectl).args(args).env("KUBECONFIG", &state.kubeconfig).exec();
            bail!("cannot run {}: {error}", state.kubectl.display());
        }
        Cmd::Build { binaries, real_node } => {
            let mut wanted = if binaries.is_empty() { Binary::DEFAULT.to_vec() } else { binaries };
            if real_node {
                match can_run_real_node() {
                    Ok(()) => wanted.extend(Binary::REAL_NODE),
                    Err(error) => eprintln!("devcluster: nothing built for a real node: {error:#}"),
                }
            }
            let built = tokio::task::spawn_blocking(move || Binaries::ensure(&wanted)).await??;
            for (binary, path) in built.iter() {
                let version = if path.starts_with(build_dir(binary)?) { binary.pinned_version() } else { "given" };
                writeln!(out, "{}\t{version}\t{}", binary.name(), path.display())?;
            }
        }
        Cmd::Serve(up) => Named::new(&up.name.name)?.serve(up.wanted()).await?,
    }
    Ok(())
}

fn show(out: &mut impl Write, state: &State) -> Result<()> {
    let versions: Vec<String> = state
        .pinned
        .iter()
        .filter(|(name, _)| *name != "kube-apiserver")
        .map(|(name, v)| format!("{name} {v}"))
        .collect();
    writeln!(out, "cluster     {} (pid {})", state.name, state.pid)?;
    writeln!(out, "version     {} ({})", state.version, versions.join(", "))?;
    writeln!(out, "server      {}", state.server)?;
    writeln!(out, "kubeconfig  {}", state.kubeconfig.display())?;
    writeln!(out, "audit log   {}", state.audit_log.display())?;
    writeln!(out, "logs        {}", state.log_dir.display())?;
    Ok(())
}

/// A text as one word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
