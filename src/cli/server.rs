//! `interlock`: the command line of the controller, and how its parts start and end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::{Args, Parser, Subcommand};
use interlock_core::select;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client, Config, api::ListParams};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    admin::{InstallArgs, UninstallArgs, crd, install, uninstall},
    connect::ClusterArgs,
    exit::{self, Exit, Failure, chain},
    output,
};
use crate::{
    action::{
        Runners,
        http::{ApiServer, HostRule, HttpClient, Network, Rules},
    },
    controller::{self, Clock},
    lease::{Candidate, Fence, identity},
    observe::{self, Scope},
    publish::metrics::Metrics,
    serve::{Health, Server},
    telemetry::{self, LogFormat},
};

/// Where the Lease is unless `--lease-namespace` or `--namespace` say otherwise.
pub(super) const LEASE_NAMESPACE: &str = "interlock-system";
/// Name of the Lease unless `--lease-name` says otherwise.
pub(super) const LEASE_NAME: &str = "interlock";
/// How long the passes that have begun may take to end.
const GRACE: Duration = Duration::from_secs(20);

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "interlock",
    version,
    about = "In-place updates with lifecycle hooks for plain Kubernetes Deployments",
    after_help = exit::HELP,
    disable_help_subcommand = true
)]
pub struct Interlock {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the controller
    Run(RunArgs),
    /// Installs definitions, admission policies and rights
    Install(InstallArgs),
    /// Removes them, in the order in which nothing is left refused
    Uninstall(UninstallArgs),
    /// Prints the CustomResourceDefinitions
    Crd,
    /// Prints the version
    Version,
}

/// Options of `interlock run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Watch only this namespace. Absent: all
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Only Deployments that this selects, such as metadata.name=web; the watch itself is narrowed
    #[arg(long, value_name = "SELECTOR")]
    field_selector: Option<String>,
    /// Only Deployments with these labels; the watch itself is narrowed
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    label_selector: Option<String>,
    /// Logs for people or for programs, on standard error
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// error, warn, info, debug, trace, or directives such as info,kube=debug. Absent: $RUST_LOG, else info
    #[arg(long, value_name = "FILTER")]
    log_level: Option<String>,
    /// Address of /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// false: act without a Lease; only one such process may run
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    leader_elect: bool,
    /// Namespace of the Lease. Absent: --namespace, else interlock-system
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    lease_namespace: Option<String>,
    /// Name of the Lease; processes with different scopes need different ones
    #[arg(long, value_name = "NAME", default_value = LEASE_NAME)]
    lease_name: String,
    /// Hooks may call receivers on this host (for development)
    #[arg(long)]
    hook_allow_loopback: bool,
    /// Hooks may call this host, or with *. every host below it; once anything is allowed, nothing else is. Repeatable
    #[arg(long, value_name = "HOST")]
    hook_allow_host: Vec<HostRule>,
    /// Hooks may call addresses of this network; once anything is allowed, nothing else is. Repeatable
    #[arg(long, value_name = "CIDR")]
    hook_allow_network: Vec<Network>,
    /// Hooks may not call addresses of this network, whatever is allowed. Repeatable
    #[arg(long, value_name = "CIDR")]
    hook_deny_network: Vec<Network>,
}

impl Interlock {
    /// Carries out what was asked for.
    pub async fn run(self) -> Result<Exit, Failure> {
        let Self { cluster, command } = self;
        match command {
            Command::Run(args) => run(&cluster, args).await,
            Command::Install(args) => install(&cluster, None, &args).await,
            Command::Uninstall(args) => uninstall(&cluster, None, &args).await,
            Command::Crd => crd(),
            Command::Version => {
                output::print(concat!("interlock ", env!("CARGO_PKG_VERSION"), "\n"));
                Ok(Exit::Ok)
            }
        }
    }
}

/// What is watched, or what is wrong with it.
fn scope(args: &RunArgs) -> Result<Scope, Failure> {
    if let Some(text) = &args.field_selector {
        select::parse_field_selector(text).map_err(|why| {
            Failure::usage(format!("--field-selector {text:?}: {why}; for example: metadata.name=web"))
        })?;
    }
    Ok(Scope {
        namespace: args.namespace.clone(),
        field_selector: args.field_selector.clone().filter(|text| !text.trim().is_empty()),
        label_selector: args.label_selector.clone().filter(|text| !text.trim().is_empty()),
    })
}

