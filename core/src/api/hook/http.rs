//! The `http` hook.

use serde::{Deserialize, Serialize};

/// One HTTP request with the update's facts. Redirects are not followed; nothing of the answer but its status is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.format) || self.format == 'Facts' || !has(self.body)",
        "message": "format CloudEvents makes the body itself; leave body away"
    },
    {
        "rule": "!has(self.bodyFrom) || has(self.body)",
        "message": "bodyFrom is for parts of body; give body or leave bodyFrom away"
    },
    {
        "rule": "!has(self.caBundle) && !has(self.clientCertificate) || self.url.startsWith('https://')",
        "message": "caBundle and clientCertificate need an https url"
    },
    {
        "rule": "!(self.method in ['CONNECT', 'TRACE'])",
        "message": "method cannot be CONNECT or TRACE"
    },
    {
        "rule": "(!has(self.headers) || self.headers.all(h, !(h.name.lowerAscii() in ['host', 'connection', 'content-length', 'transfer-encoding', 'te', 'trailer', 'upgrade', 'keep-alive', 'expect', 'forwarded', 'http2-settings', 'idempotency-key', 'x-interlock-signature']) && !h.name.lowerAscii().startsWith('proxy-'))) && (!has(self.headersFrom) || self.headersFrom.all(h, !(h.header.lowerAscii() in ['host', 'connection', 'content-length', 'transfer-encoding', 'te', 'trailer', 'upgrade', 'keep-alive', 'expect', 'forwarded', 'http2-settings', 'idempotency-key', 'x-interlock-signature']) && !h.header.lowerAscii().startsWith('proxy-')))",
        "message": "Host, Content-Length, Expect, Forwarded, Idempotency-Key, X-Interlock-Signature and the headers of the connection are made by the controller"
    },
    {
        "rule": "!has(self.successStatus) || self.successStatus.all(s, size(s) == 3 || s.substring(0, 3) <= s.substring(4))",
        "message": "a range of successStatus must begin with the smaller code"
    }])))]
pub struct HttpHook {
    /// Absolute URL, `http` or `https`. Not a template.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 8, max = 2048), regex(pattern = r"^https?://[^\s/?#@]+([/?#]\S*)?$"))
    )]
    pub url: String,
    /// Method. Without a body for GET, HEAD and DELETE unless `body` is given.
    #[serde(default = "post")]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[A-Z]{1,16}$")))]
    pub method: String,
    /// Headers with fixed values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub headers: Vec<Header>,
    /// Headers whose values come from Secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub headers_from: Vec<HeaderFrom>,
    /// What is sent. Facts (default): the update's facts as JSON, or `body`. CloudEvents: the facts as a CloudEvent 1.0 in
    /// structured JSON form.
    #[serde(default)]
    pub format: BodyFormat,
    /// A template: `${FACT}` is replaced by a fact, such as `${deployment}` or `${images.app}`, `${secret.NAME}` by an entry of
    /// `bodyFrom`, `$$` by a dollar sign. Absent: all facts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16384)))]
    pub body: Option<String>,
    /// Parts of `body` that come from Secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub body_from: Vec<BodyFrom>,
    /// Statuses that are success: codes or ranges. Default: 200-299.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(max = 16), inner(length(max = 7), regex(pattern = r"^[1-5][0-9][0-9](-[1-5][0-9][0-9])?$")))
    )]
    pub success_status: Vec<String>,
    /// Ask again and again within `timeoutSeconds` until an answer is one of these; only what cannot become one fails at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat_until: Option<RepeatUntil>,
    /// Sign the request: header `X-Interlock-Signature: t=SECONDS,v1=HEX`, HEX the HMAC-SHA256 of `SECONDS.BODY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hmac: Option<SecretKey>,
    /// Certificates in PEM that are trusted instead of the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 65536)))]
    pub ca_bundle: Option<String>,
    /// A Secret of type `kubernetes.io/tls` by which we show who we are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<SecretName>,
}

fn post() -> String {
    "POST".to_owned()
}

/// A header with a fixed value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Header {
    /// Its name.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))
    )]
    pub name: String,
    /// Its value.
    #[cfg_attr(feature = "schema", schemars(length(max = 4096), regex(pattern = r"^[\t\x20-\x7e]*$")))]
    pub value: String,
}

/// A header whose value is `prefix` and what a Secret holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeaderFrom {
    /// Name of the header.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))
    )]
    pub header: String,
    /// What stands before the value, such as `"Bearer "`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub prefix: String,
    /// Name of the Secret, in the policy's namespace.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))
    )]
    pub name: String,
    /// Key in its data.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$")))]
    pub key: String,
}

/// A part of a body that a Secret holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BodyFrom {
    /// `${secret.VARIABLE}` in the body.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$")))]
    pub variable: String,
    /// Name of the Secret, in the policy's namespace.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))
    )]
    pub name: String,
    /// Key in its data.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$")))]
    pub key: String,
}

/// A key of a Secret in the policy's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretKey {
    /// Name of the Secret.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))
    )]
    pub name: String,
    /// Key in its data.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$")))]
    pub key: String,
}

/// A Secret in the policy's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretName {
    /// Its name.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))
    )]
    pub name: String,
}

/// The form of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum BodyFormat {
    /// The update's facts as JSON, or the template `body`.
    #[default]
    Facts,
    /// A CloudEvent 1.0, structured JSON.
    CloudEvents,
}

/// Polling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.status) || self.status.all(s, size(s) == 3 || s.substring(0, 3) <= s.substring(4))",
    "message": "a range of repeatUntil.status must begin with the smaller code"}])))]
pub struct RepeatUntil {
    /// Statuses that end it well: codes or ranges. Default: those of `successStatus`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(max = 16), inner(length(max = 7), regex(pattern = r"^[1-5][0-9][0-9](-[1-5][0-9][0-9])?$")))
    )]
    pub status: Vec<String>,
    /// A CEL expression over `status` (number) and `body` (the answer read as JSON, null if it is none) that is true at the
    /// end. The body is looked at and forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub expression: Option<String>,
    /// Seconds from one answer to the next request.
    #[serde(default = "super::five")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 3600)))]
    pub interval_seconds: i64,
}
