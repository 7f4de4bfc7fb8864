//! `interlock run` as a process: readiness, metrics, leader election, signals.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{Instant, timeout},
};

use super::harness::{Env, INTERLOCK, ended, until};

/// A running `interlock run` for one namespace.
pub(crate) struct Controller {
    child: Child,
    pub(crate) url: String,
}

impl Controller {
    /// Starts it, as the service account, and waits until it listens.
    pub(crate) async fn start(env: &Env, election: &[&str]) -> Self {
        let kubeconfig = env.cluster.service_account_kubeconfig("interlock-system", "interlock").await.unwrap();
        let mut child = Command::new(INTERLOCK)
            .args(["run", "--kubeconfig", kubeconfig.to_str().unwrap(), "--namespace", &env.namespace])
            .args(["--listen", "127.0.0.1:0", "--log-format", "json", "--hook-allow-loopback"])
            .args(election)
            .env_remove("RUST_LOG")
            .env_remove("POD_NAMESPACE")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let port = timeout(Duration::from_secs(30), async {
            loop {
                let line = lines.next_line().await.unwrap().expect("it ended before it listened");
                let event: serde_json::Value = serde_json::from_str(&line).expect(&line);
                if let Some(port) = event["port"].as_u64() {
                    return port;
                }
            }
        })
        .await
        .unwrap();
        // Read on, or it would block on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, url: format!("http://127.0.0.1:{port}") }
    }

    pub(crate) async fn ready(&self) {
        until("ready", 40, || async { get(&self.url, "/readyz").await.0 == 200 }).await;
    }

    pub(crate) async fn leads(&self) -> bool {
        get(&self.url, "/metrics").await.1.contains("\ninterlock_leader 1\n")
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().unwrap().to_string();
        assert!(std::process::Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    pub(crate) async fn wait(&mut self) -> ExitStatus {
        timeout(Duration::from_secs(30), self.child.wait()).await.expect("it does not end").unwrap()
    }

    /// Ends it the orderly way.
    pub(crate) async fn terminate(&mut self) -> Option<i32> {
        self.signal("TERM");
        self.wait().await.code()
    }
}

async fn get(url: &str, path: &str) -> (u16, String) {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build().unwrap();
    match client.get(format!("{url}{path}")).send().await {
        Ok(answer) => (answer.status().as_u16(), answer.text().await.unwrap_or_default()),
        Err(_) => (0, String::new()),
    }
}

async fn holder(env: &Env) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), "interlock-system");
    leases.get_opt("interlock").await.unwrap()?.spec?.holder_identity
}

#[tokio::test]
async fn one_leads_and_the_next_takes_over_after_an_end_a_kill_and_a_standstill() {
    let env = Env::new("election").await;
    let args = ["--lease-namespace", "interlock-system", "--lease-name", "interlock"];
    let mut first = Controller::start(&env, &args).await;
    first.ready().await;
    until("the first leads", 20, || first.leads()).await;
    let mut second = Controller::start(&env, &args).await;
    second.ready().await;
    assert!(!second.leads().await, "a warm follower is ready and does not lead");

    let start = Instant::now();
    assert_eq!(first.terminate().await, Some(0));
    until("the second leads", 20, || second.leads()).await;
    assert!(start.elapsed() < Duration::from_secs(10), "given back, not expired: {:?}", start.elapsed());

    let mut third = Controller::start(&env, &args).await;
    third.ready().await;
    second.signal("KILL");
    second.wait().await;
    until("the third leads", 25, || third.leads()).await;

    // Stopped for longer than the Lease lasts: it must find that out by itself, and end.
    let mut fourth = Controller::start(&env, &args).await;
    fourth.ready().await;
    third.signal("STOP");
    until("the fourth leads", 25, || fourth.leads()).await;
    third.signal("CONT");
    assert_eq!(third.wait().await.code(), Some(5));
    assert!(fourth.leads().await);
    assert!(holder(&env).await.is_some());
    assert_eq!(fourth.terminate().await, Some(0));
    assert_eq!(holder(&env).await, None, "given back");
}

#[tokio::test]
async fn without_leader_election_it_runs_and_ends_at_an_interrupt() {
    let env = Env::new("graceful").await;
    let mut controller = Controller::start(&env, &["--leader-elect=false"]).await;
    controller.ready().await;
    controller.signal("INT");
    assert_eq!(controller.wait().await.code(), Some(0));
}

#[tokio::test]
async fn what_cannot_work_is_refused_at_start() {
    let env = Env::new("refused").await;
    let kubeconfig = env.kubeconfig();
    let run = |args: &'static [&'static str]| {
        let kubeconfig = kubeconfig.to_str().unwrap().to_owned();
        async move {
            ended(INTERLOCK, &[&["run", "--kubeconfig", &kubeconfig, "--listen", "127.0.0.1:0"][..], args].concat())
                .await
        }
    };
    let field = run(&["--field-selector", "spec.replicas=3"]).await;
    assert_eq!(field.code, Some(2));
    assert!(
        field.err.contains("--field-selector \"spec.replicas=3\"") && field.err.contains("metadata.name"),
        "{field:?}"
    );
    let label = run(&["--label-selector", "app in"]).await;
    assert_eq!(label.code, Some(2), "{label:?}");
    assert!(label.err.contains("--label-selector \"app in\""), "{label:?}");
    let level = run(&["--log-level", "a=b=c"]).await;
    assert!(level.code == Some(2) && level.err.contains("--log-level"), "{level:?}");
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let bind = ended(INTERLOCK, &["run", "--kubeconfig", kubeconfig.to_str().unwrap(), "--listen", &address]).await;
    assert_eq!(bind.code, Some(5));
    assert!(bind.err.contains(&format!("--listen {address}: cannot listen there")), "{bind:?}");
}
