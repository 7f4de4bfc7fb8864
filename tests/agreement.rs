//! Selection and trigger exist twice: in CEL (`deploy/hold.yaml`) and in Rust (`core/src/select.rs`). Some hundred generated
//! cases go through the real API server, and both must give the same verdict: held or not, and by whom.

#[path = "agreement/hooks.rs"]
mod hooks;
#[path = "admission/place.rs"]
#[allow(dead_code, reason = "shared with the admission tests")]
mod place;

use std::collections::BTreeMap;

use futures::{StreamExt as _, stream};
use interlock::install::release_patch;
use interlock_core::{
    api::policy::HookPolicySpec,
    select::{Meta, Side, verdict},
    template::Template,
};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use place::{Place, annotation, in_force, until};

/// Namespaces, each with a set of policies of its own.
const SETS: u64 = 24;
/// Deployments per set.
const DEPLOYMENTS: u64 = 4;
/// Births tried per Deployment.
const BIRTHS: u64 = 2;
/// Updates tried per Deployment.
const WRITES: u64 = 6;

/// A small generator of numbers: the same cases on every machine, and a case can be told by its seed.
struct Dice(u64);

impl Dice {
    /// 0 to `n` - 1.
    fn roll(&mut self, n: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }
    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[usize::try_from(self.roll(of.len() as u64)).unwrap()]
    }
    fn some<'a>(&mut self, of: &[&'a str]) -> Vec<&'a str> {
        let mut chosen: Vec<_> = of.iter().copied().filter(|_| self.one_in(2)).collect();
        if chosen.is_empty() {
            chosen.push(self.pick(of));
        }
        chosen
    }
}

const NAMES: [&str; 4] = ["a", "b", "a-b", "web"];
const KEYS: [&str; 3] = ["k", "l", "example.com/m"];
const VALUES: [&str; 3] = ["", "x", "y"];
const CONTAINERS: [&str; 3] = ["app", "side", "setup"];
const POLICIES: [&str; 4] = ["p", "a", "z", "b-2"];

fn labels(dice: &mut Dice) -> BTreeMap<&'static str, &'static str> {
    KEYS.into_iter()
        .filter(|_| dice.one_in(2))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|k| (k, dice.pick(&VALUES)))
        .collect()
}

fn policy(dice: &mut Dice, namespace: &str) -> Value {
    let mut spec = json!({"enforcement": dice.pick(&["Hold", "Hold", "Hold", "Audit", "Off"])});
    if !dice.one_in(4) {
        let mut selector = json!({});
        if dice.one_in(2) {
            let mut terms = Vec::new();
            for _ in 0..=dice.roll(2) {
                let operator = dice.pick(&["=", "==", "!=", " = ", " != "]);
                terms.push(if dice.one_in(4) {
                    format!("metadata.namespace{operator}{}", dice.pick(&[namespace, "elsewhere"]))
                } else {
                    format!("metadata.name{operator}{}", dice.pick(&NAMES))
                });
            }
            selector["fieldSelector"] = json!(terms.join(dice.pick(&[",", " , "])));
        }
        if dice.one_in(3) {
            selector["matchLabels"] = json!(labels(dice));
        }
        if dice.one_in(3) {
            let requirement = match dice.pick(&["In", "NotIn", "Exists", "DoesNotExist"]) {
                operator @ ("In" | "NotIn") => {
                    json!({"key": dice.pick(&KEYS), "operator": operator, "values": dice.some(&VALUES)})
                }
                operator => json!({"key": dice.pick(&KEYS), "operator": operator}),
            };
            selector["matchExpressions"] = json!([requirement]);
        }
        if selector.as_object().unwrap().is_empty() {
            selector["matchLabels"] = json!({});
        }
        spec["selector"] = selector;
    }
    if dice.one_in(3) {
        let members: Vec<_> = dice.some(&NAMES);
        spec["order"] = members
            .into_iter()
            .map(|name| if dice.one_in(2) { json!({"name": name}) } else { json!({"name": name, "after": ["q"]}) })
            .collect();
    }
    if dice.one_in(2) {
        let mut trigger = json!({});
        for (part, of) in [("labels", &KEYS), ("annotations", &KEYS), ("containers", &CONTAINERS)] {
            if dice.one_in(2) {
                trigger[part] = json!(dice.some(of));
            }
        }
        if !trigger.as_object().unwrap().is_empty() {
            spec["trigger"] = trigger;
        }
    }
    spec
}

