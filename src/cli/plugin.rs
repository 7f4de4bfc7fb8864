//! `kubectl interlock`: the command line of the plugin.

use std::time::Duration;

use clap::{CommandFactory as _, Parser, Subcommand};

use super::{
    admin::{InstallArgs, UninstallArgs, crd, install, uninstall},
    connect::{ClusterArgs, Connection},
    exit::{self, Exit, Failure},
    output::{self, Format, Structured},
    target::{Decidable, Target},
    verbs::{
        decide::{self, About, Choice, Gate, Skip},
        explain, history,
        restart::{self, RestartArgs},
        status, tree, undo, wait,
    },
};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl interlock",
    bin_name = "kubectl interlock",
    version,
    about = "Looks at and decides about updates of Deployments that Interlock holds, hooks and carries out in place",
    after_help = exit::HELP,
    disable_help_subcommand = true
)]
pub struct Plugin {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Namespace. Absent: that of the context
    #[arg(short, long, value_name = "NAME", global = true)]
    namespace: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lists the Deployments that are governed or held: state, pods, what they wait for
    Status {
        /// A Deployment. Absent: all
        #[arg(value_name = "NAME|deploy/NAME")]
        target: Option<Target>,
        /// All namespaces
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// Absent: a table
        #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
        output: Format,
    },
    /// Tells where an update stands, what it waits for, until when, and how to go on: the planner's own report
    Explain {
        #[arg(value_name = "deploy/NAME|restart/NAME")]
        target: Decidable,
        /// Absent: for people
        #[arg(short, long, value_enum)]
        output: Option<Structured>,
    },
    /// Waits until components have settled: the test of the order gate, for scripts; safe right after a change
    Wait(wait::WaitArgs),
    /// Draws the order as a graph: the state of each component, and what blocks whom
    Tree {
        /// Absent: a drawing
        #[arg(short, long, value_enum)]
        output: Option<Structured>,
    },
    /// Approves what waits for approval
    Approve {
        #[command(flatten)]
        decision: DecisionArgs,
        #[command(flatten)]
        about: About,
    },
    /// Tries again what failed: a stalled update goes on, a failed hook gets one more attempt
    Retry {
        #[command(flatten)]
        decision: DecisionArgs,
        #[command(flatten)]
        about: About,
    },
    /// Goes on without a hook or a gate. Without an option: what the update waits for now
    Skip {
        #[command(flatten)]
        decision: DecisionArgs,
        #[command(flatten)]
        about: About,
        /// Predecessors or PodDisruptionBudgets
        #[arg(long, value_enum, conflicts_with_all = ["hook", "pod", "attempt"])]
        gate: Option<Gate>,
    },
    /// Ends an update where it stands; the Deployment stays held until its template changes
    Abort {
        #[command(flatten)]
        decision: DecisionArgs,
    },
    /// Lets a stalled update go on
    Resume {
        #[command(flatten)]
        decision: DecisionArgs,
    },
    /// Restarts the Deployments of the namespace one after the other, or changes a sidecar of theirs in place
    Restart(Box<RestartArgs>),
    /// Writes the earlier template back to the Deployment, also while it is held
    Undo {
        #[arg(value_name = "deploy/NAME")]
        target: Target,
        /// Revision to go to. Absent or 0: the one before
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
        to_revision: Option<i64>,
    },
    /// Lists revisions and runs of a Deployment
    History {
        #[arg(value_name = "deploy/NAME")]
        target: Target,
    },
    /// Installs definitions, admission policies and rights
    Install(InstallArgs),
    /// Removes them, in the order in which nothing is left refused
    Uninstall(UninstallArgs),
    /// Prints the CustomResourceDefinitions
    Crd,
    /// Prints the version
    Version,
    /// Prints a completion script
    Completion {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, clap::Args)]
struct DecisionArgs {
    #[arg(value_name = "deploy/NAME|restart/NAME")]
    target: Decidable,
    /// Of a RollingRestart: only this Deployment
    #[arg(long, value_name = "NAME")]
    deployment: Option<Target>,
    /// Why; kept in the run
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: Option<String>,
}

