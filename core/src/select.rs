//! Selection and trigger: which policy governs a Deployment, and whether a change counts. The API server decides the
//! same in CEL (`deploy/hold.yaml`); a test drives both over the same cases and demands the same verdict.

use std::collections::BTreeMap;

use crate::{
    api::{
        names,
        policy::{Enforcement, HookPolicySpec, Operator, Requirement, Selector, Trigger},
    },
    template::Template,
};

/// Labels and annotations of one side of a write.
#[derive(Clone, Copy, Debug)]
pub struct Meta<'a> {
    /// `metadata.labels`.
    pub labels: &'a BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: &'a BTreeMap<String, String>,
}

impl Meta<'_> {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }
}

/// One side of a write to a Deployment: what was, or what is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Labels and annotations.
    pub meta: Meta<'a>,
    /// `spec.paused`.
    pub paused: bool,
    /// `spec.template`.
    pub template: &'a Template,
}

impl Side<'_> {
    /// Who holds it: a held one is always paused, so a mark on one that runs is a copy.
    fn held_by(&self) -> Option<&str> {
        self.meta.annotation(names::HELD_BY).filter(|_| self.paused)
    }
}

/// A field that the API server can select Deployments by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    /// `metadata.name`.
    Name,
    /// `metadata.namespace`.
    Namespace,
}

/// One term of a field selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldTerm {
    /// The field.
    pub field: Field,
    /// True for `=` and `==`, false for `!=`.
    pub equal: bool,
    /// The value.
    pub value: String,
}

impl FieldTerm {
    /// Does a Deployment of this namespace and name fulfil the term?
    pub fn matches(&self, namespace: &str, name: &str) -> bool {
        let value = match self.field {
            Field::Name => name,
            Field::Namespace => namespace,
        };
        (value == self.value) == self.equal
    }
}

/// Parses a field selector such as `metadata.name=web,metadata.namespace!=test`. The empty text selects everything.
///
/// # Errors
/// What is wrong and what would be right. Deployments can be selected by `metadata.name` and `metadata.namespace`
/// only: the API server answers anything else with 400.
pub fn parse_field_selector(text: &str) -> Result<Vec<FieldTerm>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(parse_term).collect()
}

