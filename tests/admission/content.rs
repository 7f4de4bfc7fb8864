//! Bad content: refused with path and cure, or stored in a form that harms nobody.

use serde_json::json;

use crate::place::{Place, held_by, refusal};

#[tokio::test]
async fn what_a_definition_can_show_is_refused_with_its_path() {
    let place = Place::new().await;
    let hook = json!({"name": "smoke", "phase": "PreUpdate", "http": {"url": "http://x/"}});
    let with = |key: &str, value: serde_json::Value| {
        let mut hook = hook.clone();
        hook[key] = value;
        json!({"hooks": [hook]})
    };
    let cases = [
        (json!({"enforcement": "Maybe"}), "spec.enforcement"),
        (json!({"enforcement": 5}), "spec.enforcement"),
        (json!({"unknown": 1}), "spec.unknown"),
        (json!({"selector": {}}), "spec.selector"),
        (json!({"selector": {"fieldSelector": "status.phase=x"}}), "spec.selector.fieldSelector"),
        (json!({"selector": {"fieldSelector": ""}}), "spec.selector.fieldSelector"),
        (
            json!({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            "spec.selector.matchExpressions[0]",
        ),
        (json!({"selector": {"matchExpressions": [null]}}), "spec.selector.matchExpressions[0]"),
        (json!({"trigger": {}}), "spec.trigger"),
        (json!({"update": {"maxUnavailable": "lots"}}), "spec.update.maxUnavailable"),
        (json!({"update": {"maxUnavailable": 0}}), "spec.update.maxUnavailable"),
        (json!({"update": {"partition": -1}}), "spec.update.partition"),
        (json!({"historyLimit": 1_000_000_000_000_i64}), "spec.historyLimit"),
        (json!({"settleSeconds": 1.5}), "spec.settleSeconds"),
        (json!({"hooks": [hook, hook]}), "spec.hooks[1]"),
        (with("wait", json!({"seconds": 1})), "spec.hooks[0]"),
        (with("http", json!(null)), "spec.hooks[0]"),
        (with("http", json!({"url": "ftp://x"})), "spec.hooks[0].http.url"),
        (with("name", json!("A b")), "spec.hooks[0].name"),
        (with("name", json!("nul\u{0}")), "spec.hooks[0].name"),
        (with("phase", json!("Sometime")), "spec.hooks[0].phase"),
        (json!({"order": [{"name": "a"}, {"name": "a"}]}), "spec.order[1]"),
        (json!({"order": [{"name": "a", "after": ["a"]}]}), "spec.order[0]"),
        (json!({"order": "etcd"}), "spec.order"),
        (json!({"hooks": vec![hook.clone(); 40]}), "spec.hooks"),
    ];
    for (spec, path) in cases {
        let (code, message) = refusal(place.try_policy(&place.dev, "bad", spec.clone()).await);
        assert!(matches!(code, 400 | 422), "{spec}: {code} {message}");
        assert!(message.contains(path), "{spec}: {message}");
    }
    let (_, message) = refusal(place.try_policy(&place.dev, "annotation", json!({})).await);
    assert!(message.contains("choose another"), "{message}");
}

/// Nulls are dropped, so that no expression of the hold ever meets one and refuses the writes of a whole namespace.
#[tokio::test]
async fn nulls_do_no_harm() {
    let place = Place::new().await;
    let spec = json!({
        "enforcement": null, "trigger": null, "hooks": null, "update": null,
        "selector": {"fieldSelector": null, "matchLabels": {"tier": "web"}, "matchExpressions": null},
        "order": [{"name": "x", "after": null}],
    });
    place.policy("nulls", spec).await;
    place.policy("none", json!({"selector": null, "order": null})).await;
    place.create("web").await;
    assert_eq!(held_by(&place.set_image("web", "app:2").await), Some("nulls"));
}

#[tokio::test]
async fn an_annotation_of_any_content_holds_and_harms_no_neighbour() {
    let place = Place::new().await;
    for (index, text) in ["", "{", "\u{1}", "[[[", &"x".repeat(200_000)].into_iter().enumerate() {
        let name = format!("d{index}");
        let mut object = crate::place::deployment(&name);
        object["metadata"]["annotations"] = json!({"interlock.dev/hooks": text});
        place.create_from(object).await;
        assert_eq!(held_by(&place.set_image(&name, "app:2").await), Some("annotation"));
    }
    place.create("neighbour").await;
    assert_eq!(held_by(&place.set_image("neighbour", "app:2").await), None);
}
