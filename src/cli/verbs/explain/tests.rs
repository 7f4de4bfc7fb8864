use std::collections::BTreeMap;

use interlock_core::{
    api::run::HookRunStatus,
    effect::HookCall,
    plan::{State, StatusWrite},
};
use serde_json::json;

use super::{
    super::fixture::{deployment, ended, fact, held, now, run, stalled, waits},
    *,
};

fn world(run: Run) -> World {
    World {
        now: now(),
        live: true,
        deployment: fact(&held("web:1")),
        replica_sets: Vec::new(),
        pods: Vec::new(),
        policies: Vec::new(),
        runs: vec![run],
        components: BTreeMap::new(),
        cycle: Vec::new(),
        budgets: Vec::new(),
        busy: BTreeMap::new(),
        attempts: BTreeMap::new(),
        refusals: BTreeMap::new(),
    }
}

fn plan(run: &Run, state: State) -> Plan {
    Plan {
        report: Report {
            state,
            message: "because of this".into(),
            run: Some(run.name.clone()),
            waiting_for: run.status.waiting_for.clone(),
            way: run.status.way.clone(),
            governed_by: Some("order".into()),
            conflicts: vec!["zoo".into()],
        },
        ..Plan::default()
    }
}

#[test]
fn what_it_waits_for_since_when_until_when_and_how_to_go_on() {
    let run = run(1, "web:1", &waits("HookRunning", "hook smoke runs"));
    let mut plan = plan(&run, State::PreHooks);
    plan.effects = vec![Effect::StartHook(Box::new(HookCall {
        key: "k".into(),
        hook: "smoke".into(),
        phase: interlock_core::api::hook::Phase::PreUpdate,
        namespace: "ns".into(),
        deployment: interlock_core::api::run::ObjectRef { name: "web".into(), uid: "uid-web".into() },
        attempt: 1,
        run: interlock_core::api::run::ObjectRef { name: "r".into(), uid: "u".into() },
        pod: None,
        call: interlock_core::effect::Call::Http(interlock_core::api::hook::HttpHook {
            url: "http://smoke/".into(),
            ..interlock_core::api::hook::HttpHook::default()
        }),
        started_at: interlock_core::time::Time(0),
        timeout_seconds: 1,
        facts: json!({}),
    }))];
    plan.wake = Some(now().plus_seconds(60));
    assert_eq!(
        render(&world(run), &plan, None, now()),
        "\
Deployment:      shop/web
State:           HookRunning
Held:            yes
Message:         because of this
Governed by:     order
Conflicts with:  zoo (the smallest name wins)
Run:             web-1 (started 5m ago)
Way:             InPlace
Pods:            3 desired, 1 updated, 1 changing, 2 available
Waiting for:     hook smoke runs (HookRunning)
Since:           2026-01-01T00:09:30Z (30s ago)
Until:           2026-01-01T00:11:00Z (in 60s)
To go on:        do something
Next:            call hook smoke (attempt 1)
Looks again:     in 60s at the latest

HOOK     PHASE        ATTEMPT   OUTCOME   STARTED   TOOK
smoke    PreUpdate    -         Pending   -         -
report   PostUpdate   -         Pending   -         -
"
    );
}

#[test]
fn a_stall_shows_its_exits_and_the_attempts_of_hooks() {
    let run = run(1, "web:1", &stalled("HookFailed"));
    let text = render(&world(run.clone()), &plan(&run, State::Stalled), None, now());
    assert!(text.contains("Stalled:         HookFailed, for 2m: hook smoke failed: Http500\n"), "{text}");
    assert!(text.contains("\n                 kubectl interlock undo deploy/web -n shop\n"), "{text}");
    assert!(text.contains("smoke    PreUpdate    1         Failed (Http500)     3m ago      3s\n"), "{text}");
    assert!(text.contains("smoke    PreUpdate    2         TimedOut (Timeout)   2m55s ago   60s\n"), "{text}");
}

