use std::collections::BTreeMap;

use interlock_core::{
    api::run::HookRunStatus,
    effect::HookCall,
    plan::{State, StatusWrite},
};
use serde_json::json;

use super::{
    super::fixture::{fact, held, now, run, stalled, waits},
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
    plan.effects = vec![Effect::StartHook(HookCall {
        key: "k".into(),
        hook: "smoke".into(),
        phase: interlock_core::api::policy::Phase::PreUpdate,
        attempt: 1,
        url: "http://smoke/".into(),
        timeout_seconds: 1,
        body: json!({}),
    })];
    plan.wake = Some(now().plus_seconds(60));
    assert_eq!(
        render(&world(run), &plan, now()),
        "\
Deployment:      shop/web
State:           PreHooks
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
    let text = render(&world(run.clone()), &plan(&run, State::Stalled), now());
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
    let text = render(&world(run), &plan, now());
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
