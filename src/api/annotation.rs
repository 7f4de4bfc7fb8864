//! The annotations by which a Deployment carries its hooks itself.

use interlock_core::{api::hook::Hook, validate};

use crate::action;

/// Parses the text of annotation `interlock.dev/hooks`: a YAML list of hooks, in the form of `spec.hooks`.
///
/// # Errors
/// What is wrong, with line and column where that is known; who shows it names the annotation. No CustomResourceDefinition guards an annotation, so
/// everything that its schema would refuse is refused here.
pub fn hooks(text: &str) -> Result<Vec<Hook>, String> {
    let hooks: Vec<Hook> = serde_saphyr::from_str(text).map_err(|error| {
        let place = error.location().map(|place| format!("line {}, column {}", place.line(), place.column()));
        // The first line says what is wrong; the rest is a picture of the place for a terminal.
        let message = error.without_snippet().to_string();
        let message = message.lines().next().unwrap_or_default().trim();
        let Some(place) = place else { return cut(message, 256) };
        // Where it is stands first, and only there.
        let message = message.strip_suffix(&format!(" at {place}")).unwrap_or(message);
        format!("{place}: {}", cut(message, 256))
    })?;
    let problems = validate::hooks(&hooks).into_iter().map(|problem| problem.message);
    match problems.chain(action::problem(&hooks)).next() {
        None => Ok(hooks),
        Some(problem) => Err(problem),
    }
}

/// The text, cut to so many characters.
fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let message = hooks(text).unwrap_err();
        assert!(!message.contains("annotation"), "{message}");
        assert!(message.matches("line ").count() <= 1, "{message}");
        assert!(message.len() < 500, "{message}");
        message
    }

    #[test]
    fn a_list_of_hooks_with_the_defaults_of_the_definition() {
        let text = "- name: smoke\n  phase: PreUpdate\n  http: {url: \"http://smoke/\"}\n- {name: rest, phase: PostUpdate, wait: {seconds: 3}}\n";
        let hooks = hooks(text).unwrap();
        assert_eq!(hooks.len(), 2);
        assert_eq!((hooks[0].timeout_seconds, hooks[0].retries, hooks[0].backoff_seconds), (60, 3, 2));
    }

    #[test]
    fn json_is_yaml() {
        assert_eq!(hooks(r#"[{"name": "a", "phase": "PreUpdate", "wait": {"seconds": 1}}]"#).unwrap().len(), 1);
        assert_eq!(hooks("[]").unwrap().len(), 0);
    }

    #[test]
    fn what_does_not_parse_names_its_line() {
        let message = refused("- name: a\n  phase: PreUpdate\n  wait: {seconds: soon}\n");
        assert_eq!(message, "line 3, column 19: invalid i64");
        let message = refused("- name: a\n  phase: Never\n  wait: {seconds: 1}\n");
        assert!(message.contains("line 2") && message.contains("Never"), "{message}");
        let message = refused("- name: a\n  phase: PreUpdate\n  what: 1\n");
        assert!(message.contains("line 3") && message.contains("what"), "{message}");
    }

    #[test]
    fn what_the_definition_would_refuse_is_refused() {
        for (text, said) in [
            ("[{name: a, phase: PreUpdate}]", "exactly one of http, job"),
            ("[{name: A b, phase: PreUpdate, wait: {seconds: 1}}]", "its name must be"),
            ("[{name: a, phase: PreUpdate, wait: {seconds: -1}}]", "wait.seconds is -1"),
            ("[{name: a, phase: PreUpdate, retries: 1000, wait: {seconds: 1}}]", "retries is 1000"),
            ("[{name: a, phase: PreUpdate, http: {url: 'ftp://x'}}]", "http:// or https://"),
            ("[{name: a, phase: PreUpdate, http: {url: 'http://u@h/'}}]", "without user"),
            (
                "[{name: a, phase: PreUpdate, wait: {seconds: 1}}, {name: a, phase: PreUpdate, wait: {seconds: 1}}]",
                "twice",
            ),
        ] {
            let message = refused(text);
            assert!(message.contains(said), "{text}: {message}");
        }
    }

    #[test]
    fn no_content_panics_or_takes_long() {
        let aliases = format!("a: &a [x]\n{}", "b: [*a, *a, *a, *a]\n".repeat(1000));
        for text in [
            "~",
            "{",
            "[[[",
            "\u{0}",
            "a: b",
            "- - -",
            "&a [*a]",
            "42",
            &"[".repeat(100_000),
            &"x".repeat(262_144),
            &aliases,
        ] {
            refused(text);
        }
    }
}
