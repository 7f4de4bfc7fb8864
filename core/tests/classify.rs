//! Which way each kind of change goes.

use interlock_core::{
    classify::{Class, classify},
    template::Template,
};
use serde_json::{Value, json};

fn base() -> Value {
    json!({
        "metadata": {"labels": {"app": "a", "app.kubernetes.io/version": "1"}, "annotations": {"checksum/config": "1", "note": "x"}},
        "spec": {
            "initContainers": [
                {"name": "setup", "image": "setup:v1"},
                {"name": "side", "image": "side:v1", "restartPolicy": "Always"},
            ],
            "containers": [
                {"name": "app", "image": "app:v1", "env": [{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app.kubernetes.io/version']"}}}],
                 "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m"}}},
                {"name": "log", "image": "log:v1"},
            ],
        },
    })
}

fn classes(change: impl Fn(&mut Value), patterns: &[&str]) -> Vec<(String, Class)> {
    let mut new = base();
    change(&mut new);
    let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
    classify(&Template::new(base()), &Template::new(new), &patterns).into_iter().map(|c| (c.path, c.class)).collect()
}

fn one(change: impl Fn(&mut Value), patterns: &[&str]) -> (String, Class) {
    let all = classes(change, patterns);
    assert_eq!(all.len(), 1, "{all:?}");
    all.into_iter().next().unwrap()
}

#[test]
fn images_go_in_place_where_a_container_restarts() {
    assert_eq!(
        one(|t| t["spec"]["containers"][0]["image"] = json!("app:v2"), &[]),
        ("spec.containers[app].image".into(), Class::Image)
    );
    assert_eq!(
        one(|t| t["spec"]["initContainers"][1]["image"] = json!("side:v2"), &[]),
        ("spec.initContainers[side].image".into(), Class::Image)
    );
}

/// vllm-project/aibrix#2402: an init container's image patched in place leaves the pod stuck.
#[test]
fn aibrix_2402_init_container_images_need_new_pods() {
    assert_eq!(
        one(|t| t["spec"]["initContainers"][0]["image"] = json!("setup:v2"), &[]),
        ("spec.initContainers[setup].image".into(), Class::Recreate)
    );
}

#[test]
fn cpu_and_memory_resize_while_the_qos_class_stays() {
    assert_eq!(
        one(|t| t["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("300m"), &[]),
        ("spec.containers[app].resources.limits.cpu".into(), Class::Resize)
    );
    let gone =
        one(|t| drop(t["spec"]["containers"][0]["resources"]["limits"].as_object_mut().unwrap().remove("cpu")), &[]);
    assert_eq!(gone.1, Class::Recreate);
    let best_effort = classes(|t| drop(t["spec"]["containers"][0].as_object_mut().unwrap().remove("resources")), &[]);
    assert!(best_effort.iter().all(|(_, class)| *class == Class::Recreate), "{best_effort:?}");
    assert_eq!(
        one(|t| t["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!("1"), &[]).1,
        Class::Recreate
    );
}

#[test]
fn metadata_goes_in_place_only_where_it_is_listed_and_nobody_reads_it_as_environment() {
    let annotation = |t: &mut Value| t["metadata"]["annotations"]["checksum/config"] = json!("2");
    assert_eq!(one(annotation, &[]).1, Class::Recreate);
    assert_eq!(one(annotation, &["checksum/*"]).1, Class::Metadata);
    let version = |t: &mut Value| t["metadata"]["labels"]["app.kubernetes.io/version"] = json!("2");
    assert_eq!(one(version, &["app.kubernetes.io/*"]).1, Class::Recreate, "app reads it and does not restart");
    let both = classes(
        |t| {
            version(t);
            t["spec"]["containers"][0]["image"] = json!("app:v2");
        },
        &["app.kubernetes.io/*"],
    );
    assert!(both.iter().all(|(_, class)| *class != Class::Recreate), "{both:?}");
    let gone = classes(|t| drop(t["metadata"].as_object_mut().unwrap().remove("annotations")), &["*"]);
    assert!(gone.len() == 2 && gone.iter().all(|(_, class)| *class == Class::Metadata), "{gone:?}");
}

#[test]
fn everything_else_needs_new_pods_also_what_this_program_does_not_know() {
    for change in [
        (|t: &mut Value| t["spec"]["containers"][0]["env"][0]["name"] = json!("W")) as fn(&mut Value),
        |t| t["spec"]["containers"][1]["futureField"] = json!({"a": 1}),
        |t| t["spec"]["futureField"] = json!(false),
        |t| t["spec"]["containers"][1]["imagePullPolicy"] = json!("Always"),
        |t| t["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "new", "image": "n:v1"})),
        |t| t["spec"]["containers"].as_array_mut().unwrap().reverse(),
        |t| t["spec"]["containers"][1]["name"] = json!("app"),
        |t| t["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]),
        |t| drop(t["spec"]["containers"][1].as_object_mut().unwrap().remove("image")),
    ] {
        let mut new = base();
        change(&mut new);
        let changes = classify(&Template::new(base()), &Template::new(new.clone()), &["*".to_owned()]);
        assert!(changes.iter().any(|c| c.class == Class::Recreate && !c.why.is_empty()), "{new}");
    }
    assert!(classify(&Template::new(base()), &Template::new(base()), &[]).is_empty());
    for odd in [
        json!(null),
        json!([]),
        json!({"spec": 7}),
        json!({"spec": {"containers": [1, null, "x"]}}),
        json!({"metadata": []}),
    ] {
        let _ = classify(&Template::new(odd.clone()), &Template::new(base()), &[]);
        let _ = classify(&Template::new(base()), &Template::new(odd), &[]);
    }
}
