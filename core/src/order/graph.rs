//! An order as a graph: circles in it.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{policy::Component, reference::Reference};

/// The Deployment that a reference means; `None` where it means something else or nothing.
fn deployment(text: &str) -> Option<String> {
    let reference: Reference = text.parse().ok()?;
    reference.as_deployment().map(ToOwned::to_owned)
}

/// The circles of an order, each as a path that ends where it began, such as `a -> b -> a`. Each component is a member
/// of at most one path. A name that no component has ends a path: nobody knows what it waits for.
pub fn cycles(order: &[Component]) -> Vec<Vec<String>> {
    let after: BTreeMap<&str, Vec<String>> = order
        .iter()
        .map(|component| {
            (component.name.as_str(), component.after.iter().filter_map(|text| deployment(text)).collect())
        })
        .collect();
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

/// A shortest circle through this component: a path that begins and ends with it. `after` tells what a component waits for;
/// each is asked once.
pub fn cycle_through(start: &str, mut after: impl FnMut(&str) -> Vec<Reference>) -> Option<Vec<String>> {
    // Breadth first; who was found from whom.
    let mut from: BTreeMap<String, String> = BTreeMap::new();
    let mut layer = vec![start.to_owned()];
    while !layer.is_empty() {
        let mut next = Vec::new();
        for name in layer {
            for predecessor in after(&name) {
                let Some(other) = predecessor.as_deployment() else { continue };
                if other == start {
                    let mut path = vec![start.to_owned(), name.clone()];
                    while let Some(before) = path.last().and_then(|last| from.get(last)) {
                        path.push(before.clone());
                    }
                    path.reverse();
                    return Some(path);
                }
                if !from.contains_key(other) {
                    from.insert(other.to_owned(), name.clone());
                    next.push(other.to_owned());
                }
            }
        }
        layer = next;
    }
    None
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn order(edges: &[(&str, &[&str])]) -> Vec<Component> {
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

    fn through(start: &str, edges: &[(&str, &[&str])]) -> Option<String> {
        let after = |name: &str| {
            let own = edges.iter().filter(|(n, _)| *n == name).flat_map(|(_, after)| *after);
            own.map(|text| text.parse().unwrap()).collect()
        };
        cycle_through(start, after).map(|path| path.join(" "))
    }

    /// Regression 27 (fluxcd, documentation): circular dependencies are never reported.
    #[test]
    fn regression_27_circles_are_named_with_their_path() {
        assert_eq!(paths(&[("a", &["a"])]), ["a a"]);
        assert_eq!(paths(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])]), ["a b c a"]);
        assert_eq!(paths(&[("d", &["c"]), ("c", &["d"]), ("a", &["b"]), ("b", &["a"])]), ["a b a", "c d c"]);
        assert_eq!(paths(&[("e", &["a"]), ("a", &["b", "x"]), ("b", &["x", "e"])]), ["a b e a"]);
        assert_eq!(paths(&[("a", &["deployment/b"]), ("b", &["statefulset/x", "a"])]), ["a b a"]);
    }

    #[test]
    fn regression_27_a_circle_through_one_component() {
        assert_eq!(through("a", &[("a", &["a"])]).unwrap(), "a a");
        let edges: &[(&str, &[&str])] =
            &[("a", &["x", "b"]), ("b", &["deployment/c"]), ("c", &["a", "job/a"]), ("d", &["a"]), ("x", &["x"])];
        assert_eq!(through("a", edges).unwrap(), "a b c a");
        assert_eq!(through("c", edges).unwrap(), "c a b c");
        // What waits for a circle, or leads into one, is no member of it.
        assert_eq!(through("d", edges), None);
        assert_eq!(through("none", edges), None);
    }

    #[test]
    fn no_circle_where_there_is_none() {
        assert!(paths(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"]), ("d", &["b", "c", "missing"])]).is_empty());
        assert!(paths(&[("a", &["statefulset/a", "pods/app=a"])]).is_empty());
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
}