impl Plugin {
    /// Carries out what was asked for.
    pub async fn run(self) -> Result<Exit, Failure> {
        let Self { cluster, namespace, verb } = self;
        let connect = Connection::new(&cluster, namespace.as_deref());
        match verb {
            Verb::Status { target, all_namespaces, output } => {
                if target.is_some() && all_namespaces {
                    return Err(Failure::usage("a name and --all-namespaces cannot be given together"));
                }
                status::run(&connect.await?, target.as_ref(), all_namespaces, output).await
            }
            Verb::Explain { target, output } => {
                let format = output.map_or(Format::Table, Format::from);
                match target {
                    Decidable::Deployment(target) => explain::run(&connect.await?, &target, format).await,
                    Decidable::Restart(name) => restart::explain(&connect.await?, &name, format).await,
                }
            }
            Verb::Wait(args) => wait::run(&connect.await?, &args).await,
            Verb::Tree { output } => tree::run(&connect.await?, output.map_or(Format::Table, Format::from)).await,
            Verb::Approve { decision, about } => decide(connect.await?, decision, Choice::Approve(about)).await,
            Verb::Retry { decision, about } => decide(connect.await?, decision, Choice::Retry(about)).await,
            Verb::Resume { decision } => decide(connect.await?, decision, Choice::Resume).await,
            Verb::Abort { decision } => decide(connect.await?, decision, Choice::Abort).await,
            Verb::Skip { decision, about, gate } => {
                let skip = match gate {
                    Some(gate) => Skip::Gate(gate),
                    None if about.is_empty() => Skip::Current,
                    None => Skip::Hook(about),
                };
                decide(connect.await?, decision, Choice::Skip(skip)).await
            }
            Verb::Restart(args) => restart::run(&connect.await?, &args).await,
            Verb::Undo { target, to_revision } => undo::run(&connect.await?, &target, to_revision).await,
            Verb::History { target } => history::run(&connect.await?, &target).await,
            Verb::Install(args) => install(&cluster, namespace.as_deref(), &args).await,
            Verb::Uninstall(args) => uninstall(&cluster, namespace.as_deref(), &args).await,
            Verb::Crd => crd(),
            Verb::Version => {
                output::print(concat!("kubectl-interlock ", env!("CARGO_PKG_VERSION"), "\n"));
                Ok(Exit::Ok)
            }
            Verb::Completion { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Self::command(), "kubectl-interlock", &mut script);
                output::print(&String::from_utf8_lossy(&script));
                Ok(Exit::Ok)
            }
        }
    }
}

async fn decide(connection: Connection, args: DecisionArgs, choice: Choice) -> Result<Exit, Failure> {
    let DecisionArgs { target, deployment, reason } = args;
    match (target, deployment) {
        (Decidable::Deployment(target), None) => decide::run(&connection, &target, &choice, reason.as_deref()).await,
        (Decidable::Deployment(_), Some(_)) => Err(Failure::usage("--deployment is for restart/NAME")),
        (Decidable::Restart(name), deployment) => {
            let deployment = deployment.as_ref().map(|target| target.0.as_str());
            let action = match choice {
                Choice::Resume => restart::Action::Resume,
                Choice::Retry(about) if about.is_empty() => restart::Action::Resume,
                Choice::Skip(Skip::Current) => restart::Action::Skip,
                Choice::Abort => restart::Action::Abort,
                Choice::Approve(_) | Choice::Retry(_) | Choice::Skip(_) => {
                    return Err(Failure::usage(
                        "a RollingRestart has no hooks and gates: resume, skip or abort it, of one Deployment with --deployment",
                    ));
                }
            };
            restart::decide(&connection, &name, action, deployment, reason.as_deref()).await
        }
    }
}

fn reason(text: &str) -> Result<String, String> {
    // As the CustomResourceDefinition has it.
    let length = text.chars().count();
    if length <= 1024 { Ok(text.to_owned()) } else { Err(format!("it has {length} characters; at most 1024 are kept")) }
}

/// A duration as options take it.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let why = "write it like 90s, 5m or 1h30m";
    let mut total: u64 = 0;
    let mut digits = String::new();
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let unit = match c {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return Err(why.into()),
        };
        let number: u64 = digits.parse().map_err(|_| why)?;
        total = number.checked_mul(unit).and_then(|seconds| total.checked_add(seconds)).ok_or(why)?;
        digits.clear();
    }
    if digits.is_empty() && !text.is_empty() { Ok(Duration::from_secs(total)) } else { Err(why.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Plugin::command().debug_assert();
    }

    #[test]
    fn timeouts_read_like_kubectls() {
        for (text, seconds) in [("0", 0), ("30", 30), ("90s", 90), ("5m", 300), ("1h30m", 5400)] {
            assert_eq!(timeout(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "m", "5x", "1h3", "-5s", "99999999999999999999h"] {
            timeout(text).unwrap_err();
        }
    }

    #[test]
    fn wrong_usage_ends_with_2() {
        for line in [
            &["kubectl interlock", "wait"][..],
            &["kubectl interlock", "explain", "statefulset/x"],
            &["kubectl interlock", "skip", "deploy/x", "--hook", "a", "--gate", "order"],
            &["kubectl interlock", "undo", "deploy/x", "--to-revision", "-1"],
            &["kubectl interlock"],
        ] {
            assert_eq!(Plugin::try_parse_from(line).unwrap_err().exit_code(), i32::from(Exit::Usage as u8), "{line:?}");
        }
    }

    #[test]
    fn global_options_may_stand_anywhere() {
        let plugin = Plugin::try_parse_from(["x", "status", "web", "-n", "shop", "--context", "test"]).unwrap();
        assert_eq!((plugin.namespace.as_deref(), plugin.cluster.context.as_deref()), (Some("shop"), Some("test")));
        assert!(matches!(plugin.verb, Verb::Status { target: Some(t), .. } if t.0 == "web"));
    }
}
