//! What can be wrong with a policy although the API server stored it, and with hooks that stand in an annotation,
//! which no schema guards.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    api::policy::{Component, Hook, HookPolicySpec, HttpHook, WaitHook},
    select,
};

/// Why a policy cannot be carried out as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Components wait for each other in a circle. Only its members stay held.
    OrderCycle,
    /// Two components or hooks have the same name.
    DuplicateName,
    /// The field selector cannot be used.
    InvalidSelector,
    /// The trigger names nothing and so never fires.
    EmptyTrigger,
    /// A hook breaks a rule.
    InvalidHook,
}

impl Reason {
    /// The word as conditions carry it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OrderCycle => "OrderCycle",
            Self::DuplicateName => "DuplicateName",
            Self::InvalidSelector => "InvalidSelector",
            Self::EmptyTrigger => "EmptyTrigger",
            Self::InvalidHook => "InvalidHook",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Problem {
    /// One word for programs.
    pub reason: Reason,
    /// What is wrong, where, and how to put it right.
    pub message: String,
}

impl Problem {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Everything that is wrong with a policy, in a stable order. A predecessor that does not exist is not an error: it is
/// waited for.
pub fn policy(spec: &HookPolicySpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    for path in cycles(&spec.order) {
        problems.push(Problem::new(
            Reason::OrderCycle,
            format!("spec.order: {} wait for each other; take one `after` away", path.join(" -> ")),
        ));
    }
    if let Some(name) = duplicate(spec.order.iter().map(|component| component.name.as_str())) {
        problems
            .push(Problem::new(Reason::DuplicateName, format!("spec.order: component `{name}` stands there twice")));
    }
    if let Some(text) = spec.selector.as_ref().and_then(|selector| selector.field_selector.as_deref())
        && let Err(message) = select::parse_field_selector(text)
    {
        problems.push(Problem::new(Reason::InvalidSelector, format!("spec.selector.fieldSelector: {message}")));
    }
    if let Some(trigger) = &spec.trigger
        && trigger.labels.is_empty()
        && trigger.annotations.is_empty()
        && trigger.containers.is_empty()
    {
        problems.push(Problem::new(
            Reason::EmptyTrigger,
            "spec.trigger names nothing, so no update counts; name a label, an annotation or a container, or leave \
             spec.trigger away",
        ));
    }
    problems.extend(hooks(&spec.hooks));
    problems
}

/// The most hooks of one policy or annotation; the schema says the same.
const MOST_HOOKS: usize = 32;

/// Everything that is wrong with a list of hooks: the rules of the schema, for hooks that no schema has seen.
pub fn hooks(hooks: &[Hook]) -> Vec<Problem> {
    let mut problems = Vec::new();
    if hooks.len() > MOST_HOOKS {
        let message = format!("{} hooks are too many: at most {MOST_HOOKS}", hooks.len());
        problems.push(Problem::new(Reason::InvalidHook, message));
    }
    if let Some(name) = duplicate(hooks.iter().map(|hook| hook.name.as_str())) {
        problems.push(Problem::new(Reason::DuplicateName, format!("hook `{name}` stands there twice")));
    }
    for hook in hooks {
        if let Err(message) = check(hook) {
            let name = hook.name.chars().take(63).collect::<String>();
            problems.push(Problem::new(Reason::InvalidHook, format!("hook `{name}`: {message}")));
        }
    }
    problems
}

fn check(hook: &Hook) -> Result<(), String> {
    let Hook { name, phase: _, http, wait, timeout_seconds, retries, backoff_seconds, failure: _ } = hook;
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.is_empty()
        || name.len() > 63
        || !name.chars().all(|c| edge(c) || c == '-')
        || !name.starts_with(edge)
        || !name.ends_with(edge)
    {
        return Err("its name must be 1 to 63 lower case letters, digits and `-`, and begin and end with a letter or \
                    digit"
            .to_owned());
    }
    range("timeoutSeconds", *timeout_seconds, 1, 86_400)?;
    range("retries", *retries, 0, 100)?;
    range("backoffSeconds", *backoff_seconds, 0, 300)?;
    match (http, wait) {
        (Some(HttpHook { url }), None) => check_url(url),
        (None, Some(WaitHook { seconds })) => range("wait.seconds", *seconds, 0, 86_400),
        (None, None) | (Some(_), Some(_)) => Err("exactly one of http and wait must be given".to_owned()),
    }
}

fn range(field: &str, value: i64, least: i64, most: i64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!("{field} is {value}, but must be from {least} to {most}"))
    }
}

