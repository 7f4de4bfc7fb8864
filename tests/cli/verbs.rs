//! The verbs of the plugin.

use std::net::SocketAddr;

use axum::{Router, http::StatusCode, routing::post};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::harness::{Env, INTERLOCK, PLUGIN, ended, held, image};

/// A receiver of hooks whose answer can be changed.
async fn receiver(answer: watch::Receiver<u16>) -> String {
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let app = Router::new().route("/", post(|| async move { StatusCode::from_u16(*answer.borrow()).unwrap() }));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

fn hook(url: &str) -> Value {
    json!([{"name": "smoke", "phase": "PreUpdate", "http": {"url": url}, "retries": 0, "timeoutSeconds": 10}])
}

#[tokio::test]
async fn wrong_usage_and_no_cluster_have_their_own_codes() {
    for args in [&["wait"][..], &["explain", "statefulset/x"], &["nothing"], &["uninstall"]] {
        assert_eq!(ended(PLUGIN, args).await.code, Some(2), "{args:?}");
    }
    let none = ended(PLUGIN, &["status", "--kubeconfig", "/nonexistent/kubeconfig"]).await;
    assert_eq!(none.code, Some(5));
    assert!(none.err.starts_with("error: --kubeconfig /nonexistent/kubeconfig: cannot be used: "), "{none:?}");
    assert_eq!(ended(INTERLOCK, &["version"]).await.out, concat!("interlock ", env!("CARGO_PKG_VERSION"), "\n"));
    assert!(ended(PLUGIN, &["completion", "bash"]).await.out.contains("kubectl-interlock"));
    for binary in [INTERLOCK, PLUGIN] {
        let crd = ended(binary, &["crd"]).await;
        assert!(crd.code == Some(0) && crd.out.contains("name: hookruns.interlock.dev"), "{crd:?}");
    }
}

#[tokio::test]
async fn installing_again_changes_nothing_and_a_dry_run_prints() {
    let env = Env::new("install").await;
    let scoped = env.plugin(&["install"]).await;
    assert_eq!(scoped.code, Some(2), "{scoped:?}");
    assert!(scoped.err.contains("--controller-namespace"), "{scoped:?}");
    let kubeconfig = env.kubeconfig();
    let again = ended(PLUGIN, &["install", "--kubeconfig", kubeconfig.to_str().unwrap()]).await;
    assert!(again.code == Some(0) && !again.out.contains("created"), "{again:?}");
    let dry = ended(INTERLOCK, &["install", "--dry-run=client", "-o", "yaml", "--failure-policy=Ignore"]).await;
    assert!(dry.out.contains("kind: MutatingAdmissionPolicy") && dry.out.contains("failurePolicy: Ignore"));
}

#[tokio::test]
async fn without_a_controller_what_is_held_is_shown_waited_for_and_undone() {
    let env = Env::new("held").await;
    env.create("web", 2).await;
    env.policy("web", json!([])).await;
    let settled = env.plugin(&["wait", "deploy/web", "--timeout", "30s"]).await;
    assert_eq!((settled.code, settled.out.as_str()), (Some(0), "deployment/web settled\n"), "{settled:?}");

    assert!(held(&env.set_image("web", "r.test/img:v2", false).await));
    let waited = env.plugin(&["wait", "deploy/web", "--timeout", "2s"]).await;
    assert_eq!(waited.code, Some(3), "{waited:?}");
    assert!(waited.err.contains("timed out after 2s: deployment/web: held;"), "{waited:?}");

    let status = env.plugin(&["status"]).await;
    assert_eq!(status.code, Some(0), "{status:?}");
    let line = status.out.lines().nth(1).unwrap();
    assert_eq!(line.split_whitespace().take(7).collect::<Vec<_>>(), ["web", "Held", "-", "-", "0/2", "2/2", "gate"]);
    let json_ = env.plugin(&["status", "deploy/web", "-o", "json"]).await;
    let rows: Value = serde_json::from_str(&json_.out).unwrap();
    assert_eq!((&rows[0]["held"], &rows[0]["governedBy"]), (&json!(true), &json!("gate")));
    assert!(env.plugin(&["status", "-A", "-o", "yaml"]).await.out.contains("name: web"));

    let explain = env.plugin(&["explain", "deploy/web"]).await;
    assert!(explain.code == Some(0) && explain.out.contains("Held:") && explain.out.contains("gate"), "{explain:?}");
    let retry = env.plugin(&["retry", "deploy/web"]).await;
    assert_eq!(retry.code, Some(1));
    assert!(retry.err.contains("there is nothing to decide: it has no run"), "{retry:?}");

    let undo = env.plugin(&["undo", "deploy/web"]).await;
    assert_eq!((undo.code, undo.out.as_str()), (Some(0), "deployment/web set back to revision 1\n"), "{undo:?}");
    let now = env.get("web").await;
    assert!(held(&now), "ending the hold is the controller's");
    assert_eq!(image(&now), "r.test/img:v1");
    assert!(
        env.plugin(&["undo", "deploy/web"]).await.out.contains("skipped: its template is already that of revision 1")
    );
    let history = env.plugin(&["history", "deploy/web"]).await;
    assert!(history.out.contains("1*") && history.out.contains("r.test/img:v1"), "{history:?}");
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let env = Env::new("absent").await;
    for args in [
        &["wait", "deploy/no"][..],
        &["explain", "no"],
        &["status", "no"],
        &["undo", "no"],
        &["abort", "no"],
        &["history", "no"],
    ] {
        let got = env.plugin(args).await;
        assert_eq!(got.code, Some(4), "{args:?} {got:?}");
        assert!(got.err.contains("deployment/no does not exist in namespace absent-"), "{got:?}");
    }
    let status = env.plugin(&["status"]).await;
    assert_eq!((status.code, status.out.as_str()), (Some(0), ""));
    assert!(status.err.contains("No Deployment is governed by interlock in namespace absent-"), "{status:?}");
}

#[tokio::test]
async fn kubectl_finds_the_plugin() {
    let env = Env::new("kubectl").await;
    let kubectl = env.cluster.bin(devcluster::Binary::Kubectl).unwrap();
    let path = std::path::Path::new(PLUGIN).parent().unwrap();
    let output = tokio::process::Command::new(kubectl)
        .args(["interlock", "wait", "deploy/no", "-n", &env.namespace])
        .env("PATH", path)
        .env("KUBECONFIG", env.kubeconfig())
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}

#[tokio::test]
async fn a_user_without_rights_is_told_which_are_missing() {
    let env = Env::new("rights").await;
    let nobody = env.cluster.issue_client_cert("nobody", &[]).unwrap();
    let args =
        |verb: &'static str| ["--kubeconfig", nobody.to_str().unwrap(), "-n", &env.namespace, verb, "deploy/web"];
    for verb in ["explain", "wait", "undo", "abort"] {
        let got = ended(PLUGIN, &args(verb)).await;
        assert_eq!(got.code, Some(5), "{got:?}");
        let right = if verb == "wait" { "cannot watch resource" } else { "cannot get resource" };
        assert!(got.err.contains(right), "{got:?}");
    }
}

#[tokio::test]
async fn a_failed_hook_is_explained_skipped_and_the_update_goes_on() {
    let env = Env::new("decide").await;
    let (answer, answers) = watch::channel(500);
    env.create("web", 2).await;
    env.policy("web", hook(&receiver(answers).await)).await;
    let mut controller = env.controller(&["--leader-elect=false"]).await;
    controller.ready().await;

    env.set_image("web", "r.test/img:v2", false).await;
    let waited = env.plugin(&["wait", "deploy/web", "--timeout", "1m"]).await;
    assert_eq!(waited.code, Some(1), "{waited:?}");
    assert!(waited.err.contains("is stalled, HookFailed"), "{waited:?}");
    let explain = env.plugin(&["explain", "deploy/web"]).await;
    assert!(
        explain.out.contains("Failed (Http500)")
            && explain.out.contains("kubectl interlock retry deploy/web -n decide-"),
        "{explain:?}"
    );

    let reader = env.cluster.issue_client_cert("reader", &["system:masters-not"]).unwrap();
    let refused =
        ended(PLUGIN, &["retry", "web", "--kubeconfig", reader.to_str().unwrap(), "-n", &env.namespace]).await;
    assert_eq!(refused.code, Some(5), "{refused:?}");

    // One more attempt, which fails again, then without the hook.
    let retry = env.plugin(&["retry", "deploy/web", "--reason", "the receiver was down"]).await;
    assert!(retry.code == Some(0) && retry.out.contains("Retry decided by "), "{retry:?}");
    assert_eq!(env.plugin(&["wait", "deploy/web", "--timeout", "1m"]).await.code, Some(1));
    let wrong = env.plugin(&["skip", "deploy/web", "--hook", "smoky"]).await;
    assert!(wrong.code == Some(1) && wrong.err.contains("has no hook smoky; its hooks: smoke"), "{wrong:?}");
    let skip = env.plugin(&["skip", "deploy/web"]).await;
    assert!(skip.code == Some(0) && skip.out.contains("Skip hook smoke decided by "), "{skip:?}");
    let waited = env.plugin(&["wait", "deploy/web", "--timeout", "1m"]).await;
    assert_eq!((waited.code, waited.out.as_str()), (Some(0), "deployment/web settled (Succeeded)\n"), "{waited:?}");
    assert_eq!(image(&env.get("web").await), "r.test/img:v2");

    // Back by undo, right after a change that is held.
    answer.send_replace(500);
    env.set_image("web", "r.test/img:v3", false).await;
    let undo = env.plugin(&["undo", "deploy/web"]).await;
    assert_eq!(undo.code, Some(0), "{undo:?}");
    let waited = env.plugin(&["wait", "deploy/web", "--timeout", "1m"]).await;
    assert_eq!(waited.code, Some(0), "{waited:?}");
    assert_eq!(image(&env.get("web").await), "r.test/img:v2");
    answer.send_replace(200);
    let undo = env.plugin(&["undo", "deploy/web"]).await;
    assert!(undo.out.contains("set back to revision"), "{undo:?}");
    assert_eq!(env.plugin(&["wait", "deploy/web", "--timeout", "1m"]).await.code, Some(0));
    assert_eq!(image(&env.get("web").await), "r.test/img:v1");
    let history = env.plugin(&["history", "deploy/web"]).await;
    assert!(history.out.contains("Succeeded") && history.out.contains("InPlace"), "{history:?}");

    // Aborted: it stays held, and says so to scripts.
    answer.send_replace(500);
    env.set_image("web", "r.test/img:v4", false).await;
    assert_eq!(env.plugin(&["wait", "deploy/web", "--timeout", "1m"]).await.code, Some(1));
    assert_eq!(env.plugin(&["abort", "deploy/web"]).await.code, Some(0));
    let waited = env.plugin(&["wait", "deploy/web", "--timeout", "20s"]).await;
    assert!(waited.code == Some(1) && waited.err.contains("was aborted"), "{waited:?}");
    let nothing = env.plugin(&["resume", "deploy/web"]).await;
    assert!(nothing.code == Some(1) && nothing.err.contains("has ended (Aborted)"), "{nothing:?}");
    assert_eq!(controller.terminate().await, Some(0));
}

#[tokio::test]
async fn an_approval_is_given_once_in_ones_own_name_and_shown() {
    let env = Env::new("approve").await;
    env.create("web", 2).await;
    let approval = json!([{"name": "ok", "phase": "PreUpdate", "approval": {}}, {"name": "rest", "phase": "PostUpdate", "wait": {"seconds": 0}}]);
    env.policy("web", approval).await;
    let mut controller = env.controller(&["--leader-elect=false"]).await;
    controller.ready().await;
    let nothing = env.plugin(&["approve", "deploy/web"]).await;
    assert!(nothing.code == Some(1) && nothing.err.contains("it has no run"), "{nothing:?}");

    env.set_image("web", "r.test/img:v2", false).await;
    env.until("it waits for approval", 60, async || {
        env.plugin(&["explain", "deploy/web"]).await.out.contains("approve deploy/web")
    })
    .await;
    for (args, said) in [
        (&["--hook", "rest"][..], "hook rest is no approval"),
        (&["--hook", "no"], "has no hook no; its hooks: ok, rest"),
        (&["--attempt", "2"], "attempt 2 has not begun, the latest is 1"),
        (&["--hook", "ok", "--pod", "web-1"], "runs once and for no pod"),
    ] {
        let got = env.plugin(&[&["approve", "deploy/web"][..], args].concat()).await;
        assert!(got.code == Some(1) && got.err.contains(said), "{args:?} {got:?}");
    }
    let reader = env.cluster.issue_client_cert("approver", &[]).unwrap();
    let no_right =
        ended(PLUGIN, &["approve", "web", "--kubeconfig", reader.to_str().unwrap(), "-n", &env.namespace]).await;
    assert_eq!(no_right.code, Some(5), "{no_right:?}");

    let approve = env.plugin(&["approve", "deploy/web", "--attempt", "1", "--reason", "looked at"]).await;
    assert!(approve.code == Some(0) && approve.out.contains("Approve hook ok, attempt 1 decided by"), "{approve:?}");
    let again = env.plugin(&["approve", "deploy/web"]).await;
    assert_eq!(again.code, Some(1), "{again:?}");
    let waited = env.plugin(&["wait", "deploy/web", "--timeout", "1m"]).await;
    assert_eq!((waited.code, waited.out.as_str()), (Some(0), "deployment/web settled (Succeeded)\n"), "{waited:?}");
    for verb in ["history", "explain"] {
        let shown = env.plugin(&[verb, "deploy/web"]).await;
        let line = shown.out.lines().find(|line| line.contains("hook/ok")).unwrap_or_else(|| panic!("{shown:?}"));
        assert!(line.contains("Approve") && line.contains("taken up") && line.contains("looked at"), "{line}");
    }
    let status = env.plugin(&["status", "-o", "wide"]).await;
    assert!(status.out.contains("Approve hook/ok, attempt 1, by "), "{status:?}");
    assert_eq!(controller.terminate().await, Some(0));
}
