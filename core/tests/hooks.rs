//! Hooks: the phases, the kinds that the plan itself decides, what people decide about them, and what is written of them.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod sim;

use std::collections::BTreeMap;

use interlock_core::{
    api::{
        condition,
        hook::Phase,
        names,
        run::{Action, Decision, Outcome, StepOutcome},
    },
    plan::{State, conditions, fact_names},
};
use serde_json::{Value, json};
use sim::{
    Sim,
    stories::{http, images, outcome, state, turns, waits_for, with},
    template_with,
};

/// What was called: phase, hook and attempt, without run and pod.
fn called(sim: &Sim) -> Vec<String> {
    let short = |key: &String| {
        let parts: Vec<&str> = key.split('.').collect();
        format!("{}.{}.{}", parts[1], parts[2], parts.last().unwrap())
    };
    sim.calls.iter().filter(|k| !k.contains(".Drained.")).map(short).collect()
}

fn pod_hooks() -> Value {
    json!({"hooks": [http("before", "PrePod", 0, "Abort"), http("after", "PostPod", 0, "Abort")]})
}

fn last_run(sim: &Sim) -> &interlock_core::world::Run {
    sim.runs.iter().max_by_key(|r| r.spec.sequence).unwrap()
}

fn decide(sim: &mut Sim, action: Action, target: &str, pod: Option<&str>, attempt: Option<i64>) {
    sim.decide(action, Some(target));
    let run = sim.runs.iter_mut().max_by_key(|r| r.spec.sequence).unwrap();
    let Decision { pod: p, attempt: a, .. } = run.spec.decisions.last_mut().unwrap();
    (*p, *a) = (pod.map(str::to_owned), attempt);
}

fn told(sim: &Sim, reason: &str) -> usize {
    sim.events.iter().filter(|(r, _)| r == reason).count()
}

#[test]
fn hooks_of_a_pod_run_around_its_update_one_pod_after_the_other() {
    let mut sim = with(3, pod_hooks());
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert_eq!(called(&sim), ["PrePod.before.1", "PostPod.after.1"].repeat(3), "{}", sim.story());
    assert_eq!((sim.created, sim.refused), (0, 0));
    let pods: Vec<&str> = sim.calls.iter().map(|k| k.split('.').nth(3).unwrap()).collect();
    let uids: Vec<&str> = sim.pods.iter().map(|p| p.pod.uid.as_str()).collect();
    assert_eq!(pods, uids.iter().flat_map(|u| [*u, *u]).collect::<Vec<_>>());
}

/// Intents that are due together share one write, results and the next intents too.
#[test]
fn pods_that_are_due_together_share_their_status_writes() {
    let writes = |replicas: i64| {
        let mut policy = pod_hooks();
        policy["update"] = json!({"maxUnavailable": "100%"});
        let mut sim = with(replicas, policy);
        sim.set_image("app:v2");
        sim.settle();
        sim.well();
        sim.log.iter().filter(|l| l.contains("WE store")).count()
    };
    assert!(writes(16) <= writes(4) + 2, "{} for 16 pods, {} for 4", writes(16), writes(4));
}

/// regressions.md 9 and 11: the controller dies before each of its writes; what succeeded never runs again.
#[test]
fn r9_r11_death_at_any_write_calls_nothing_again_that_has_succeeded() {
    let all = || {
        json!({"update": {"maxUnavailable": 2, "drain": {"readinessGate": true, "seconds": 1}}, "hooks": [
            http("pre", "PreUpdate", 1, "Abort"),
            http("before", "PrePod", 1, "Abort"),
            {"name": "keep", "phase": "PrePod", "podGate": {"labels": {"keep": "yes"}, "markPodNotReady": true}},
            http("after", "PostPod", 1, "Abort"),
            http("post", "PostUpdate", 1, "Abort"),
        ]})
    };
    for at in 0..70 {
        let mut sim = Sim::new(1, 3, "app:v1", vec![sim::policy("p", sim::policy_with(all()))]);
        sim.gated = true;
        sim.keeper = Some(("keep".into(), "yes".into()));
        sim.settle();
        sim.set_image("app:v2");
        sim.crash_after = Some(at);
        sim.settle();
        sim.well();
        let mut calls = BTreeMap::<&str, usize>::new();
        for key in sim.accepted.keys() {
            *calls.entry(key.rsplit_once('.').unwrap().0).or_default() += 1;
        }
        assert!(calls.values().all(|n| *n == 1), "{at}: {calls:?}\n{}", sim.story());
        assert_eq!(calls.len(), 2 + 2 * 3, "{at}: {calls:?}\n{}", sim.story());
        if sim.crash_after.is_some() {
            assert!(at > 40, "only {at} writes");
            return;
        }
    }
}

