//! The answers of an API server that refuses, as Kubernetes 1.37 words them where somebody reads the words.

use serde_json::{Value, json};

use crate::kinds::Kind;

/// Why a request is not carried out.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Value,
}

impl Refusal {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null }
    }

    fn about(mut self, kind: &Kind, name: &str) -> Self {
        self.details = json!({"name": name, "group": kind.group, "kind": kind.plural});
        self
    }

    pub fn not_found(kind: &Kind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", kind.qualified())).about(kind, name)
    }

    /// There is no such path.
    pub fn no_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub fn exists(kind: &Kind, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", kind.qualified())).about(kind, name)
    }

    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.qualified());
        Self::new(409, "Conflict", message).about(kind, name)
    }

    pub fn modified(kind: &Kind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// A JSON patch that does not fit, a failed `test` included.
    pub fn patch_rejected() -> Self {
        Self::new(422, "Invalid", "the server rejected our request due to an error in our request")
    }

    pub fn invalid(kind: &Kind, name: &str, field: &str, cause: &str, why: &str) -> Self {
        let mut refusal =
            Self::new(422, "Invalid", format!("{} {name:?} is invalid: {field}: {why}", kind.kind)).about(kind, name);
        refusal.details["kind"] = json!(kind.kind);
        refusal.details["causes"] = json!([{"reason": cause, "message": why, "field": field}]);
        refusal
    }

    pub fn bad_request(why: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", why)
    }

    pub fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        Self::new(403, "Forbidden", format!("{} {name:?} is forbidden: {why}", kind.qualified())).about(kind, name)
    }

    pub fn media_type(what: &str) -> Self {
        Self::new(415, "UnsupportedMediaType", format!("the body of the request was in an unknown format - {what}"))
    }

    pub fn method() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    }

    /// A watch or a page from a version that is not kept any more.
    pub fn gone(version: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {version}"))
    }

    pub fn body(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}