/// Asks for the selected Deployments once: what the API server finds wrong with the selectors ends the process now, in
/// its words. Any other trouble may pass, and the watches tell of it.
async fn probe(client: &Client, scope: &Scope) -> Result<(), Failure> {
    let api: Api<Deployment> = match &scope.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let params = ListParams {
        field_selector: scope.field_selector.clone(),
        label_selector: scope.label_selector.clone(),
        limit: Some(1),
        ..ListParams::default()
    };
    let answer = timeout(Duration::from_secs(10), api.list_metadata(&params)).await;
    if let Ok(Err(kube::Error::Api(status))) = answer
        && status.code == 400
    {
        return Err(refused(scope, &status.message));
    }
    Ok(())
}

/// The API server does not take a selector.
fn refused(scope: &Scope, why: &str) -> Failure {
    let given = [
        ("--label-selector", scope.label_selector.as_deref(), "app=web,tier!=test"),
        ("--field-selector", scope.field_selector.as_deref(), "metadata.name=web"),
    ];
    let given: Vec<_> =
        given.into_iter().filter_map(|(option, text, example)| Some((option, text?, example))).collect();
    let options: Vec<String> = given.iter().map(|(option, text, _)| format!("{option} {text:?}")).collect();
    let examples: Vec<&str> = given.iter().map(|(_, _, example)| *example).collect();
    Failure::usage(format!("{}: {why}; for example: {}", options.join(" or "), examples.join(" and ")))
}

/// What is watched, for people.
fn watched(scope: &Scope) -> String {
    let namespace =
        scope.namespace.as_ref().map_or_else(|| "all namespaces".to_owned(), |name| format!("namespace {name}"));
    let selectors = [("fields", &scope.field_selector), ("labels", &scope.label_selector)];
    selectors
        .into_iter()
        .filter_map(|(what, text)| Some(format!(", {what} {}", text.as_ref()?)))
        .fold(namespace, |a, b| a + &b)
}

async fn run(cluster: &ClusterArgs, args: RunArgs) -> Result<Exit, Failure> {
    let lease_namespace =
        args.lease_namespace.clone().or_else(|| args.namespace.clone()).unwrap_or_else(|| LEASE_NAMESPACE.to_owned());
    let scope = scope(&args)?;
    telemetry::init(args.log_format, args.log_level.as_deref()).map_err(|e| Failure::usage(e.to_string()))?;
    let config = cluster.config().await?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), server = %config.cluster_url, scope = watched(&scope), "starting");

    let api_server = ApiServer::of(&config.cluster_url);
    let instance = identity();
    let (candidate, fence) = if args.leader_elect {
        // A client of its own: renewals never queue behind other requests.
        let client = connect(config.clone())?;
        let (candidate, fence) = Candidate::new(client, &lease_namespace, &args.lease_name, instance.clone());
        (Some(candidate), fence)
    } else {
        (None, Fence::always())
    };
    let client = connect(config)?;
    probe(&client, &scope).await?;
    let metrics = Metrics::new();
    let health = Health::new(fence.clone());
    let hooks = {
        let rules = Rules {
            loopback: args.hook_allow_loopback,
            allow_hosts: args.hook_allow_host.clone(),
            allow_networks: args.hook_allow_network.clone(),
            deny_networks: args.hook_deny_network.clone(),
        };
        let http = HttpClient::new(rules, Some(&lease_namespace), api_server);
        let fence = fence.clone();
        Runners::new(client.clone(), Arc::new(move || fence.holds()), Clock::System, http).runner()
    };
    let options = controller::Options {
        scope,
        clock: Clock::System,
        instance,
        hooks,
        metrics: metrics.clone(),
        health: health.clone(),
    };
    let server = Server::bind(args.listen).await.map_err(|e| Failure::error(e.to_string()))?;
    let mut signals = Signals::new()?;

    let (stop_acting, stop_leading, stop_serving) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let serving = tokio::spawn(server.run(health.clone(), metrics, stop_serving.clone()));
    let leading = tokio::spawn({
        let stop = stop_leading.clone();
        async move {
            if let Some(candidate) = candidate {
                return candidate.run(stop).await;
            }
            stop.cancelled().await;
            Ok(())
        }
    });
    let acting = tokio::spawn(controller::run(client, options, fence, stop_acting.clone()));
    tokio::pin!(serving, leading, acting);

    tokio::select! {
        name = signals.wait() => tracing::info!(signal = name, "shutting down"),
        ended = &mut acting => return Err(ended_early("controller", ended)),
        ended = &mut leading => return Err(ended_early("leader election", ended)),
        ended = &mut serving => return Err(ended_early("server", ended)),
    }
    // First nobody writes any more, then the Lease is free for the next one, then nobody answers.
    health.stopping();
    stop_acting.cancel();
    let orderly = async {
        match timeout(GRACE, &mut acting).await {
            Ok(ended) => settled("controller", ended)?,
            Err(_) => return Err(Failure::failed(format!("passes did not end within {} s", GRACE.as_secs()))),
        }
        stop_leading.cancel();
        settled("leader election", leading.await)?;
        stop_serving.cancel();
        // A client that holds its connection open is not waited for.
        let _ = timeout(Duration::from_secs(2), &mut serving).await;
        Ok(Exit::Ok)
    };
    tokio::select! {
        outcome = orderly => {
            tracing::info!("ended");
            outcome
        }
        name = signals.wait() => Err(Failure::failed(format!("{name} again: ended at once"))),
    }
}