#[test]
fn a_failed_hook_of_a_pod_stalls_and_is_named_with_its_pod() {
    let mut policy = pod_hooks();
    policy["hooks"][0]["retries"] = json!(1);
    let mut sim = with(3, policy);
    sim.script.insert("before".into(), vec![StepOutcome::Succeeded, StepOutcome::Failed, StepOutcome::Failed].into());
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(state(&mut sim), State::Stalled, "{}", sim.story());
    let second = sim.pods[1].pod.name.clone();
    let stall = last_run(&sim).status.stall.clone().unwrap();
    assert!(stall.reason == "HookFailed" && stall.message.contains(&second) && stall.message.contains("before"));
    assert_eq!(images(&sim), ["app:v1", "app:v1", "app:v2"]);
    sim.decide(Action::Retry, None);
    sim.settle();
    sim.well();
    assert_eq!(called(&sim).iter().filter(|c| c.starts_with("PrePod")).count(), 5);
}

/// regressions.md 10: what depends on a hook does not go on after its failure, unless the policy says so.
#[test]
fn r10_a_hook_after_a_pod_keeps_the_next_pod_back_until_it_is_through() {
    for (failure, goes) in [("Abort", false), ("Continue", true)] {
        let mut sim = with(3, json!({"hooks": [http("after", "PostPod", 0, failure)]}));
        sim.script.insert("after".into(), vec![StepOutcome::Failed].into());
        sim.set_image("app:v2");
        sim.settle();
        if goes {
            sim.well();
        } else {
            assert_eq!(images(&sim), ["app:v1", "app:v1", "app:v2"], "{}", sim.story());
            assert_eq!(state(&mut sim), State::Stalled);
            sim.decide(Action::Skip, None);
            sim.settle();
            sim.well();
        }
    }
}

#[test]
fn pods_that_are_put_back_run_no_hooks() {
    let mut policy = pod_hooks();
    policy["update"] = json!({"failure": "Revert"});
    let mut sim = with(3, policy);
    sim.script.insert("after".into(), vec![StepOutcome::Succeeded, StepOutcome::Failed].into());
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(images(&sim), ["app:v1", "app:v1", "app:v1"], "{}", sim.story());
    assert_eq!(called(&sim).len(), 4);
    assert!(last_run(&sim).status.stall.as_ref().unwrap().reverting);
}

#[test]
fn a_pod_that_is_gone_takes_its_attempts_along() {
    let mut sim = with(3, pod_hooks());
    sim.set_image("app:v2");
    sim.until("the call", |s| !s.calls.is_empty());
    sim.attempts.insert(sim.calls[0].clone(), None);
    sim.delete_pod(0);
    sim.settle();
    sim.well();
    let gone = sim.calls[0].split('.').nth(3).unwrap().to_owned();
    let steps = &last_run(&sim).status.steps;
    assert!(
        steps.iter().filter(|s| s.pod_uid.as_ref() == Some(&gone)).all(|s| s.outcome == Some(StepOutcome::Cancelled))
    );
}

/// Failing pods run them too: the fix goes first, but not unseen.
#[test]
fn a_fix_runs_the_hooks_of_failing_pods() {
    let mut sim = with(2, pod_hooks());
    sim.set_image("app:bad-crash");
    sim.settle();
    let before = sim.calls.len();
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert_eq!(sim.calls.len() - before, 4, "{}", sim.story());
}

