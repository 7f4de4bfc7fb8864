use serde_json::json;

use super::judge::{Verdict, judge};
use crate::cli::verbs::fixture::{deployment, ended, fact, held, run, stalled, waits};

fn kind(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Settled(_) => "settled",
        Verdict::Failed(_) => "failed",
        Verdict::FailedIfItLasts(_) => "failed if it lasts",
        Verdict::NotYet(_) => "not yet",
    }
}

#[test]
fn a_deployment_that_nobody_governs_is_judged_by_its_rollout() {
    assert_eq!(judge(&fact(&deployment("web:1")), &[]), Verdict::Settled("settled".into()));
    for (field, value) in [("observedGeneration", 1), ("updatedReplicas", 2), ("availableReplicas", 2), ("replicas", 4)]
    {
        let mut behind = deployment("web:1");
        behind["status"][field] = json!(value);
        assert_eq!(kind(&judge(&fact(&behind), &[])), "not yet", "{field}");
    }
    let mut none = deployment("web:1");
    none["spec"]["replicas"] = json!(0);
    none["status"] = json!({"observedGeneration": 2});
    assert_eq!(kind(&judge(&fact(&none), &[])), "settled");
}

#[test]
fn right_after_a_change_the_run_before_does_not_count() {
    let before = run(1, "web:1", &ended("Succeeded"));
    assert_eq!(kind(&judge(&fact(&held("web:2")), std::slice::from_ref(&before))), "not yet");
    let failed = run(1, "web:1", &stalled("HookFailed"));
    assert_eq!(kind(&judge(&fact(&held("web:2")), std::slice::from_ref(&failed))), "not yet");
    let aborted = run(1, "web:1", &ended("Aborted"));
    assert_eq!(kind(&judge(&fact(&held("web:2")), std::slice::from_ref(&aborted))), "not yet");
    // Held again with the template of the run that has just succeeded.
    assert_eq!(kind(&judge(&fact(&held("web:1")), std::slice::from_ref(&before))), "not yet");
}

#[test]
fn the_run_of_the_present_template_decides() {
    for (status, expected) in [
        (waits("Predecessor", "waiting for etcd"), "not yet"),
        (stalled("HookFailed"), "failed"),
        (ended("Aborted"), "failed"),
    ] {
        let runs = [run(1, "web:1", &ended("Succeeded")), run(2, "web:2", &status)];
        assert_eq!(kind(&judge(&fact(&held("web:2")), &runs)), expected, "{status}");
    }
    // Released, and its PostUpdate hooks still run.
    let runs = [run(2, "web:2", &waits("HookRunning", "hook report runs"))];
    assert_eq!(judge(&fact(&deployment("web:2")), &runs), Verdict::NotYet("hook report runs (HookRunning)".into()));
    let runs = [run(2, "web:2", &ended("Succeeded"))];
    assert_eq!(judge(&fact(&deployment("web:2")), &runs), Verdict::Settled("settled (Succeeded)".into()));
}

#[test]
fn a_template_that_went_back_settles_when_its_update_has_ended() {
    let runs = [run(1, "web:1", &ended("Succeeded")), run(2, "web:2", &waits("HookRunning", "x"))];
    assert_eq!(kind(&judge(&fact(&held("web:1")), &runs)), "not yet");
    let runs = [run(1, "web:1", &ended("Succeeded")), run(2, "web:2", &ended("Returned"))];
    assert_eq!(kind(&judge(&fact(&deployment("web:1")), &runs)), "settled");
}

#[test]
fn a_stall_that_was_just_decided_about_is_no_failure_yet() {
    let mut stalled = run(2, "web:2", &stalled("HookFailed"));
    let decision = json!({"id": "1", "action": "Retry", "by": "someone"});
    stalled.spec.decisions.push(serde_json::from_value(decision).unwrap());
    assert_eq!(kind(&judge(&fact(&held("web:2")), std::slice::from_ref(&stalled))), "not yet");
    stalled.status.decisions_used.push("1".into());
    assert_eq!(kind(&judge(&fact(&held("web:2")), &[stalled])), "failed");
}

#[test]
fn what_is_not_valid_is_said_and_does_not_wait() {
    let mut wrong = held("web:2");
    wrong["metadata"]["annotations"]["interlock.dev/hooks"] = json!("- name: a\n  when: now\n");
    let Verdict::Failed(why) = judge(&fact(&wrong), &[]) else { panic!() };
    assert!(why.starts_with("stays held, AnnotationInvalid: annotation interlock.dev/hooks: line 2"), "{why}");
    for reason in ["PolicyInvalid", "OrderCycle", "AnnotationInvalid"] {
        let mut wrong = held("web:2");
        wrong["status"]["conditions"] =
            json!([{"type": "interlock.dev/Held", "status": "True", "reason": reason, "message": "a -> b"}]);
        let before = [run(1, "web:1", &ended("Succeeded"))];
        let verdict = judge(&fact(&wrong), &before);
        assert_eq!(verdict, Verdict::FailedIfItLasts(format!("stays held, {reason}: a -> b")));
        // It was corrected, and the run has begun.
        let runs = [run(2, "web:2", &waits("Updating", "x"))];
        assert_eq!(kind(&judge(&fact(&wrong), &runs)), "not yet");
    }
}

#[test]
fn paused_by_its_user_is_waited_for() {
    let mut paused = deployment("web:1");
    paused["spec"]["paused"] = json!(true);
    assert_eq!(judge(&fact(&paused), &[]), Verdict::NotYet("it is paused by its user".into()));
    let mut paused = held("web:2");
    paused["metadata"]["annotations"]["interlock.dev/resume"] = json!("false");
    let runs = [run(2, "web:2", &waits("UserPaused", "x"))];
    assert_eq!(judge(&fact(&paused), &runs), Verdict::NotYet("it is paused by its user".into()));
}
