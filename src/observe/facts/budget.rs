//! PodDisruptionBudgets.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::json::{field, int_or_zero, list, strings, text};

/// A PodDisruptionBudget before it is known which pods it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetFacts {
    /// Name.
    pub name: String,
    /// Which pods it covers. `None`: a selector that cannot be read, which covers every pod, for that is the safe side.
    pub selector: Option<Selector>,
    /// `status.desiredHealthy`.
    pub desired_healthy: i64,
    /// `status.expectedPods`.
    pub expected: i64,
    /// `status.disruptionsAllowed`.
    pub allowed: i64,
    /// Has its status caught up with its spec?
    pub current: bool,
}

/// A label selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    labels: BTreeMap<String, String>,
    expressions: Vec<(String, Test)>,
    nothing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Does it select an object with these labels? An empty selector selects everything, an absent one nothing, as
    /// policy/v1 has it.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.nothing
            && self.labels.iter().all(|(k, v)| labels.get(k) == Some(v))
            && self.expressions.iter().all(|(key, test)| match test {
                Test::In(values) => labels.get(key).is_some_and(|v| values.contains(v)),
                Test::NotIn(values) => !labels.get(key).is_some_and(|v| values.contains(v)),
                Test::Exists => labels.contains_key(key),
                Test::DoesNotExist => !labels.contains_key(key),
            })
    }
}

/// The facts of a PodDisruptionBudget.
pub fn budget(object: &Value) -> BudgetFacts {
    let metadata = field(object, "metadata");
    let status = field(object, "status");
    BudgetFacts {
        name: text(metadata, "name").to_owned(),
        selector: selector(field(field(object, "spec"), "selector")),
        desired_healthy: int_or_zero(status, "desiredHealthy"),
        expected: int_or_zero(status, "expectedPods"),
        allowed: int_or_zero(status, "disruptionsAllowed"),
        current: int_or_zero(status, "observedGeneration") >= int_or_zero(metadata, "generation"),
    }
}

fn selector(value: &Value) -> Option<Selector> {
    if value.is_null() {
        return Some(Selector { nothing: true, ..Selector::default() });
    }
    let expressions = list(value, "matchExpressions").iter().map(|e| {
        let values = || list(e, "values").iter().filter_map(|v| Some(v.as_str()?.to_owned())).collect();
        let test = match text(e, "operator") {
            "In" => Test::In(values()),
            "NotIn" => Test::NotIn(values()),
            "Exists" => Test::Exists,
            "DoesNotExist" => Test::DoesNotExist,
            _ => return None,
        };
        Some((text(e, "key").to_owned(), test))
    });
    value.is_object().then_some(())?;
    Some(Selector {
        labels: strings(value, "matchLabels"),
        expressions: expressions.collect::<Option<_>>()?,
        nothing: false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_select_as_kubernetes_does() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let matches = |s: Value| budget(&json!({"spec": {"selector": s}})).selector.unwrap().matches(&labels);
        assert!(matches(json!({})));
        assert!(!matches(json!(null)));
        assert!(matches(json!({"matchLabels": {"app": "web"}})));
        assert!(!matches(json!({"matchLabels": {"app": "web", "x": "y"}})));
        assert!(matches(json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]})));
        assert!(matches(json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["web"]}]})));
        assert!(!matches(json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]})));
    }

    #[test]
    fn a_selector_that_cannot_be_read_is_told_apart() {
        for odd in [json!([]), json!("x"), json!({"matchExpressions": [{"key": "a", "operator": "Near"}]})] {
            assert_eq!(budget(&json!({"spec": {"selector": odd}})).selector, None);
        }
    }
}
