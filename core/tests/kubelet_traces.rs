//! The done rule against what a real kubelet 1.37.2 published (docs/done-rule.md): "done" at exactly the event at
//! which the wanted image really runs and is ready, in every one of the recorded updates.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // a fixture that does not parse fails the test

use std::collections::BTreeMap;

use interlock_core::{
    api::policy::Tolerance,
    pod::{Stage, carried_out, replaced, stage},
    time::Time,
    world::{Baseline, Container, ContainerState, ContainerStatus, Pod, Resources, Was},
};
use serde_json::Value;

const TRACES: &str = include_str!("data/kubelet-traces.jsonl");
/// What the container's spec said before the patch, where no update before it was recorded.
const IMAGE_BEFORE: &str = "before.test/unknown";

fn text(v: &Value, key: &str) -> String {
    v[key].as_str().unwrap_or_default().to_owned()
}

fn at(v: &Value) -> Time {
    #[allow(clippy::cast_possible_truncation)] // seconds of one recording
    Time((v.as_f64().unwrap() * 1000.0) as i64)
}

/// Digests in the recordings are cut to a few characters, so the spec's is cut to the same.
fn spec_image(case: &Value) -> String {
    let image = text(case, "specImage");
    match image.split_once("@sha256:") {
        Some((name, _)) => format!("{name}@sha256:{}", text(case, "wantedDigestPrefix")),
        None => image,
    }
}

fn state(event: &Value) -> ContainerState {
    match event["state"].as_str().unwrap() {
        "running" => ContainerState::Running { since: None },
        "waiting" => {
            let detail = text(event, "detail");
            let (reason, message) = detail.split_once(" message=").unwrap_or((&detail, ""));
            let reason = reason.strip_prefix("reason=").unwrap_or(reason);
            ContainerState::Waiting { reason: reason.into(), message: message.into() }
        }
        _ => ContainerState::Terminated(interlock_core::world::Terminated {
            id: text(event, "containerID"),
            exit_code: 0,
            reason: text(event, "detail"),
        }),
    }
}

fn status(event: &Value) -> ContainerStatus {
    ContainerStatus {
        id: text(event, "containerID"),
        image: text(event, "image"),
        image_id: text(event, "imageID"),
        ready: event["ready"].as_bool().unwrap(),
        restarts: event["restartCount"].as_i64().unwrap(),
        state: state(event),
        last: None,
    }
}

/// The update of the same pod before this one, where it was recorded.
fn earlier(case: &Value) -> Option<Value> {
    let name = text(case, "case");
    let (scenario, number) = name.split_once('/').unwrap();
    let earlier = format!("{scenario}/{}", number.parse::<i64>().unwrap() - 1);
    let cases = TRACES.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    cases.into_iter().find(|other| text(other, "case") == earlier)
}

/// What the spec said before the patch. Not every update of a pod was recorded, so the one before it may be another.
fn image_before(case: &Value) -> String {
    let before = earlier(case).map(|earlier| spec_image(&earlier)).filter(|image| *image != spec_image(case));
    before.unwrap_or_else(|| IMAGE_BEFORE.to_owned())
}

fn pod(case: &Value, event: &Value) -> Pod {
    let before = &case["before"];
    let was = status(before);
    let patched = case["patchedGeneration"].as_i64().unwrap();
    let quiet = before["generation"] == before["observedGeneration"]
        && was.ready
        && earlier(case).is_none_or(|earlier| !earlier["doneAtEvent"].is_null());
    let baseline: Baseline = serde_json::from_value(serde_json::json!({
        "target": "target", "gen": patched - 1, "at": at(&case["patchAt"]), "quiet": quiet,
        "was": {"app": Was {
            spec: image_before(case), id: was.id, image: was.image, image_id: was.image_id, restarts: was.restarts,
        }},
    }))
    .unwrap();
    let yes = |condition: &str| event[condition]["status"] == "True";
    Pod {
        name: "web".into(),
        uid: "uid".into(),
        resource_version: "1".into(),
        owner: "set".into(),
        generation: event["generation"].as_i64().unwrap(),
        observed_generation: event["observedGeneration"].as_i64().unwrap_or(0),
        created: Time(0),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        has_annotations: true,
        baseline: Some(baseline),
        containers: vec![Container {
            name: "app".into(),
            init: false,
            index: 0,
            image: spec_image(case),
            resources: Resources::default(),
            status_resources: None,
            status: Some(status(event)),
        }],
        ready: yes("readyCondition"),
        ready_since: None,
        containers_ready: yes("containersReadyCondition"),
        resize: None,
        scheduled: true,
        node: "node".into(),
        ip: String::new(),
        finalizers: vec![],
        gate: None,
    }
}

