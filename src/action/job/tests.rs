#![allow(clippy::pedantic, clippy::format_push_string, reason = "as in the roots of test programs")]
use apiserver::store::Part;
use interlock_core::{
    api::{hook::Raw, run::StepOutcome},
    effect::Call,
};
use serde_json::from_value;

use super::{super::fixture::*, *};

fn hook() -> JobHook {
    let template = json!({"spec": {"containers": [{"name": "c", "image": "r.test/tool:v1"}]}});
    JobHook {
        service_account_name: "hooks".into(),
        mount_token: false,
        template: from_value(template).unwrap(),
        backoff_limit: 0,
        ttl_seconds_after_result: 30,
    }
}

fn job_call() -> HookCall {
    call("u.PreUpdate.h.1", Call::Job(hook()))
}

fn job_name() -> String {
    name("u.PreUpdate.h.1")
}

fn condition(type_: &str, reason: &str) -> Value {
    json!({"conditions": [{"type": type_, "status": "True", "reason": reason}]})
}

/// Waits for the Job, then does something to it.
async fn when_made(plane: &Plane, then: impl FnOnce(&Plane, &str)) {
    until(|| plane.get("jobs", &job_name()).is_some()).await;
    then(plane, &job_name());
}

fn ends(status: Value) -> impl FnOnce(&Plane, &str) {
    |plane, name| plane.edit("jobs", name, Part::Status, |job| job["status"] = status)
}

#[tokio::test(start_paused = true)]
async fn only_complete_is_success() {
    for (status, want) in [
        (condition("Complete", ""), (StepOutcome::Succeeded, "Complete")),
        (condition("Failed", "BackoffLimitExceeded"), (StepOutcome::Failed, "JobFailed")),
        (condition("Failed", "<script>"), (StepOutcome::Failed, "JobFailed")),
        (condition("Failed", "DeadlineExceeded"), (StepOutcome::TimedOut, "Timeout")),
        // Regression 13: what is not complete does not count, whatever it counts itself.
        (condition("SuccessCriteriaMet", ""), (StepOutcome::TimedOut, "Timeout")),
        (condition("FailureTarget", ""), (StepOutcome::TimedOut, "Timeout")),
        (json!({"succeeded": 1}), (StepOutcome::TimedOut, "Timeout")),
        (json!({"active": 1}), (StepOutcome::TimedOut, "Timeout")),
        (json!({"conditions": [{"type": "Complete", "status": "False"}]}), (StepOutcome::TimedOut, "Timeout")),
    ] {
        let plane = Plane::new();
        let attempt = plane.start(job_call(), &CancellationToken::new());
        when_made(&plane, ends(status.clone())).await;
        assert_eq!(attempt.await.unwrap(), (want.0, want.1.to_owned()), "{status}");
        // One Job, made once; what did not end by itself is gone.
        let gone = want.0 == StepOutcome::TimedOut && !status.to_string().contains("Deadline");
        assert_eq!(plane.get("jobs", &job_name()).is_none(), gone, "{status}");
        assert_eq!(plane.writes(), if gone { vec!["POST jobs", "DELETE jobs"] } else { vec!["POST jobs"] });
    }
}

/// Regression 13: a Job that ended before anybody looked, and one that was made before a crash of ours.
#[tokio::test(start_paused = true)]
async fn r13_a_job_that_is_there_is_gone_on_with() {
    let plane = Plane::new();
    let first = plane.start(job_call(), &CancellationToken::new());
    when_made(&plane, ends(json!({"active": 1}))).await;
    first.abort();
    ends(condition("Complete", ""))(&plane, &job_name());
    // After its time, too: it ended in time.
    let mut late = job_call();
    late.started_at = late.started_at.plus_seconds(-1000);
    assert_eq!(plane.run(late).await, (StepOutcome::Succeeded, "Complete".into()));
    assert_eq!(plane.writes(), ["POST jobs"]);
}

/// Regression 14: a stale cache makes a second Job. Regression 16: names.
#[tokio::test(start_paused = true)]
async fn r14_two_who_carry_out_the_same_attempt_make_one_job() {
    let plane = Plane::new();
    let (one, two) =
        (plane.start(job_call(), &CancellationToken::new()), plane.start(job_call(), &CancellationToken::new()));
    when_made(&plane, |_, _| ()).await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(plane.all("jobs").len(), 1);
    ends(condition("Complete", ""))(&plane, &job_name());
    for attempt in [one, two] {
        assert_eq!(attempt.await.unwrap(), (StepOutcome::Succeeded, "Complete".into()));
    }
    let mut other = job_call();
    other.key = "u.PreUpdate.h.2".into();
    let attempt = plane.start(other, &CancellationToken::new());
    until(|| plane.all("jobs").len() == 2).await;
    attempt.abort();
}

