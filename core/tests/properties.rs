//! Properties of the pure functions: total on any content, and classification agrees with what patches do.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod sim;

use interlock_core::{
    classify::{Class, classify},
    effect::Effect,
    image,
    lint::lint,
    plan::{Plan, plan},
    pod::{Target, available_at, replaced},
    template::Template,
    time::Time,
    world::{ContainerState, Pod, Resize, World},
};
use proptest::prelude::*;
use serde_json::{Value, json};
use sim::{Sim, plain_policy, policy};

fn odd_text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just("app".into()), Just("web".into()), "[a-z@:/.*~-]{0,12}", any::<String>()]
}

fn odd_number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(1), Just(-1), Just(i64::MAX), Just(i64::MIN), 0..6_i64, any::<i64>()]
}

/// One change of a world: which field, a text, a number.
fn damage() -> impl Strategy<Value = (usize, usize, String, i64)> {
    (0..44_usize, 0..8_usize, odd_text(), odd_number())
}

fn json_of(text: &str, number: i64) -> Template {
    let odd = [
        json!(null),
        json!(text),
        json!({"spec": text}),
        json!({"spec": {"containers": text}}),
        json!({"spec": {"containers": [text, number, null, {"name": number}, {"name": text, "image": number}]}}),
        json!({"metadata": {"labels": text, "annotations": [text]}, "spec": {"initContainers": [{"restartPolicy": "Always", "name": text, "image": text}]}}),
        json!({"spec": {"containers": [{"name": "app", "image": text, "resources": {"limits": {"cpu": number, text: text}, "requests": text}}]}}),
    ];
    let index = usize::try_from(number.unsigned_abs() % odd.len() as u64).unwrap();
    Template::new(odd[index].clone())
}

fn break_world(w: &mut World, (field, index, text, number): &(usize, usize, String, i64)) {
    let (text, number) = (text.clone(), *number);
    let d = &mut w.deployment;
    let n = *index;
    match field {
        0 => d.replicas = number,
        1 => d.generation = number,
        2 => d.min_ready_seconds = number,
        3 => d.history_limit = number,
        4 => d.name = text,
        5 => d.uid = text,
        6 => d.resource_version = text,
        7 => d.template = json_of(&text, number),
        8 => d.status.updated = number,
        9 => d.status.observed_generation = number,
        10 => d.paused = !d.paused,
        11 => d.deleting = number == 0,
        12 => {
            d.annotations.insert("interlock.dev/held-by".into(), text);
        }
        13 => {
            d.annotations.insert("interlock.dev/resume".into(), text);
        }
        14 => d.own_hooks = Some(Err(text)),
        15 => d.own_after = Some(vec![text]),
        16 => d.max_unavailable = Some(interlock_core::api::policy::IntOrPercent::Percent(format!("{number}%"))),
        17 => d.max_unavailable = Some(interlock_core::api::policy::IntOrPercent::Int(number)),
        18 => w.now = Time(number),
        19 => w.policies.clear(),
        20 => w.runs.clear(),
        21 => w.pods.clear(),
        22 => w.replica_sets.clear(),
        23 => w.live = !w.live,
        24 => w.policies.iter_mut().for_each(|p| p.spec = Err(text.clone())),
        25..=31 => {
            let count = w.replica_sets.len().max(1);
            let Some(s) = w.replica_sets.get_mut(n % count) else { return };
            match field {
                25 => s.replicas = number,
                26 => s.created = Time(number),
                27 => s.template = json_of(&text, number),
                28 => s.name = text,
                29 => {
                    s.annotations.insert("deployment.kubernetes.io/revision".into(), number.to_string());
                }
                30 => s.generation = number,
                _ => s.hash_label = text,
            }
        }
        32..=38 => {
            let count = w.pods.len().max(1);
            let Some(p) = w.pods.get_mut(n % count) else { return };
            match field {
                32 => p.generation = number,
                33 => p.observed_generation = number,
                34 => p.ready = !p.ready,
                35 => p.containers.clear(),
                36 if n.is_multiple_of(2) => p.resize = Some(Resize::Infeasible(text)),
                36 => (p.gate, p.finalizers) = ([None, Some(true), Some(false)][n % 3], vec![text]),
                37 => p.owner = text,
                _ => {
                    if let Some(b) = &mut p.baseline {
                        (b.generation, b.at, b.target) = (number, Time(number), text.clone());
                    }
                    for c in &mut p.containers {
                        if let Some(s) = &mut c.status {
                            s.restarts = number;
                            s.image = text.clone();
                            s.state = ContainerState::Waiting { reason: text.clone(), message: text.clone() };
                        }
                    }
                }
            }
        }
        _ => {
            let Some(r) = w.runs.first_mut() else { return };
            match field {
                39 => r.spec.sequence = number,
                40 => r.spec.settings.update.progress_deadline_seconds = number,
                41 => r.spec.settings.max_hold_seconds = number,
                42 => r.spec.settings.update.partition = number,
                _ => {
                    for step in &mut r.status.steps {
                        (step.attempt, step.started_at) = (number, Time(number));
                        match n % 4 {
                            0 => step.pod_uid = Some(text.clone()),
                            1 => (step.pod_uid, step.failure) = (None, Some(number)),
                            2 => step.outcome = None,
                            _ => step.hook = text.clone(),
                        }
                    }
                    r.status.failures = number;
                    r.status.pod_hooks_done = vec![text; n % 3];
                    if let Some(p) = &mut r.status.progress {
                        (p.best, p.at) = (number, Time(number));
                    }
                }
            }
        }
    }
}

