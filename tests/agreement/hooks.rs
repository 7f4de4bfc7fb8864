//! The rules of hooks exist twice as well: in the schema of HookPolicy and in Rust (`core/src/validate/hook.rs`), for
//! annotations, which no schema guards. Generated hooks, most of them with one thing wrong, must be accepted by both or by
//! none.

use futures::{StreamExt as _, stream};
use interlock_core::{api::hook::Hook, validate};
use serde_json::{Value, json};

use crate::{Dice, place::Place};

/// Hooks tried.
const HOOKS: u64 = 600;

/// One of these; the first is right in any place, the others may be wrong.
fn value(dice: &mut Dice, of: Vec<Value>) -> Value {
    let n = of.len() as u64;
    let at = if dice.one_in(3) { dice.roll(n) } else { 0 };
    of.into_iter().nth(usize::try_from(at).unwrap()).unwrap()
}

fn text(length: usize) -> Value {
    json!("a".repeat(length))
}

fn name(dice: &mut Dice) -> Value {
    value(
        dice,
        vec![
            json!("s.x-1"),
            json!(""),
            json!("A"),
            json!("a/b"),
            json!("../a"),
            json!("-a"),
            json!("a."),
            text(253),
            text(254),
        ],
    )
}

fn key(dice: &mut Dice) -> Value {
    value(dice, vec![json!("k_.-9"), json!(""), json!("a/b"), json!("a b"), json!("é"), text(253), text(254)])
}

fn number(dice: &mut Dice, least: i64, most: i64) -> Value {
    value(dice, vec![json!(least), json!(most), json!(least - 1), json!(most + 1), json!("1")])
}

fn statuses(dice: &mut Dice) -> Value {
    value(
        dice,
        vec![
            json!(["200", "300-302"]),
            json!([]),
            json!(["099"]),
            json!(["600"]),
            json!(["2000"]),
            json!(["200-"]),
            json!(["302-300"]),
            json!(["200-200"]),
            json!([200]),
            json!(["200 "]),
            json!(vec!["200"; 16]),
            json!(vec!["200"; 17]),
        ],
    )
}

fn header_name(dice: &mut Dice) -> Value {
    value(
        dice,
        vec![
            json!("X-Token"),
            json!("~a!#$%&'*+.^_`|"),
            json!("Host"),
            json!("IDEMPOTENCY-KEY"),
            json!("te"),
            json!("Proxy-Authorization"),
            json!("HTTP2-Settings"),
            json!("a b"),
            json!("a:"),
            json!(""),
            text(128),
            text(129),
        ],
    )
}

fn expression(dice: &mut Dice) -> Value {
    value(dice, vec![json!("true"), json!(""), text(1024), text(1025)])
}