/// Regression 15: a Job that somebody deleted is no success, and no Job is made in its place.
#[tokio::test(start_paused = true)]
async fn r15_a_job_that_is_gone_before_its_result_has_failed() {
    let plane = Plane::new();
    let attempt = plane.start(job_call(), &CancellationToken::new());
    when_made(&plane, |plane, name| plane.delete("jobs", name)).await;
    assert_eq!(attempt.await.unwrap(), (StepOutcome::Failed, "JobMissing".into()));
    assert_eq!(plane.writes(), ["POST jobs"]);

    // Deleted while the watch is not there.
    let plane = Plane::new();
    let attempt = plane.start(job_call(), &CancellationToken::new());
    when_made(&plane, |plane, _| plane.server.faults.happens("interlock", "jobs", apiserver::watch::Fault::Cut)).await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    plane.server.faults.happens("interlock", "jobs", apiserver::watch::Fault::Cut);
    plane.delete("jobs", &job_name());
    assert_eq!(attempt.await.unwrap(), (StepOutcome::Failed, "JobMissing".into()));

    // Another one of the same name, made by whoever copied it.
    let plane = Plane::new();
    let attempt = plane.start(job_call(), &CancellationToken::new());
    when_made(&plane, |plane, name| {
        let mut copy = Value::clone(&plane.get("jobs", name).unwrap());
        copy["metadata"].as_object_mut().unwrap().retain(|key, _| key != "resourceVersion");
        plane.delete("jobs", name);
        plane.put("jobs", copy);
        ends(condition("Complete", ""))(plane, name);
    })
    .await;
    assert_eq!(attempt.await.unwrap(), (StepOutcome::Failed, "JobMissing".into()));
}

