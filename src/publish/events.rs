//! Events on Deployments and RollingRestarts.

use interlock_core::api::names;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};

use crate::observe::facts::json::cut;

/// Longest note that the API accepts, in bytes.
const LONGEST: usize = 1024;

/// apiVersion and kind of Deployments.
pub const DEPLOYMENTS: (&str, &str) = ("apps/v1", "Deployment");

/// What an event is about.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// apiVersion and kind.
    pub kind: (&'static str, &'static str),
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// An event on an object. `instance` names this process.
pub fn event(about: About<'_>, instance: &str, warning: bool, reason: &str, message: &str) -> Event {
    let now = Timestamp::now();
    let About { kind: (api_version, kind), namespace, name, uid } = about;
    let mut prefix = cut(name.to_owned(), 230);
    prefix.truncate(prefix.trim_end_matches(['.', '-']).len());
    Event {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(format!("{prefix}.{:x}", now.as_nanosecond())),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
        action: Some(reason.to_owned()),
        reason: Some(reason.to_owned()),
        note: Some(cut(message.to_owned(), LONGEST)),
        regarding: Some(ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(format!("{}/controller", names::GROUP)),
        reporting_instance: Some(cut(instance.to_owned(), 128)),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_fits_whatever_it_says() {
        let about = About { kind: DEPLOYMENTS, namespace: "ns", name: &"a".repeat(253), uid: "u" };
        let made = event(about, &"i".repeat(500), true, "Held", &"ä".repeat(2000));
        assert!(made.note.unwrap().len() <= 1024);
        assert!(made.metadata.name.unwrap().len() <= 253);
        assert_eq!(made.type_.as_deref(), Some("Warning"));
    }
}
