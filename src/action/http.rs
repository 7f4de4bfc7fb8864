//! The `http` hook: one POST of the update's facts.
//!
//! **What counts.** Success is a status from 200 to 299 whose headers arrived in time, and whose body then ended, or
//! reached [`BODY_LIMIT`], within the same timeout: a receiver that reports success before it has finished its answer
//! and then hangs has not answered. Whatever else happens is a failure with one fixed word. Nothing of the answer but
//! its status code is kept.
//!
//! **Where it may go.** The address is checked after resolving, and the checked address is the one that is connected
//! to, so a name cannot change its mind in between. Link-local and metadata addresses are never called; loopback only
//! where the operator allows it. Redirects, proxies from the environment, cookies and retries below this layer are off.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use interlock_core::{api::run::StepOutcome, effect::HookCall, time::Time, world::AttemptResult};
use reqwest::{
    Client,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};

#[cfg(test)]
mod tests;

/// So much of an answer's body is read, in bytes; then the connection is dropped.
pub const BODY_LIMIT: usize = 64 * 1024;

/// Header that carries the key of the attempt.
pub const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

/// Metadata services of clouds that are not link-local.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Which addresses may be called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// Addresses of this host itself.
    pub loopback: bool,
}

/// Carries out http hooks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: Client,
    allow: Allow,
}

/// No client could be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the client for http hooks: {0}")]
pub struct SetupError(#[from] reqwest::Error);

impl HttpClient {
    /// A client. Where the system has no CA certificates, only plain `http` can succeed; a warning is logged.
    pub fn new(allow: Allow) -> Result<Self, SetupError> {
        let client = builder(allow).build().or_else(|error| {
            tracing::warn!(%error, "no CA certificates: every https hook will fail; install them or set SSL_CERT_FILE");
            builder(allow).tls_certs_only([]).build()
        })?;
        Ok(Self { client, allow })
    }
}

fn builder(allow: Allow) -> reqwest::ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .http1_only()
        // A connection that the receiver is about to close must not turn into a failed attempt.
        .pool_max_idle_per_host(0)
        .dns_resolver(Guard(allow))
        .user_agent(concat!("interlock/", env!("CARGO_PKG_VERSION")))
}

/// Why an attempt failed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    InvalidUrl,
    AddressRefused,
    ConnectFailed,
    TlsFailed,
    ConnectionClosed,
}

impl Trouble {
    const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidUrl => "InvalidUrl",
            Self::AddressRefused => "AddressRefused",
            Self::ConnectFailed => "ConnectFailed",
            Self::TlsFailed => "TlsFailed",
            Self::ConnectionClosed => "ConnectionClosed",
        }
    }
}

/// Carries out one attempt. Reasons: `Http<code>`, `Redirect`, `Timeout` (outcome `TimedOut`), `AddressRefused`,
/// `ConnectFailed` (resolving included), `TlsFailed`, `ConnectionClosed` (no whole answer), `InvalidUrl`.
pub async fn attempt(client: &HttpClient, call: &HookCall) -> AttemptResult {
    let seconds = u64::try_from(call.timeout_seconds).unwrap_or(0).clamp(1, 86400);
    let (outcome, reason) = match tokio::time::timeout(Duration::from_secs(seconds), exchange(client, call)).await {
        Ok(Ok(status)) if status.is_success() => (StepOutcome::Succeeded, format!("Http{}", status.as_u16())),
        Ok(Ok(status)) if status.is_redirection() => (StepOutcome::Failed, "Redirect".to_owned()),
        Ok(Ok(status)) => (StepOutcome::Failed, format!("Http{}", status.as_u16())),
        Ok(Err(trouble)) => (StepOutcome::Failed, trouble.as_str().to_owned()),
        Err(_) => (StepOutcome::TimedOut, "Timeout".to_owned()),
    };
    AttemptResult { outcome, reason, at: Time(jiff::Timestamp::now().as_millisecond()) }
}

async fn exchange(client: &HttpClient, call: &HookCall) -> Result<http::StatusCode, Trouble> {
    let url = reqwest::Url::parse(&call.url).map_err(|_| Trouble::InvalidUrl)?;
    let host = url.host_str().filter(|_| matches!(url.scheme(), "http" | "https")).ok_or(Trouble::InvalidUrl)?;
    // A literal address is never resolved, so the guard would not see it. The URL parser has normalised it.
    if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>()
        && refused(address, client.allow)
    {
        return Err(Trouble::AddressRefused);
    }
    let request = client.client.post(url).header(IDEMPOTENCY_KEY, &call.key).json(&call.body);
    let mut response = request.send().await.map_err(|error| classify(&error))?;
    let status = response.status();
    let mut read = 0;
    while status.is_success() && read < BODY_LIMIT {
        match response.chunk().await {
            Ok(Some(chunk)) => read += chunk.len(),
            Ok(None) => break,
            Err(_) => return Err(Trouble::ConnectionClosed),
        }
    }
    Ok(status)
}

fn classify(error: &reqwest::Error) -> Trouble {
    if error.is_builder() {
        return Trouble::InvalidUrl;
    }
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<AddressRefused>() {
            return Trouble::AddressRefused;
        }
        if error.is::<rustls::Error>() {
            return Trouble::TlsFailed;
        }
        // An io::Error hides the error that it carries from the chain.
        let carried = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = match carried {
            Some(carried) => Some(carried),
            None => error.source(),
        };
    }
    if error.is_connect() { Trouble::ConnectFailed } else { Trouble::ConnectionClosed }
}

/// Resolves names, and lets only addresses through that may be called.
#[derive(Clone, Copy, Debug)]
struct Guard(Allow);

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let allow = self.0;
        Box::pin(async move {
            let all = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let good: Vec<SocketAddr> = all.filter(|address| !refused(address.ip(), allow)).collect();
            if good.is_empty() {
                return Err(AddressRefused.into());
            }
            Ok(Box::new(good.into_iter()) as Addrs)
        })
    }
}

/// Every address that a name has may not be called.
#[derive(Debug)]
struct AddressRefused;

impl fmt::Display for AddressRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the address may not be called by hooks")
    }
}

impl Error for AddressRefused {}

fn refused(address: IpAddr, allow: Allow) -> bool {
    // Forms of IPv6 that end at an IPv4 address are judged by that one.
    let address = match address {
        IpAddr::V6(v6) => embedded(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    if METADATA.contains(&address) {
        return true;
    }
    match address {
        IpAddr::V4(v4) => {
            // 0.0.0.0/8 reaches this host.
            let own = v4.is_loopback() || v4.octets()[0] == 0;
            v4.is_link_local() || v4.is_broadcast() || v4.is_multicast() || (own && !allow.loopback)
        }
        IpAddr::V6(v6) => {
            let own = v6.is_loopback() || v6.is_unspecified();
            v6.is_unicast_link_local() || v6.is_multicast() || (own && !allow.loopback)
        }
    }
}

/// The IPv4 address in a mapped, compatible, NAT64 or 6to4 address.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match s {
        // `::` and `::1` are no IPv4 addresses.
        [0, 0, 0, 0, 0, 0, 0, _] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            Some(v4(high, low))
        }
        _ => None,
    }
}
