//! What every attempt of a hook would fail at, told before there is one: by the parsers of those who carry it out.

use interlock_core::{
    api::hook::{Hook, HttpHook, Kind, PatchHook, WaitForHook, WaitForKind},
    plan::fact_names,
};

use super::{cel::Expression, http, patch};

/// The first hook that cannot be carried out as it stands, and why.
pub fn problem(hooks: &[Hook]) -> Option<String> {
    hooks.iter().find_map(|hook| {
        let why = match hook.kind()? {
            Kind::Http(http) => of_http(hook, http),
            Kind::WaitFor(wait) => of_wait_for(wait),
            Kind::Patch(patch) => of_patch(patch),
            Kind::Job(_) | Kind::PrePull(_) | Kind::Wait(_) | Kind::PodGate(_) | Kind::Approval(_) => Ok(()),
        };
        why.err().map(|why| format!("hook `{}`: {why}", hook.name))
    })
}

fn of_http(hook: &Hook, http: &HttpHook) -> Result<(), String> {
    if !http::is_url(&http.url) {
        return Err("http.url is no URL: look at its host and port".to_owned());
    }
    if let Some(body) = &http.body {
        http::check_body(body, &fact_names(hook.phase)).map_err(|why| format!("http.body: {why}"))?;
    }
    if http.ca_bundle.as_deref().is_some_and(|bundle| !http::is_bundle(bundle)) {
        return Err("http.caBundle holds no certificates in PEM (-----BEGIN CERTIFICATE-----)".to_owned());
    }
    let until = http.repeat_until.as_ref().and_then(|until| until.expression.as_deref());
    expression("http.repeatUntil.expression", until, &["status", "body"])
}

fn of_wait_for(wait: &WaitForHook) -> Result<(), String> {
    if wait.condition.is_some() && matches!(wait.kind, WaitForKind::ConfigMap | WaitForKind::EndpointSlice) {
        let kind = wait.kind.resource().2;
        return Err(format!("waitFor.condition: a {kind} has no conditions; use label or expression"));
    }
    expression("waitFor.expression", wait.expression.as_deref(), &["object"])
}

fn expression(field: &str, text: Option<&str>, variables: &[&str]) -> Result<(), String> {
    let Some(text) = text else { return Ok(()) };
    let parsed = Expression::parse(text)
        .map_err(|_| format!("{field} is no expression in CEL, or one that nests too deeply"))?;
    match parsed.unknown(variables) {
        None => Ok(()),
        Some(name) => Err(format!("{field}: {name} is unknown; there is {}", variables.join(" and "))),
    }
}

fn of_patch(hook: &PatchHook) -> Result<(), String> {
    let PatchHook { labels, annotations, remove, .. } = hook;
    for key in labels.keys().chain(annotations.keys()).chain(remove) {
        if !patch::may_change(key) {
            return Err(format!("patch: {key} belongs to a controller; no hook changes it"));
        }
        if !is_key(key) {
            return Err(format!("patch: {key} cannot be the key of a label or an annotation"));
        }
    }
    if let Some((key, _)) = labels.iter().find(|(_, value)| !value.is_empty() && !is_word(value)) {
        return Err(format!(
            "patch.labels: the value of {key} must be letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
        ));
    }
    match remove.iter().find(|key| labels.contains_key(*key) || annotations.contains_key(*key)) {
        None => Ok(()),
        Some(key) => Err(format!("patch: {key} is both set and removed")),
    }
}

/// A name of at most 63 characters, with or without a DNS name before it.
fn is_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let of_dns = |prefix: &str| {
        let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let whole =
            |part: &str| !part.is_empty() && part.chars().all(label) && !part.starts_with('-') && !part.ends_with('-');
        prefix.len() <= 253 && prefix.split('.').all(whole)
    };
    prefix.is_none_or(of_dns) && name.len() <= 63 && is_word(name)
}