/// Pods that are well are only taken while enough others stay: never more than the most generous setting allows.
fn within_budget(w: &World, plan: &Plan) -> bool {
    let images = |patch: &Value| {
        let restarts = |o: &Value| o["op"] == "replace" && o["path"].as_str().is_some_and(|p| p.ends_with("/image"));
        patch.as_array().is_some_and(|operations| operations.iter().any(restarts))
    };
    let patched = plan.effects.iter().filter_map(|e| match e {
        Effect::PatchPod { name, patch } if images(patch) => Some(name),
        _ => None,
    });
    let d = &w.deployment;
    let well = |p: &Pod| replaced(p, w.now) && available_at(p, d.min_ready_seconds).is_some_and(|at| at <= w.now);
    let taken = patched.filter(|n| w.pods.iter().any(|p| p.name == **n && well(p))).count();
    let policies = w.policies.iter().filter_map(|p| p.spec.as_ref().ok()).map(|s| &s.update.max_unavailable);
    let runs = w.runs.iter().map(|r| &r.spec.settings.update.max_unavailable);
    let all = policies.chain(runs).chain([&d.max_unavailable]).flatten();
    let most = all.filter_map(|m| m.of(d.replicas)).chain([d.replicas / 4, 1]).max().unwrap();
    let left = w.pods.iter().filter(|p| well(p)).count() - taken;
    taken == 0 || i64::try_from(left).unwrap() >= d.replicas.saturating_sub(most)
}

