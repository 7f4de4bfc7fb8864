//! The annotations by which a Deployment speaks for itself, without a HookPolicy.

use std::collections::BTreeMap;

use interlock_core::{
    api::{hook::Hook, names},
    select::parse_after,
};

use super::json::cut;
use crate::api::annotation;

/// Longest message that is kept of a parser.
const LONGEST: usize = 512;

/// Annotation [`names::HOOKS`]: a YAML list of hooks, or why it cannot be read, with line and column.
pub fn own_hooks(annotations: &BTreeMap<String, String>) -> Option<Result<Vec<Hook>, String>> {
    let text = annotations.get(names::HOOKS)?;
    Some(annotation::hooks(text).map_err(|why| cut(why, LONGEST)))
}

/// Annotation [`names::AFTER`]: references to predecessors, comma separated.
pub fn own_after(annotations: &BTreeMap<String, String>) -> Option<Vec<String>> {
    annotations.get(names::AFTER).map(|text| parse_after(text))
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
        assert_eq!(after(" b, a,, "), ["b", "a"]);
        assert!(after("").is_empty());
    }
}
