//! The annotations by which a Deployment speaks for itself, without a HookPolicy.

use std::collections::{BTreeMap, BTreeSet};

use interlock_core::api::{names, policy::Hook};

use super::json::cut;

/// Hooks that one annotation may list, as in a HookPolicy.
const MOST_HOOKS: usize = 32;
/// Longest message that is kept of a parser.
const LONGEST: usize = 512;

/// Annotation [`names::HOOKS`]: a YAML list of hooks, or why it cannot be read, with line and column.
pub fn own_hooks(annotations: &BTreeMap<String, String>) -> Option<Result<Vec<Hook>, String>> {
    let text = annotations.get(names::HOOKS)?;
    Some(parse(text).map_err(|why| cut(format!("annotation {}: {why}", names::HOOKS), LONGEST)))
}

/// Annotation [`names::AFTER`]: names of predecessors, comma separated.
pub fn own_after(annotations: &BTreeMap<String, String>) -> Option<Vec<String>> {
    let text = annotations.get(names::AFTER)?;
    let names: BTreeSet<&str> = text.split(',').map(str::trim).filter(|n| !n.is_empty()).collect();
    Some(names.into_iter().map(ToOwned::to_owned).collect())
}

fn parse(text: &str) -> Result<Vec<Hook>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let hooks: Vec<Hook> = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
    if hooks.len() > MOST_HOOKS {
        return Err(format!("{} hooks, at most {MOST_HOOKS} are allowed", hooks.len()));
    }
    let mut seen = BTreeSet::new();
    for hook in &hooks {
        check(hook)?;
        if !seen.insert(hook.name.as_str()) {
            return Err(format!("two hooks are named {:?}; names must be unique", hook.name));
        }
    }
    Ok(hooks)
}

/// What the schema of a HookPolicy demands and an annotation has no schema for.
fn check(hook: &Hook) -> Result<(), String> {
    let Hook { name, phase: _, http, wait, timeout_seconds, retries, backoff_seconds, failure: _ } = hook;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 63 || !name.chars().all(plain) || name.starts_with('-') || name.ends_with('-') {
        return Err(format!(
            "hook name {:?} must be 1 to 63 of a-z, 0-9 and -, not at the ends",
            cut(name.clone(), 63)
        ));
    }
    if http.is_some() == wait.is_some() {
        return Err(format!("hook {name:?}: exactly one of http and wait must be given"));
    }
    for (field, value, least, most) in [
        ("timeoutSeconds", Some(*timeout_seconds), 1, 86_400),
        ("retries", Some(*retries), 0, 100),
        ("backoffSeconds", Some(*backoff_seconds), 0, 300),
        ("wait.seconds", wait.as_ref().map(|w| w.seconds), 0, 86_400),
    ] {
        if value.is_some_and(|v| v < least || v > most) {
            return Err(format!("hook {name:?}: {field} must be from {least} to {most}"));
        }
    }
    if let Some(http) = http {
        let rest = http.url.strip_prefix("http://").or_else(|| http.url.strip_prefix("https://"));
        if http.url.len() > 2048 || !rest.is_some_and(|r| !r.is_empty() && !r.contains(char::is_whitespace)) {
            return Err(format!("hook {name:?}: http.url must be an absolute http or https URL of at most 2048 bytes"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooks(text: &str) -> Result<Vec<Hook>, String> {
        own_hooks(&BTreeMap::from([(names::HOOKS.to_owned(), text.to_owned())])).unwrap()
    }

    #[test]
    fn a_list_of_hooks_is_read() {
        let read = hooks("- name: smoke\n  phase: PreUpdate\n  http: {url: 'http://x.y/z'}\n- {name: w, phase: PostUpdate, wait: {seconds: 3}}\n").unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].timeout_seconds, 60);
        assert_eq!(hooks(" \n"), Ok(vec![]));
    }

    #[test]
    fn what_cannot_be_read_says_where() {
        let error = hooks("- name: smoke\n  phase: PreUpdate\n  htp: {url: x}\n").unwrap_err();
        assert!(error.contains("line 3"), "{error}");
        assert!(error.contains("htp"), "{error}");
    }

    #[test]
    fn odd_content_is_an_error_and_no_more() {
        let deep = "[".repeat(20_000);
        let long = format!("- {{name: {}, phase: PreUpdate, wait: {{seconds: 1}}}}", "a".repeat(250_000));
        let alias = "- &a [x, x]\n- &b [*a, *a]\n- &c [*b, *b]\n";
        for odd in [
            "\0",
            "a",
            "{}",
            "- 1",
            "- {}",
            "- {name: 1}",
            "- {name: a, phase: PreUpdate}",
            "null",
            "- null",
            &deep,
            &long,
            alias,
            "- {name: a, phase: PreUpdate, wait: {seconds: 99999999999999999999}}",
            "- {name: a, phase: PreUpdate, wait: {seconds: -1}}",
            "- {name: a, phase: PreUpdate, http: {url: 'ftp://x'}}",
            "- {name: a, phase: PreUpdate, http: {url: 'http://x'}, wait: {seconds: 1}}",
            "- {name: a, phase: Never, wait: {seconds: 1}}",
            "- {name: a, phase: PreUpdate, wait: {seconds: 1}}\n- {name: a, phase: PreUpdate, wait: {seconds: 1}}",
        ] {
            let error = hooks(odd).expect_err(&cut(odd.to_owned(), 60));
            assert!(error.len() <= LONGEST, "{error}");
        }
    }

    #[test]
    fn predecessors_are_names() {
        let after = |text: &str| own_after(&BTreeMap::from([(names::AFTER.to_owned(), text.to_owned())])).unwrap();
        assert_eq!(after(" b, a,,a "), ["a", "b"]);
        assert!(after("").is_empty());
    }
}
