//! Order: the rule of each kind that a component can wait for, and what the gate makes of it.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod sim;

use std::collections::BTreeMap;

use interlock_core::{
    api::{reference::Reference, run::Action},
    order::{Terms, met},
    plan::State,
    time::Time,
    world::{Component, DaemonSet, DeploymentStatus, Job, Pods, Predecessor, RunState, Standing, StatefulSet},
};
use serde_json::json;
use sim::{
    Sim, policy, policy_with,
    stories::{images, state, turns, waits_for},
};

fn deployment(replicas: i64) -> Component {
    Component {
        held: false,
        deleting: false,
        generation: 3,
        replicas,
        status: DeploymentStatus {
            observed_generation: 3,
            replicas,
            updated: replicas,
            available: replicas,
            ..Default::default()
        },
        old_pods: 0,
        run: None,
        changed: Some(Time(0)),
    }
}

fn known(standing: Standing) -> Predecessor {
    Predecessor { standing, labels: BTreeMap::new(), leaving: 0 }
}

fn after(seconds: i64) -> Time {
    Time(0).plus_seconds(seconds)
}

/// Why it has not settled; empty if it has.
fn why(standing: Standing) -> String {
    let terms = Terms { settle_seconds: 2, ..Terms::default() };
    met(Some(&known(standing)), &terms, after(10)).map_or_else(|u| u.why, |()| String::new())
}

/// Why it has not; empty if it has. `change` is made to a settled Deployment of 3 replicas.
fn changed(change: impl FnOnce(&mut Component)) -> String {
    let mut component = deployment(3);
    change(&mut component);
    why(Standing::Deployment(component))
}

#[test]
fn a_deployment_is_settled_by_every_part_of_the_rule() {
    assert_eq!(changed(|_| ()), "");
    assert_eq!(changed(|c| *c = deployment(0)), "");
    assert_eq!(changed(|c| c.deleting = true), "is being deleted");
    assert_eq!(changed(|c| c.held = true), "is held");
    assert_eq!(changed(|c| c.run = Some(RunState::InProgress)), "is being updated");
    assert_eq!(changed(|c| c.run = Some(RunState::Failed)), "has failed to update");
    assert_eq!(changed(|c| c.old_pods = 1), "has 1 pods of an older template left");
    assert_eq!(changed(|c| c.status.replicas = 4), "has 3 of 3 pods updated, 4 in total");
}

/// Regression 25 (opencurve/curve-operator): it accepts partial readiness (one pod of many).
#[test]
fn regression_25_one_ready_pod_of_many_is_not_enough() {
    assert_eq!(changed(|c| c.status.available = 1), "has 1 of 3 pods available");
    assert_eq!(why(Standing::StatefulSet(StatefulSet { ready: 1, ..stateful_set() })), "has 1 of 3 pods ready");
    assert_eq!(why(Standing::DaemonSet(DaemonSet { available: 1, ..daemon_set() })), "has 1 of 3 pods available");
    let pods = Pods { total: 3, ready: 1, not_ready: Some("x".into()), changed: Some(Time(0)) };
    assert_eq!(why(Standing::Pods(pods)), "has 1 of 3 pods ready, x is not");
}

/// Regression 26 (argo-cd#5585): a stale "healthy" lets the next wave start.
#[test]
fn regression_26_a_status_behind_its_generation_is_not_believed() {
    let behind = "has a status that is behind (observed generation 2 of 3)";
    assert_eq!(changed(|c| c.status.observed_generation = 2), behind);
    assert_eq!(why(Standing::StatefulSet(StatefulSet { observed_generation: 2, ..stateful_set() })), behind);
    assert_eq!(why(Standing::DaemonSet(DaemonSet { observed_generation: 2, ..daemon_set() })), behind);
}

/// Regression 29 (kubernetes-sigs/jobset#1021): terminating pods counted as current. They are never among the pods of
/// [`Pods`] (see `observe`), and without `oldPods: Wait` they hold nothing up either.
#[test]
fn regression_29_terminating_pods_do_not_count() {
    let mut leaving = known(Standing::Pods(Pods { total: 1, ready: 1, not_ready: None, changed: Some(Time(0)) }));
    leaving.leaving = 2;
    met(Some(&leaving), &Terms::default(), after(10)).unwrap();
    let none = Pods::default();
    assert_eq!(why(Standing::Pods(none)), "has no pods");
}