/// A field and how its value is made.
type Field = (&'static str, fn(&mut Dice) -> Value);

/// Adds fields, each with its own odds.
fn with(dice: &mut Dice, mut object: Value, fields: &[Field]) -> Value {
    for (field, make) in fields {
        if dice.one_in(4) {
            object[*field] = make(dice);
        }
    }
    object
}

fn http(dice: &mut Dice) -> Value {
    let url = value(
        dice,
        vec![
            json!("https://hooks.example:8443/a?b#c"),
            json!("http://x"),
            json!("ftp://x/"),
            json!("http://"),
            json!("http:///x"),
            json!("https://u@x/"),
            json!("https://x/ y"),
            json!("HTTPS://x/"),
            json!("https://x\n/"),
            json!("https://x/@"),
            json!(format!("https://x/{}", "a".repeat(2038))),
            json!(format!("https://x/{}", "a".repeat(2039))),
        ],
    );
    with(
        dice,
        json!({"url": url}),
        &[
            ("method", |d| {
                value(d, vec![json!("PUT"), json!("put"), json!(""), json!("TRACE"), json!("CONNECT"), json!("A B")])
            }),
            ("headers", |d| {
                let one = json!({"name": header_name(d), "value": value(d, vec![
                    json!("a\tb ~"), json!(""), json!("a\r\nb: c"), json!("ü"), text(4096), text(4097),
                ])});
                value(d, vec![json!([one]), json!([]), json!(vec![one.clone(); 16]), json!(vec![one; 17])])
            }),
            ("headersFrom", |d| {
                let mut one = json!({"header": header_name(d), "name": name(d), "key": key(d)});
                one["prefix"] = value(d, vec![json!("Bearer "), json!(""), text(64), text(65)]);
                json!([one])
            }),
            ("format", |d| value(d, vec![json!("CloudEvents"), json!("Facts"), json!("Xml")])),
            ("body", |d| value(d, vec![json!("${run} $$"), json!(""), text(16_384), text(16_385)])),
            ("bodyFrom", |d| {
                let variable = value(d, vec![json!("_a1"), json!("1a"), json!(""), json!("a-b"), text(63), text(64)]);
                json!([{"variable": variable, "name": name(d), "key": key(d)}])
            }),
            ("successStatus", statuses),
            ("repeatUntil", |d| {
                with(
                    d,
                    json!({}),
                    &[("status", statuses), ("expression", expression), ("intervalSeconds", |d| number(d, 1, 3600))],
                )
            }),
            ("hmac", |d| json!({"name": name(d), "key": key(d)})),
            ("caBundle", |d| value(d, vec![json!("pem"), text(65_536), text(65_537)])),
            ("clientCertificate", |d| json!({"name": name(d)})),
        ],
    )
}

fn wait_for(dice: &mut Dice) -> Value {
    let kind = value(dice, vec![json!("Job"), json!("ConfigMap"), json!("Secret"), json!("EndpointSlice")]);
    let name = name(dice);
    with(
        dice,
        json!({"kind": kind, "name": name}),
        &[
            ("condition", |d| {
                let type_ = value(d, vec![json!("Complete"), json!(""), text(316), text(317)]);
                with(d, json!({"type": type_}), &[("status", |d| value(d, vec![json!("Unknown"), json!("Maybe")]))])
            }),
            ("label", |d| {
                let key = value(d, vec![json!("a/b"), json!(""), text(317), text(318)]);
                with(
                    d,
                    json!({"key": key}),
                    &[("value", |d| value(d, vec![json!("x"), json!(""), text(63), text(64)]))],
                )
            }),
            ("expression", expression),
        ],
    )
}

fn map(dice: &mut Dice, most: usize, longest: usize) -> Value {
    let of = |n: usize| json!((0..n).map(|i| (format!("k{i}"), "v")).collect::<std::collections::BTreeMap<_, _>>());
    value(
        dice,
        vec![
            of(1),
            of(0),
            of(most),
            of(most + 1),
            json!({"interlock.dev/x": "y"}),
            json!({"example.com/interlock.dev": "y"}),
            json!({"a": "v".repeat(longest)}),
            json!({"a": "v".repeat(longest + 1)}),
            json!({"a": 1}),
        ],
    )
}

fn patch(dice: &mut Dice) -> Value {
    with(
        dice,
        json!({}),
        &[
            ("target", |d| value(d, vec![json!("Pod"), json!("Deployment"), json!("Node")])),
            ("labels", |d| map(d, 16, 63)),
            ("annotations", |d| map(d, 16, 4096)),
            ("remove", |d| {
                value(
                    d,
                    vec![
                        json!(["a/b"]),
                        json!([]),
                        json!([""]),
                        json!(["interlock.dev/held-by"]),
                        json!(vec!["a"; 16]),
                        json!(vec!["a"; 17]),
                        json!([text(317)]),
                        json!([text(318)]),
                    ],
                )
            }),
            ("undoOnRevert", |_| json!(true)),
        ],
    )
}

fn pod_gate(dice: &mut Dice) -> Value {
    with(
        dice,
        json!({}),
        &[
            ("labels", |d| map(d, 8, 63)),
            ("finalizers", |d| {
                value(
                    d,
                    vec![
                        json!(["example.com/a"]),
                        json!([]),
                        json!([""]),
                        json!([text(253)]),
                        json!([text(254)]),
                        json!(["a", "b", "c", "d", "e", "f", "g", "h"]),
                        json!(["a", "b", "c", "d", "e", "f", "g", "h", "i"]),
                    ],
                )
            }),
            ("markPodNotReady", |_| json!(true)),
        ],
    )
}

fn kind(dice: &mut Dice) -> (&'static str, Value) {
    match dice.roll(10) {
        0 => {
            let account = name(dice);
            let template =
                json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}});
            (
                "job",
                with(
                    dice,
                    json!({"serviceAccountName": account, "template": template}),
                    &[
                        ("mountToken", |_| json!(true)),
                        ("backoffLimit", |d| number(d, 0, 100)),
                        ("ttlSecondsAfterResult", |d| number(d, 0, 31_536_000)),
                    ],
                ),
            )
        }
        1 => ("prePull", with(dice, json!({}), &[("maxConcurrent", |d| number(d, 1, 100))])),
        2 => ("wait", json!({"seconds": number(dice, 0, 86_400)})),
        3 => ("waitFor", wait_for(dice)),
        4 | 5 => ("patch", patch(dice)),
        6 => ("podGate", pod_gate(dice)),
        7 => (
            "approval",
            with(
                dice,
                json!({}),
                &[
                    ("timeoutSeconds", |d| number(d, 1, 31_536_000)),
                    ("onTimeout", |d| value(d, vec![json!("Approve"), json!("Retry")])),
                ],
            ),
        ),
        _ => ("http", http(dice)),
    }
}

