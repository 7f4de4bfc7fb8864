//! `install`, `uninstall` and `crd`: the same in both binaries.

use interlock_core::api::names;

use super::{
    connect::{ClusterArgs, Connection},
    exit::{Exit, Failure, chain},
    output,
};
use crate::{
    api::crds,
    install::{self, FailurePolicy, InstallOptions, Line, NAMESPACE, OnUninstall, UninstallOptions, manifests, yaml},
};

/// Options of `install`.
#[derive(Clone, Debug, clap::Args)]
pub struct InstallArgs {
    /// client: print what would be applied, and ask no server
    #[arg(long, value_enum, value_name = "client", num_args = 0..=1, require_equals = true, default_missing_value = "client")]
    dry_run: Option<DryRun>,
    /// Form of what --dry-run prints
    #[arg(short, long, value_enum, requires = "dry_run")]
    output: Option<Yaml>,
    /// What becomes of Deployment writes that the hold cannot be decided for. Ignore: they go through unheld
    #[arg(long, value_enum, default_value_t)]
    failure_policy: Policy,
    /// Image of the controller. Absent: no controller is deployed
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Where the controller lives
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    controller_namespace: String,
    /// Also an admission policy that gives the readiness gate, for `update.drain`, to new pods of Deployments that are chosen
    /// by label interlock.dev/readiness-gate=enabled on the pod or its namespace
    #[arg(long)]
    readiness_gate: bool,
}

/// Options of `uninstall`.
#[derive(Clone, Debug, clap::Args)]
pub struct UninstallArgs {
    /// What becomes of updates that are held. release: they roll now. keep: they stay paused. revert: their templates go
    /// back to what runs
    #[arg(long, value_enum)]
    held: Held,
    /// Where the controller lives; deleted unless it was there before the installation
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    controller_namespace: String,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum DryRun {
    Client,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Yaml {
    Yaml,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum Policy {
    #[default]
    Fail,
    Ignore,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Held {
    Release,
    Keep,
    Revert,
}

/// Installs, or prints what would be applied.
pub async fn install(cluster: &ClusterArgs, namespace: Option<&str>, args: &InstallArgs) -> Result<Exit, Failure> {
    whole_cluster(namespace)?;
    let InstallArgs { dry_run, output: _, failure_policy, image, controller_namespace, readiness_gate } = args;
    let options = InstallOptions {
        namespace: controller_namespace.clone(),
        failure_policy: match failure_policy {
            Policy::Fail => FailurePolicy::Fail,
            Policy::Ignore => FailurePolicy::Ignore,
        },
        image: image.clone(),
        readiness_gate: *readiness_gate,
    };
    // What is wrong with the options shows here, before anything is sent.
    let objects = manifests(&options).map_err(|why| Failure::usage(format!("cannot install: {why}")))?;
    if matches!(dry_run, Some(DryRun::Client)) {
        output::print(&yaml(&objects).map_err(|why| Failure::error(why.to_string()))?);
        return Ok(Exit::Ok);
    }
    let connection = Connection::new(cluster, namespace).await?;
    report(install::install(&connection.client, &options).await)
}

/// Uninstalls.
pub async fn uninstall(cluster: &ClusterArgs, namespace: Option<&str>, args: &UninstallArgs) -> Result<Exit, Failure> {
    whole_cluster(namespace)?;
    let options = UninstallOptions {
        namespace: args.controller_namespace.clone(),
        held: match args.held {
            Held::Release => OnUninstall::Release,
            Held::Keep => OnUninstall::Keep,
            Held::Revert => OnUninstall::Revert,
        },
    };
    let connection = Connection::new(cluster, namespace).await?;
    report(install::uninstall(&connection.client, &options).await)
}

/// A `-n` given by habit must not become the namespace that the hold leaves alone and that `uninstall` deletes.
fn whole_cluster(namespace: Option<&str>) -> Result<(), Failure> {
    match namespace {
        None => Ok(()),
        Some(namespace) => Err(Failure::usage(format!(
            "--namespace {namespace}: an installation is for the whole cluster; for the namespace of the controller give \
             --controller-namespace"
        ))),
    }
}

fn report(outcome: Result<Vec<Line>, install::Failed>) -> Result<Exit, Failure> {
    let print = |lines: &[Line]| lines.iter().for_each(|line| output::print(&format!("{line}\n")));
    match outcome {
        Ok(lines) => {
            print(&lines);
            Ok(Exit::Ok)
        }
        Err(failed) => {
            print(&failed.lines);
            Err(Failure::error(chain(&failed)))
        }
    }
}

/// Prints the definitions.
pub fn crd() -> Result<Exit, Failure> {
    let bad = |why: &dyn std::fmt::Display| {
        Failure::error(format!("cannot print the definitions of {}: {why}", names::GROUP))
    };
    let definitions = crds().map_err(|e| bad(&e))?;
    let objects: Vec<_> =
        definitions.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(|e| bad(&e))?;
    output::print(&yaml(&objects).map_err(|e| bad(&e))?);
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    enum Line {
        Install(InstallArgs),
        Uninstall(UninstallArgs),
    }

    #[test]
    fn the_forms_in_the_documentation_are_taken() {
        for line in [
            "x install",
            "x install --dry-run=client -o yaml",
            "x install --dry-run",
            "x install --failure-policy Ignore --image example/interlock:1",
            "x install --readiness-gate",
            "x uninstall --held=release",
            "x uninstall --held=keep",
            "x uninstall --held=revert",
        ] {
            Line::try_parse_from(line.split(' ')).unwrap();
        }
        for line in
            ["x uninstall", "x install --dry-run=server", "x install -o yaml", "x install --failure-policy maybe"]
        {
            Line::try_parse_from(line.split(' ')).unwrap_err();
        }
    }
}
