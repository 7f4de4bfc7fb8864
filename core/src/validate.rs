//! What can be wrong with a policy although the API server stored it, and with hooks that stand in an annotation,
//! which no schema guards.

mod hook;

use std::collections::{BTreeMap, BTreeSet};

pub use hook::{hooks, own_header, own_hooks};

use crate::{
    api::policy::{Component, HookPolicySpec},
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
