//! What can be wrong with a policy although the API server stored it, and with hooks that stand in an annotation,
//! which no schema guards.

mod hook;

use std::collections::BTreeSet;

pub use hook::{hooks, own_header, own_hooks};

use crate::{
    api::{
        policy::{HookPolicySpec, Selector},
        reference::Reference,
        restart::RollingRestartSpec,
    },
    order::graph::cycles,
    select,
};

/// Why a policy cannot be carried out as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Components wait for each other in a circle. Only its members stay held.
    OrderCycle,
    /// Two components or hooks have the same name.
    DuplicateName,
    /// Something in `after` is no reference.
    InvalidReference,
    /// The field selector cannot be used.
    InvalidSelector,
    /// The trigger names nothing and so never fires.
    EmptyTrigger,
    /// A hook breaks a rule.
    InvalidHook,
    /// A maintenance window cannot be used.
    InvalidWindow,
}

impl Reason {
    /// The word as conditions carry it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OrderCycle => "OrderCycle",
            Self::DuplicateName => "DuplicateName",
            Self::InvalidReference => "InvalidReference",
            Self::InvalidSelector => "InvalidSelector",
            Self::EmptyTrigger => "EmptyTrigger",
            Self::InvalidHook => "InvalidHook",
            Self::InvalidWindow => "InvalidWindow",
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
    for component in &spec.order {
        for why in component.after.iter().filter_map(|text| text.parse::<Reference>().err()) {
            let message = format!("spec.order: component `{}`: after: {why}", component.name);
            problems.push(Problem::new(Reason::InvalidReference, message));
        }
    }
    problems.extend(selector(spec.selector.as_ref()));
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

/// Everything that is wrong with a RollingRestart.
pub fn restart(spec: &RollingRestartSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(selector(spec.selector.as_ref()));
    if let Some(Err(message)) = spec.window.as_ref().map(crate::restart::check_window) {
        problems.push(Problem::new(Reason::InvalidWindow, message));
    }
    problems
}

fn selector(selector: Option<&Selector>) -> Option<Problem> {
    let why = select::parse_field_selector(selector?.field_selector.as_deref()?).err()?;
    Some(Problem::new(Reason::InvalidSelector, format!("spec.selector.fieldSelector: {why}")))
}

fn duplicate<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::graph::tests::order;

    #[test]
    fn problems_of_a_policy() {
        let spec = HookPolicySpec {
            trigger: Some(crate::api::policy::Trigger::default()),
            order: order(&[("a", &["b"]), ("b", &["a"]), ("c", &[]), ("c", &["pods/x"])]),
            ..HookPolicySpec::default()
        };
        let reasons: Vec<_> = policy(&spec).iter().map(|problem| problem.reason).collect();
        assert_eq!(
            reasons,
            [Reason::OrderCycle, Reason::DuplicateName, Reason::InvalidReference, Reason::EmptyTrigger]
        );
    }
}
