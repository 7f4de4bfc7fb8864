//! What each kind's own code in the API server does with a write: defaults, what may change, what is refused. As far as
//! what Interlock and its tests send depends on it.

use serde_json::{Value, json};

use crate::{
    json::{at, default, drop_key, int, list, text},
    kinds::Kind,
    refusal::Refusal,
    schema,
    store::Part,
};

/// The form in which objects are stored: nothing that is absent or empty is written out.
pub fn tidy(kind: &Kind, object: &mut Value) {
    drop_nulls(object);
    for pointer in ["/metadata", "/spec/template/metadata"] {
        if let Some(metadata) = object.pointer_mut(pointer) {
            for key in ["labels", "annotations", "ownerReferences"] {
                let empty = match &metadata[key] {
                    Value::Object(map) => map.is_empty(),
                    Value::Array(list) => list.is_empty(),
                    _ => true,
                };
                if empty {
                    drop_key(metadata, key);
                }
            }
        }
    }
    if let Some(metadata) = object.get_mut("metadata") {
        drop_key(metadata, "managedFields");
    }
    match kind.plural {
        "deployments" => {
            if object["spec"]["paused"] == false {
                drop_key(&mut object["spec"], "paused");
            }
            deployment_defaults(&mut object["spec"]);
        }
        "replicasets" => {
            default(&mut object["spec"], "replicas", 1);
            template_defaults(&mut object["spec"]["template"]);
        }
        "pods" => {
            pod_defaults(&mut object["spec"]);
        }
        _ if kind.custom() => schema::of(kind).shape(object),
        _ => {}
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn deployment_defaults(spec: &mut Value) {
    default(spec, "replicas", 1);
    default(spec, "revisionHistoryLimit", 10);
    default(spec, "progressDeadlineSeconds", 600);
    default(spec, "strategy", json!({}));
    let strategy = &mut spec["strategy"];
    default(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        default(strategy, "rollingUpdate", json!({}));
        default(&mut strategy["rollingUpdate"], "maxUnavailable", "25%");
        default(&mut strategy["rollingUpdate"], "maxSurge", "25%");
    }
    template_defaults(&mut spec["template"]);
}

fn template_defaults(template: &mut Value) {
    pod_defaults(&mut template["spec"]);
}

fn pod_defaults(spec: &mut Value) {
    default(spec, "restartPolicy", "Always");
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "schedulerName", "default-scheduler");
    default(spec, "securityContext", json!({}));
    default(spec, "terminationGracePeriodSeconds", 30);
    for key in ["containers", "initContainers"] {
        for container in spec[key].as_array_mut().into_iter().flatten() {
            let image = text(container, "/image");
            let latest =
                image.ends_with(":latest") || !image.rsplit('/').next().is_some_and(|i| i.contains([':', '@']));
            default(container, "imagePullPolicy", if latest { "Always" } else { "IfNotPresent" });
            default(container, "resources", json!({}));
            default(container, "terminationMessagePath", "/dev/termination-log");
            default(container, "terminationMessagePolicy", "File");
            if container["env"].as_array().is_some_and(Vec::is_empty) {
                drop_key(container, "env");
            }
            for probe in ["readinessProbe", "livenessProbe", "startupProbe"] {
                let Some(probe) = container.get_mut(probe) else { continue };
                for (key, value) in
                    [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
                {
                    default(probe, key, value);
                }
                if probe["httpGet"].is_object() {
                    default(&mut probe["httpGet"], "scheme", "HTTP");
                    default(&mut probe["httpGet"], "path", "/");
                }
            }
        }
    }
    if spec["initContainers"].is_null() {
        drop_key(spec, "initContainers");
    }
}

/// What a fresh object gets beside its defaults.
pub fn created(kind: &Kind, object: &mut Value) {
    match kind.plural {
        "pods" => {
            default(&mut object["spec"], "serviceAccountName", "default");
            object["status"] = json!({"phase": "Pending", "qosClass": qos(&object["spec"])});
        }
        "replicasets" => object["status"] = json!({"replicas": 0}),
        "deployments" => object["status"] = json!({}),
        _ => {}
    }
}

/// What a write to this part of an object cannot change is as it was.
pub fn restrict(kind: &Kind, part: Part, old: &Value, new: &mut Value) {
    if part == Part::Status {
        let (status, metadata) = (new["status"].take(), new["metadata"].take());
        *new = old.clone();
        new["status"] = status;
        if !kind.custom() {
            let labels = at(old, "/metadata/labels").clone();
            new["metadata"] = metadata;
            if kind.plural == "deployments" {
                new["metadata"]["labels"] = labels;
            }
        }
    } else if kind.status {
        new["status"] = old["status"].clone();
    }
    if part == Part::Resize {
        let wanted = new["spec"].take();
        *new = old.clone();
        for key in ["containers", "initContainers"] {
            for container in new["spec"][key].as_array_mut().into_iter().flatten() {
                let same = list(&wanted, &format!("/{key}")).iter().find(|c| c["name"] == container["name"]);
                if let Some(same) = same {
                    container["resources"] = same["resources"].clone();
                }
            }
        }
    }
    for field in ["name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp"]
    {
        new["metadata"][field] = old["metadata"].get(field).cloned().unwrap_or_default();
    }
    new["apiVersion"] = old["apiVersion"].clone();
    new["kind"] = old["kind"].clone();
}

/// The name in the object is the one in the path, or absent.
pub fn same_name(name: &str, object: &Value) -> Result<(), Refusal> {
    let sent = text(object, "/metadata/name");
    if sent.is_empty() || sent == name {
        return Ok(());
    }
    Err(Refusal::bad_request(format!("the name of the object ({sent}) does not match the name on the URL ({name})")))
}

/// What every object of the kind has to fulfil.
pub fn valid(kind: &Kind, object: &Value) -> Result<(), Refusal> {
    let name = text(object, "/metadata/name");
    let invalid = |field: &str, cause: &str, why: &str| Err(Refusal::invalid(kind, name, field, cause, why));
    if matches!(kind.plural, "deployments" | "replicasets") {
        if int(object, "/spec/replicas") < 0 {
            return invalid("spec.replicas", "FieldValueInvalid", "Invalid value: must be greater than or equal to 0");
        }
        let labels = at(object, "/spec/template/metadata/labels");
        let wanted = at(object, "/spec/selector/matchLabels").as_object();
        if !wanted.is_some_and(|w| w.iter().all(|(k, v)| labels.get(k) == Some(v))) {
            return invalid(
                "spec.template.metadata.labels",
                "FieldValueInvalid",
                "Invalid value: `selector` does not match template `labels`",
            );
        }
        if list(object, "/spec/template/spec/containers").is_empty() {
            return invalid("spec.template.spec.containers", "FieldValueRequired", "Required value");
        }
    }
    if kind.custom() {
        schema::of(kind).check(kind, name, object)?;
    }
    Ok(())
}

/// What may not change.
pub fn valid_update(kind: &Kind, part: Part, old: &Value, new: &Value) -> Result<(), Refusal> {
    let name = text(old, "/metadata/name");
    if matches!(kind.plural, "deployments" | "replicasets") && new["spec"]["selector"] != old["spec"]["selector"] {
        return Err(Refusal::invalid(
            kind,
            name,
            "spec.selector",
            "FieldValueInvalid",
            "Invalid value: field is immutable",
        ));
    }
    if kind.plural != "pods" || part == Part::Status {
        return Ok(());
    }
    if part == Part::Resize {
        if qos(&old["spec"]) != qos(&new["spec"]) {
            let why = "Invalid value: Pod QOS Class may not change as a result of resizing";
            return Err(Refusal::invalid(kind, name, "spec", "FieldValueInvalid", why));
        }
        return Ok(());
    }
    let fixed = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for key in ["containers", "initContainers"] {
            for container in spec[key].as_array_mut().into_iter().flatten() {
                container["image"] = json!("");
            }
        }
        for key in ["tolerations", "activeDeadlineSeconds", "nodeName"] {
            drop_key(&mut spec, key);
        }
        spec
    };
    if fixed(old) != fixed(new) {
        let why = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`";
        return Err(Refusal::invalid(kind, name, "spec", "FieldValueForbidden", why));
    }
    Ok(())
}

fn qos(spec: &Value) -> &'static str {
    let resources: Vec<&Value> = list(spec, "/containers").iter().map(|c| &c["resources"]).collect();
    let empty = |v: &Value| v.as_object().is_none_or(serde_json::Map::is_empty);
    if resources.iter().all(|r| empty(&r["requests"]) && empty(&r["limits"])) {
        return "BestEffort";
    }
    let guaranteed = resources.iter().all(|r| {
        ["cpu", "memory"].iter().all(|k| {
            let limit = &r["limits"][k];
            !limit.is_null() && (r["requests"][k].is_null() || r["requests"][k] == *limit)
        })
    });
    if guaranteed { "Guaranteed" } else { "Burstable" }
}
