//! `restart` and what is decided about one.

use super::harness::Env;

#[tokio::test]
async fn a_restart_is_tried_dry_followed_and_refused_where_it_makes_no_sense() {
    let env = Env::new("restart").await;
    for name in ["a", "b"] {
        env.create(name, 1).await;
    }
    let usage = env.plugin(&["restart", "--window", "0 2 * *", "--window-seconds", "3600"]).await;
    assert!(usage.code == Some(2) && usage.err.contains("4 fields"), "{usage:?}");
    let nobody = env.plugin(&["restart", "--dry-run", "--timeout", "1s"]).await;
    assert!(nobody.code == Some(3) && nobody.err.contains("does a controller run"), "{nobody:?}");

    let mut controller = env.controller(&["--leader-elect=false"]).await;
    controller.ready().await;
    let dry = env.plugin(&["restart", "--dry-run", "--skip-image", "c=r.test/img:v1"]).await;
    assert_eq!(dry.code, Some(0), "{dry:?}");
    let rows: Vec<Vec<&str>> = dry.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        (rows[1][..3].to_vec(), rows[2][..3].to_vec()),
        (vec!["a", "skip", "SkipWhen"], vec!["b", "skip", "SkipWhen"])
    );
    let none = env.plugin(&["explain", "restart/none"]).await;
    assert_eq!(none.code, Some(4), "{none:?}");

    let done = env.plugin(&["restart", "--name", "all", "--wait", "--timeout", "2m"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.out.contains("deployment/a restarting") && done.out.contains("2 of 2 Deployments are over"),
        "{done:?}"
    );
    let explain = env.plugin(&["explain", "restart/all"]).await;
    assert!(
        explain.code == Some(0) && explain.out.contains("DEPLOYMENT") && explain.out.contains("Done"),
        "{explain:?}"
    );
    for verb in ["resume", "skip", "abort"] {
        let refused = env.plugin(&[verb, "restart/all"]).await;
        assert!(refused.code == Some(1) && refused.err.contains("has ended"), "{verb}: {refused:?}");
    }
    let hook = env.plugin(&["skip", "restart/all", "--gate", "order"]).await;
    assert_eq!(hook.code, Some(2), "{hook:?}");
    assert_eq!(controller.terminate().await, Some(0));
}
