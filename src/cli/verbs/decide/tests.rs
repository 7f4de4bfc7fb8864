use interlock_core::{api::run::Action, world::Run};

use super::{
    super::fixture::{deployment, ended, fact, held, run, stalled, waits},
    *,
};

fn about(hook: &str, pod: &str, attempt: i64) -> About {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    About { hook: text(hook), pod: text(pod), attempt: (attempt > 0).then_some(attempt) }
}

fn hook(name: &str) -> Choice {
    Choice::Skip(Skip::Hook(about(name, "", 0)))
}

fn retry() -> Choice {
    Choice::Retry(About::default())
}

fn aim(action: Action, target: &str) -> Aim {
    let target = (!target.is_empty()).then(|| target.to_owned());
    Aim { action, target, pod: None, attempt: None }
}

#[allow(clippy::needless_pass_by_value, reason = "made where it is given")]
fn why(run: &Run, choice: Choice) -> String {
    allowed(Some(run), &choice).unwrap_err()
}

#[test]
fn nothing_to_decide_is_said_clearly() {
    assert!(allowed(None, &retry()).unwrap_err().contains("nothing to decide: it has no run"));
    let over = run(1, "web:1", &ended("Succeeded"));
    assert!(allowed(Some(&over), &Choice::Abort).unwrap_err().contains("run web-1 has ended (Succeeded)"));
    let waiting = run(1, "web:1", &waits("Predecessor", "waiting for etcd"));
    assert!(allowed(Some(&waiting), &retry()).unwrap_err().contains("not stalled, it waits: waiting for etcd"));
    assert!(allowed(Some(&waiting), &hook("smok")).unwrap_err().contains("no hook smok; its hooks: smoke, report"));
}

#[test]
fn a_stalled_run_can_be_retried_resumed_aborted() {
    let stalled = run(1, "web:1", &stalled("HookFailed"));
    for (choice, action) in [(retry(), Action::Retry), (Choice::Resume, Action::Resume), (Choice::Abort, Action::Abort)]
    {
        assert_eq!(allowed(Some(&stalled), &choice), Ok(aim(action, "")));
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
        assert_eq!(allowed(Some(&run), &Choice::Skip(Skip::Current)), Ok(aim(Action::Skip, target)));
    }
    let updating = run(1, "web:1", &waits("Updating", "pods"));
    assert!(allowed(Some(&updating), &Choice::Skip(Skip::Current)).unwrap_err().contains("--hook or --gate"));
    assert_eq!(allowed(Some(&updating), &hook("report")), Ok(aim(Action::Skip, "hook/report")));
}

#[test]
fn a_refusal_says_what_can_be_done_instead() {
    let mut paused = deployment("web:1");
    paused["spec"]["paused"] = json!(true);
    let text = refusal(&fact(&paused), &[], &Choice::Resume, "it has no run");
    assert!(text.ends_with("goes on with: kubectl rollout resume deploy/web -n shop"), "{text}");
    let runs = [run(1, "web:1", &waits("Predecessor", "x"))];
    let text = refusal(&fact(&held("web:1")), &runs, &retry(), "it is not stalled");
    assert!(text.contains("kubectl interlock skip deploy/web -n shop --gate order"), "{text}");
    assert_eq!(refusal(&fact(&deployment("web:1")), &[], &retry(), "no run"), "no run");
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

/// A hook that reports a failure stands after the one that failed, and is not what the update waits for.
#[test]
fn a_hook_of_on_failure_is_neither_the_way_on_nor_skipped_when_it_is_through() {
    let mut status = stalled("HookFailed");
    let alarm = |attempt: i64| json!({"hook": "alarm", "phase": "OnFailure", "failure": 1, "attempt": attempt, "startedAt": "2026-01-01T00:08:00Z", "outcome": "Failed"});
    status["steps"].as_array_mut().unwrap().push(alarm(1));
    let mut run = run(1, "web:1", &status);
    let hook_of = json!({"name": "alarm", "phase": "OnFailure", "retries": 1, "http": {"url": "http://x/"}});
    run.spec.settings.hooks.push(serde_json::from_value(hook_of).unwrap());
    assert_eq!(allowed(Some(&run), &Choice::Skip(Skip::Current)), Ok(aim(Action::Skip, "hook/smoke")));
    // It is tried again, so that can be left away.
    assert_eq!(allowed(Some(&run), &hook("alarm")), Ok(aim(Action::Skip, "hook/alarm")));
    assert!(why(&run, Choice::Retry(about("alarm", "", 0))).contains("only reports failures"));
    run.status.steps.push(serde_json::from_value(alarm(2)).unwrap());
    assert!(why(&run, hook("alarm")).contains("nothing to skip in run web-1: hook alarm only reports failures"));
    assert_eq!(allowed(Some(&run), &Choice::Skip(Skip::Current)), Ok(aim(Action::Skip, "hook/smoke")));
}

#[test]
fn a_decision_is_only_added_to_the_run_that_was_read() {
    let mut run = run(1, "web:1", &stalled("HookFailed"));
    let decision = Decision {
        id: "x".into(),
        action: Action::Retry,
        target: None,
        pod: None,
        attempt: None,
        reason: None,
        by: "someone".into(),
    };
    let first = serde_json::to_value(patch(&run, &decision).unwrap()).unwrap();
    let value = json!({"id": "x", "action": "Retry", "by": "someone"});
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "9"});
    assert_eq!(first, json!([test, {"op": "add", "path": "/spec/decisions", "value": [value]}]));
    run.spec.decisions.push(decision.clone());
    let second = serde_json::to_value(patch(&run, &decision).unwrap()).unwrap();
    assert_eq!(second, json!([test, {"op": "add", "path": "/spec/decisions/-", "value": value}]));
}

