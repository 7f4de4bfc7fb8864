//! Interlock as a process of its own, with a gate in its way to the API server.

use std::path::PathBuf;

use devcluster::WatchProxy;
use kube::{Config, client::ClientBuilder, config::Kubeconfig};
use serde_json::json;

use super::{Env, Gate, Moment, gate::Stopped, objects};
use crate::controller::Controller;

/// Nobody else is there.
pub const ALONE: [&str; 1] = ["--leader-elect=false"];

/// Keep it until everything has been looked at: the write that was held back must never be made, with its client gone.
pub struct Aftermath {
    _stopped: Option<Stopped>,
    _second: Option<Controller>,
}

/// The way of one process to the API server. It has an agent by which the audit log knows it.
pub struct Way {
    pub gate: Gate,
    pub agent: String,
    namespace: String,
    kubeconfig: PathBuf,
    _proxy: WatchProxy,
}

impl Way {
    /// With the rights of Interlock's service account.
    pub async fn new(env: &Env, name: &str) -> Self {
        let gate = Gate::default();
        let agent = format!("interlock/{name}-{}", env.namespace);
        let account = env.cluster.service_account_kubeconfig("interlock-system", "interlock").await.unwrap();
        let account = Kubeconfig::read_from(account).unwrap();
        let mut config = Config::from_custom_kubeconfig(account, &Default::default()).await.unwrap();
        config.headers.push((http::header::USER_AGENT, agent.parse().unwrap()));
        let layer = gate.clone();
        let proxy = WatchProxy::start_with(config, move |config| {
            Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
        })
        .await
        .unwrap();
        let kubeconfig = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.json", env.namespace));
        let file = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": proxy.url()}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        std::fs::write(&kubeconfig, file.to_string()).unwrap();
        Self { gate, agent, namespace: env.namespace.clone(), kubeconfig, _proxy: proxy }
    }

    /// `interlock run` on this way, ready.
    pub async fn start(&self, election: &[&str]) -> Controller {
        let controller = Controller::start(&self.kubeconfig, &self.namespace, election).await;
        controller.ready().await;
        controller
    }

    /// An update whose controller is killed at its `nth` write and followed by another one, until `ended`. With fewer writes
    /// than in the reference run nobody is killed: timing decides what is stored together.
    pub async fn update_killed_at(
        &self,
        env: &Env,
        moment: Moment,
        nth: usize,
        ended: impl Future<Output = ()>,
    ) -> Aftermath {
        let mut first = self.start(&ALONE).await;
        let mut stops = self.gate.stop_at_any(moment, nth);
        env.patch("web", objects::set_image("v2")).await;
        tokio::select! {
            stopped = stops.recv() => {
                first.signal("KILL");
                first.wait().await;
                Aftermath { _stopped: stopped, _second: Some(self.start(&ALONE).await) }
            }
            () = ended => Aftermath { _stopped: None, _second: None },
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}