fn check_url(url: &str) -> Result<(), String> {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
        .ok_or("http.url must begin with http:// or https://")?;
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if url.len() > 2048 {
        Err("http.url is longer than 2048 characters".to_owned())
    } else if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        Err("http.url contains white space or control characters".to_owned())
    } else if host.is_empty() || host.contains('@') {
        Err("http.url needs a host, without user or password".to_owned())
    } else {
        Ok(())
    }
}

fn duplicate<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

/// The circles of an order, each as a path that ends where it began, such as `a -> b -> a`. Each component is a member
/// of at most one path. A name that no component has ends a path: nobody knows what it waits for.
pub fn cycles(order: &[Component]) -> Vec<Vec<String>> {
    let after: BTreeMap<&str, &[String]> =
        order.iter().map(|component| (component.name.as_str(), component.after.as_slice())).collect();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    let mut found = Vec::new();
    for start in after.keys() {
        if done.contains(start) {
            continue;
        }
        // Depth first with an own stack: how deep an order goes is its author's choice.
        let mut path: Vec<(&str, std::slice::Iter<'_, String>)> = Vec::new();
        if let Some(next) = after.get(start) {
            path.push((start, next.iter()));
        }
        while let Some((name, rest)) = path.last_mut() {
            let name = *name;
            match rest.next() {
                None => {
                    done.insert(name);
                    path.pop();
                }
                Some(next) if done.contains(next.as_str()) => {}
                Some(next) => {
                    if let Some(at) = path.iter().position(|(member, _)| member == next) {
                        let members = path.iter().skip(at).map(|(member, _)| (*member).to_owned());
                        let cycle: Vec<String> = members.chain([next.clone()]).collect();
                        done.extend(path.iter().skip(at).map(|(member, _)| *member));
                        path.truncate(at);
                        found.push(cycle);
                    } else if let Some((key, after)) = after.get_key_value(next.as_str()) {
                        path.push((key, after.iter()));
                    }
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(edges: &[(&str, &[&str])]) -> Vec<Component> {
        edges
            .iter()
            .map(|(name, after)| Component {
                name: (*name).to_owned(),
                after: after.iter().map(|name| (*name).to_owned()).collect(),
            })
            .collect()
    }

    fn paths(edges: &[(&str, &[&str])]) -> Vec<String> {
        cycles(&order(edges)).iter().map(|path| path.join(" ")).collect()
    }

    #[test]
    fn circles_are_named_with_their_path() {
        assert_eq!(paths(&[("a", &["a"])]), ["a a"]);
        assert_eq!(paths(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])]), ["a b c a"]);
        assert_eq!(paths(&[("d", &["c"]), ("c", &["d"]), ("a", &["b"]), ("b", &["a"])]), ["a b a", "c d c"]);
        assert_eq!(paths(&[("e", &["a"]), ("a", &["b", "x"]), ("b", &["x", "e"])]), ["a b e a"]);
    }

    #[test]
    fn no_circle_where_there_is_none() {
        assert!(paths(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"]), ("d", &["b", "c", "missing"])]).is_empty());
    }

    #[test]
    fn a_deep_order_needs_no_deep_stack() {
        let names: Vec<String> = (0..10_000).map(|n| format!("c{n:05}")).collect();
        let order: Vec<Component> = names
            .iter()
            .enumerate()
            .map(|(n, name)| Component { name: name.clone(), after: names.get(n + 1).cloned().into_iter().collect() })
            .collect();
        assert!(cycles(&order).is_empty());
    }

    #[test]
    fn problems_of_a_policy() {
        let spec = HookPolicySpec {
            trigger: Some(crate::api::policy::Trigger::default()),
            order: order(&[("a", &["b"]), ("b", &["a"]), ("c", &[]), ("c", &[])]),
            ..HookPolicySpec::default()
        };
        let reasons: Vec<_> = policy(&spec).iter().map(|problem| problem.reason).collect();
        assert_eq!(reasons, [Reason::OrderCycle, Reason::DuplicateName, Reason::EmptyTrigger]);
    }
}