/// A run with an approval before the update and one for each pod, and these attempts.
fn approvals(steps: &Value) -> Run {
    let mut run = run(1, "web:1", &json!({"steps": steps, "waitingFor": waits("HookRunning", "x")["waitingFor"]}));
    let hook = |name: &str, phase: &str| {
        serde_json::from_value(json!({"name": name, "phase": phase, "approval": {}})).unwrap()
    };
    run.spec.settings.hooks.extend([hook("ok", "PreUpdate"), hook("each", "PostPod")]);
    run
}

fn step(hook: &str, pod: &str, attempt: i64, outcome: &str) -> Value {
    let phase = if pod.is_empty() { "PreUpdate" } else { "PostPod" };
    let mut step = json!({"hook": hook, "phase": phase, "attempt": attempt, "startedAt": "2026-01-01T00:07:00Z"});
    if !pod.is_empty() {
        step["pod"] = json!(pod);
        step["podUID"] = json!(pod);
    }
    if !outcome.is_empty() {
        step["outcome"] = json!(outcome);
    }
    step
}

#[test]
fn what_waits_for_approval_is_approved_and_nothing_else() {
    let waiting = approvals(&json!([step("ok", "", 1, "")]));
    for choice in [Choice::Approve(About::default()), Choice::Approve(about("ok", "", 0))] {
        assert_eq!(allowed(Some(&waiting), &choice), Ok(aim(Action::Approve, "hook/ok")));
    }
    let exact = Choice::Approve(about("ok", "", 1));
    assert_eq!(allowed(Some(&waiting), &exact).unwrap().attempt, Some(1));
    for (about, said) in [
        (about("ok", "", 2), "attempt 2 has not begun, the latest is 1"),
        (about("ok", "web-1", 0), "runs once and for no pod"),
        (about("each", "", 0), "no attempt of it waits for approval"),
        (about("smoke", "", 0), "hook smoke is no approval; to go on without it: skip --hook smoke"),
        (about("no", "", 0), "has no hook no; its hooks: smoke, report, ok, each"),
    ] {
        let why = why(&waiting, Choice::Approve(about));
        assert!(why.contains(said), "{why}");
    }
    let over = approvals(&json!([step("ok", "", 1, "TimedOut"), step("ok", "", 2, "Succeeded")]));
    assert!(why(&over, Choice::Approve(about("ok", "", 0))).contains("hook ok has been approved"));
    assert!(why(&over, Choice::Approve(about("ok", "", 1))).contains("attempt 1 is over, the latest is 2"));
    let none = approvals(&json!([]));
    assert!(why(&none, Choice::Approve(About::default())).contains("no hook waits for approval"));
}

#[test]
fn an_approval_is_decided_once() {
    let mut waiting = approvals(&json!([step("ok", "", 1, "")]));
    let decision = json!({"id": "1", "action": "Approve", "target": "hook/ok", "by": "ann"});
    waiting.spec.decisions.push(serde_json::from_value(decision).unwrap());
    let why = why(&waiting, Choice::Approve(About::default()));
    assert!(why.contains("already decided to approve hook ok (by ann)"), "{why}");
    // Used for an attempt before: this one waits anew.
    waiting.status.decisions_used.push("1".into());
    allowed(Some(&waiting), &Choice::Approve(About::default())).unwrap();
}

#[test]
fn hooks_of_pods_are_decided_for_all_or_for_one() {
    let run = approvals(&json!([
        step("each", "web-a", 1, "Succeeded"),
        step("each", "web-b", 1, "Failed"),
        step("each", "web-b", 2, ""),
        step("each", "web-c", 1, ""),
    ]));
    let all = allowed(Some(&run), &Choice::Approve(About::default())).unwrap();
    assert_eq!((all.target.as_deref(), all.pod), (Some("hook/each"), None));
    let one = allowed(Some(&run), &Choice::Approve(about("", "web-b", 2))).unwrap();
    assert_eq!(one.what(), "hook each of pod web-b, attempt 2");
    for (about, said) in [
        (about("", "web-a", 0), "hook each has been approved"),
        (about("each", "web-x", 0), "no attempt of hook each for pod web-x; pods with one: web-c, web-b, web-a"),
        (about("each", "web-b", 1), "attempt 1 is over, the latest is 2"),
    ] {
        let why = why(&run, Choice::Approve(about));
        assert!(why.contains(said), "{why}");
    }
    let skip = |pod: &str| Choice::Skip(Skip::Hook(about("each", pod, 0)));
    assert!(why(&run, skip("web-a")).contains("hook each of pod web-a has succeeded"));
    assert_eq!(allowed(Some(&run), &skip("web-b")).unwrap().pod.as_deref(), Some("web-b"));
    assert_eq!(allowed(Some(&run), &skip("")).unwrap().pod, None);
    let several = approvals(&json!([step("ok", "", 1, ""), step("each", "web-a", 1, "")]));
    assert!(
        why(&several, Choice::Approve(About::default())).contains("more than one hook waits for approval: each, ok")
    );
}

#[test]
fn a_retry_can_name_what_failed() {
    let stalled = run(1, "web:1", &stalled("HookFailed"));
    let named = allowed(Some(&stalled), &Choice::Retry(about("smoke", "", 0))).unwrap();
    assert_eq!(named, aim(Action::Retry, "hook/smoke"));
    assert!(why(&stalled, Choice::Retry(about("report", "", 0))).contains("no attempt of it failed"));
    assert!(why(&stalled, Choice::Retry(about("smoke", "", 1))).contains("attempt 1 is over, the latest is 2"));
}
