//! The stack of `examples/storage`, as this program applies and expects it.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

const POLICY: &str = include_str!("../../examples/storage/policy.yaml");
const DEPLOYMENTS: &str = include_str!("../../examples/storage/deployments.yaml");

/// One Deployment of the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Component {
    /// Its name, also the value of label `app` on its pods.
    pub(crate) name: String,
    /// How many pods it has.
    pub(crate) replicas: usize,
    /// Its one container.
    pub(crate) container: String,
    /// The container's image without the tag.
    pub(crate) repository: String,
}

impl Component {
    /// The image with this tag.
    pub(crate) fn image(&self, tag: &str) -> String {
        format!("{}:{tag}", self.repository)
    }

    /// `deploy/NAME`.
    pub(crate) fn target(&self) -> String {
        format!("deploy/{}", self.name)
    }
}

/// The components in the order in which they start, and the manifest that creates them in the opposite one.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) components: Vec<Component>,
    pub(crate) reversed: Value,
}

/// Reads the stack.
///
/// # Errors
/// When the example is not what this program expects; the message says where.
pub(crate) fn stack() -> Result<Stack> {
    let mut items: Vec<Value> =
        serde_saphyr::from_multiple(DEPLOYMENTS).context("examples/storage/deployments.yaml")?;
    let components = items.iter().map(component).collect::<Result<Vec<_>>>()?;
    items.reverse();
    Ok(Stack { components, reversed: json!({"apiVersion": "v1", "kind": "List", "items": items}) })
}

fn component(deployment: &Value) -> Result<Component> {
    let text = |path: &str| {
        deployment
            .pointer(path)
            .and_then(Value::as_str)
            .with_context(|| format!("examples/storage/deployments.yaml: {path} is missing"))
    };
    let image = text("/spec/template/spec/containers/0/image")?;
    let replicas = deployment.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
    Ok(Component {
        name: text("/metadata/name")?.to_owned(),
        replicas: usize::try_from(replicas)?,
        container: text("/spec/template/spec/containers/0/name")?.to_owned(),
        repository: image.rsplit_once(':').map_or(image, |(repository, _)| repository).to_owned(),
    })
}

/// The policy, with its hooks sent to `authority` (`HOST:PORT`) and the rest of their URLs kept.
///
/// # Errors
/// When the example is not what this program expects.
pub(crate) fn policy(authority: &str) -> Result<Value> {
    let mut policy: Value = serde_saphyr::from_str(POLICY).context("examples/storage/policy.yaml")?;
    let hooks = policy.pointer_mut("/spec/hooks").and_then(Value::as_array_mut);
    for hook in hooks.context("examples/storage/policy.yaml: no spec.hooks")? {
        if let Some(url) = hook.pointer_mut("/http/url") {
            let new =
                with_authority(url.as_str().context("examples/storage/policy.yaml: a url is no text")?, authority)?;
            *url = Value::String(new);
        }
    }
    Ok(policy)
}

/// The URL with another host and port.
fn with_authority(url: &str, authority: &str) -> Result<String> {
    let Some((scheme, rest)) = url.split_once("://") else { bail!("{url:?} is no absolute URL") };
    let path = rest.find(['/', '?', '#']).and_then(|at| rest.get(at..)).unwrap_or_default();
    Ok(format!("{scheme}://{authority}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_host_and_port_of_a_url_change() {
        for (url, expected) in [
            ("http://hooks.example:8080/announce", "http://127.0.0.1:1/announce"),
            ("http://hooks.example", "http://127.0.0.1:1"),
            ("http://hooks.example?a=/b", "http://127.0.0.1:1?a=/b"),
            ("https://h/a/b?c#d", "https://127.0.0.1:1/a/b?c#d"),
        ] {
            assert_eq!(with_authority(url, "127.0.0.1:1").unwrap(), expected);
        }
        with_authority("hooks.example/announce", "127.0.0.1:1").unwrap_err();
    }

    #[test]
    fn the_policy_calls_the_receiver_and_is_otherwise_the_example() {
        let policy = policy("127.0.0.1:1").unwrap();
        let urls: Vec<_> =
            policy["spec"]["hooks"].as_array().unwrap().iter().map(|h| h["http"]["url"].clone()).collect();
        assert_eq!(urls, ["http://127.0.0.1:1/announce", "http://127.0.0.1:1/verify"]);
        assert_eq!(policy["spec"]["update"]["maxUnavailable"], 1);
    }

    #[test]
    fn the_deployments_stand_in_the_order_of_the_policy() {
        let stack = stack().unwrap();
        let names: Vec<_> = stack.components.iter().map(|c| c.name.clone()).collect();
        let policy = policy("h").unwrap();
        let order = policy["spec"]["order"].as_array().unwrap().clone();
        assert_eq!(order.iter().map(|o| o["name"].clone()).collect::<Vec<_>>(), names);
        for (place, name) in order.iter().skip(1).zip(&names) {
            assert_eq!(place["after"], json!([name]));
        }
        assert_eq!(stack.reversed["items"][0]["metadata"]["name"], json!(names.last()));
        assert_eq!(stack.components[0].image("v2"), "registry.example/etcd:v2");
    }
}
