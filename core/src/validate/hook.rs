//! The rules of hooks: those of the schema, for hooks that no schema has seen, and those that only code can tell.

use std::collections::BTreeMap;

use super::{Problem, Reason, duplicate};
use crate::api::hook::{
    BodyFormat, Hook, HttpHook, JobHook, Kind, PatchHook, PatchTarget, Phase, PodGateHook, WaitForHook,
};

/// The most hooks of one policy or annotation.
const MOST_HOOKS: usize = 32;
/// The most entries of a list inside a hook.
const MOST_ENTRIES: usize = 16;
/// Headers that the controller makes, in lower case; the schema lists the same, and `proxy-*` counts too.
const OWN_HEADERS: [&str; 13] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "keep-alive",
    "expect",
    "forwarded",
    "http2-settings",
    "idempotency-key",
    "x-interlock-signature",
];

/// Everything that is wrong with a list of hooks.
pub fn hooks(hooks: &[Hook]) -> Vec<Problem> {
    let mut problems = Vec::new();
    if hooks.len() > MOST_HOOKS {
        let message = format!("{} hooks are too many: at most {MOST_HOOKS}", hooks.len());
        problems.push(Problem::new(Reason::InvalidHook, message));
    }
    if let Some(name) = duplicate(hooks.iter().map(|hook| hook.name.as_str())) {
        problems.push(Problem::new(Reason::DuplicateName, format!("hook `{name}` stands there twice")));
    }
    problems.extend(hooks.iter().filter_map(|hook| check(hook).err().map(|why| problem(hook, &why))));
    problems
}

/// What hooks in the annotation of a Deployment in this namespace may not do. Whoever may change a Deployment may write
/// there, and nobody asks what else they may do: so nothing that needs a right of its own.
pub fn own_hooks(hooks: &[Hook], namespace: &str) -> Vec<Problem> {
    let refused = |hook: &Hook| -> Option<String> {
        let needs_policy = |what: &str, right: &str| {
            Some(format!(
                "{what} cannot stand in an annotation, since nobody checks there whether its author may {right}; put \
                 the hook into a HookPolicy"
            ))
        };
        match hook.kind()? {
            Kind::Http(http) if http.hmac.is_some() || !http.headers_from.is_empty() || !http.body_from.is_empty() => {
                needs_policy("a Secret", "read it")
            }
            Kind::Http(http) if http.client_certificate.is_some() => {
                needs_policy("clientCertificate", "read its Secret")
            }
            Kind::Http(http) if !within(&http.url, namespace) => Some(format!(
                "from an annotation only Services of the same namespace can be called, as \
                 http://NAME.{namespace}.svc/; other receivers need a HookPolicy"
            )),
            Kind::Job(_) => needs_policy("job", "create Jobs and pods"),
            Kind::PrePull(_) => needs_policy("prePull", "create pods"),
            Kind::WaitFor(_) => needs_policy("waitFor", "get the object"),
            Kind::Patch(_) => needs_policy("patch", "patch Deployments or pods"),
            Kind::PodGate(gate) if gate.mark_pod_not_ready => {
                needs_policy("podGate with markPodNotReady", "patch pods")
            }
            Kind::Http(_) | Kind::Wait(_) | Kind::PodGate(_) | Kind::Approval(_) => None,
        }
    };
    hooks.iter().filter_map(|hook| refused(hook).map(|why| problem(hook, &why))).collect()
}

fn problem(hook: &Hook, why: &str) -> Problem {
    let name = hook.name.chars().take(63).collect::<String>();
    Problem::new(Reason::InvalidHook, format!("hook `{name}`: {why}"))
}

/// Does this URL lead to a Service of the namespace?
fn within(url: &str, namespace: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let host = rest.split(['/', ':', '?', '#']).next().unwrap_or_default();
    let host = host.strip_suffix(".cluster.local").unwrap_or(host);
    host.strip_suffix(".svc")
        .and_then(|h| h.strip_suffix(namespace))
        .and_then(|h| h.strip_suffix('.'))
        .is_some_and(|name| !name.is_empty() && !name.contains(['.', '@', '%', '\\']))
}

type Checked = Result<(), String>;