fn connect(config: Config) -> Result<Client, Failure> {
    observe::client(config).map_err(|e| Failure::error(format!("cannot connect: {}", chain(&e))))
}

type Ended<E> = Result<Result<(), E>, tokio::task::JoinError>;

/// A part that never ends by itself has ended.
fn ended_early<E: std::error::Error + 'static>(part: &str, ended: Ended<E>) -> Failure {
    match settled(part, ended) {
        Ok(()) => Failure::error(format!("{part} ended unexpectedly")),
        Err(failure) => failure,
    }
}

fn settled<E: std::error::Error + 'static>(part: &str, ended: Ended<E>) -> Result<(), Failure> {
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Failure::error(chain(&error))),
        Err(error) => Err(Failure::error(format!("{part} panicked: {error}"))),
    }
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|e| Failure::error(format!("cannot listen for signals: {e}")));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// The next one.
    async fn wait(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn args(line: &[&str]) -> RunArgs {
        match Interlock::try_parse_from([&["interlock", "run"], line].concat()).unwrap().command {
            Command::Run(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Interlock::command().debug_assert();
    }

    #[test]
    fn leader_election_is_on_unless_switched_off() {
        assert!(args(&[]).leader_elect && args(&["--leader-elect"]).leader_elect);
        assert!(args(&["--leader-elect=true"]).leader_elect && !args(&["--leader-elect=false"]).leader_elect);
    }

    #[test]
    fn selectors_that_the_server_would_refuse_are_refused_at_start() {
        let good =
            scope(&args(&["--field-selector", "metadata.name=web,metadata.namespace!=x", "-l", "app in (a,b),!c"]));
        assert!(good.unwrap().narrowed());
        let only = scope(&args(&["-l", "app in (a"])).unwrap();
        assert_eq!(watched(&only), "all namespaces, labels app in (a");
        let failure = refused(&only, "unable to parse");
        assert_eq!(failure.message, "--label-selector \"app in (a\": unable to parse; for example: app=web,tier!=test");
        for (line, part) in [
            (["--field-selector", "spec.replicas=3"], "spec.replicas"),
            (["--field-selector", "metadata.name"], "metadata.name"),
            (["--field-selector", "metadata.labels.app=web"], "metadata.labels.app"),
        ] {
            let failure = scope(&args(&line)).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.starts_with(line[0]) && failure.message.contains(part), "{failure}");
            assert!(failure.message.contains("for example"), "{failure}");
        }
    }
}
