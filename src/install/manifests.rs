//! What is installed, as objects, in the order in which it is applied. The sources are the files in `deploy/`.

use anyhow::{Context as _, bail};
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::Value;

use super::{InstallOptions, NAMESPACE};

const NAMESPACE_YAML: &str = include_str!("../../deploy/namespace.yaml");
const RIGHTS_YAML: &str = include_str!("../../deploy/rights.yaml");
const ROLES_YAML: &str = include_str!("../../deploy/roles.yaml");
const GUARDS_YAML: &str = include_str!("../../deploy/guards.yaml");
const HOLD_YAML: &str = include_str!("../../deploy/hold.yaml");
const GATE_YAML: &str = include_str!("../../deploy/readiness-gate.yaml");
const CONTROLLER_YAML: &str = include_str!("../../deploy/controller.yaml");

/// Namespaces that are not ours to install into, or to delete.
const FOREIGN: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The parts of an installation, in the order in which they are applied.
pub(super) struct Parts {
    pub(super) namespace: Vec<Value>,
    pub(super) definitions: Vec<Value>,
    pub(super) rights: Vec<Value>,
    pub(super) guards: Vec<Value>,
    pub(super) hold: Vec<Value>,
    pub(super) controller: Vec<Value>,
    /// Adds the readiness gate to new pods; after the controller, without which such pods are not ready.
    pub(super) gate: Vec<Value>,
}

impl Parts {
    pub(super) fn new(options: &InstallOptions) -> anyhow::Result<Self> {
        let InstallOptions { namespace, failure_policy, image, readiness_gate } = options;
        check_namespace(namespace)?;
        let read = |text| read(text, namespace);
        let mut rights = read(RIGHTS_YAML)?;
        rights.extend(read(ROLES_YAML)?);
        let mut hold = read(HOLD_YAML)?;
        for policy in &mut hold {
            if let Some(policy) = policy.pointer_mut("/spec/failurePolicy") {
                *policy = failure_policy.as_str().into();
            }
        }
        let mut controller = Vec::new();
        if let Some(image) = image {
            controller = read(CONTROLLER_YAML)?;
            for deployment in &mut controller {
                *deployment
                    .pointer_mut("/spec/template/spec/containers/0/image")
                    .context("deploy/controller.yaml has no container")? = image.as_str().into();
            }
        }
        Ok(Self {
            namespace: read(NAMESPACE_YAML)?,
            definitions: crate::api::crds()?.iter().map(serde_json::to_value).collect::<Result<_, _>>()?,
            rights,
            guards: read(GUARDS_YAML)?,
            hold,
            controller,
            gate: if *readiness_gate { read(GATE_YAML)? } else { Vec::new() },
        })
    }
}

/// Everything that [`super::install`] applies, in its order.
///
/// # Errors
/// A namespace that cannot be used.
pub fn manifests(options: &InstallOptions) -> anyhow::Result<Vec<Value>> {
    let Parts { namespace, definitions, rights, guards, hold, controller, gate } = Parts::new(options)?;
    Ok([namespace, definitions, rights, guards, hold, controller, gate].into_iter().flatten().collect())
}

/// Objects as one YAML text.
///
/// # Errors
/// None for objects made here.
pub fn yaml(objects: &[Value]) -> anyhow::Result<String> {
    let options = serde_saphyr::ser_options! { indent_step: 2, compact_list_indent: true };
    let objects: Vec<Value> = objects.iter().map(whole_numbers).collect();
    Ok(serde_saphyr::to_string_multiple_with_options(&objects, options)?)
}

/// The same with `1` for `1.0`: bounds in a typed definition are floating point numbers.
fn whole_numbers(value: &Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64().map(|float| (float, format!("{float:.0}").parse::<i64>())) {
            Some((float, Ok(whole))) if number.is_f64() && float.fract() == 0.0 => whole.into(),
            _ => value.clone(),
        },
        Value::Array(items) => items.iter().map(whole_numbers).collect(),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), whole_numbers(value))).collect(),
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

