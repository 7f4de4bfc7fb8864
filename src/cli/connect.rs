//! The connection of a command, with kubectl's options.

use std::{path::PathBuf, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::exit::{Failure, chain};

/// Options that say which cluster is meant.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ClusterArgs {
    /// Path of the kubeconfig file. Absent: $KUBECONFIG, ~/.kube/config, or the service account of the pod
    #[arg(long, value_name = "PATH", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig file. Absent: its current one
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
}

impl ClusterArgs {
    /// What they lead to. Nothing is sent yet.
    pub async fn config(&self) -> Result<Config, Failure> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match &self.kubeconfig {
            Some(path) => {
                let where_ = format!("--kubeconfig {}", path.display());
                let file = Kubeconfig::read_from(path).map_err(|e| unusable(&where_, &e))?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(|e| unusable(&where_, &e))
            }
            None if self.context.is_some() => {
                Config::from_kubeconfig(&options).await.map_err(|e| unusable("--context", &e))
            }
            None => Config::infer().await.map_err(|error| {
                let why = chain(&error);
                Failure::error(format!("cannot find a cluster: {why}; give --kubeconfig PATH or set KUBECONFIG"))
            }),
        }
    }
}

fn unusable(what: &str, error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::error(format!("{what}: cannot be used: {}", chain(error)))
}

/// A command's connection as the user.
#[derive(Clone)]
pub struct Connection {
    /// The client.
    pub client: Client,
    /// The namespace meant: `--namespace`, the context's, or `default`.
    pub namespace: String,
}

impl Connection {
    /// Connects. Requests are not repeated below, and end after a minute.
    pub async fn new(cluster: &ClusterArgs, namespace: Option<&str>) -> Result<Self, Failure> {
        let mut config = cluster.config().await?;
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(10));
        config.read_timeout = Some(Duration::from_mins(1));
        let namespace = namespace.map_or_else(|| config.default_namespace.clone(), str::to_owned);
        let client = Client::try_from(config).map_err(|e| Failure::error(format!("cannot connect: {}", chain(&e))))?;
        Ok(Self { client, namespace })
    }
}