#[test]
fn a_status_that_is_about_to_be_stored_counts() {
    let run = run(1, "web:1", &waits("Updating", "x"));
    let mut plan = plan(&run, State::Updating);
    let status: HookRunStatus =
        serde_json::from_value(json!({"pods": {"desired": 3, "updated": 2, "inFlight": 0, "available": 3, "failing": ["web-9: ErrImagePull"]}}))
            .unwrap();
    plan.status = Some(StatusWrite { run: "web-1".into(), resource_version: "9".into(), status, urgent: false });
    let text = render(&world(run), &plan, None, now());
    assert!(text.contains("3 desired, 2 updated") && text.contains("Failing:         web-9: ErrImagePull"), "{text}");
}

#[test]
fn the_structured_form_carries_report_and_status() {
    let run = run(1, "web:1", &waits("Updating", "x"));
    let plan = plan(&run, State::Updating);
    let world = world(run);
    let text = output::structured(Format::Json, &explained(&world, &plan)).unwrap().unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["report"]["state"], "Updating");
    assert_eq!(value["state"], "Updating");
    assert_eq!(value["status"]["waitingFor"]["reason"], "Updating");
    assert!(
        output::structured(Format::Yaml, &explained(&world, &plan)).unwrap().unwrap().contains("governedBy: order")
    );
}

#[test]
fn an_attempt_that_the_controller_carries_out_counts_as_running() {
    let mut status = waits("HookRunning", "hook smoke runs");
    status["orderPassed"] = json!(true);
    status["steps"] =
        json!([{"hook": "smoke", "phase": "PreUpdate", "attempt": 1, "startedAt": "2026-01-01T00:09:50Z"}]);
    let mut world = world(run(1, "web:1", &status));
    let set = super::super::fixture::replica_set(1, "web:0", 3);
    world.replica_sets.push(set);
    let (_, plan) = planned(world);
    assert_eq!(plan.report.state, State::PreHooks, "{plan:?}");
    assert!(!plan.effects.iter().any(|e| matches!(e, Effect::StartHook(_))), "{plan:?}");
    assert_eq!(plan.report.governed_by.as_deref(), Some("order"));
}

#[test]
fn after_the_end_only_what_is_left_is_offered() {
    let mut status = stalled("HookFailed");
    status["ended"] = ended("Aborted")["ended"].clone();
    let over = run(1, "web:1", &status);
    let text = render(&world(over.clone()), &plan(&over, State::Ended), None, now());
    assert!(text.contains("State:           Aborted\n"), "{text}");
    assert!(
        text.contains(
            "To go on:        change the template, or:\n                 kubectl interlock undo deploy/web -n shop\n"
        ),
        "{text}"
    );
    assert!(!text.contains("retry") && !text.contains("Stalled:"), "{text}");
}

#[test]
fn after_an_undo_the_counts_are_those_of_the_deployment() {
    let mut status = stalled("HookFailed");
    status["ended"] = ended("Returned")["ended"].clone();
    status["pods"] = json!({"desired": 3, "updated": 1, "inFlight": 1, "available": 2});
    status["way"] = json!({"kind": "InPlace"});
    let mut world = world(run(1, "web:1", &status));
    world.deployment = fact(&deployment("web:0"));
    let text = render(&world, &Plan::default(), None, now());
    assert!(text.contains("Pods:         3 desired, 3 updated, 3 available\n"), "{text}");
    assert!(text.contains("Last run:     web-1 (Returned, 4m ago, InPlace)\n"), "{text}");
    assert!(!text.contains("To go on"), "{text}");
}

#[test]
fn what_would_surprise_is_said() {
    let mut deployment = held("web:1");
    deployment["metadata"]["annotations"]["interlock.dev/policy"] = json!("none");
    let mut only = run(1, "web:1", &stalled("NotInPlace"));
    only.spec.settings.update.strategy = interlock_core::api::policy::Strategy::InPlaceOnly;
    only.status.way = Some(Way { kind: interlock_core::api::run::WayKind::Native, because: vec!["env".into()] });
    let plan = plan(&only, State::Stalled);
    let mut world = world(only);
    world.deployment = fact(&deployment);
    let text = render(&world, &plan, Some("not running: nobody".into()), now());
    assert!(text.contains("annotation interlock.dev/policy names HookPolicy none, which does not exist"), "{text}");
    assert!(text.contains("Way:             needs new pods\n"), "{text}");
    assert!(text.contains("Controller:      not running: nobody\n"), "{text}");
    assert!(!text.contains("skip"), "{text}");
}