fn metadata(dice: &mut Dice, name: &str) -> Value {
    let mut metadata = json!({"name": name});
    let own = labels(dice);
    if !own.is_empty() {
        metadata["labels"] = json!(own);
    }
    let mut annotations = json!({});
    if dice.one_in(4) {
        annotations["interlock.dev/policy"] = json!(dice.pick(&POLICIES));
    }
    if dice.one_in(6) {
        annotations["interlock.dev/hooks"] = json!("[]");
    }
    if dice.one_in(8) {
        annotations["interlock.dev/after"] = json!("q");
    }
    if dice.one_in(8) {
        // Copies of marks, as an undo brings them back.
        annotations["interlock.dev/held-by"] = json!("p");
        annotations["interlock.dev/held-at"] = json!("99");
    }
    if !annotations.as_object().unwrap().is_empty() {
        metadata["annotations"] = annotations;
    }
    metadata
}

fn template(dice: &mut Dice) -> Value {
    let mut template = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": []}});
    for (key, value) in labels(dice) {
        template["metadata"]["labels"][key] = json!(value);
    }
    if dice.one_in(2) {
        template["metadata"]["annotations"] = json!(labels(dice));
    }
    let mut containers = vec![json!({"name": "app", "image": dice.pick(&["app:1", "app:2"])})];
    if dice.one_in(2) {
        containers.push(json!({"name": "side", "image": dice.pick(&["side:1", "side:2"])}));
    }
    if dice.one_in(4) {
        containers.reverse();
    }
    template["spec"]["containers"] = json!(containers);
    if dice.one_in(3) {
        template["spec"]["initContainers"] = json!([{"name": "setup", "image": dice.pick(&["s:1", "s:2"])}]);
    }
    template
}

fn object(metadata: &Value, template: &Value, paused: bool) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {"replicas": 0, "paused": paused, "selector": {"matchLabels": {"app": "x"}}, "template": template},
    })
}

/// A Deployment as far as the verdict asks for it.
struct Facts {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    paused: bool,
    template: Template,
}

impl Facts {
    fn of(object: &Value) -> Self {
        let map = |pointer| serde_json::from_value(object.pointer(pointer).cloned().unwrap_or(json!({}))).unwrap();
        Self {
            labels: map("/metadata/labels"),
            annotations: map("/metadata/annotations"),
            paused: object.pointer("/spec/paused").and_then(Value::as_bool).unwrap_or_default(),
            template: Template::new(object.pointer("/spec/template").cloned().unwrap()),
        }
    }

    fn side(&self) -> Side<'_> {
        let meta = Meta { labels: &self.labels, annotations: &self.annotations };
        Side { meta, paused: self.paused, template: &self.template }
    }
}

/// Stores the policies of a set in a namespace of its own.
async fn prepare(set: u64) -> (Place, BTreeMap<&'static str, HookPolicySpec>) {
    let place = Place::new().await;
    let dice = &mut Dice(set);
    let mut policies = BTreeMap::new();
    for name in &POLICIES[..usize::try_from(1 + dice.roll(4)).unwrap()] {
        let spec = policy(dice, &place.namespace);
        place.try_policy(&place.admin, name, spec).await.unwrap();
        // As stored, so with the defaults of the API server.
        policies.insert(*name, place.policies(&place.admin).get(name).await.unwrap().spec);
    }
    (place, policies)
}

/// Runs the cases of one set and returns how many there were and how many were held.
async fn cases(seed: u64, place: &Place, policies: &BTreeMap<&'static str, HookPolicySpec>) -> (u64, u64) {
    let by_name = || policies.iter().map(|(name, spec)| (*name, spec));
    let dice = &mut Dice(seed ^ 0xdead_beef);
    let (mut count, mut held) = (0, 0);
    for index in 0..DEPLOYMENTS {
        let name = NAMES[usize::try_from(index).unwrap()];
        let paused = dice.one_in(4);
        let first = object(&metadata(dice, name), &template(dice), paused);
        let mut check = |what: &str,
                         old: Option<&Facts>,
                         sent: &Value,
                         after: &k8s_openapi::api::apps::v1::Deployment| {
            // What the API server completes in a template is the same on both sides.
            let after_json = serde_json::to_value(after).unwrap();
            let new = Facts { template: Facts::of(&after_json).template, ..Facts::of(sent) };
            let expected = verdict(by_name(), &place.namespace, name, old.map(Facts::side), new.side(), false);
            let paused = after.spec.paused.unwrap_or_default();
            // A pause and marks that the write brought along itself are not the hold's.
            let found = annotation(after, "interlock.dev/held-by").map(str::to_owned).filter(|_| paused);
            let found = if expected.is_none()
                && new.paused
                && new.side().meta.annotations.contains_key("interlock.dev/held-by")
            {
                None
            } else {
                found
            };
            assert_eq!(
                found,
                expected,
                "set {seed}, {what} of {name}: the API server says {found:?}, Rust {expected:?}\npolicies: {}\nold: {}\nsent: {sent}",
                serde_json::to_string(policies).unwrap(),
                old.map_or_else(String::new, |old| format!(
                    "{:?} {:?} {} {}",
                    old.labels,
                    old.annotations,
                    old.paused,
                    old.template.json()
                )),
            );
            count += 1;
            held += u64::from(expected.is_some());
        };
        let dry = PostParams { dry_run: true, field_manager: None };
        for _ in 0..BIRTHS {
            let sent = object(&metadata(dice, name), &template(dice), dice.one_in(4));
            let typed = serde_json::from_value(sent.clone()).unwrap();
            check("birth", None, &sent, &place.deployments(&place.dev).create(&dry, &typed).await.unwrap());
        }
        let born = place.create_from(first.clone()).await;
        check("real birth", None, &first, &born);
        for _ in 0..WRITES {
            // The Deployment controller may write between a look and the attempt, but it changes nothing that counts here.
            let old = serde_json::to_value(place.get(name).await).unwrap();
            let facts = Facts::of(&old);
            let meta = if dice.one_in(2) { metadata(dice, name) } else { first["metadata"].clone() };
            let template = if dice.one_in(4) { old["spec"]["template"].clone() } else { template(dice) };
            let mut sent = object(&meta, &template, dice.one_in(4));
            let mut body = old.clone();
            for (part, key) in [("metadata", "labels"), ("metadata", "annotations")] {
                body[part][key] = sent[part].get(key).cloned().unwrap_or(json!({}));
            }
            body["metadata"].as_object_mut().unwrap().remove("resourceVersion");
            body["spec"]["template"] = sent["spec"]["template"].clone();
            body["spec"]["paused"] = sent["spec"]["paused"].clone();
            sent["metadata"] = body["metadata"].clone();
            let typed = serde_json::from_value(body).unwrap();
            let after = place.deployments(&place.dev).replace(name, &dry, &typed).await.unwrap();
            check("update", Some(&facts), &sent, &after);
        }
    }
    (count, held)
}