fn is_word(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.chars().all(|c| edge(c) || "-_.".contains(c)) && text.starts_with(edge) && text.ends_with(edge)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(phase: &str, kind: &str, value: &Value) -> Option<String> {
        let mut hook = json!({"name": "a", "phase": phase});
        hook[kind] = value.clone();
        problem(&[serde_json::from_value(hook).unwrap()])
    }

    fn http(phase: &str, field: &str, value: Value) -> Option<String> {
        let mut http = json!({"url": "https://x.example/"});
        http[field] = value;
        told(phase, "http", &http)
    }

    #[test]
    fn what_can_be_carried_out_is_not_complained_about() {
        for (phase, body) in [
            (
                "PreUpdate",
                "${deployment} ${images.app} ${images} ${previousImages.side-car} $$ $x ${secret.a} $${nothing}",
            ),
            ("PostPod", "${pod.name} ${pod}"),
            ("OnFailure", "${failure.reason}"),
        ] {
            assert_eq!(http(phase, "body", json!(body)), None, "{body}");
        }
        for expression in ["status == 200", "body.items.exists(i, i.ready && has(body.x))", "type(body.x) == int"] {
            assert_eq!(http("PreUpdate", "repeatUntil", json!({"expression": expression})), None, "{expression}");
        }
        let wait = json!({"kind": "ConfigMap", "name": "a", "expression": "object.data['x'] == 'y'"});
        assert_eq!(told("PreUpdate", "waitFor", &wait), None);
        let patch =
            json!({"labels": {"a.b/c_D": "", "x": "v1.2-3"}, "annotations": {"z": "any thing"}, "remove": ["y"]});
        assert_eq!(told("PreUpdate", "patch", &patch), None);
    }

    #[test]
    fn what_no_attempt_could_do_is_told_with_its_place() {
        let until = |text: &str| http("PreUpdate", "repeatUntil", json!({"expression": text}));
        let wait = |text: &str| told("PreUpdate", "waitFor", &json!({"kind": "Job", "name": "j", "expression": text}));
        let patch = |value: Value| told("PreUpdate", "patch", &value);
        for (told, said) in [
            (http("PreUpdate", "url", json!("http://x.y:99999/")), "http.url"),
            (http("PreUpdate", "url", json!("http://[::1/")), "http.url"),
            (http("PreUpdate", "url", json!("http://10.43.999.1/")), "http.url"),
            (http("PreUpdate", "body", json!("${nosuch}")), "${nosuch} is no fact"),
            (http("PreUpdate", "body", json!("${pod.name}")), "${pod.name} is no fact"),
            (http("PrePod", "body", json!("${failure.reason}")), "${failure.reason} is no fact"),
            (http("PreUpdate", "body", json!("${deployment.x}")), "${deployment.x} is no fact"),
            (http("PreUpdate", "body", json!("a ${deployment")), "`${` without `}`"),
            (http("PreUpdate", "caBundle", json!("garbage")), "caBundle"),
            (until("body.x =="), "repeatUntil.expression is no expression"),
            (until("bdy.x == 1"), "bdy is unknown; there is status and body"),
            (until("body.all(x, y == x)"), "y is unknown"),
            (wait("object.status."), "waitFor.expression is no expression"),
            (wait("obj.status.x"), "obj is unknown; there is object"),
            (
                told(
                    "PreUpdate",
                    "waitFor",
                    &json!({"kind": "ConfigMap", "name": "a", "condition": {"type": "Ready"}}),
                ),
                "a ConfigMap has no conditions",
            ),
            (patch(json!({"annotations": {"deployment.kubernetes.io/revision": "9"}})), "belongs to a controller"),
            (patch(json!({"labels": {"a/b/c": "x"}})), "cannot be the key"),
            (patch(json!({"remove": ["sp ace"]})), "cannot be the key"),
            (patch(json!({"labels": {"a": "sp ace"}})), "the value of a"),
            (patch(json!({"labels": {"a": "x"}, "remove": ["a"]})), "both set and removed"),
        ] {
            let told = told.unwrap_or_default();
            assert!(told.starts_with("hook `a`: ") && told.contains(said), "{said}: {told}");
        }
    }
}