fn check(hook: &Hook) -> Checked {
    let Hook { name, timeout_seconds, retries, backoff_seconds, .. } = hook;
    if name.len() > 63 || name.contains('.') || !is_name(name) {
        return Err("its name must be 1 to 63 lower case letters, digits and `-`, and begin and end with a letter or \
                    digit"
            .to_owned());
    }
    range("timeoutSeconds", *timeout_seconds, 1, 86_400)?;
    range("retries", *retries, 0, 100)?;
    range("backoffSeconds", *backoff_seconds, 0, 300)?;
    let Some(kind) = hook.kind() else {
        return Err(
            "exactly one of http, job, prePull, wait, waitFor, patch, podGate and approval must be given".to_owned()
        );
    };
    check_phase(hook.phase, kind)?;
    match kind {
        Kind::Http(http) => check_http(http),
        Kind::Job(job) => check_job(job),
        Kind::PrePull(hook) => range("prePull.maxConcurrent", hook.max_concurrent, 1, 100),
        Kind::Wait(wait) => range("wait.seconds", wait.seconds, 0, 86_400),
        Kind::WaitFor(hook) => check_wait_for(hook),
        Kind::Patch(hook) => check_patch(hook),
        Kind::PodGate(hook) => check_pod_gate(hook),
        Kind::Approval(hook) => range("approval.timeoutSeconds", hook.timeout_seconds, 1, 31_536_000),
    }
}

fn check_phase(phase: Phase, kind: Kind<'_>) -> Checked {
    must(
        !matches!(kind, Kind::PrePull(_)) || phase == Phase::PreUpdate,
        "prePull is for phase PreUpdate: later the image is pulled already",
    )?;
    must(
        !matches!(kind, Kind::PodGate(_)) || phase == Phase::PrePod,
        "podGate is for phase PrePod; it blocks the start there and the end of the same pod by itself",
    )?;
    must(
        phase != Phase::OnFailure || matches!(kind, Kind::Http(_) | Kind::Job(_) | Kind::Patch(_)),
        "in phase OnFailure only http, job and patch are allowed: it tells the world and decides nothing",
    )?;
    must(
        !matches!(kind, Kind::Patch(PatchHook { target: PatchTarget::Pod, .. })) || phase.of_pod(),
        "patch.target Pod is for the phases PrePod and PostPod",
    )
}

fn check_http(http: &HttpHook) -> Checked {
    check_url(&http.url)?;
    let method = &http.method;
    must(
        (1..=16).contains(&method.len()) && method.chars().all(|c| c.is_ascii_uppercase()),
        "http.method must be 1 to 16 capital letters",
    )?;
    must(!matches!(method.as_str(), "CONNECT" | "TRACE"), "method cannot be CONNECT or TRACE")?;
    entries("http.headers", http.headers.len(), MOST_ENTRIES)?;
    entries("http.headersFrom", http.headers_from.len(), MOST_ENTRIES)?;
    entries("http.bodyFrom", http.body_from.len(), MOST_ENTRIES)?;
    for header in &http.headers {
        check_header(&header.name)?;
        length("http.headers[].value", &header.value, 0, 4096)?;
        must(
            header.value.chars().all(|c| c == '\t' || (' '..='~').contains(&c)),
            "http.headers[].value must be printable ASCII",
        )?;
    }
    for header in &http.headers_from {
        check_header(&header.header)?;
        length("http.headersFrom[].prefix", &header.prefix, 0, 64)?;
        secret("http.headersFrom[]", &header.name, Some(&header.key))?;
    }
    for part in &http.body_from {
        let variable = &part.variable;
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        must(
            (1..=63).contains(&variable.len())
                && variable.chars().all(word)
                && !variable.starts_with(|c: char| c.is_ascii_digit()),
            "http.bodyFrom[].variable must be 1 to 63 letters, digits and `_`, and not begin with a digit",
        )?;
        secret("http.bodyFrom[]", &part.name, Some(&part.key))?;
    }
    if let Some(name) = duplicate(http.body_from.iter().map(|part| part.variable.as_str())) {
        return Err(format!("http.bodyFrom: variable `{name}` stands there twice"));
    }
    if let Some(body) = &http.body {
        length("http.body", body, 0, 16_384)?;
        must(http.format == BodyFormat::Facts, "format CloudEvents makes the body itself; leave body away")?;
        if let Some(name) = unknown_secret(body, http) {
            return Err(format!("http.body: ${{secret.{name}}} is no variable of bodyFrom"));
        }
    }
    must(
        http.body_from.is_empty() || http.body.is_some(),
        "bodyFrom is for parts of body; give body or leave bodyFrom away",
    )?;
    statuses("http.successStatus", &http.success_status)?;
    if let Some(until) = &http.repeat_until {
        statuses("http.repeatUntil.status", &until.status)?;
        expression("http.repeatUntil.expression", until.expression.as_deref())?;
        range("http.repeatUntil.intervalSeconds", until.interval_seconds, 1, 3600)?;
    }
    if let Some(hmac) = &http.hmac {
        secret("http.hmac", &hmac.name, Some(&hmac.key))?;
    }
    if let Some(certificate) = &http.client_certificate {
        secret("http.clientCertificate", &certificate.name, None)?;
    }
    if let Some(bundle) = &http.ca_bundle {
        length("http.caBundle", bundle, 0, 65_536)?;
    }
    must(
        http.ca_bundle.is_none() && http.client_certificate.is_none() || http.url.starts_with("https://"),
        "caBundle and clientCertificate need an https url",
    )
}