#[test]
fn an_annotation_that_does_not_parse_is_named_once() {
    let mut deployment = held("web:2");
    deployment["metadata"]["annotations"] = json!({
        "interlock.dev/held-by": "annotation", "interlock.dev/held-at": "1", "interlock.dev/hooks": "- name: a\n  when: now\n",
    });
    let mut world = world(run(1, "web:1", &ended("Succeeded")));
    world.deployment = fact(&deployment);
    world.replica_sets.push(super::super::fixture::replica_set(1, "web:1", 3));
    let (world, plan) = planned(world);
    let text = render(&world, &plan, None, now());
    assert!(text.contains("State:        AnnotationInvalid\n"), "{text}");
    assert_eq!((text.matches("interlock.dev/hooks").count(), text.matches("line 2").count()), (1, 1), "{text}");
}

#[test]
fn who_may_read_less_is_told_less() {
    let mut value = held("web:1");
    value["status"]["conditions"] = json!([{"type": "interlock.dev/Held", "status": "True", "reason": "HookFailed", "message": "hook smoke failed"}]);
    let why = "cannot list hookruns".to_owned();
    let text = render_stored(&fact(&value), Err(&why), "", now());
    assert!(text.starts_with("Runs may not be read (cannot list hookruns)"), "{text}");
    assert!(text.contains("State:       HookFailed\n") && text.contains("hook smoke failed"), "{text}");
    let runs = [run(1, "web:1", &stalled("HookFailed"))];
    let text = render_stored(&fact(&value), Ok(&runs), "x", now());
    assert!(text.contains("Stalled/HookFailed (for 2m)") && text.contains("retry deploy/web -n shop"), "{text}");
}

#[test]
fn what_the_policy_asks_for_and_the_run_cannot_do_is_told() {
    let mut status = waits("Updating", "x");
    status["conditions"] = json!([{
        "type": "Limited", "status": "True", "reason": "NoReadinessGate", "message": "pods without the gate are not drained",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    }]);
    let run = run(1, "web:1", &status);
    let text = render(&world(run.clone()), &plan(&run, State::Updating), None, now());
    assert!(
        text.contains("Limited:") && text.contains("pods without the gate are not drained (NoReadinessGate)"),
        "{text}"
    );
}

#[test]
fn when_a_policy_and_the_annotation_both_speak_the_order_is_told() {
    let run = run(1, "web:1", &waits("Updating", "x"));
    let plan = plan(&run, State::Updating);
    let mut world = world(run);
    let hook = |name: &str| json!({"name": name, "phase": "PreUpdate", "wait": {"seconds": 1}});
    let spec = serde_json::from_value(json!({"hooks": [hook("smoke"), hook("report")]})).unwrap();
    world.policies.push(interlock_core::world::Policy {
        name: "order".into(),
        uid: "p".into(),
        generation: 1,
        spec: Ok(spec),
        problem: None,
        created: now(),
    });
    assert!(!render(&world, &plan, None, now()).contains("Hooks of"));
    let mut deployment = held("web:1");
    let own = json!([hook("smoke"), hook("late")]).to_string();
    deployment["metadata"]["annotations"]["interlock.dev/hooks"] = json!(own);
    world.deployment = fact(&deployment);
    let text = render(&world, &plan, None, now());
    assert!(
        text.contains(
            "\
Hooks of:        HookPolicy order: smoke, report
                 then annotation interlock.dev/hooks: late
                 not the annotation's smoke: the policy has hooks of that name
"
        ),
        "{text}"
    );
}
