//! `interlock run` as a process: readiness, metrics, leader election, signals.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::time::Instant;

use super::harness::{Env, INTERLOCK, ended, until};

async fn holder(env: &Env) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), "interlock-system");
    leases.get_opt("interlock").await.unwrap()?.spec?.holder_identity
}

fn took(what: &str, start: Instant) {
    println!("the next one led {:.1} s after {what}", start.elapsed().as_secs_f64());
}

#[tokio::test]
async fn one_leads_and_the_next_takes_over_after_an_end_a_kill_and_a_standstill() {
    let env = Env::new("election").await;
    let args = ["--lease-namespace", "interlock-system", "--lease-name", "interlock"];
    let mut first = env.controller(&args).await;
    first.ready().await;
    until("the first leads", 20, || first.leads()).await;
    let mut second = env.controller(&args).await;
    second.ready().await;
    assert!(!second.leads().await, "a warm follower is ready and does not lead");

    let start = Instant::now();
    assert_eq!(first.terminate().await, Some(0));
    until("the second leads", 20, || second.leads()).await;
    assert!(start.elapsed() < Duration::from_secs(10), "given back, not expired: {:?}", start.elapsed());
    took("a graceful end", start);

    let mut third = env.controller(&args).await;
    third.ready().await;
    let start = Instant::now();
    second.signal("KILL");
    second.wait().await;
    until("the third leads", 25, || third.leads()).await;
    took("a kill", start);

    // Stopped for longer than the Lease lasts: it must find that out by itself, and end.
    let mut fourth = env.controller(&args).await;
    fourth.ready().await;
    let start = Instant::now();
    third.signal("STOP");
    until("the fourth leads", 25, || fourth.leads()).await;
    took("a standstill", start);
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
    let mut controller = env.controller(&["--leader-elect=false"]).await;
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
