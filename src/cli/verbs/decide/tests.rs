use super::{
    super::fixture::{deployment, ended, fact, held, run, stalled, waits},
    *,
};

fn hook(name: &str) -> Choice {
    Choice::Skip(Skip::Hook(name.into()))
}

#[test]
fn nothing_to_decide_is_said_clearly() {
    assert!(allowed(None, &Choice::Retry).unwrap_err().contains("nothing to decide: it has no run"));
    let over = run(1, "web:1", &ended("Succeeded"));
    assert!(allowed(Some(&over), &Choice::Abort).unwrap_err().contains("run web-1 has ended (Succeeded)"));
    let waiting = run(1, "web:1", &waits("Predecessor", "waiting for etcd"));
    assert!(allowed(Some(&waiting), &Choice::Retry).unwrap_err().contains("not stalled, it waits: waiting for etcd"));
    assert!(allowed(Some(&waiting), &hook("smok")).unwrap_err().contains("no hook smok; its hooks: smoke, report"));
}

#[test]
fn a_stalled_run_can_be_retried_resumed_aborted() {
    let stalled = run(1, "web:1", &stalled("HookFailed"));
    for (choice, action) in
        [(Choice::Retry, Action::Retry), (Choice::Resume, Action::Resume), (Choice::Abort, Action::Abort)]
    {
        assert_eq!(allowed(Some(&stalled), &choice), Ok((action, None)));
    }
}

#[test]
fn skip_without_a_name_takes_what_it_waits_for() {
    for (status, target) in [
        (waits("Predecessor", "x"), "gate/order"),
        (waits("Budget", "x"), "gate/budget"),
        (stalled("BudgetImpossible"), "gate/budget"),
        (stalled("HookFailed"), "hook/smoke"),
    ] {
        let run = run(1, "web:1", &status);
        assert_eq!(allowed(Some(&run), &Choice::Skip(Skip::Current)), Ok((Action::Skip, Some(target.into()))));
    }
    let updating = run(1, "web:1", &waits("Updating", "pods"));
    assert!(allowed(Some(&updating), &Choice::Skip(Skip::Current)).unwrap_err().contains("--hook or --gate"));
    assert_eq!(allowed(Some(&updating), &hook("report")), Ok((Action::Skip, Some("hook/report".into()))));
}

#[test]
fn a_refusal_says_what_can_be_done_instead() {
    let mut paused = deployment("web:1");
    paused["spec"]["paused"] = json!(true);
    let text = refusal(&fact(&paused), &[], &Choice::Resume, "it has no run");
    assert!(text.ends_with("goes on with: kubectl rollout resume deploy/web -n shop"), "{text}");
    let runs = [run(1, "web:1", &waits("Predecessor", "x"))];
    let text = refusal(&fact(&held("web:1")), &runs, &Choice::Retry, "it is not stalled");
    assert!(text.contains("kubectl interlock skip deploy/web -n shop --gate order"), "{text}");
    assert_eq!(refusal(&fact(&deployment("web:1")), &[], &Choice::Retry, "no run"), "no run");
}

#[test]
fn nothing_is_skipped_twice() {
    let mut stalled = run(1, "web:1", &stalled("HookFailed"));
    let decision = json!({"id": "1", "action": "Skip", "target": "hook/smoke", "by": "someone"});
    stalled.spec.decisions.push(serde_json::from_value(decision).unwrap());
    for choice in [hook("smoke"), Choice::Skip(Skip::Current)] {
        assert!(allowed(Some(&stalled), &choice).unwrap_err().contains("already decided to skip hook smoke"));
    }
    let mut over = waits("Updating", "x");
    over["budgetSkipped"] = json!(true);
    over["steps"] = json!([
        {"hook": "smoke", "phase": "PreUpdate", "attempt": 1, "startedAt": "2026-01-01T00:07:00Z", "outcome": "Skipped"},
    ]);
    let over = run(1, "web:1", &over);
    for (choice, said) in [
        (hook("smoke"), "hook smoke has been skipped"),
        (Choice::Skip(Skip::Gate(Gate::Budget)), "no longer waited for"),
        (Choice::Skip(Skip::Gate(Gate::Order)), "waits for no predecessor"),
    ] {
        let why = allowed(Some(&over), &choice).unwrap_err();
        assert!(why.contains("nothing to skip in run web-1") && why.contains(said), "{why}");
    }
}

#[test]
fn a_decision_is_only_added_to_the_run_that_was_read() {
    let mut run = run(1, "web:1", &stalled("HookFailed"));
    let decision = Decision { id: "x".into(), action: Action::Retry, target: None, reason: None, by: "someone".into() };
    let first = serde_json::to_value(patch(&run, &decision).unwrap()).unwrap();
    let value = json!({"id": "x", "action": "Retry", "by": "someone"});
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "9"});
    assert_eq!(first, json!([test, {"op": "add", "path": "/spec/decisions", "value": [value]}]));
    run.spec.decisions.push(decision.clone());
    let second = serde_json::to_value(patch(&run, &decision).unwrap()).unwrap();
    assert_eq!(second, json!([test, {"op": "add", "path": "/spec/decisions/-", "value": value}]));
}
