use super::{
    super::fixture::{deployment, ended, fact, held, replica_set, run, stalled, template, waits},
    *,
};

fn image(goal: &Goal) -> &str {
    goal.template.json()["spec"]["containers"][0]["image"].as_str().unwrap()
}

#[test]
fn while_held_it_goes_to_what_the_run_started_from() {
    let sets = [replica_set(1, "web:0", 3), replica_set(2, "web:old", 0)];
    for status in [waits("Predecessor", "x"), stalled("PodFailing"), ended("Aborted")] {
        let goal = goal(&fact(&held("web:1")), &sets, &[run(1, "web:1", &status)], None).unwrap();
        assert_eq!((image(&goal), goal.cause.as_deref()), ("web:0", Some("first")));
    }
}

#[test]
fn held_without_a_run_it_goes_to_what_runs() {
    let sets = [replica_set(1, "web:old", 0), replica_set(2, "web:0", 3), replica_set(3, "web:x", 0)];
    assert_eq!(image(&goal(&fact(&held("web:1")), &sets, &[], None).unwrap()), "web:0");
    assert!(goal(&fact(&held("web:1")), &[], &[], None).unwrap_err().contains("never run another template"));
}

#[test]
fn at_rest_it_goes_to_the_revision_before() {
    let sets = [replica_set(1, "web:0", 0), replica_set(3, "web:1", 3), replica_set(2, "web:x", 0)];
    let over = [run(1, "web:1", &ended("Succeeded"))];
    let goal_ = goal(&fact(&deployment("web:1")), &sets, &over, None).unwrap();
    assert_eq!((image(&goal_), goal_.what.as_str(), goal_.cause.as_deref()), ("web:x", "revision 2", Some("cause 2")));
    let goal_ = goal(&fact(&deployment("web:1")), &sets, &over, Some(1)).unwrap();
    assert_eq!(image(&goal_), "web:0");
    let error = goal(&fact(&deployment("web:1")), &sets, &over, Some(7)).unwrap_err();
    assert_eq!(error, "there is no revision 7; there are: 1, 2, 3");
    assert!(goal(&fact(&deployment("web:1")), &sets[1..2], &[], None).unwrap_err().contains("no other revision"));
}

#[test]
fn the_patch_replaces_the_template_of_exactly_what_was_read() {
    let goal = Goal { template: Template::new(template("web:0")), what: String::new(), cause: Some("first".into()) };
    let patch = serde_json::to_value(patch(&fact(&deployment("web:1")), &goal).unwrap()).unwrap();
    assert_eq!(
        patch,
        json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "replace", "path": "/spec/template", "value": template("web:0")},
            {"op": "add", "path": "/metadata/annotations/kubernetes.io~1change-cause", "value": "first"},
        ])
    );
}