/// The documents of a source, for this namespace.
fn read(text: &str, namespace: &str) -> anyhow::Result<Vec<Value>> {
    Ok(serde_saphyr::from_multiple(&text.replace(NAMESPACE, namespace))?)
}

fn check_namespace(namespace: &str) -> anyhow::Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if namespace.is_empty()
        || namespace.len() > 63
        || !namespace.chars().all(|c| plain(c) || c == '-')
        || !namespace.starts_with(plain)
        || !namespace.ends_with(plain)
    {
        bail!("`{namespace}` is no name of a namespace: lower case letters, digits and `-`, at most 63");
    }
    if FOREIGN.contains(&namespace) {
        bail!(
            "namespace `{namespace}` cannot be used: the hold leaves the controller's namespace alone, and uninstall \
             deletes it; choose one of its own, such as {NAMESPACE}"
        );
    }
    Ok(())
}

/// The client for this object's kind, in its namespace.
pub(super) fn api(client: &Client, object: &Value) -> (Api<DynamicObject>, String) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("/kind")));
    let api = match text("/metadata/namespace") {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    (api, text("/metadata/name").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(namespace: &str) -> InstallOptions {
        InstallOptions { namespace: namespace.to_owned(), ..InstallOptions::default() }
    }

    #[test]
    fn another_namespace_reaches_every_place() {
        let text = yaml(&manifests(&options("elsewhere")).unwrap()).unwrap();
        assert!(!text.contains(NAMESPACE));
        assert!(text.contains("system:serviceaccount:elsewhere:interlock"));
    }

    #[test]
    fn namespaces_of_others_are_refused() {
        for namespace in ["default", "kube-system", "", "Upper", "-x", "a\nb"] {
            assert!(manifests(&options(namespace)).is_err(), "{namespace}");
        }
    }

    #[test]
    fn the_failure_policy_is_that_of_all_that_hold_and_of_nothing_else() {
        let options =
            InstallOptions { failure_policy: super::super::FailurePolicy::Ignore, ..options("interlock-system") };
        for object in manifests(&options).unwrap() {
            let policy = object.pointer("/spec/failurePolicy").and_then(Value::as_str);
            match object["kind"].as_str().unwrap() {
                "MutatingAdmissionPolicy" => assert_eq!(policy, Some("Ignore")),
                "ValidatingAdmissionPolicy" if object["metadata"]["name"] != "interlock-tell" => {
                    assert_eq!(policy, Some("Fail"));
                }
                _ => {}
            }
        }
    }

    #[test]
    fn the_readiness_gate_is_asked_for_and_never_refuses_a_pod() {
        let is_gate = |object: &Value| object["metadata"]["name"] == "interlock-readiness-gate";
        assert!(!manifests(&options("interlock-system")).unwrap().iter().any(is_gate));
        let options = InstallOptions { readiness_gate: true, ..options("elsewhere") };
        let gate: Vec<_> = manifests(&options).unwrap().into_iter().filter(is_gate).collect();
        assert_eq!(gate.len(), 2);
        assert_eq!(gate[0]["spec"]["failurePolicy"], "Ignore");
        let text = gate[0].to_string();
        assert!(text.contains(interlock_core::api::names::READINESS_GATE));
        assert!(text.contains(interlock_core::api::names::READINESS_GATE_LABEL));
    }

    #[test]
    fn the_definitions_come_before_the_hold_and_the_bindings_last() {
        let kinds: Vec<_> = manifests(&options("interlock-system"))
            .unwrap()
            .iter()
            .map(|object| object["kind"].as_str().unwrap().to_owned())
            .collect();
        let first = |kind: &str| kinds.iter().position(|k| k == kind).unwrap();
        let last = |kind: &str| kinds.iter().rposition(|k| k == kind).unwrap();
        assert!(last("CustomResourceDefinition") < first("MutatingAdmissionPolicy"));
        assert!(last("MutatingAdmissionPolicy") < first("MutatingAdmissionPolicyBinding"));
        assert_eq!(last("MutatingAdmissionPolicyBinding"), kinds.len() - 1);
    }
}
