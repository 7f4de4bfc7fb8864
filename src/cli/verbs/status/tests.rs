use interlock_core::api::policy::HookPolicySpec;
use serde_json::json;

use super::{
    super::fixture::{deployment, ended, fact, held, now, run, stalled, waits},
    *,
};

fn policy() -> (String, Policy) {
    let spec: HookPolicySpec = serde_json::from_value(json!({"order": [{"name": "web"}]})).unwrap();
    let policy =
        Policy { name: "order".into(), uid: "p".into(), generation: 1, created: now(), spec: Ok(spec), problem: None };
    ("shop".into(), policy)
}

fn text(deployment: &serde_json::Value, runs: &[Run]) -> String {
    render(&rows(&[fact(deployment)], &[policy()], Some(runs), false), false, false, now())
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
        rows(&[fact(deployment)], &[policy()], Some(runs), false)[0].state.clone()
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
    assert_eq!(rows(&all, &[policy()], Some(&[]), false).len(), 1);
    assert_eq!(rows(&all, &[policy()], Some(&[]), true).len(), 2);
    let elsewhere = ("test".to_owned(), policy().1);
    assert!(rows(&all, &[elsewhere], Some(&[]), false).is_empty());
    assert_eq!(rows(&[fact(&held("web:1"))], &[], Some(&[]), false).len(), 1);
}

#[test]
fn long_texts_are_cut_in_the_narrow_table_only() {
    let runs = [run(1, "web:1", &waits("Updating", &"x".repeat(200)))];
    let rows = rows(&[fact(&held("web:1"))], &[policy()], Some(&runs), false);
    assert!(render(&rows, true, false, now()).contains(&("x".repeat(77) + "...")));
    let wide = render(&rows, true, true, now());
    assert!(wide.contains(&"x".repeat(200)) && wide.contains("shop/web") && wide.contains("web-1"), "{wide}");
}

#[test]
fn why_nothing_begins_is_said() {
    let mut wrong = held("web:2");
    wrong["status"]["conditions"] = json!([
        {"type": "interlock.dev/Held", "status": "True", "reason": "OrderCycle", "message": "a -> b -> a wait for each other"},
    ]);
    let row = &rows(&[fact(&wrong)], &[policy()], Some(&[]), false)[0];
    assert_eq!((row.state.as_str(), row.message.as_str()), ("OrderCycle", "a -> b -> a wait for each other"));
}

#[test]
fn without_runs_the_conditions_tell() {
    let mut value = held("web:1");
    value["status"]["conditions"] =
        json!([{"type": "interlock.dev/Held", "status": "True", "reason": "PodFailing", "message": "web-1 fails"}]);
    let row = &rows(&[fact(&value)], &[], None, false)[0];
    assert_eq!((row.state.as_str(), row.message.as_str(), &row.run), ("PodFailing", "web-1 fails", &None));
    let mut rest = deployment("web:1");
    rest["status"]["conditions"] =
        json!([{"type": "interlock.dev/Succeeded", "status": "False", "reason": "PodFailing", "message": "run web-1"}]);
    assert_eq!(rows(&[fact(&rest)], &[], None, false)[0].state, "PodFailing");
}

#[test]
fn ways_are_told_as_they_are_meant() {
    let mut status = ended("Audited");
    status["way"] = json!({"kind": "InPlace"});
    let way = |run: Run| rows(&[fact(&deployment("web:1"))], &[], Some(&[run]), false)[0].way.clone().unwrap();
    let mut audited = run(1, "web:1", &status);
    audited.spec.settings.audit = true;
    assert_eq!(way(audited.clone()), "would be InPlace");
    audited.spec.old_template = None;
    assert_eq!(way(audited), "first start");
}
