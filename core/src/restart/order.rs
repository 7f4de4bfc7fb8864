//! Who comes when: by the orders of the namespace's HookPolicies and the Deployments' own annotation, else by name.

use std::collections::{BTreeMap, BTreeSet};

use super::Subject;
use crate::{api::reference::Reference, world::Policy};

fn names(after: &[String]) -> impl Iterator<Item = String> {
    after.iter().filter_map(|text| text.parse::<Reference>().ok()?.as_deployment().map(str::to_owned))
}

/// By name: the Deployments that come before it.
pub(super) fn before<'w>(
    subjects: impl IntoIterator<Item = &'w Subject>,
    policies: &[Policy],
) -> BTreeMap<String, BTreeSet<String>> {
    let mut before: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for subject in subjects {
        let own = subject.deployment.own_after.iter().flat_map(|after| names(after));
        before.entry(subject.deployment.name.clone()).or_default().extend(own);
    }
    for component in policies.iter().filter_map(|p| p.spec.as_ref().ok()).flat_map(|spec| &spec.order) {
        before.entry(component.name.clone()).or_default().extend(names(&component.after));
    }
    before
}

/// These Deployments, each after those that come before it. Members of a circle come last, by name.
pub(super) fn ordered<'w>(chosen: &[&'w Subject], policies: &[Policy]) -> Vec<&'w Subject> {
    let before = before(chosen.iter().copied(), policies);
    let mut place: BTreeMap<&str, usize> = BTreeMap::new();
    for component in policies.iter().filter_map(|p| p.spec.as_ref().ok()).flat_map(|spec| &spec.order) {
        let next = place.len();
        place.entry(&component.name).or_insert(next);
    }
    let key = |s: &Subject| {
        let name = s.deployment.name.clone();
        (place.get(name.as_str()).copied().unwrap_or(usize::MAX), name)
    };
    let mut left: Vec<&Subject> = chosen.to_vec();
    left.sort_by_key(|s| key(s));
    let mut ordered = Vec::new();
    while !left.is_empty() {
        let waits = |s: &Subject| {
            let of_it = before.get(&s.deployment.name);
            left.iter().any(|o| {
                o.deployment.name != s.deployment.name && of_it.is_some_and(|b| b.contains(&o.deployment.name))
            })
        };
        let next = left.iter().position(|s| !waits(s)).unwrap_or(0);
        ordered.push(left.remove(next));
    }
    ordered
}