fn hook(dice: &mut Dice) -> Value {
    let name = value(dice, vec![json!("a-1"), json!("a.b"), json!("A"), json!(""), json!("-a"), text(63), text(64)]);
    let (key, mut of_kind) = kind(dice);
    let usual = match key {
        "podGate" => "PrePod",
        "prePull" => "PreUpdate",
        _ => dice.pick(&["PreUpdate", "PrePod", "PostPod", "PostUpdate"]),
    };
    let phase =
        value(dice, vec![json!(usual), json!("PrePod"), json!("PostUpdate"), json!("OnFailure"), json!("Never")]);
    if dice.one_in(12) {
        of_kind["unknown"] = json!(1);
    }
    let mut hook = json!({"name": name, "phase": phase, key: of_kind});
    if dice.one_in(12) {
        let (other, of_kind) = kind(dice);
        hook[other] = of_kind;
    } else if dice.one_in(20) {
        hook.as_object_mut().unwrap().remove(key);
    }
    with(
        dice,
        hook,
        &[
            ("timeoutSeconds", |d| number(d, 1, 86_400)),
            ("retries", |d| number(d, 0, 100)),
            ("backoffSeconds", |d| number(d, 0, 300)),
            ("failure", |d| value(d, vec![json!("Continue"), json!("Ignore")])),
        ],
    )
}

#[tokio::test]
async fn the_schema_and_rust_accept_the_same_hooks() {
    let tally = tally::Tally::new("hooks: the schema and Rust agree");
    let place = &Place::new().await;
    let verdicts: Vec<(u64, bool)> = stream::iter(0..HOOKS)
        .map(|seed| async move {
            let hook = hook(&mut Dice(seed ^ 0x600d));
            let body = json!({
                "apiVersion": "interlock.dev/v1alpha1", "kind": "HookPolicy", "metadata": {"name": "p"},
                "spec": {"selector": {"matchLabels": {}}, "hooks": [hook]},
            });
            let path = format!(
                "/apis/interlock.dev/v1alpha1/namespaces/{}/hookpolicies?dryRun=All&fieldValidation=Strict",
                place.namespace
            );
            let server = match place.raw(&place.admin, "POST", &path, "application/json", &body).await {
                Ok(_) => Ok(()),
                Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => Err(status.message.clone()),
                Err(error) => panic!("{error}"),
            };
            let rust = match serde_json::from_value::<Hook>(hook.clone()) {
                Err(error) => Err(error.to_string()),
                Ok(hook) => validate::hooks(&[hook]).into_iter().next().map_or(Ok(()), |problem| Err(problem.message)),
            };
            let shown: String = hook.to_string().chars().take(600).collect();
            assert_eq!(server.is_ok(), rust.is_ok(), "seed {seed}: {shown}\nserver: {server:?}\nRust: {rust:?}");
            (seed, server.is_ok())
        })
        .buffer_unordered(8)
        .collect()
        .await;
    let right = verdicts.iter().filter(|(_, right)| *right).count();
    println!("{} hooks, {right} of them right", verdicts.len());
    tally.seeds(verdicts.len());
    tally.checks(verdicts.len());
    assert!(
        right * 6 > verdicts.len() && right * 3 < verdicts.len() * 2,
        "{right}: the hooks no longer tell both ways apart"
    );
}