/// Regression 30 (kubernetes/kubectl#1628): "done" while old pods still terminate.
#[test]
fn regression_30_old_pods_can_be_waited_for() {
    for standing in [
        Standing::Deployment(deployment(3)),
        Standing::StatefulSet(stateful_set()),
        Standing::DaemonSet(daemon_set()),
        Standing::Pods(Pods { total: 1, ready: 1, not_ready: None, changed: None }),
    ] {
        let predecessor = Predecessor { standing, labels: BTreeMap::new(), leaving: 1 };
        let gone = Terms { old_pods_gone: true, ..Terms::default() };
        assert_eq!(met(Some(&predecessor), &gone, after(10)).unwrap_err().why, "has 1 pods that are still terminating");
        met(Some(&predecessor), &Terms::default(), after(10)).unwrap();
        met(Some(&Predecessor { leaving: 0, ..predecessor }), &gone, after(10)).unwrap();
    }
}

fn stateful_set() -> StatefulSet {
    StatefulSet {
        generation: 3,
        observed_generation: 3,
        replicas: 3,
        ready: 3,
        available: 3,
        updated: 3,
        current_revision: "a".into(),
        update_revision: "a".into(),
        changed: Some(Time(0)),
        ..StatefulSet::default()
    }
}

#[test]
fn a_stateful_set_is_settled_by_the_rule_of_rollout_status() {
    let set = |change: &dyn Fn(&mut StatefulSet)| {
        let mut set = stateful_set();
        change(&mut set);
        why(Standing::StatefulSet(set))
    };
    assert_eq!(set(&|_| ()), "");
    assert_eq!(set(&|s| s.deleting = true), "is being deleted");
    assert_eq!(set(&|s| s.observed_generation = 0), "has a status that is behind (observed generation 0 of 3)");
    let rolling = |s: &mut StatefulSet| {
        s.update_revision = "b".into();
        s.updated = 1;
    };
    assert_eq!(set(&rolling), "has 1 of 3 pods updated");
    // Only as many as the partition lets through; the rest stays as it is, and the revisions stay apart.
    let partitioned = |updated| {
        set(&|s| {
            rolling(s);
            s.partition = 1;
            s.updated = updated;
        })
    };
    assert_eq!(partitioned(1), "has 1 of 2 pods updated, 1 stay as they are by its partition");
    assert_eq!(partitioned(2), "");
    // Whoever deletes pods replaces them.
    assert_eq!(
        set(&|s| {
            rolling(s);
            s.on_delete = true;
        }),
        ""
    );
    let slow = |s: &mut StatefulSet| {
        s.min_ready_seconds = 10;
        s.available = 2;
    };
    assert_eq!(set(&slow), "has 2 of 3 pods available");
    assert_eq!(
        set(&|s| {
            s.replicas = 0;
            s.ready = 0;
            s.changed = Some(after(10));
        }),
        ""
    );
    assert_eq!(set(&|s| s.changed = Some(after(9))), "has just settled");
}

fn daemon_set() -> DaemonSet {
    DaemonSet {
        generation: 3,
        observed_generation: 3,
        desired: 3,
        updated: 3,
        available: 3,
        changed: Some(Time(0)),
        ..DaemonSet::default()
    }
}

#[test]
fn a_daemon_set_is_settled_by_the_rule_of_rollout_status() {
    let set = |change: &dyn Fn(&mut DaemonSet)| {
        let mut set = daemon_set();
        change(&mut set);
        why(Standing::DaemonSet(set))
    };
    assert_eq!(set(&|_| ()), "");
    assert_eq!(set(&|s| s.deleting = true), "is being deleted");
    assert_eq!(set(&|s| s.updated = 2), "has 2 of 3 pods updated");
    assert_eq!(
        set(&|s| {
            s.updated = 0;
            s.on_delete = true;
        }),
        ""
    );
    assert_eq!(
        set(&|s| {
            s.desired = 0;
            s.updated = 0;
            s.available = 0;
        }),
        ""
    );
    assert_eq!(set(&|s| s.changed = Some(after(9))), "has just settled");
}