#[tokio::test]
async fn cel_and_rust_give_the_same_verdict() {
    let sets: Vec<_> = stream::iter(0..SETS).map(prepare).buffered(8).collect().await;
    let admin = sets[0].0.admin.clone();
    in_force(&admin).await;
    let results: Vec<_> = stream::iter(sets.iter().zip(0..))
        .map(|((place, policies), set)| cases(set, place, policies))
        .buffer_unordered(8)
        .collect()
        .await;
    let (count, held) = results.into_iter().fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    println!("{count} cases, {held} of them held");
    assert!(count >= 500, "only {count} cases");
    assert!(
        held * 5 > count && held * 5 < count * 4,
        "{held} of {count} held: the cases no longer tell both ways apart"
    );
}

/// The same for what is held already, released or not: real writes, one after the other.
#[tokio::test]
async fn a_hold_ends_in_cel_when_rust_says_so() {
    let place = Place::new().await;
    let spec: HookPolicySpec = serde_json::from_value(json!({"selector": {"matchLabels": {}}})).unwrap();
    place.policy("p", json!({"selector": {"matchLabels": {}}})).await;
    let mut held = 0;
    for seed in 0..12_u64 {
        let dice = &mut Dice(seed);
        let name = format!("d{seed}");
        place.create(&name).await;
        place.set_image(&name, "app:2").await;
        for step in 0..6 {
            let client = if dice.one_in(2) { &place.admin } else { &place.dev };
            let by_right = std::ptr::eq(client, &raw const place.admin);
            let (same_template, right_version, unpause) = (dice.one_in(2), !dice.one_in(3), dice.one_in(2));
            let image = format!("app:{}", 3 + dice.roll(2));
            let (facts, after, template_kept) = until("the write met no conflict", async || {
                let old = place.get(&name).await;
                let version = old.metadata.resource_version.clone().unwrap();
                let mark = if right_version { version.clone() } else { "1".to_owned() };
                let mut patch = release_patch(&mark, unpause);
                patch["metadata"]["resourceVersion"] = json!(version);
                if !same_template {
                    patch["spec"]["template"] = place::image_patch(&image)["spec"]["template"].clone();
                }
                let facts = Facts::of(&serde_json::to_value(&old).unwrap());
                let params = PatchParams::default();
                let after = place.deployments(client).patch(&name, &params, &Patch::Merge(patch)).await.ok()?;
                let kept = Facts::of(&serde_json::to_value(&after).unwrap()).template == facts.template;
                Some((facts, after, kept))
            })
            .await;
            let new = Facts { paused: !unpause, ..Facts::of(&serde_json::to_value(&after).unwrap()) };
            let released = by_right && right_version && template_kept;
            let expected = verdict([("p", &spec)], &place.namespace, &name, Some(facts.side()), new.side(), released);
            let found = annotation(&after, "interlock.dev/held-by").filter(|_| after.spec.paused.unwrap_or_default());
            assert_eq!(found, expected.as_deref(), "seed {seed}, step {step}");
            held += i32::from(found.is_some());
        }
    }
    assert!(held > 10);
}
