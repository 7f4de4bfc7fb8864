//! The body of a request: a template with facts and Secrets.
//!
//! `${a.b}` is a fact by its path, `${secret.NAME}` an entry of `bodyFrom`, `$$` a dollar sign; any other `$` stands for
//! itself. **Escaping** is JSON's. A text is written as the inside of a JSON string, without quotes: inside a JSON string
//! it never ends that string, whatever it holds. Numbers, true, false and null are written as they are. An object or a
//! list is written as JSON; inside a string (between two `"`) as text that is JSON, escaped. In a body that is no JSON
//! (a form, XML) facts with characters that mean something there are not safe: names of Kubernetes are, image references
//! need care.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::Value;

use super::Trouble;

/// Fills a template. Secrets by their variable.
pub(super) fn fill(template: &str, facts: &Value, secrets: &BTreeMap<String, String>) -> Result<String, Trouble> {
    let mut out = String::with_capacity(template.len());
    let (mut in_string, mut escaped) = (false, false);
    let mut rest = template;
    while let Some(next) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("$$") {
            out.push('$');
            rest = after;
            escaped = false;
            continue;
        }
        if let Some(after) = rest.strip_prefix("${") {
            let (path, after) = after.split_once('}').ok_or(Trouble::InvalidHook)?;
            match path.strip_prefix("secret.") {
                Some(variable) => out.push_str(&inside(secrets.get(variable).ok_or(Trouble::InvalidHook)?)),
                None => write(&mut out, fact(facts, path).ok_or(Trouble::InvalidHook)?, in_string),
            }
            rest = after;
            escaped = false;
            continue;
        }
        match next {
            '"' if !escaped => in_string = !in_string,
            _ => {}
        }
        escaped = in_string && next == '\\' && !escaped;
        out.push(next);
        rest = rest.get(next.len_utf8()..).unwrap_or_default();
    }
    Ok(out)
}

/// Could this be filled, with facts of these names? Secrets are looked at where the hook is read.
pub(in crate::action) fn check(template: &str, names: &[&str]) -> Result<(), String> {
    let mut rest = template;
    while let Some((_, after)) = rest.split_once('$') {
        rest = after;
        if let Some(after) = rest.strip_prefix('$') {
            rest = after;
            continue;
        }
        let Some(after) = rest.strip_prefix('{') else { continue };
        let Some((path, after)) = after.split_once('}') else {
            return Err("`${` without `}`; a dollar sign is `$$`".to_owned());
        };
        let of_container = ["secret.", "images.", "previousImages."].iter().any(|prefix| path.starts_with(prefix));
        if !of_container && !names.contains(&path) {
            return Err(format!("${{{path}}} is no fact; there is {}", names.join(", ")));
        }
        rest = after;
    }
    Ok(())
}

/// A fact by its path. The longest key wins where keys have dots themselves.
fn fact<'a>(facts: &'a Value, path: &str) -> Option<&'a Value> {
    if path.is_empty() {
        return None;
    }
    if let Some(found) = facts.get(path) {
        return Some(found);
    }
    path.rmatch_indices('.').find_map(|(at, _)| {
        let (key, rest) = (path.get(..at)?, path.get(at + 1..)?);
        fact(facts.get(key)?, rest)
    })
}

fn write(out: &mut String, value: &Value, in_string: bool) {
    match value {
        Value::String(text) => out.push_str(&inside(text)),
        Value::Object(_) | Value::Array(_) if in_string => out.push_str(&inside(&value.to_string())),
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

/// The inside of a JSON string.
fn inside(text: &str) -> String {
    let quoted = Value::String(text.to_owned()).to_string();
    let inner = quoted.strip_prefix('"').and_then(|q| q.strip_suffix('"'));
    inner.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts() -> Value {
        json!({
            "deployment": "web",
            "attempt": 2,
            "previous": null,
            "images": {"app": "r.test/app:v2", "side.car": "x"},
            "odd": "a\"b\\c\n${deployment}",
        })
    }

    fn filled(template: &str) -> Result<String, Trouble> {
        fill(template, &facts(), &BTreeMap::from([("token".to_owned(), "s3\"cret".to_owned())]))
    }

    #[test]
    fn facts_secrets_and_dollars() {
        for (template, want) in [
            ("", ""),
            ("plain $ and $x", "plain $ and $x"),
            ("$${deployment}", "${deployment}"),
            ("$$$${deployment}", "$${deployment}"),
            ("${deployment}:${attempt}:${previous}", "web:2:null"),
            ("${images.app} ${images.side.car}", "r.test/app:v2 x"),
            (r#"{"t": "${secret.token}"}"#, r#"{"t": "s3\"cret"}"#),
            (r#"{"images": ${images}}"#, r#"{"images": {"app":"r.test/app:v2","side.car":"x"}}"#),
            ("ünï ${deployment} ✓", "ünï web ✓"),
        ] {
            assert_eq!(filled(template).as_deref(), Ok(want), "{template}");
        }
        for template in [
            "${",
            "${}",
            "${deployment",
            "${nobody}",
            "${images.no}",
            "${secret.other}",
            "${deployment.x}",
            "${secret.}",
        ] {
            assert_eq!(filled(template), Err(Trouble::InvalidHook), "{template}");
        }
    }

    /// Whatever a fact holds, inside a JSON string it stays there, and comes out as it was.
    #[test]
    fn a_fact_never_ends_the_string_that_it_stands_in() {
        let text = filled(r#"{"a": "x\"${odd}", "b": "${images}", "c": "\\", "d": ${images}, "e": "${odd}"}"#).unwrap();
        let body: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(body["a"], "x\"a\"b\\c\n${deployment}");
        assert_eq!(body["e"], facts()["odd"]);
        assert_eq!(serde_json::from_str::<Value>(body["b"].as_str().unwrap()).unwrap(), facts()["images"]);
        assert_eq!(body["d"], facts()["images"]);
    }
}