#[test]
fn a_job_is_settled_when_it_is_complete() {
    let job = |change: &dyn Fn(&mut Job)| {
        let mut job = Job { completions: 2, succeeded: 1, ..Job::default() };
        change(&mut job);
        why(Standing::Job(job))
    };
    assert_eq!(job(&|_| ()), "has 1 of 2 completions");
    assert_eq!(job(&|j| j.suspended = true), "is suspended");
    assert_eq!(job(&|j| j.failed = Some("BackoffLimitExceeded: x".into())), "has failed: BackoffLimitExceeded: x");
    assert_eq!(job(&|j| j.complete = true), "");
    assert_eq!(
        job(&|j| {
            j.complete = true;
            j.deleting = true;
        }),
        "is being deleted"
    );
    assert_eq!(
        job(&|j| {
            j.complete = true;
            j.changed = Some(after(9));
        }),
        "has just settled"
    );
}

#[test]
fn what_is_missing_or_unread_is_waited_for() {
    assert_eq!(met(None, &Terms::default(), after(0)).unwrap_err().why, "does not exist");
    assert_eq!(why(Standing::Unread), "has not been read yet");
}

#[test]
fn the_same_release_is_a_label_of_both_templates() {
    let terms = Terms { release: Some(("version".into(), "2".into())), ..Terms::default() };
    let mut predecessor = known(Standing::Deployment(deployment(1)));
    let why = |p: &Predecessor| met(Some(p), &terms, after(10)).map_or_else(|u| u.why, |()| String::new());
    assert_eq!(why(&predecessor), "has no template label version, so its release is not known");
    predecessor.labels.insert("version".into(), "1".into());
    assert_eq!(why(&predecessor), "is of another release, version is 1 and not 2");
    predecessor.labels.insert("version".into(), "2".into());
    assert_eq!(why(&predecessor), "");
    let template = |labels| interlock_core::template::Template::new(json!({"metadata": {"labels": labels}}));
    assert_eq!(Terms::release_of(&template(json!({"version": "2"})), "version"), terms.release);
    assert_eq!(Terms::release_of(&template(json!({"app": "x"})), "version"), None);
}

// What the gate makes of it.