fn parse_term(term: &str) -> Result<FieldTerm, String> {
    let (field, equal, value) = if let Some((field, value)) = term.split_once("!=") {
        (field, false, value)
    } else if let Some((field, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (field, true, value)
    } else {
        return Err(format!(
            "field selector term `{}` has no operator: write FIELD=VALUE or FIELD!=VALUE",
            term.trim()
        ));
    };
    let field = match field.trim() {
        "metadata.name" => Field::Name,
        "metadata.namespace" => Field::Namespace,
        other => {
            return Err(format!(
                "field `{other}` is not supported: Deployments can be selected by metadata.name and \
                 metadata.namespace only"
            ));
        }
    };
    let value = value.trim();
    if value.is_empty() || value.contains(['=', '!']) {
        return Err(format!("field selector term `{}` needs one value after its operator", term.trim()));
    }
    Ok(FieldTerm { field, equal, value: value.to_owned() })
}

/// Splits annotation `interlock.dev/after`: references to predecessors, separated by commas.
pub fn parse_after(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Does this policy select this Deployment: by its selector, by its order, or by the Deployment's own annotation?
///
/// Labels and annotation count if the old **or** the new side has them, so that no single write steps out of a policy
/// and rolls. The enforcement does not matter here.
pub fn selects(
    policy: &str,
    spec: &HookPolicySpec,
    namespace: &str,
    name: &str,
    old: Option<Meta<'_>>,
    new: Meta<'_>,
) -> bool {
    let mut sides = [Some(new), old].into_iter().flatten();
    sides.clone().any(|side| side.annotation(names::POLICY) == Some(policy))
        || spec.order.iter().any(|component| component.name == name)
        || spec.selector.as_ref().is_some_and(|selector| {
            matches_fields(selector, namespace, name) && sides.any(|side| matches_labels(selector, side.labels))
        })
}

/// Does this selector select a Deployment?
pub fn matches(selector: &Selector, namespace: &str, name: &str, labels: &BTreeMap<String, String>) -> bool {
    matches_fields(selector, namespace, name) && matches_labels(selector, labels)
}

/// A field selector that does not parse cannot be stored; if one is met all the same, it selects: too much is held
/// then, never too little.
fn matches_fields(selector: &Selector, namespace: &str, name: &str) -> bool {
    selector.field_selector.as_deref().is_none_or(|text| {
        parse_field_selector(text).is_ok_and(|terms| terms.iter().all(|term| term.matches(namespace, name)))
            || parse_field_selector(text).is_err()
    })
}

fn matches_labels(selector: &Selector, labels: &BTreeMap<String, String>) -> bool {
    selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().all(|requirement| fulfils(requirement, labels))
}

fn fulfils(requirement: &Requirement, labels: &BTreeMap<String, String>) -> bool {
    let Requirement { key, operator, values } = requirement;
    let listed = || labels.get(key).is_some_and(|value| values.contains(value));
    match operator {
        Operator::In => listed(),
        Operator::NotIn => !listed(),
        Operator::Exists => labels.contains_key(key),
        Operator::DoesNotExist => !labels.contains_key(key),
    }
}

/// Does the change from one template to the other count for this policy?
pub fn triggers(spec: &HookPolicySpec, old: &Template, new: &Template) -> bool {
    old != new
        && spec.trigger.as_ref().is_none_or(|trigger| {
            let Trigger { labels, annotations, containers } = trigger;
            let meta = |template: &Template, part: &str, key: &str| {
                template.json().get("metadata").and_then(|m| m.get(part)).and_then(|m| m.get(key)).cloned()
            };
            let differs = |part, key: &String| meta(old, part, key) != meta(new, part, key);
            labels.iter().any(|key| differs("labels", key))
                || annotations.iter().any(|key| differs("annotations", key))
                || containers.iter().any(|name| {
                    ["containers", "initContainers"]
                        .into_iter()
                        .any(|list| container(old, list, name) != container(new, list, name))
                })
        })
}

fn container<'a>(template: &'a Template, list: &str, name: &str) -> Option<&'a serde_json::Value> {
    let containers = template.json().get("spec")?.get(list)?.as_array()?;
    containers.iter().find(|container| container.get("name").and_then(serde_json::Value::as_str) == Some(name))
}

/// Who governs a Deployment, and who would like to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Governor<'a> {
    /// The policy that counts: of those that hold the one with the smallest name, else of those that audit.
    pub policy: Option<&'a str>,
    /// All others that select it and are not off. Each of them, and the one that counts, is to report `Conflict`.
    pub others: Vec<&'a str>,
}

/// Which of the namespace's policies governs the Deployment as it stands.
pub fn governor<'a>(
    policies: impl IntoIterator<Item = (&'a str, &'a HookPolicySpec)>,
    namespace: &str,
    name: &str,
    meta: Meta<'_>,
) -> Governor<'a> {
    let mut found: Vec<_> = policies
        .into_iter()
        .filter(|(_, spec)| spec.enforcement != Enforcement::Off)
        .filter(|(policy, spec)| selects(policy, spec, namespace, name, None, meta))
        .map(|(policy, spec)| (spec.enforcement != Enforcement::Hold, policy))
        .collect();
    found.sort_unstable();
    let mut found = found.into_iter().map(|(_, policy)| policy);
    Governor { policy: found.next(), others: found.collect() }
}

