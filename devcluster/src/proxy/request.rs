//! What a request is about, as far as the proxy has to know.

use http::{HeaderMap, Method, Uri, header};

/// A watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watch {
    /// Such as `pods` or `replicasets.apps`.
    pub(super) resource: String,
    /// Whether it goes on from a version, and does not begin with all objects.
    pub(super) resumes: bool,
}

impl Watch {
    /// `None` if the request is none.
    pub(super) fn of(method: &Method, uri: &Uri) -> Option<Self> {
        let query = uri.query().unwrap_or_default();
        let value = |name: &str| {
            query
                .split('&')
                .filter_map(|pair| pair.split_once('='))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value)
        };
        let yes = |name: &str| value(name).is_some_and(|value| value == "true" || value == "1");
        if method != Method::GET || !yes("watch") {
            return None;
        }
        let version = value("resourceVersion").is_some_and(|version| !version.is_empty() && version != "0");
        Some(Self { resource: resource(uri.path())?, resumes: version && !yes("sendInitialEvents") })
    }
}

/// The resource of a path, with its group.
fn resource(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _version, rest @ ..] => ("", rest),
        ["apis", group, _version, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let name = match rest {
        ["namespaces", _name, resource, ..] => resource,
        [resource, ..] => resource,
        [] => return None,
    };
    Some(if group.is_empty() { (*name).to_owned() } else { format!("{name}.{group}") })
}

/// Removes what speaks of one connection only, and of the proxy's own address.
pub(super) fn end_to_end(headers: &mut HeaderMap) {
    for name in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::TE] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(uri: &str) -> Option<(String, bool)> {
        Watch::of(&Method::GET, &uri.parse().unwrap()).map(|watch| (watch.resource, watch.resumes))
    }

    #[test]
    fn watches_are_told_from_other_requests_by_their_resource() {
        let is = |resource: &str, resumes| Some((resource.to_owned(), resumes));
        assert_eq!(watch("/api/v1/pods?watch=true&resourceVersion=7"), is("pods", true));
        assert_eq!(watch("/api/v1/namespaces/n/pods?resourceVersion=7&watch=1"), is("pods", true));
        assert_eq!(watch("/apis/apps/v1/namespaces/n/replicasets?watch=true"), is("replicasets.apps", false));
        assert_eq!(watch("/apis/apps/v1/deployments?watch=true&resourceVersion=0"), is("deployments.apps", false));
        assert_eq!(
            watch("/apis/interlock.dev/v1alpha1/hookruns?sendInitialEvents=true&watch=true&resourceVersion=7"),
            is("hookruns.interlock.dev", false)
        );
        assert_eq!(watch("/api/v1/namespaces?watch=true"), is("namespaces", false));
        assert_eq!(watch("/api/v1/pods?resourceVersion=7"), None);
        assert_eq!(watch("/api/v1/pods?watch=false"), None);
        assert_eq!(watch("/version?watch=true"), None);
        assert_eq!(Watch::of(&Method::POST, &"/api/v1/pods?watch=true".parse().unwrap()), None);
    }
}