/// The first `${secret.NAME}` that `bodyFrom` does not explain. `$$` is a dollar sign.
fn unknown_secret<'a>(body: &'a str, http: &HttpHook) -> Option<&'a str> {
    let mut rest = body;
    while let Some((_, after)) = rest.split_once('$') {
        if let Some(after) = after.strip_prefix('$') {
            rest = after;
            continue;
        }
        if let Some((name, _)) = after.strip_prefix("{secret.").and_then(|after| after.split_once('}'))
            && http.body_from.iter().all(|part| part.variable != name)
        {
            return Some(name);
        }
        rest = after;
    }
    None
}

fn check_url(url: &str) -> Checked {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
        .ok_or("http.url must begin with http:// or https://")?;
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    length("http.url", url, 8, 2048)?;
    must(
        !url.chars().any(|c| c.is_whitespace() || c.is_control()),
        "http.url contains white space or control characters",
    )?;
    must(!host.is_empty() && !host.contains('@'), "http.url needs a host, without user or password")
}

fn check_header(name: &str) -> Checked {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+.^_`|~-".contains(c);
    must(
        (1..=128).contains(&name.len()) && name.chars().all(token),
        "the name of a header must be 1 to 128 letters, digits and `-`",
    )?;
    if own_header(name) { Err(format!("header {name} is made by the controller")) } else { Ok(()) }
}

/// Does the controller make this header, or does it belong to the connection? Then no hook sets it.
pub fn own_header(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    OWN_HEADERS.contains(&lower.as_str()) || lower.starts_with("proxy-")
}

fn check_job(job: &JobHook) -> Checked {
    name("job.serviceAccountName", &job.service_account_name)?;
    range("job.backoffLimit", job.backoff_limit, 0, 100)?;
    range("job.ttlSecondsAfterResult", job.ttl_seconds_after_result, 0, 31_536_000)?;
    if let Some(field) = job.template.0.keys().find(|key| !matches!(key.as_str(), "metadata" | "spec")) {
        return Err(format!("job.template has no field {field}; it has metadata and spec, as a pod template"));
    }
    let containers = job.template.0.get("spec").and_then(|spec| spec.get("containers")).and_then(|c| c.as_array());
    must(containers.is_some_and(|c| !c.is_empty()), "job.template.spec.containers must list at least one container")
}

fn check_wait_for(hook: &WaitForHook) -> Checked {
    name("waitFor.name", &hook.name)?;
    must(
        hook.condition.is_some() || hook.label.is_some() || hook.expression.is_some(),
        "at least one of condition, label and expression must be given",
    )?;
    if let Some(condition) = &hook.condition {
        length("waitFor.condition.type", &condition.type_, 1, 316)?;
    }
    if let Some(label) = &hook.label {
        length("waitFor.label.key", &label.key, 1, 317)?;
        length("waitFor.label.value", label.value.as_deref().unwrap_or_default(), 0, 63)?;
    }
    expression("waitFor.expression", hook.expression.as_deref())
}

fn check_patch(hook: &PatchHook) -> Checked {
    let PatchHook { labels, annotations, remove, .. } = hook;
    must(
        !(labels.is_empty() && annotations.is_empty() && remove.is_empty()),
        "at least one of labels, annotations and remove must be given",
    )?;
    must(
        labels.keys().chain(annotations.keys()).chain(remove).all(|key| !key.starts_with("interlock.dev/")),
        "labels and annotations of interlock.dev belong to the controller",
    )?;
    values("patch.labels", labels, MOST_ENTRIES, 63)?;
    values("patch.annotations", annotations, MOST_ENTRIES, 4096)?;
    entries("patch.remove", remove.len(), MOST_ENTRIES)?;
    remove.iter().try_for_each(|key| length("patch.remove[]", key, 1, 317))
}

fn check_pod_gate(hook: &PodGateHook) -> Checked {
    must(!hook.labels.is_empty() || !hook.finalizers.is_empty(), "at least one label or finalizer must be given")?;
    values("podGate.labels", &hook.labels, 8, 63)?;
    entries("podGate.finalizers", hook.finalizers.len(), 8)?;
    hook.finalizers.iter().try_for_each(|name| length("podGate.finalizers[]", name, 1, 253))
}

fn must(holds: bool, otherwise: &str) -> Checked {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}

fn range(field: &str, value: i64, least: i64, most: i64) -> Checked {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!("{field} is {value}, but must be from {least} to {most}"))
    }
}

/// In characters, as the schema counts.
fn length(field: &str, text: &str, least: usize, most: usize) -> Checked {
    let have = text.chars().count();
    if (least..=most).contains(&have) {
        Ok(())
    } else {
        Err(format!("{field} has {have} characters, but must have {least} to {most}"))
    }
}

fn entries(field: &str, have: usize, most: usize) -> Checked {
    if have <= most { Ok(()) } else { Err(format!("{field} has {have} entries; at most {most}")) }
}

fn values(field: &str, map: &BTreeMap<String, String>, most: usize, longest: usize) -> Checked {
    entries(field, map.len(), most)?;
    map.values().try_for_each(|value| length(field, value, 0, longest))
}

fn expression(field: &str, text: Option<&str>) -> Checked {
    text.map_or(Ok(()), |text| length(field, text, 1, 1024))
}

/// Lower case letters, digits, `-` and `.`, with a letter or digit at both ends.
fn is_name(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.chars().all(|c| edge(c) || c == '-' || c == '.') && text.starts_with(edge) && text.ends_with(edge)
}

/// The name of an object. It becomes part of a path: nothing in it may lead elsewhere.
fn name(field: &str, text: &str) -> Checked {
    if text.len() <= 253 && is_name(text) {
        Ok(())
    } else {
        Err(format!("{field} must be the name of an object: lower case letters, digits, `-` and `.`"))
    }
}

fn secret(field: &str, of: &str, key: Option<&str>) -> Checked {
    name(&format!("{field}.name"), of)?;
    let Some(key) = key else { return Ok(()) };
    if (1..=253).contains(&key.len()) && key.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) {
        Ok(())
    } else {
        Err(format!("{field}.key must be a key of a Secret: letters, digits, `-`, `_` and `.`"))
    }
}

fn statuses(field: &str, of: &[String]) -> Checked {
    entries(field, of.len(), MOST_ENTRIES)?;
    let code = |text: &str| {
        let right = text.len() == 3
            && text.chars().all(|c| c.is_ascii_digit())
            && text.starts_with(|c: char| ('1'..='5').contains(&c));
        right.then(|| text.to_owned())
    };
    for text in of {
        let valid = match text.split_once('-') {
            None => code(text).is_some(),
            Some((from, to)) => code(from).zip(code(to)).is_some_and(|(from, to)| from <= to),
        };
        if !valid {
            let shown: String = text.chars().take(16).collect();
            return Err(format!("{field}: `{shown}` is no status or range of statuses, such as 204 or 200-299"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn hook(value: Value) -> Hook {
        serde_json::from_value(value).unwrap()
    }

    #[allow(clippy::needless_pass_by_value, reason = "called with literals")]
    fn with(phase: &str, kind: &str, value: Value) -> Hook {
        hook(json!({"name": "h", "phase": phase, kind: value}))
    }

    fn job() -> Value {
        json!({"serviceAccountName": "jobs", "template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}})
    }

    #[test]
    fn only_services_of_the_namespace_count() {
        for url in ["http://hooks.shop.svc/x", "https://hooks.shop.svc.cluster.local:8443", "http://hooks.shop.svc?a=b"]
        {
            assert!(within(url, "shop"), "{url}");
        }
        for url in [
            "http://hooks.other.svc/",
            "http://hooks.shop.svc.evil.test/",
            "http://hooks.shop/",
            "http://shop.svc/",
            "http://a@hooks.shop.svc/",
            "http://evil.test/hooks.shop.svc",
            "http://169.254.169.254/",
            "http://127.0.0.1#.shop.svc",
            "http://x.y.shop.svc/",
            "",
        ] {
            assert!(!within(url, "shop"), "{url}");
        }
    }

    #[test]
    fn an_annotation_carries_only_what_needs_no_right() {
        let url = "https://hooks.shop.svc/";
        for allowed in [
            with("PreUpdate", "http", json!({"url": url, "caBundle": "x"})),
            with("PostPod", "wait", json!({"seconds": 1})),
            with("PreUpdate", "approval", json!({})),
            with("PrePod", "podGate", json!({"labels": {"a": "b"}})),
        ] {
            assert_eq!(own_hooks(std::slice::from_ref(&allowed), "shop"), [], "{allowed:?}");
            assert_eq!(hooks(std::slice::from_ref(&allowed)), [], "{allowed:?}");
        }
        let key = json!({"name": "s", "key": "k"});
        for (refused, why) in [
            (with("PreUpdate", "http", json!({"url": "http://example.com/"})), "Services of the same namespace"),
            (with("PreUpdate", "http", json!({"url": url, "hmac": key})), "a Secret"),
            (
                with(
                    "PreUpdate",
                    "http",
                    json!({"url": url, "headersFrom": [{"header": "a", "name": "s", "key": "k"}]}),
                ),
                "a Secret",
            ),
            (
                with(
                    "PreUpdate",
                    "http",
                    json!({"url": url, "body": "x", "bodyFrom": [{"variable": "a", "name": "s", "key": "k"}]}),
                ),
                "a Secret",
            ),
            (with("PreUpdate", "http", json!({"url": url, "clientCertificate": {"name": "s"}})), "clientCertificate"),
            (with("PreUpdate", "job", job()), "job"),
            (with("PreUpdate", "prePull", json!({})), "prePull"),
            (with("PreUpdate", "waitFor", json!({"kind": "Job", "name": "x", "expression": "true"})), "waitFor"),
            (with("PreUpdate", "patch", json!({"labels": {"a": "b"}})), "patch"),
            (
                with("PrePod", "podGate", json!({"labels": {"a": "b"}, "markPodNotReady": true})),
                "podGate with markPodNotReady",
            ),
        ] {
            assert_eq!(hooks(std::slice::from_ref(&refused)), [], "{refused:?}");
            let problems = own_hooks(&[refused], "shop");
            assert_eq!(problems.len(), 1);
            let message = &problems[0].message;
            assert!(message.contains(why) && message.contains("HookPolicy") && message.contains("`h`"), "{message}");
        }
    }

    #[test]
    fn what_only_code_can_tell() {
        let http = |more: Value| {
            let mut value = json!({"url": "http://x/"});
            value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            hooks(&[with("PreUpdate", "http", value)]).into_iter().map(|p| p.message).collect::<String>()
        };
        let from = json!([{"variable": "a", "name": "s", "key": "k"}]);
        assert_eq!(http(json!({"body": "${secret.a} $${secret.b} ${run}", "bodyFrom": from})), "");
        assert!(http(json!({"body": "${secret.b}", "bodyFrom": from})).contains("secret.b"));
        assert!(http(json!({"body": "$$${secret.b}", "bodyFrom": from})).contains("secret.b"));
        let mut wrong = job();
        wrong["template"]["spec"]["containers"] = json!([]);
        assert_eq!(hooks(&[with("PreUpdate", "job", wrong)]).len(), 1);
        let mut wrong = job();
        wrong["template"]["containers"] = json!([]);
        assert_eq!(hooks(&[with("PreUpdate", "job", wrong)]).len(), 1);
        assert_eq!(hooks(&[with("PreUpdate", "job", job())]), []);
    }
}
