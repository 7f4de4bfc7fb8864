use interlock_core::api::policy::HookPolicySpec;
use serde_json::json;

use super::{
    super::fixture::{deployment, ended, fact, held, now, run, stalled, waits},
    *,
};

fn policy() -> (String, Policy) {
    let spec: HookPolicySpec = serde_json::from_value(json!({"order": [{"name": "web"}]})).unwrap();
    let policy = Policy { name: "order".into(), uid: "p".into(), generation: 1, created: now(), spec: Ok(spec) };
    ("shop".into(), policy)
}

fn text(deployment: &serde_json::Value, runs: &[Run]) -> String {
    render(&rows(&[fact(deployment)], &[policy()], runs, false), false, false, now())
}

#[test]
fn one_line_tells_state_way_pods_and_what_is_awaited() {
    assert_eq!(
        text(&held("web:1"), &[run(1, "web:1", &waits("Updating", "pod web-1 to become ready"))]),
        "NAME   STATE      SINCE   WAY       UPDATED   AVAILABLE   POLICY   WAITING FOR\n\
         web    Updating   30s     InPlace   1/3       2/3         order    pod web-1 to become ready\n"
    );
    assert_eq!(
        text(&held("web:1"), &[run(1, "web:1", &stalled("HookFailed"))]),
        "NAME   STATE                SINCE   WAY   UPDATED   AVAILABLE   POLICY   WAITING FOR\n\
         web    Stalled/HookFailed   2m      -     0/3       3/3         order    hook smoke failed: Http500\n"
    );
    assert_eq!(
        text(&deployment("web:1"), &[run(1, "web:1", &ended("Succeeded"))]),
        "NAME   STATE       SINCE   WAY   UPDATED   AVAILABLE   POLICY   WAITING FOR\n\
         web    Succeeded   4m      -     3/3       3/3         order    -\n"
    );
}

#[test]
fn states_without_a_run_of_the_present_template() {
    let word = |deployment: &serde_json::Value, runs: &[Run]| {
        rows(&[fact(deployment)], &[policy()], runs, false)[0].state.clone()
    };
    assert_eq!(word(&held("web:2"), &[run(1, "web:1", &ended("Succeeded"))]), "Held");
    assert_eq!(word(&held("web:1"), &[run(1, "web:1", &ended("Aborted"))]), "Aborted");
    assert_eq!(word(&deployment("web:2"), &[]), "AtRest");
    let mut rolling = deployment("web:2");
    rolling["status"]["updatedReplicas"] = json!(1);
    assert_eq!(word(&rolling, &[]), "Rolling");
    rolling["spec"]["paused"] = json!(true);
    assert_eq!(word(&rolling, &[]), "Paused");
}

#[test]
fn only_what_interlock_has_to_do_with_is_listed() {
    let mut other = deployment("x:1");
    other["metadata"]["name"] = json!("other");
    other["metadata"]["uid"] = json!("o");
    let all = [fact(&other), fact(&deployment("web:1"))];
    assert_eq!(rows(&all, &[policy()], &[], false).len(), 1);
    assert_eq!(rows(&all, &[policy()], &[], true).len(), 2);
    let elsewhere = ("test".to_owned(), policy().1);
    assert!(rows(&all, &[elsewhere], &[], false).is_empty());
    assert_eq!(rows(&[fact(&held("web:1"))], &[], &[], false).len(), 1);
}

#[test]
fn long_texts_are_cut_in_the_narrow_table_only() {
    let runs = [run(1, "web:1", &waits("Updating", &"x".repeat(200)))];
    let rows = rows(&[fact(&held("web:1"))], &[policy()], &runs, false);
    assert!(render(&rows, true, false, now()).contains(&("x".repeat(77) + "...")));
    let wide = render(&rows, true, true, now());
    assert!(wide.contains(&"x".repeat(200)) && wide.contains("shop/web") && wide.contains("web-1"), "{wide}");
}
