//! CustomResourceDefinitions from the core types.

use interlock_core::api::{
    names,
    policy::{HookPolicySpec, HookPolicyStatus},
    restart::{RollingRestartSpec, RollingRestartStatus},
    run::{HookRunSpec, HookRunStatus},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::{
    JsonSchema, Schema,
    generate::SchemaSettings,
    transform::{AddNullable, RecursiveTransform, Transform as _},
};
use serde_json::{Value, json};

/// All definitions, in the order in which they are applied.
///
/// # Errors
/// Only if a schema of the core is not a structural one; a test sees to that.
pub fn crds() -> Result<Vec<CustomResourceDefinition>, serde_json::Error> {
    Ok(vec![hook_policy()?, hook_run()?, rolling_restart()?])
}

/// The definition of this plural, such as `hookpolicies`.
///
/// # Errors
/// As [`crds`].
pub fn definition(plural: &str) -> Result<Option<CustomResourceDefinition>, serde_json::Error> {
    Ok(crds()?.into_iter().find(|crd| crd.spec.names.plural == plural))
}

/// A HookPolicy, for its schema only.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "read by schemars only")]
struct HookPolicySchema {
    /// Which updates are held, what runs before and after, how pods are updated and in which order.
    spec: HookPolicySpec,
    /// What the controller reports.
    #[serde(default)]
    status: Option<HookPolicyStatus>,
}

/// A HookRun, for its schema only.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "read by schemars only")]
struct HookRunSchema {
    /// Written once by the controller; people add decisions.
    spec: HookRunSpec,
    /// What the controller reports.
    #[serde(default)]
    status: Option<HookRunStatus>,
}

/// A RollingRestart, for its schema only.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "read by schemars only")]
struct RollingRestartSchema {
    /// What is asked for. Only decisions can be added later.
    spec: RollingRestartSpec,
    /// What the controller reports.
    #[serde(default)]
    status: Option<RollingRestartStatus>,
}

fn hook_policy() -> Result<CustomResourceDefinition, serde_json::Error> {
    let mut schema =
        schema::<HookPolicySchema>("A HookPolicy: hooks, order and in-place updates for plain Deployments.");
    // `annotation` is what the hold writes for a Deployment that carries its hooks itself.
    schema.insert(
        "x-kubernetes-validations".to_owned(),
        json!([{
            "rule": "self.metadata.name != 'annotation'",
            "message": "the name `annotation` stands for Deployments that carry their hooks themselves; choose another one",
        }]),
    );
    let columns = json!([
        column("Enforcement", "string", ".spec.enforcement", "Hold, Audit or Off", 0),
        column("Ready", "string", &condition("Ready", "status"), "Can the policy be carried out?", 0),
        column("Enforced", "string", &condition("Enforced", "status"), "Is the hold proved to be in force?", 0),
        column("Selected", "integer", ".status.selected", "Deployments that this policy selects", 0),
        column("Reason", "string", &condition("Ready", "reason"), "Why it is ready or not", 1),
        column("Message", "string", &condition("Ready", "message"), "The same for people", 1),
        column("Age", "date", ".metadata.creationTimestamp", "Since when it exists", 0),
    ]);
    crd("HookPolicy", "hookpolicy", "hookpolicies", "hpol", &schema, &columns)
}

fn hook_run() -> Result<CustomResourceDefinition, serde_json::Error> {
    let schema = schema::<HookRunSchema>("A HookRun: the durable record of one update of a Deployment.");
    let columns = json!([
        column("Deployment", "string", ".spec.deployment.name", "The Deployment that is updated", 0),
        column(
            "Succeeded",
            "string",
            &condition("Succeeded", "status"),
            "Did the run succeed? Unknown: not yet ended",
            0
        ),
        column("Reason", "string", &condition("Succeeded", "reason"), "Where the run is, or how it ended", 0),
        column("Way", "string", ".status.way.kind", "InPlace or Native", 0),
        column("Updated", "integer", ".status.pods.updated", "Pods that run the new template and are available", 0),
        column("Desired", "integer", ".status.pods.desired", "Pods that the Deployment wants", 0),
        column("Waiting", "string", ".status.waitingFor.reason", "What the run waits for", 0),
        column("Policy", "string", ".spec.policy.name", "The HookPolicy that was in force", 1),
        column("Message", "string", &condition("Succeeded", "message"), "The same for people", 1),
        column("Age", "date", ".metadata.creationTimestamp", "Since when it exists", 0),
    ]);
    crd("HookRun", "hookrun", "hookruns", "hrun", &schema, &columns)
}

fn rolling_restart() -> Result<CustomResourceDefinition, serde_json::Error> {
    let schema = schema::<RollingRestartSchema>(
        "A RollingRestart: Deployments made anew one after the other, or a sidecar of theirs changed in place.",
    );
    let columns = json!([
        column("Succeeded", "string", &condition("Succeeded", "status"), "Did it succeed? Unknown: not yet ended", 0),
        column("Reason", "string", &condition("Succeeded", "reason"), "Where it is, or how it ended", 0),
        column("Finished", "integer", ".status.finished", "Deployments that are done or skipped", 0),
        column("Total", "integer", ".status.total", "Deployments of the request", 0),
        column("Waiting", "string", ".status.waitingFor.what", "What it waits for", 1),
        column("Message", "string", &condition("Succeeded", "message"), "The same for people", 1),
        column("Age", "date", ".metadata.creationTimestamp", "Since when it exists", 0),
    ]);
    crd("RollingRestart", "rollingrestart", "rollingrestarts", "rrst", &schema, &columns)
}

fn crd(
    kind: &str,
    singular: &str,
    plural: &str,
    short: &str,
    schema: &Schema,
    columns: &Value,
) -> Result<CustomResourceDefinition, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("{plural}.{}", names::GROUP),
            "labels": {"app.kubernetes.io/part-of": "interlock"},
        },
        "spec": {
            "group": names::GROUP,
            "names": {
                "kind": kind,
                "listKind": format!("{kind}List"),
                "plural": plural,
                "singular": singular,
                "shortNames": [short],
                "categories": ["interlock"],
            },
            "scope": "Namespaced",
            "versions": [{
                "name": names::VERSION,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    }))
}

fn column(name: &str, kind: &str, path: &str, description: &str, priority: i32) -> Value {
    if priority == 0 {
        json!({"name": name, "type": kind, "jsonPath": path, "description": description})
    } else {
        json!({"name": name, "type": kind, "jsonPath": path, "description": description, "priority": priority})
    }
}

fn condition(kind: &str, field: &str) -> String {
    format!(".status.conditions[?(@.type==\"{kind}\")].{field}")
}

/// The structural schema of a type: the steps of kube's derive, and [`tidy`].
fn schema<T: JsonSchema>(description: &str) -> Schema {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString)
        .into_generator()
        .into_root_schema_for::<T>();
    RecursiveTransform(tidy).transform(&mut schema);
    schema.remove("title");
    schema.insert("description".to_owned(), description.into());
    schema
}

/// Nothing is nullable: the API server then drops a null, as if the field were absent. A null that stayed would reach
/// the expressions of the hold, which know only present and absent, and a failing expression refuses every write.
fn tidy(schema: &mut Schema) {
    schema.remove("nullable");
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    // What an int or string is, is said by the extension alone; the rewriter leaves two empty alternatives behind.
    if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        schema.remove("anyOf");
    }
    // Line breaks of the source are not those of the reader.
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
}