/// The status stays within its bounds: what is through leaves a short mark.
#[test]
fn a_thousand_pods_with_two_hooks_fit_in_one_status() {
    let mut policy = pod_hooks();
    policy["update"] = json!({"maxUnavailable": "50%"});
    let mut sim = with(400, policy);
    sim.shuffled = 0;
    sim.set_image("app:v2");
    sim.settle_within(40_000);
    sim.no_violation();
    let status = &last_run(&sim).status;
    assert_eq!(outcome(&sim), Some(Outcome::Succeeded));
    assert!(status.steps.len() <= 256 && status.pod_hooks_done.len() >= 280, "{}", status.pod_hooks_done.len());
    assert_eq!(sim.accepted.len(), 800);
    let size = serde_json::to_string(status).unwrap().len();
    assert!(size < 100_000, "{size} bytes");
}

#[test]
fn the_native_way_says_that_hooks_of_pods_cannot_run_there() {
    let mut sim = with(2, pod_hooks());
    sim.set_template(template_with("app:v2", &[("K", "1")], &[]));
    sim.settle();
    sim.well();
    assert!(sim.calls.is_empty());
    let limited = condition::find(&last_run(&sim).status.conditions, conditions::LIMITED).unwrap();
    assert_eq!(limited.reason, "PodHooksSkipped");
    assert!(limited.message.contains("before, after"), "{}", limited.message);
    assert_eq!(told(&sim, "PodHooksSkipped"), 1);

    let mut policy = pod_hooks();
    policy["update"] = json!({"strategy": "InPlaceOnly"});
    let mut sim = with(2, policy);
    sim.set_template(template_with("app:v2", &[("K", "1")], &[]));
    sim.settle();
    assert_eq!(last_run(&sim).status.stall.as_ref().unwrap().reason, "NotInPlace");
    assert!(sim.d.held());
}

#[test]
fn the_world_is_told_once_of_each_failure() {
    for crash in [false, true] {
        let mut sim = with(
            2,
            json!({"hooks": [
            http("a", "PreUpdate", 0, "Abort"), http("b", "PreUpdate", 0, "Abort"), http("tell", "OnFailure", 1, "Abort")]}),
        );
        sim.script.insert("a".into(), vec![StepOutcome::Failed].into());
        sim.script.insert("b".into(), vec![StepOutcome::Failed].into());
        sim.script.insert("tell".into(), vec![StepOutcome::Failed].into());
        let again = |sim: &mut Sim| {
            if crash {
                sim.die();
            }
            sim.settle();
        };
        sim.set_image("app:v2");
        sim.settle();
        again(&mut sim);
        assert_eq!(called(&sim), ["PreUpdate.a.1", "OnFailure.tell.1", "OnFailure.tell.2"], "{}", sim.story());
        sim.decide(Action::Retry, None);
        sim.settle();
        again(&mut sim);
        let rest = ["PreUpdate.a.2", "PreUpdate.b.1", "OnFailure.tell.1"];
        assert_eq!(called(&sim)[3..], rest, "{}", sim.story());
        let keys: std::collections::BTreeSet<&String> = sim.calls.iter().collect();
        assert_eq!(keys.len(), sim.calls.len(), "a key twice: {:?}", sim.calls);
        sim.decide(Action::Abort, None);
        sim.settle();
        assert_eq!(sim.calls.len(), 6);
        assert_eq!(outcome(&sim), Some(Outcome::Aborted));
    }
}

/// Paths of an object; what is by container stands for all containers.
fn paths(facts: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for (name, value) in facts.as_object().unwrap() {
        all.push(name.clone());
        let inside = value.as_object().filter(|_| !name.to_lowercase().ends_with("images"));
        all.extend(inside.into_iter().flatten().map(|(inner, _)| format!("{name}.{inner}")));
    }
    all.sort();
    all
}

/// What a template may name is known before there is a call: exactly what there is.
#[test]
fn the_facts_of_a_call_are_those_that_are_announced() {
    let hooks: Vec<Value> = ["PreUpdate", "PrePod", "PostPod", "PostUpdate", "OnFailure"]
        .map(|phase| http(&phase.to_lowercase(), phase, 0, "Abort"))
        .to_vec();
    let mut sim = with(1, json!({"hooks": hooks}));
    sim.script.insert("postupdate".into(), vec![StepOutcome::Failed].into());
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(sim.facts.iter().map(|f| f.0).collect::<std::collections::BTreeSet<_>>().len(), 5, "{}", sim.story());
    for (phase, facts) in &sim.facts {
        let mut announced: Vec<String> = fact_names(*phase).into_iter().map(str::to_owned).collect();
        announced.sort();
        assert_eq!(paths(facts), announced, "{phase:?}");
    }
}

