//! Deployments and policies as tests need them.

use serde_json::{Value, json};

/// Image of a version.
pub fn image(version: &str) -> String {
    format!("r.test/img:{version}")
}

/// A Deployment with one container `c` and a readiness probe.
pub fn deployment(name: &str, replicas: i64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": {"stack": "test"}, "annotations": {"team": "a"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "c", "image": image("v1"),
                        "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}

/// A HookPolicy that selects everything with label `stack: test`, with a PreUpdate and a PostUpdate hook.
pub fn policy(name: &str, url: &str) -> Value {
    json!({
        "apiVersion": "interlock.dev/v1alpha1", "kind": "HookPolicy",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"stack": "test"}},
            "settleSeconds": 0,
            "maxConcurrentUpdates": 10,
            "hooks": [
                {"name": "before", "phase": "PreUpdate", "http": {"url": format!("{url}/before")}, "timeoutSeconds": 20, "retries": 2, "backoffSeconds": 1},
                {"name": "after", "phase": "PostUpdate", "http": {"url": format!("{url}/after")}, "timeoutSeconds": 20, "retries": 2, "backoffSeconds": 1},
            ],
        },
    })
}

/// Strategic merge patch of the image.
pub fn set_image(version: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image(version)}]}}}})
}

/// Strategic merge patch of an environment variable.
pub fn set_env(value: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "env": [{"name": "E", "value": value}]}]}}}})
}