fn ordered(after: &[&str], more: serde_json::Value) -> Vec<interlock_core::world::Policy> {
    let mut spec = json!({"order": [{"name": "web", "after": after}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    vec![policy("p", policy_with(spec))]
}

fn reference(text: &str) -> Reference {
    text.parse().unwrap()
}

fn waiting(sim: &mut Sim) -> String {
    sim.settle();
    sim.runs[0].status.waiting_for.as_ref().map(|w| w.what.clone()).unwrap_or_default()
}

#[test]
fn a_join_waits_for_each_of_its_predecessors_and_names_those_that_lack() {
    let all = ["db", "statefulset/queue", "daemonset/agent", "job/migrate", "pods/app=x"];
    let mut sim = Sim::new(1, 2, "app:v1", ordered(&all, json!({})));
    assert_eq!(
        waiting(&mut sim),
        "waiting for predecessors: daemonset/agent does not exist; db does not exist; job/migrate does not exist; \
         pods/app=x does not exist; statefulset/queue does not exist"
    );
    sim.components.insert(reference("db"), Some(known(Standing::Deployment(deployment(1)))));
    sim.components.insert(reference("statefulset/queue"), Some(known(Standing::StatefulSet(stateful_set()))));
    sim.components.insert(reference("daemonset/agent"), Some(known(Standing::DaemonSet(daemon_set()))));
    let pods = Pods { total: 2, ready: 2, not_ready: None, changed: None };
    sim.components.insert(reference("pods/app=x"), Some(known(Standing::Pods(pods))));
    assert_eq!(waiting(&mut sim), "waiting for predecessors: job/migrate does not exist");
    assert!(sim.pods.is_empty() && sim.sets.is_empty());
    let job = Job { complete: true, ..Job::default() };
    sim.components.insert(reference("job/migrate"), Some(known(Standing::Job(job))));
    sim.settle();
    assert_eq!(sim.pods.len(), 2);
}

#[test]
fn a_gate_that_takes_too_long_stalls_and_goes_on_by_itself_when_it_opens() {
    let mut sim = Sim::new(1, 2, "app:v1", ordered(&["db"], json!({"gateTimeoutSeconds": 60})));
    turns(&mut sim, 20);
    assert_eq!(waits_for(&mut sim), "Predecessor");
    // Nothing happens any more, so the clock goes on to the end of the wait.
    sim.settle();
    assert_eq!(state(&mut sim), State::Stalled);
    let stall = sim.runs[0].status.stall.clone().unwrap();
    assert_eq!(stall.reason, "GateTimeout");
    assert!(stall.message.contains("db does not exist; that took longer than 60 seconds"), "{}", stall.message);
    sim.components.insert(reference("db"), Some(known(Standing::Deployment(deployment(1)))));
    sim.settle();
    assert_eq!(sim.pods.len(), 2);
}

#[test]
fn a_gate_that_took_too_long_is_left_by_each_decision() {
    for (action, target, born) in [
        (Action::Skip, None, 2),
        (Action::Skip, Some("gate/order"), 2),
        (Action::Retry, None, 0),
        (Action::Abort, None, 0),
    ] {
        let mut sim = Sim::new(1, 2, "app:v1", ordered(&["db"], json!({"gateTimeoutSeconds": 60})));
        sim.settle();
        assert_eq!(state(&mut sim), State::Stalled);
        sim.decide(action, target);
        turns(&mut sim, 200);
        assert_eq!(sim.pods.len(), born, "{action:?} {target:?}");
        if action == Action::Retry {
            assert_eq!(waits_for(&mut sim), "Predecessor", "its time begins anew");
            sim.settle();
            assert_eq!(state(&mut sim), State::Stalled);
        }
    }
}

#[test]
fn a_gate_that_takes_too_long_can_be_gone_through() {
    let more = json!({"gateTimeoutSeconds": 60, "onGateTimeout": "Proceed"});
    let mut sim = Sim::new(1, 2, "app:v1", ordered(&["db"], more));
    turns(&mut sim, 20);
    assert!(sim.pods.is_empty());
    sim.settle();
    assert_eq!(sim.pods.len(), 2);
}

#[test]
fn another_release_of_a_predecessor_is_waited_for() {
    let mut sim = Sim::new(1, 2, "app:v1", ordered(&["db"], json!({"sameRelease": "app"})));
    let own = sim.d.template.json()["metadata"]["labels"]["app"].as_str().unwrap().to_owned();
    let mut db = known(Standing::Deployment(deployment(1)));
    db.labels.insert("app".into(), "older".into());
    sim.components.insert(reference("db"), Some(db.clone()));
    assert_eq!(
        waiting(&mut sim),
        format!("waiting for predecessors: db is of another release, app is older and not {own}")
    );
    db.labels.insert("app".into(), own);
    sim.components.insert(reference("db"), Some(db));
    sim.settle();
    assert_eq!(sim.pods.len(), 2);
    // Nothing to compare: its own template has no such label.
    let mut sim = Sim::new(1, 2, "app:v1", ordered(&["db"], json!({"sameRelease": "none"})));
    sim.components.insert(reference("db"), Some(known(Standing::Deployment(deployment(1)))));
    sim.settle();
    assert_eq!(sim.pods.len(), 2);
}

/// Regression 28 (grafana/rollout-operator#339): the fix cannot replace crash-looping pods because "not all are Ready". A
/// component never waits for itself, for what comes after it, or for a predecessor that its own running update has passed.
#[test]
fn regression_28_a_fix_is_not_blocked_by_what_it_mends() {
    let order = json!({"order": [{"name": "web"}, {"name": "front", "after": ["web"]}]});
    let mut sim = Sim::new(1, 2, "app:v1", vec![policy("p", policy_with(order))]);
    sim.settle();
    assert_eq!(sim.pods.len(), 2);
    // What comes after it has failed; the world of web does not even know of it, and its update goes through.
    sim.set_image("app:v2");
    sim.settle();
    assert!(images(&sim).iter().all(|image| image == "app:v2"));
}

#[test]
fn what_is_taken_out_of_the_order_is_waited_for_no_longer() {
    let mut sim = Sim::new(1, 2, "app:v1", ordered(&["db"], json!({})));
    turns(&mut sim, 20);
    assert_eq!(waits_for(&mut sim), "Predecessor");
    let kept = sim.policies.clone();
    sim.policies = Vec::new();
    turns(&mut sim, 20);
    assert_eq!(waits_for(&mut sim), "Predecessor", "a policy that is gone lets nothing go");
    sim.policies = kept;
    sim.policies[0].spec = Ok(policy_with(json!({"order": [{"name": "web"}]})));
    sim.settle();
    assert_eq!(sim.pods.len(), 2);
}