/// argoproj/argo-cd#17254 (regressions.md 8): whoever looks sees which object is awaited, and in which state.
#[test]
fn r8_what_is_awaited_is_named() {
    let awaited = json!({"kind": "Job", "name": "nightly", "condition": {"type": "Complete"}, "label": {"key": "a", "value": "b"}, "expression": "object.x == 1"});
    let mut sim = with(1, json!({"hooks": [{"name": "backup", "phase": "PreUpdate", "waitFor": awaited}]}));
    sim.set_image("app:v2");
    sim.until("the attempt", |s| !s.calls.is_empty());
    let what = sim.plan_now().report.waiting_for.unwrap().what;
    assert!(
        what.ends_with(": waits for Job nightly: condition Complete True and label a=b and object.x == 1"),
        "{what}"
    );
}

fn approval(more: Value) -> Sim {
    let mut hook = json!({"name": "ok", "phase": "PreUpdate", "approval": {"timeoutSeconds": 100}});
    json_patch::merge(&mut hook, &more);
    with(2, json!({"hooks": [hook]}))
}

#[test]
fn an_approval_waits_for_a_person_and_is_used_once() {
    let mut sim = approval(json!({}));
    sim.set_image("app:v2");
    turns(&mut sim, 20);
    assert_eq!(waits_for(&mut sim), "Approval");
    let how = sim.plan_now().report.waiting_for.unwrap().how;
    assert!(how.contains("kubectl interlock approve deploy/web --hook ok"), "{how}");
    sim.decide(Action::Approve, Some("hook/ok"));
    sim.settle();
    sim.well();
    let run = last_run(&sim);
    assert_eq!(run.status.decisions_used.len(), 1);
    assert_eq!(
        (run.status.steps[0].outcome, run.status.steps[0].reason.as_str()),
        (Some(StepOutcome::Succeeded), "Approved")
    );
    assert_eq!(told(&sim, "DecisionRefused"), 0);
}

/// regressions.md 19: an approval that nobody gives ends by its timeout, as the policy says.
#[test]
fn r19_an_approval_that_nobody_gives_ends() {
    let mut sim = approval(json!({}));
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(state(&mut sim), State::Stalled);
    assert_eq!(last_run(&sim).status.steps[0].outcome, Some(StepOutcome::TimedOut));
    assert_eq!(images(&sim), ["app:v1", "app:v1"]);
    sim.decide(Action::Retry, None);
    turns(&mut sim, 10);
    sim.decide(Action::Approve, None);
    sim.settle();
    sim.well();

    let mut sim = approval(json!({"approval": {"onTimeout": "Approve"}}));
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert_eq!(last_run(&sim).status.steps[0].reason, "ApprovedByTimeout");
}

#[test]
fn an_approval_does_not_wait_while_the_user_has_it_paused() {
    let mut sim = approval(json!({}));
    sim.set_image("app:v2");
    turns(&mut sim, 10);
    sim.later(60);
    sim.edit(|d| drop(d.annotations.insert(names::RESUME.into(), "false".into())));
    turns(&mut sim, 5);
    assert_eq!(state(&mut sim), State::UserPaused);
    sim.later(1000);
    sim.resume();
    turns(&mut sim, 5);
    assert_eq!(waits_for(&mut sim), "Approval", "{}", sim.story());
    sim.later(30);
    turns(&mut sim, 5);
    assert_eq!(waits_for(&mut sim), "Approval");
    sim.settle();
    assert_eq!(state(&mut sim), State::Stalled);
}