/// What it was when it went counts: it was complete, and went before we looked.
#[tokio::test(start_paused = true)]
async fn a_job_that_was_complete_when_it_was_deleted_has_succeeded() {
    let plane = Plane::new();
    let attempt = plane.start(job_call(), &CancellationToken::new());
    when_made(&plane, |_, _| ()).await;
    // The watch is open.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    ends(condition("Complete", ""))(&plane, &job_name());
    plane.delete("jobs", &job_name());
    assert_eq!(attempt.await.unwrap(), (StepOutcome::Succeeded, "Complete".into()));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_another_one_has_is_not_ours() {
    for (uid, key) in [("another", "u.PreUpdate.h.1"), ("u", "another")] {
        let plane = Plane::new();
        let owner = json!({"apiVersion": "interlock.dev/v1alpha1", "kind": "HookRun", "name": "r", "uid": uid});
        let metadata = json!({"name": job_name(), "annotations": {HOOK_KEY: key}, "ownerReferences": [owner]});
        plane.put("jobs", json!({"metadata": metadata, "spec": {}, "status": condition("Complete", "")}));
        assert_eq!(plane.run(job_call()).await, (StepOutcome::Failed, "NameTaken".into()));
        assert!(plane.get("jobs", &job_name()).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_attempt_takes_its_job_away_wherever_it_stands() {
    // Right at the start, while it is asked for, and while it runs.
    let tally = tally::Tally::new("a Job hook cancelled at every moment");
    for millis in (0..25).chain([1000]) {
        tally.points(1);
        tally.checks(2);
        let plane = Plane::new();
        let stop = CancellationToken::new();
        let attempt = plane.start(job_call(), &stop);
        tokio::time::sleep(std::time::Duration::from_millis(millis)).await;
        stop.cancel();
        assert_eq!(attempt.await.unwrap(), (StepOutcome::Cancelled, "Cancelled".into()));
        tokio::time::sleep(std::time::Duration::from_secs(10)).await;
        assert!(plane.all("jobs").is_empty(), "{millis}");
    }
    // Of a process that is gone.
    let plane = Plane::new();
    let attempt = plane.start(job_call(), &CancellationToken::new());
    when_made(&plane, |_, _| ()).await;
    attempt.abort();
    cancelled(&plane.cluster, "ns", "another key").await;
    assert_eq!(plane.all("jobs").len(), 1);
    cancelled(&plane.cluster, "ns", "u.PreUpdate.h.1").await;
    assert!(plane.all("jobs").is_empty());
}

/// Regression 17: the time to live comes after the result.
#[tokio::test(start_paused = true)]
async fn r17_a_job_lives_on_until_its_result_is_stored() {
    let plane = Plane::new();
    let attempt = plane.start(job_call(), &CancellationToken::new());
    when_made(&plane, ends(condition("Complete", ""))).await;
    attempt.await.unwrap();
    let ttl = || plane.get("jobs", &job_name()).unwrap()["spec"].get("ttlSecondsAfterFinished").cloned();
    assert_eq!(ttl(), None);
    recorded(&plane.cluster, &job_call(), &hook()).await;
    assert_eq!(ttl(), Some(json!(30)));
    // Nothing of a Job that is not ours is touched.
    plane.edit("jobs", &job_name(), Part::Main, |job| job["metadata"]["ownerReferences"][0]["uid"] = json!("another"));
    let other = JobHook { ttl_seconds_after_result: 1, ..hook() };
    recorded(&plane.cluster, &job_call(), &other).await;
    assert_eq!(ttl(), Some(json!(30)));
}

/// Regression 18: what is left goes with the run that owns it.
#[test]
fn r18_a_job_is_owned_by_its_run_and_names_its_key() {
    let job = object(&job_call(), &hook(), "n", 60).unwrap();
    assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "u");
    assert_eq!(job["metadata"]["ownerReferences"][0]["kind"], "HookRun");
    assert_eq!(job["metadata"]["annotations"][HOOK_KEY], "u.PreUpdate.h.1");
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 60);
    assert_eq!(job["spec"].get("ttlSecondsAfterFinished"), None);
}

#[test]
fn the_pod_is_restricted_unless_it_says_otherwise_and_its_account_is_the_hooks() {
    let template: Raw = from_value(json!({
        "metadata": {"labels": {"app": "x", HOOK_KEY: "mine"}, "annotations": {"a": "b"}},
        "spec": {
            "serviceAccount": "admin",
            "serviceAccountName": "admin",
            "automountServiceAccountToken": true,
            "initContainers": [{"name": "i", "image": "x", "securityContext": {"privileged": true}}],
            "containers": [
                {"name": "c", "image": "x", "env": [{"name": "INTERLOCK_KEY", "value": "forged"}, {"name": "B", "value": "$(INTERLOCK_POD)"}]},
                {"name": "d", "image": "x", "securityContext": {"runAsNonRoot": false, "capabilities": {"add": ["NET_ADMIN"]}}},
            ],
        },
    }))
    .unwrap();
    let mut call = job_call();
    call.facts = json!({"images": {"a": "$(HOME)"}});
    let job = object(&call, &JobHook { template, ..hook() }, "n", 60).unwrap();
    let template = &job["spec"]["template"];
    let spec = &template["spec"];
    assert_eq!(spec["serviceAccountName"], "hooks");
    assert_eq!(spec.get("serviceAccount"), None);
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["restartPolicy"], "Never");
    assert_eq!(spec["securityContext"], json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}));
    let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    assert_eq!(spec["containers"][0]["securityContext"], restricted);
    assert_eq!(spec["containers"][1]["securityContext"]["capabilities"], json!({"add": ["NET_ADMIN"]}));
    assert_eq!(spec["initContainers"][0]["securityContext"], json!({"privileged": true}));
    assert_eq!(template["metadata"]["labels"]["app"], "x");
    assert_eq!(template["metadata"]["labels"][HOOK_KEY], names::hash(&["u.PreUpdate.h.1"]));
    assert_eq!(template["metadata"]["annotations"], json!({"a": "b", HOOK_KEY: "u.PreUpdate.h.1"}));
    let env = spec["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| env.iter().filter(|v| v["name"] == name).map(|v| v["value"].clone()).collect::<Vec<_>>();
    assert_eq!(value("INTERLOCK_KEY"), ["u.PreUpdate.h.1"]);
    assert_eq!(value("INTERLOCK_DEPLOYMENT"), ["web"]);
    assert_eq!(value("INTERLOCK_FACTS"), [r#"{"images":{"a":"$$(HOME)"}}"#]);
    assert_eq!(value("B").len(), 1);

    let mount = JobHook { mount_token: true, ..hook() };
    assert_eq!(
        object(&job_call(), &mount, "n", 1).unwrap()["spec"]["template"]["spec"]["automountServiceAccountToken"],
        true
    );
    for template in
        [json!({}), json!({"spec": 1}), json!({"spec": {"containers": [1]}}), json!({"spec": {"securityContext": "x"}})]
    {
        let template: Raw = from_value(template).unwrap();
        assert_eq!(object(&job_call(), &JobHook { template, ..hook() }, "n", 1), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_is_waited_for_and_trouble_of_the_api_server_too() {
    let plane = Plane::new();
    plane.put("resourcequotas", json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/jobs.batch": "0"}}}));
    assert_eq!(plane.run(job_call()).await, (StepOutcome::TimedOut, "Timeout".into()));
    let attempt = plane.start(job_call(), &CancellationToken::new());
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    plane.delete("resourcequotas", "q");
    when_made(&plane, ends(condition("Complete", ""))).await;
    assert_eq!(attempt.await.unwrap(), (StepOutcome::Succeeded, "Complete".into()));

    let plane = Plane::new();
    plane.server.mute("interlock", "jobs", true);
    let attempt = plane.start(job_call(), &CancellationToken::new());
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    plane.server.mute("interlock", "jobs", false);
    when_made(&plane, ends(condition("Complete", ""))).await;
    assert_eq!(attempt.await.unwrap(), (StepOutcome::Succeeded, "Complete".into()));
    assert_eq!(plane.all("jobs").len(), 1);
}