#[test]
fn done_at_exactly_the_right_event() {
    let mut cases = 0;
    for line in TRACES.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let events = case["events"].as_array().unwrap();
        let done = events.iter().position(|event| replaced(&pod(&case, event), at(&event["t"])));
        let wanted = case["doneAtEvent"].as_u64().map(|n| usize::try_from(n).unwrap());
        assert_eq!(done, wanted, "case {}", case["case"]);
        // A readiness gate may keep the pod out of service for longer.
        let finished = events.iter().position(|event| {
            stage(&pod(&case, event), false, 0, &Tolerance::default(), at(&event["t"])) == Stage::Done
        });
        assert!(finished >= done, "case {}", case["case"]);
        cases += 1;
    }
    assert_eq!(cases, 28);
}

#[test]
fn none_is_thought_to_fail_before_its_time() {
    for line in TRACES.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let patched = at(&case["patchAt"]);
        for event in case["events"].as_array().unwrap() {
            let now = at(&event["t"]);
            let stage = stage(&pod(&case, event), false, 0, &Tolerance::default(), now);
            if let Stage::Moving { failing: Some(why), .. } = stage {
                assert!(now.millis_since(patched) >= 10_000, "case {}: {why}", case["case"]);
                assert_eq!(case["doneAtEvent"], Value::Null, "case {}: {why}", case["case"]);
            }
        }
    }
}

/// Seen on a real node: an image that fails, then one whose digest the node knows under another name, which the kubelet
/// shows. The second change has to be judged by itself, or it is never done.
#[test]
fn a_change_that_has_failed_is_not_in_flight() {
    let cases: Vec<Value> = TRACES.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let bad = cases.iter().find(|c| c["case"] == "b-ii/6").unwrap();
    let seen: Vec<bool> =
        bad["events"].as_array().unwrap().iter().map(|e| carried_out(&pod(bad, e), at(&e["t"]))).collect();
    assert_eq!(seen, [false, false, true, true, true, true, true, true], "from ErrImagePull on");
    // A change that is done was carried out, and one that has only been acknowledged was not.
    for case in &cases {
        let events = case["events"].as_array().unwrap();
        if let Some(done) = case["doneAtEvent"].as_u64() {
            let event = &events[usize::try_from(done).unwrap()];
            assert!(carried_out(&pod(case, event), at(&event["t"])), "case {}", case["case"]);
        }
        assert!(!carried_out(&pod(case, &events[0]), at(&events[0]["t"])), "case {}", case["case"]);
    }

    let good = cases.iter().find(|c| c["case"] == "b-ii/7").unwrap();
    let last = &good["events"][3];
    let mut fixed = pod(good, last);
    fixed.containers[0].image = "app:v2".into();
    let status = fixed.containers[0].status.as_mut().unwrap();
    (status.image, status.image_id) = ("a.test/known:v2".into(), "a.test/known@sha256:206030".into());
    for quiet in [false, true] {
        fixed.baseline.as_mut().unwrap().quiet = quiet;
        assert_eq!(replaced(&fixed, at(&last["t"])), quiet);
    }
    // But what shows the image of the change before is not the one that is wanted.
    fixed.containers[0].status.as_mut().unwrap().image = "app:nope".into();
    assert!(!replaced(&fixed, at(&last["t"])));
}

/// After a correcting patch the status says why the image before could not be pulled until the kubelet has tried the
/// new one: 16 ms in the recording, more than 3 s on a busy node, where an update was frozen for it.
#[test]
fn the_reason_of_the_image_before_is_no_evidence_however_long_it_stands() {
    let case = TRACES.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).find(|c| c["case"] == "b-ii/7");
    let case = case.unwrap();
    let acknowledged = &case["events"][1];
    assert!(text(acknowledged, "detail").contains("app:nope") && acknowledged["observedGeneration"] == 3);
    let an_hour = at(&acknowledged["t"]).plus_seconds(3600);
    let tolerance = Tolerance { seconds: 0, restarts: 0 };
    let still = stage(&pod(&case, acknowledged), false, 0, &tolerance, an_hour);
    assert_eq!(still, Stage::Moving { wake: None, failing: None });
    // The same words about the new image are believed.
    let mut wrong = case.clone();
    wrong["specImage"] = "app:nope".into();
    let failing = stage(&pod(&wrong, acknowledged), false, 0, &tolerance, an_hour);
    assert!(matches!(failing, Stage::Moving { failing: Some(_), .. }), "{failing:?}");
}