#[test]
fn a_decision_is_about_what_it_names() {
    let mut sim = with(
        3,
        json!({"update": {"maxUnavailable": 2}, "hooks": [
        {"name": "ok", "phase": "PrePod", "approval": {"timeoutSeconds": 1000}}]}),
    );
    sim.set_image("app:v2");
    turns(&mut sim, 20);
    assert_eq!(waits_for(&mut sim), "Approval");
    let names: Vec<String> = sim.pods.iter().map(|p| p.pod.name.clone()).collect();
    decide(&mut sim, Action::Approve, "hook/ok", Some(&names[1]), Some(1));
    turns(&mut sim, 20);
    assert_eq!(images(&sim), ["app:v1", "app:v1", "app:v2"], "{}", sim.story());
    for (target, pod, attempt) in [
        ("hook/ok", Some(names[1].as_str()), Some(1)), // over
        ("hook/ok", Some(names[0].as_str()), Some(2)), // not begun
        ("hook/ok", Some("nobody"), None),
        ("hook/none", None, None),
    ] {
        let refused = told(&sim, "DecisionRefused");
        decide(&mut sim, Action::Approve, target, pod, attempt);
        turns(&mut sim, 10);
        assert_eq!(told(&sim, "DecisionRefused"), refused + 1, "{target} {pod:?} {attempt:?}: {}", sim.story());
    }
    assert_eq!(images(&sim), ["app:v1", "app:v1", "app:v2"]);
    // Every pod's, also of those whose turn comes.
    decide(&mut sim, Action::Approve, "hook/ok", None, None);
    sim.settle();
    sim.well();
    assert_eq!(last_run(&sim).status.decisions_used.len(), 6);
}

#[test]
fn outcomes_tell_how_an_attempt_ended() {
    let open = |sim: &Sim| sim.runs[0].status.steps[0].outcome;
    let begun = || {
        let mut sim = with(2, json!({"hooks": [http("a", "PreUpdate", 0, "Abort")]}));
        sim.set_image("app:v2");
        sim.until("the call", |s| !s.calls.is_empty());
        sim.attempts.insert(sim.calls[0].clone(), None);
        sim
    };
    let mut sim = begun();
    sim.set_image("app:v3");
    sim.settle();
    assert_eq!(open(&sim), Some(StepOutcome::Superseded));
    let mut sim = begun();
    sim.set_image("app:v1");
    sim.settle();
    assert_eq!(open(&sim), Some(StepOutcome::Cancelled));
    let mut sim = begun();
    sim.decide(Action::Abort, None);
    sim.reconcile();
    sim.look();
    sim.reconcile();
    assert_eq!(open(&sim), Some(StepOutcome::Cancelled));
    let mut sim = begun();
    sim.decide(Action::Skip, Some("hook/a"));
    sim.look();
    sim.reconcile();
    assert_eq!(open(&sim), Some(StepOutcome::Skipped));
    sim.settle();
    sim.well();
}

/// regressions.md 12: replicas are no trigger, and a change of them starts nothing anew.
#[test]
fn r12_an_autoscaler_restarts_nothing() {
    let mut sim =
        with(2, json!({"hooks": [http("pre", "PreUpdate", 0, "Abort"), http("before", "PrePod", 0, "Abort")]}));
    sim.scale_to(3);
    sim.settle();
    assert!(sim.runs.is_empty() && sim.calls.is_empty());
    sim.set_image("app:v2");
    sim.until("a pod", |s| images(s).contains(&"app:v2".to_owned()));
    sim.scale_to(5);
    sim.settle();
    sim.well();
    assert_eq!(sim.runs.len(), 1);
    assert_eq!(called(&sim).iter().filter(|c| c.starts_with("PreUpdate")).count(), 1);
    assert_eq!(called(&sim).len(), 1 + 5);
}

/// regressions.md 16: names as long as they may be; whose a run is is told by its owner, never by its name.
#[test]
fn r16_names_of_runs_fit() {
    let mut sim = with(1, pod_hooks());
    sim.d.name = "w".repeat(63);
    sim.policies[0].spec.as_mut().unwrap().selector =
        Some(serde_json::from_value(json!({"matchLabels": {"app": "web"}})).unwrap());
    sim.set_image("app:v2");
    sim.settle();
    assert!(last_run(&sim).name.len() <= 63);
}

fn kept(more: Value) -> Sim {
    let mut gate = json!({"labels": {"keep": "yes"}});
    json_patch::merge(&mut gate, &more);
    let policy =
        json!({"hooks": [{"name": "keep", "phase": "PrePod", "podGate": gate, "timeoutSeconds": 30, "retries": 0}]});
    let mut sim = Sim::new(1, 2, "app:v1", vec![sim::policy("p", sim::policy_with(policy))]);
    sim.gated = true;
    sim.settle();
    for p in &mut sim.pods {
        p.pod.labels.insert("keep".into(), "yes".into());
    }
    sim
}

