//! What is sent.

use std::{collections::BTreeMap, sync::OnceLock};

use hmac::{Hmac, Mac as _};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{ACCEPT, CONTENT_TYPE, USER_AGENT},
};
use interlock_core::{
    api::hook::{BodyFormat, HttpHook},
    effect::HookCall,
    time::Time,
    validate,
};
use reqwest::{Request, Url};
use serde_json::json;
use sha2::Sha256;

use super::{
    Trouble,
    secrets::{Hidden, Secrets},
    template,
    tls::{self, Identity},
};
use crate::action::names::hex;

/// Header that carries the key of the attempt.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Header that carries the signature.
pub const SIGNATURE: &str = "x-interlock-signature";

/// A request that is ready to be sent, as often as needed. It knows Secrets: nothing shows it.
pub(super) struct Prepared {
    pub(super) url: Url,
    pub(super) tls: rustls::ClientConfig,
    method: Method,
    headers: HeaderMap,
    body: Option<Vec<u8>>,
    hmac: Option<Hidden>,
}

/// The URL of a hook.
pub(super) fn url(text: &str) -> Result<Url, Trouble> {
    let url = Url::parse(text).map_err(|_| Trouble::InvalidUrl)?;
    let absolute = matches!(url.scheme(), "http" | "https") && url.host_str().is_some_and(|host| !host.is_empty());
    if absolute { Ok(url) } else { Err(Trouble::InvalidUrl) }
}

/// Reads the Secrets and fills the template.
pub(super) async fn prepare(
    hook: &HttpHook,
    call: &HookCall,
    secrets: &mut Secrets<'_>,
    system: &OnceLock<rustls::ClientConfig>,
) -> Result<Prepared, Trouble> {
    let url = url(&hook.url)?;
    let method = Method::from_bytes(hook.method.as_bytes()).map_err(|_| Trouble::InvalidHook)?;
    if method == Method::CONNECT {
        return Err(Trouble::InvalidHook);
    }
    let body = body(hook, call, secrets, &method).await?;
    let headers = headers(hook, call, secrets, body.is_some()).await?;
    let hmac = match &hook.hmac {
        Some(key) => Some(secrets.value(&key.name, &key.key).await?),
        None => None,
    };
    let identity = match &hook.client_certificate {
        Some(secret) => Some(Identity {
            certificate: secrets.value(&secret.name, "tls.crt").await?,
            key: secrets.value(&secret.name, "tls.key").await?,
        }),
        None => None,
    };
    let tls = match (&hook.ca_bundle, &identity) {
        (None, None) if url.scheme() == "http" => tls::nothing(),
        (None, None) => system.get_or_init(tls::system).clone(),
        (bundle, identity) => tls::of(bundle.as_deref(), identity.as_ref())?,
    };
    Ok(Prepared { url, tls, method, headers, body, hmac })
}

async fn body(
    hook: &HttpHook,
    call: &HookCall,
    secrets: &mut Secrets<'_>,
    method: &Method,
) -> Result<Option<Vec<u8>>, Trouble> {
    if let (Some(template), BodyFormat::Facts) = (&hook.body, hook.format) {
        let mut values = BTreeMap::new();
        for part in &hook.body_from {
            let value = secrets.value(&part.name, &part.key).await?;
            values.insert(part.variable.clone(), value.text()?.to_owned());
        }
        return template::fill(template, &call.facts, &values).map(|text| Some(text.into_bytes()));
    }
    if [Method::GET, Method::HEAD, Method::DELETE].contains(method) {
        return Ok(None);
    }
    let body = match hook.format {
        BodyFormat::Facts => call.facts.to_string(),
        BodyFormat::CloudEvents => event(call).to_string(),
    };
    Ok(Some(body.into_bytes()))
}

/// The facts as a CloudEvent 1.0. Its id is the key: whoever knows an id has had the event already.
fn event(call: &HookCall) -> serde_json::Value {
    json!({
        "specversion": "1.0",
        "id": call.key,
        "source": format!("/apis/apps/v1/namespaces/{}/deployments/{}", call.namespace, call.deployment.name),
        "type": format!("dev.interlock.hook.{}", call.phase.as_str()),
        "subject": match &call.pod {
            Some(pod) => format!("{}/{}", call.hook, pod.name),
            None => call.hook.clone(),
        },
        "time": call.started_at,
        "datacontenttype": "application/json",
        "data": call.facts,
    })
}

async fn headers(
    hook: &HttpHook,
    call: &HookCall,
    secrets: &mut Secrets<'_>,
    has_body: bool,
) -> Result<HeaderMap, Trouble> {
    let mut headers = HeaderMap::new();
    for header in &hook.headers {
        let value = HeaderValue::from_str(&header.value).map_err(|_| Trouble::InvalidHook)?;
        headers.append(name(&header.name)?, value);
    }
    for header in &hook.headers_from {
        let secret = secrets.value(&header.name, &header.key).await?;
        // Many tools end a Secret with a line feed that nobody means.
        let text = secret.text()?;
        let text = text.strip_suffix('\n').map_or(text, |t| t.strip_suffix('\r').unwrap_or(t));
        let value = HeaderValue::from_str(&format!("{}{text}", header.prefix));
        let mut value = value.map_err(|_| Trouble::SecretInvalid)?;
        value.set_sensitive(true);
        headers.append(name(&header.header)?, value);
    }
    let ours = HeaderValue::from_static;
    let json = match hook.format {
        BodyFormat::Facts => "application/json",
        BodyFormat::CloudEvents => "application/cloudevents+json; charset=UTF-8",
    };
    if has_body {
        headers.entry(CONTENT_TYPE).or_insert(ours(json));
    }
    headers.entry(ACCEPT).or_insert(ours("*/*"));
    headers.entry(USER_AGENT).or_insert(ours(concat!("interlock/", env!("CARGO_PKG_VERSION"))));
    let key = HeaderValue::from_str(&call.key).map_err(|_| Trouble::InvalidHook)?;
    headers.insert(HeaderName::from_static(IDEMPOTENCY_KEY), key);
    Ok(headers)
}

fn name(text: &str) -> Result<HeaderName, Trouble> {
    let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| Trouble::InvalidHook)?;
    if validate::own_header(name.as_str()) { Err(Trouble::InvalidHook) } else { Ok(name) }
}

impl Prepared {
    /// The request as it is sent now.
    pub(super) fn request(&self, now: Time) -> Result<Request, Trouble> {
        let mut request = Request::new(self.method.clone(), self.url.clone());
        request.headers_mut().clone_from(&self.headers);
        if let Some(secret) = &self.hmac {
            let signature = sign(&secret.0, now.0.div_euclid(1000), self.body.as_deref().unwrap_or_default())?;
            let value = HeaderValue::from_str(&signature).map_err(|_| Trouble::InvalidHook)?;
            request.headers_mut().insert(HeaderName::from_static(SIGNATURE), value);
        }
        *request.body_mut() = self.body.clone().map(Into::into);
        Ok(request)
    }
}

/// `t=SECONDS,v1=HEX`: the HMAC-SHA256 of `SECONDS.BODY`.
pub(super) fn sign(secret: &[u8], seconds: i64, body: &[u8]) -> Result<String, Trouble> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).map_err(|_| Trouble::SecretInvalid)?;
    mac.update(format!("{seconds}.").as_bytes());
    mac.update(body);
    Ok(format!("t={seconds},v1={}", hex(&mac.finalize().into_bytes())))
}