/// Worlds from the middle of an update.
fn worlds() -> Vec<World> {
    let hooks = json!([
        {"name": "pre", "phase": "PreUpdate", "http": {"url": "http://hook.test/"}},
        {"name": "post", "phase": "PostUpdate", "wait": {"seconds": 3}}]);
    let spec = sim::policy_with(json!({"hooks": hooks, "update": {"maxUnavailable": 1, "inPlaceMetadata": ["*"]}}));
    let more = json!([
        {"name": "before", "phase": "PrePod", "http": {"url": "http://hook.test/"}},
        {"name": "keep", "phase": "PrePod", "podGate": {"labels": {"keep": "yes"}, "markPodNotReady": true}},
        {"name": "ok", "phase": "PrePod", "approval": {"timeoutSeconds": 2, "onTimeout": "Approve"}},
        {"name": "after", "phase": "PostPod", "http": {"url": "http://hook.test/"}},
        {"name": "tell", "phase": "OnFailure", "http": {"url": "http://hook.test/"}}]);
    let update = json!({"maxUnavailable": 1, "drain": {"readinessGate": true, "seconds": 1}});
    let pods = sim::policy_with(json!({"hooks": more, "update": update}));
    let mut all = Vec::new();
    for (image, spec) in [("app:v2", &spec), ("app:bad-crash", &spec), ("app:v2", &pods), ("app:bad-crash", &pods)] {
        let mut sim = Sim::new(7, 3, "app:v1", vec![policy("p", spec.clone())]);
        (sim.gated, sim.keeper) = (true, Some(("keep".into(), "yes".into())));
        sim.settle();
        sim.later(60);
        all.push(sim.world(true));
        sim.set_image(image);
        for _ in 0..60 {
            sim.turn();
            sim.now = sim.now.plus_millis(300);
            sim.look();
            all.push(sim.world(all.len() % 2 == 0));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_plan_is_total(which in any::<prop::sample::Index>(), harm in prop::collection::vec(damage(), 0..6)) {
        std::thread_local!(static WORLDS: Vec<World> = worlds());
        let mut world = WORLDS.with(|all| all[which.index(all.len())].clone());
        for one in &harm {
            break_world(&mut world, one);
        }
        let first = plan(&world);
        prop_assert_eq!(&first, &plan(&world));
        let mut turned = world.clone();
        turned.pods.reverse();
        turned.replica_sets.reverse();
        turned.runs.reverse();
        // Names and UIDs that are not unique are no cluster's.
        let unique = |names: Vec<&String>| names.iter().collect::<std::collections::BTreeSet<_>>().len() == names.len();
        if unique(world.replica_sets.iter().map(|s| &s.name).collect()) {
            prop_assert_eq!(lint(&world, &first), Vec::<String>::new());
            prop_assert!(within_budget(&world, &first), "{:?}", first);
            prop_assert_eq!(first, plan(&turned));
        }
    }

    #[test]
    fn images_normalise_once(text in odd_text()) {
        let once = image::normalise(&text);
        prop_assert_eq!(image::normalise(&once), once);
    }

    #[test]
    fn classification_is_empty_for_equal_templates_only(a in template_strategy(), b in template_strategy()) {
        let changes = classify(&a, &b, &["note".into()]);
        prop_assert_eq!(changes.is_empty(), a == b, "{:?}", changes);
        prop_assert!(classify(&a, &a, &[]).is_empty());
    }

    /// What is in place becomes true by patches alone: afterwards nothing differs.
    #[test]
    fn patches_do_what_classification_promises((a, b) in like_templates()) {
        let patterns = ["note".to_owned(), "tier".to_owned()];
        let changes = classify(&a, &b, &patterns);
        prop_assume!(changes.iter().all(|c| matches!(c.class, Class::Image | Class::Metadata)));
        let mut sim = Sim::new(3, 1, "app:v1", vec![policy("p", plain_policy())]);
        sim.d.template = a.clone();
        sim.authorised.insert(a.hash().to_owned());
        sim.settle();
        let pod = sim.pods[0].pod.clone();
        let at_home = Target::new(&a, None, [&a, &b].into_iter(), &patterns);
        prop_assert!(at_home.difference(&pod).is_empty());
        let target = Target::new(&b, Some(&a), [&a, &b].into_iter(), &patterns);
        prop_assert_eq!(target.difference(&pod).is_empty(), a == b);
        let spec = sim::policy_with(json!({"update": {"inPlaceMetadata": patterns}}));
        sim.policies = vec![policy("p", spec)];
        sim.set_template(b.clone());
        sim.settle();
        prop_assert_eq!(sim.created, 1, "{}", sim.story());
        let pod = &sim.pods[0];
        prop_assert!(target.difference(&pod.pod).is_empty());
        let (labels, annotations) = interlock_core::classify::metadata(&b);
        let mut labels = labels;
        labels.extend(pod.pod.labels.get("pod-template-hash").map(|h| ("pod-template-hash".to_owned(), h.clone())));
        prop_assert_eq!(&pod.pod.labels, &labels);
        prop_assert_eq!(&pod.pod.annotations, &annotations);
        // As raw JSON: what the patches have made of the pod and of its ReplicaSet is what a new one would be.
        prop_assert_eq!(&pod.spec, &b.json()["spec"]);
        prop_assert_eq!(sim.sets.iter().find(|s| s.replicas == 1).unwrap().template.json(), b.json());
    }
}

/// Two templates that differ in what may go in place, nearly always.
fn like_templates() -> impl Strategy<Value = (Template, Template)> {
    let image = || prop_oneof![Just("app:v1"), Just("app:v2"), Just("r.test/app@sha256:ab")];
    (template_strategy(), image(), image(), prop::option::of(0..2_u8), prop::option::of(0..2_u8)).prop_map(
        |(a, app, side, note, tier)| {
            let mut b = a.json().clone();
            b["spec"]["containers"][0]["image"] = Value::from(app);
            if let Some(container) = b["spec"]["containers"].get_mut(1) {
                container["image"] = Value::from(side);
            }
            if let Some(metadata) = b["metadata"].as_object_mut() {
                metadata.remove("annotations");
                metadata["labels"] = json!({"app": "web"});
            }
            if let Some(note) = note {
                b["metadata"]["annotations"] = json!({"note": note.to_string()});
            }
            if let Some(tier) = tier {
                b["metadata"]["labels"]["tier"] = Value::from(tier.to_string());
            }
            (a, Template::new(b))
        },
    )
}

fn template_strategy() -> impl Strategy<Value = Template> {
    let image = prop_oneof![Just("app:v1"), Just("app:v2"), Just("r.test/app@sha256:ab")];
    let side = prop_oneof![Just(None), Just(Some("side:v1")), Just(Some("side:v2"))];
    let init = prop_oneof![
        Just(None),
        Just(Some(("init:v1", false))),
        Just(Some(("init:v1", true))),
        Just(Some(("init:v2", true)))
    ];
    (image, side, init, prop::option::of(0..2_u8), prop::option::of(0..2_u8), prop::option::of(0..2_u8)).prop_map(
        |(image, side, init, note, tier, env)| {
            // A field that nobody here knows, as a newer server would serve it.
            let mut app = json!({"name": "app", "image": image, "newField": {"deep": [1, 2]}});
            if let Some(env) = env {
                app["env"] = json!([{"name": "K", "value": env.to_string()}]);
            }
            let mut containers = vec![app];
            containers.extend(side.map(|s| json!({"name": "side", "image": s})));
            let mut template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}});
            if let Some((image, restarts)) = init {
                let mut c = json!({"name": "init", "image": image});
                if restarts {
                    c["restartPolicy"] = Value::from("Always");
                }
                template["spec"]["initContainers"] = json!([c]);
            }
            if let Some(note) = note {
                template["metadata"]["annotations"] = json!({"note": note.to_string()});
            }
            if let Some(tier) = tier {
                template["metadata"]["labels"]["tier"] = Value::from(tier.to_string());
            }
            Template::new(template)
        },
    )
}