#[test]
fn a_pod_gate_blocks_the_start_and_lets_it_finish_when_all_is_back() {
    let mut sim = kept(json!({}));
    sim.set_image("app:v2");
    turns(&mut sim, 30);
    assert_eq!(images(&sim), ["app:v1", "app:v1"]);
    let said = |sim: &Sim, i: usize| sim.pods[i].pod.annotations.get(names::POD_STATE).cloned().unwrap_or_default();
    assert_eq!((said(&sim, 0), said(&sim, 1)), ("PreparingUpdate".into(), String::new()), "{}", sim.story());
    sim.pods[0].pod.labels.remove("keep");
    sim.next += 1;
    sim.until("its image", |s| images(s).contains(&"app:v2".to_owned()));
    assert_eq!(said(&sim, 0), "Updating");
    turns(&mut sim, 40);
    assert_eq!(said(&sim, 0), "Updated", "{}", sim.story());
    assert_eq!(images(&sim), ["app:v1", "app:v2"], "the next one waits");
    sim.keeper = Some(("keep".into(), "yes".into()));
    sim.settle();
    sim.well();
    assert!((0..2).all(|i| said(&sim, i).is_empty()));
    assert_eq!(sim.created, 2);
}

#[test]
fn a_pod_gate_keeps_the_pod_from_serving_if_asked() {
    let mut sim = kept(json!({"markPodNotReady": true}));
    sim.set_image("app:v2");
    turns(&mut sim, 30);
    assert_eq!(sim.pods[0].pod.gate, Some(false), "{}", sim.story());
    assert_eq!(sim.pods[1].pod.gate, Some(true));
    sim.pods[0].pod.labels.remove("keep");
    turns(&mut sim, 40);
    assert!(sim.pods[0].pod.containers_ready && sim.pods[0].pod.gate == Some(false), "{}", sim.story());
    sim.keeper = Some(("keep".into(), "yes".into()));
    sim.settle();
    sim.well();
    assert!(sim.pods.iter().all(|p| p.pod.gate == Some(true) && p.pod.ready));
}

#[test]
fn a_pod_gate_that_nobody_opens_fails_as_its_hook_says() {
    let mut sim = kept(json!({}));
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(state(&mut sim), State::Stalled, "{}", sim.story());
    assert!(last_run(&sim).status.stall.as_ref().unwrap().message.contains("PodGateClosed"));
    assert!(sim.pods.iter().all(|p| !p.pod.annotations.contains_key(names::POD_STATE)));
}

#[test]
fn a_finalizer_is_a_gate_too() {
    let mut sim = kept(json!({"labels": null, "finalizers": ["test/keep"]}));
    sim.pods[0].pod.finalizers.push("test/keep".into());
    sim.set_image("app:v2");
    turns(&mut sim, 30);
    assert_eq!(images(&sim), ["app:v1", "app:v1"], "{}", sim.story());
    sim.pods[0].pod.finalizers.clear();
    sim.next += 1;
    turns(&mut sim, 30);
    assert_eq!(images(&sim), ["app:v1", "app:v2"]);
    for p in &mut sim.pods {
        p.pod.finalizers.push("test/keep".into());
    }
    sim.next += 1;
    turns(&mut sim, 20);
    sim.pods[1].pod.finalizers.clear();
    turns(&mut sim, 30);
    sim.pods[1].pod.finalizers.push("test/keep".into());
    sim.settle();
    sim.well();
}

fn draining(gated: bool, seconds: i64) -> Sim {
    let policy = json!({"update": {"drain": {"readinessGate": true, "seconds": seconds}}});
    let mut sim = Sim::new(1, 3, "app:v1", vec![sim::policy("p", sim::policy_with(policy))]);
    sim.gated = gated;
    sim.settle();
    sim.writes = 0;
    sim
}