/// What the API server decides about a write to a Deployment: who holds it afterwards (the value of
/// `interlock.dev/held-by`), if anybody. `released`: the write carries the release mark by right and leaves the
/// template alone. Marks that the write itself brings along do not count here; the API server lets a smaller name
/// stand if it is marked for the right generation.
pub fn verdict<'a>(
    policies: impl IntoIterator<Item = (&'a str, &'a HookPolicySpec)>,
    namespace: &str,
    name: &str,
    old: Option<Side<'_>>,
    new: Side<'_>,
    released: bool,
) -> Option<String> {
    if released {
        return None;
    }
    if let Some(by) = old.as_ref().and_then(Side::held_by) {
        return Some(by.to_owned());
    }
    let old_meta = old.map(|side| side.meta);
    let resumed =
        old.is_some_and(|old| old.paused && !new.paused && !old.meta.annotations.contains_key(names::HELD_BY));
    let changed = old.is_some_and(|old| old.template != new.template);
    let by_policy = policies
        .into_iter()
        .filter(|(_, spec)| spec.enforcement == Enforcement::Hold)
        .filter(|(policy, spec)| selects(policy, spec, namespace, name, old_meta, new.meta))
        .filter(|(_, spec)| match old {
            None => spec.order.iter().any(|component| component.name == name && !component.after.is_empty()),
            Some(old) => resumed || triggers(spec, old.template, new.template),
        })
        .map(|(policy, _)| policy)
        .min();
    let has =
        |key: &str| [Some(new.meta), old_meta].into_iter().flatten().any(|side| side.annotations.contains_key(key));
    let by_annotation = if old.is_some() {
        (has(names::HOOKS) || has(names::AFTER)) && (changed || resumed)
    } else {
        has(names::AFTER)
    };
    by_policy.or(by_annotation.then_some(names::BY_ANNOTATION)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_selectors_as_the_api_server_reads_them() {
        let term = |field, equal, value: &str| FieldTerm { field, equal, value: value.to_owned() };
        assert_eq!(parse_field_selector(""), Ok(vec![]));
        assert_eq!(
            parse_field_selector("metadata.name = a,metadata.namespace!=b , metadata.name==c"),
            Ok(vec![term(Field::Name, true, "a"), term(Field::Namespace, false, "b"), term(Field::Name, true, "c")])
        );
        for (text, said) in [
            ("status.phase=Running", "`status.phase` is not supported"),
            ("metadata.name", "has no operator"),
            ("metadata.name=", "needs one value"),
            ("metadata.name=a=b", "needs one value"),
            ("metadata.name=a,", "has no operator"),
            ("=a", "`` is not supported"),
        ] {
            let message = parse_field_selector(text).unwrap_err();
            assert!(message.contains(said), "{text}: {message}");
        }
    }

    #[test]
    fn predecessors_of_an_annotation() {
        assert_eq!(parse_after(" etcd, mds ,,"), ["etcd", "mds"]);
        assert_eq!(parse_after(""), Vec::<String>::new());
    }

    #[test]
    fn the_smallest_name_that_holds_governs_and_an_audit_only_without_one() {
        let spec = |enforcement| HookPolicySpec {
            enforcement,
            selector: Some(Selector::default()),
            ..HookPolicySpec::default()
        };
        let (hold, audit, off) = (spec(Enforcement::Hold), spec(Enforcement::Audit), spec(Enforcement::Off));
        let none = BTreeMap::new();
        let meta = Meta { labels: &none, annotations: &none };
        let governor = |policies: &[(&'static str, &HookPolicySpec)]| {
            let found = governor(policies.iter().copied(), "ns", "web", meta);
            (found.policy.map(str::to_owned), found.others.join(","))
        };
        assert_eq!(
            governor(&[("z", &hold), ("b", &hold), ("a", &audit), ("0", &off)]),
            (Some("b".into()), "z,a".into())
        );
        assert_eq!(governor(&[("b", &audit), ("a", &audit)]), (Some("a".into()), "b".into()));
        assert_eq!(governor(&[("a", &off)]), (None, String::new()));
    }
}