#[test]
fn new_pods_serve_as_soon_as_their_containers_are_ready() {
    let sim = draining(true, 0);
    assert!(sim.pods.iter().all(|p| p.pod.gate == Some(true) && p.pod.ready));
    // Whoever governs: a policy that is gone must keep no pod out.
    let mut sim = draining(true, 0);
    sim.delete_policies();
    sim.delete_pod(0);
    sim.settle();
    assert!(sim.pods.iter().all(|p| p.pod.ready) && sim.fixpoint().is_empty());
    // Held, and standing still.
    sim.policies = draining(true, 0).policies;
    sim.set_image("app:bad-pull");
    sim.settle();
    sim.delete_pod(2);
    sim.settle();
    assert_eq!(sim.pods.iter().filter(|p| p.pod.ready).count(), 2, "{}", sim.story());
}

/// regressions.md 32: the pod leaves the endpoints before its image is written, and that is looked at live.
#[test]
fn r32_a_pod_is_drained_before_its_image_is_written() {
    for seconds in [0, 700] {
        let mut sim = draining(true, seconds);
        let writes =
            |sim: &Sim| sim.log.iter().filter(|l| l.contains("WE patch pod") || l.contains("WE set gate")).count();
        let (before, began) = (writes(&sim), sim.now);
        sim.set_image("app:v2");
        sim.settle();
        sim.well();
        assert_eq!(writes(&sim) - before, 9, "three writes for each pod: {}", sim.story());
        assert_eq!(sim.calls.iter().filter(|k| k.contains(".Drained.")).count(), 3);
        assert!(sim.now.millis_since(began) >= seconds * 3000);
        assert!(condition::find(&last_run(&sim).status.conditions, conditions::LIMITED).is_none());
        assert!(sim.pods.iter().all(|p| p.pod.gate == Some(true)));
    }
}

#[test]
fn a_crash_only_lengthens_a_drain() {
    let mut sim = draining(true, 60);
    sim.set_image("app:v2");
    sim.until("the look", |s| s.attempts.values().any(Option::is_some));
    sim.later(50);
    sim.die();
    turns(&mut sim, 5);
    sim.later(50);
    turns(&mut sim, 5);
    assert_eq!(images(&sim), ["app:v1", "app:v1", "app:v1"], "{}", sim.story());
    sim.settle();
    sim.well();
}

#[test]
fn a_pod_without_the_gate_is_updated_without_drain_and_that_is_said() {
    let mut sim = draining(false, 5);
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert!(sim.calls.is_empty());
    let limited = condition::find(&last_run(&sim).status.conditions, conditions::LIMITED).unwrap();
    assert_eq!(limited.reason, "NoReadinessGate");
    assert_eq!(told(&sim, "NoReadinessGate"), 1, "{:?}", sim.events);
}

#[test]
fn a_drain_that_is_left_lets_the_pod_serve_again() {
    let mut sim = draining(true, 60);
    sim.set_image("app:v2");
    sim.until("a pod out of service", |s| s.pods.iter().any(|p| p.pod.gate == Some(false)));
    sim.set_image("app:v1");
    sim.settle();
    sim.well();
    assert!(sim.pods.iter().all(|p| p.pod.ready));
    assert_eq!(images(&sim), ["app:v1", "app:v1", "app:v1"]);
}

#[test]
fn a_patch_is_undone_by_a_revert_if_asked() {
    let patch = json!({"labels": {"app": "other", "new": "x"}, "annotations": {"note": "x"}, "undoOnRevert": true});
    let mut sim = with(
        2,
        json!({"update": {"failure": "Revert"}, "hooks": [
        {"name": "mark", "phase": "PreUpdate", "patch": patch}, http("after", "PostPod", 0, "Abort")]}),
    );
    sim.script.insert("after".into(), vec![StepOutcome::Failed].into());
    sim.set_image("app:v2");
    sim.settle();
    assert_eq!(sim.calls.iter().filter(|k| k.ends_with(".undo")).count(), 1, "{}", sim.story());
    assert!(last_run(&sim).status.steps[0].undone);
    assert!(sim.fixpoint().is_empty());
}

#[test]
fn phases_have_their_words() {
    for (phase, pod) in
        [(Phase::PreUpdate, false), (Phase::PrePod, true), (Phase::PostPod, true), (Phase::OnFailure, false)]
    {
        assert_eq!(phase.of_pod(), pod);
    }
}
