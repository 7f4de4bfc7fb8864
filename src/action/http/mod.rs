//! The `http` hook: one request with the update's facts, or several with `repeatUntil`.
//!
//! **What counts.** Success is a status of `successStatus` whose headers arrived in time, and whose body then ended, or
//! reached [`BODY_LIMIT`], within the same timeout: a receiver that reports success before it has finished its answer
//! and then hangs has not answered. Whatever else happens is a failure with one fixed word. Nothing of the answer but
//! its status code is kept.
//!
//! **Where it may go.** [`Rules`]. The address is checked after resolving, and the checked address is the one that is
//! connected to, so a name cannot change its mind in between. Redirects, proxies from the environment, cookies and
//! retries below this layer are off. TLS is always verified.
//!
//! **Secrets** are read by name when the attempt begins, sent, and forgotten.
//!
//! Reasons: `Http<code>`, `Redirect`, `Timeout`, `AddressRefused`, `ConnectFailed` (resolving included), `TlsFailed`,
//! `ConnectionClosed` (no whole answer), `NotYet` (`repeatUntil.expression` is not true), `InvalidUrl`, `InvalidHook`,
//! `SecretMissing`, `SecretInvalid`, `SecretUnread`, `RulesInvalid`, `RulesUnread`.

mod address;
mod answer;
mod request;
mod rules;
mod secrets;
mod template;
#[cfg(test)]
mod tests;
mod tls;

use std::{
    error::Error,
    fmt,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use interlock_core::{
    api::{
        hook::{HttpHook, RepeatUntil},
        run::StepOutcome,
    },
    effect::HookCall,
};
use reqwest::{
    Client,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};
use tokio::time::{sleep, timeout, timeout_at};

pub use self::{
    answer::BODY_LIMIT,
    request::{IDEMPOTENCY_KEY, SIGNATURE},
    rules::{ApiServer, HostRule, InvalidRule, Network, RULES, Rules},
};
use self::{
    answer::{Answer, Judge},
    request::Prepared,
    rules::Decision,
    secrets::Secrets,
};
pub(super) use self::{template::check as check_body, tls::is_bundle};
use super::{Attempt, Cluster, End, INVALID_HOOK, TIMEOUT};

/// Is this a URL that a request can go to?
pub(super) fn is_url(text: &str) -> bool {
    request::url(text).is_ok()
}

/// While polling, one request may take so long: a receiver that hangs once is asked again.
const ONE_OF_MANY: Duration = Duration::from_secs(30);

/// Looks a name up.
type Lookup =
    Arc<dyn Fn(String) -> futures::future::BoxFuture<'static, std::io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Carries out http hooks. Cheap to clone.
#[derive(Clone)]
pub struct HttpClient {
    rules: Arc<Rules>,
    /// Where ConfigMap [`RULES`] is, if it is read at all.
    rules_namespace: Option<Arc<str>>,
    api_server: Arc<ApiServer>,
    /// What the system trusts, once somebody asks for it.
    tls: Arc<OnceLock<rustls::ClientConfig>>,
    lookup: Lookup,
}

impl HttpClient {
    /// A client. `rules_namespace`: where ConfigMap [`RULES`] adds to the rules; it is read for each attempt. Where the
    /// system has no CA certificates, only plain `http` and hooks with a `caBundle` can succeed; a warning is logged.
    pub fn new(rules: Rules, rules_namespace: Option<&str>, api_server: ApiServer) -> Self {
        Self {
            rules: Arc::new(rules),
            rules_namespace: rules_namespace.map(Arc::from),
            api_server: Arc::new(api_server),
            tls: Arc::default(),
            lookup: Arc::new(|host| {
                Box::pin(async move { Ok(tokio::net::lookup_host((host.as_str(), 0)).await?.collect()) })
            }),
        }
    }

    /// Carries out one attempt.
    pub(super) async fn attempt(&self, attempt: &Attempt<'_>, hook: &HttpHook) -> End {
        let mut last = None;
        let exchange = self.exchange(attempt.cluster, attempt.call, hook, &mut last);
        let end = timeout_at(attempt.until, exchange).await;
        match end {
            Ok(end) => end,
            Err(_) => End::timed_out(last.unwrap_or(TIMEOUT.into())),
        }
    }

    async fn exchange(
        &self,
        cluster: &Cluster,
        call: &HookCall,
        hook: &HttpHook,
        last: &mut Option<std::borrow::Cow<'static, str>>,
    ) -> End {
        let judge = match Judge::new(hook) {
            Ok(judge) => judge,
            Err(trouble) => return trouble.end(),
        };
        let prepared = match self.prepare(cluster, call, hook).await {
            Ok(prepared) => prepared,
            Err(trouble) => return trouble.end(),
        };
        let Some(repeat) = &hook.repeat_until else {
            return match self.once(cluster, &prepared, &judge).await {
                Ok(answer) => judge.once(&answer),
                Err(trouble) => trouble.end(),
            };
        };
        loop {
            let end = match timeout(ONE_OF_MANY, self.once(cluster, &prepared, &judge)).await {
                Ok(Ok(answer)) => judge.polled(answer).await,
                Ok(Err(trouble)) => trouble.end(),
                Err(_) => End::timed_out(TIMEOUT),
            };
            if end.outcome == StepOutcome::Succeeded || is_final(&end) {
                return end;
            }
            *last = Some(end.reason);
            sleep(interval(repeat)).await;
        }
    }

    async fn prepare(&self, cluster: &Cluster, call: &HookCall, hook: &HttpHook) -> Result<Prepared, Trouble> {
        let mut secrets = Secrets::new(cluster, &call.namespace);
        request::prepare(hook, call, &mut secrets, &self.tls).await
    }

    async fn once(&self, cluster: &Cluster, prepared: &Prepared, judge: &Judge) -> Result<Answer, Trouble> {
        let decision = self.decision(cluster, prepared).await?;
        // A literal address is never resolved, so the guard would not see it. The URL parser has normalised it.
        if let Some(address) = rules::literal(&prepared.url)
            && !decision.allows(address)
        {
            return Err(Trouble::AddressRefused);
        }
        let guard = Guard { decision: Arc::new(decision), lookup: Arc::clone(&self.lookup) };
        let client = builder(guard, prepared.tls.clone()).build().map_err(|_| Trouble::InvalidUrl)?;
        let request = prepared.request(cluster.now())?;
        let response = client.execute(request).await.map_err(|error| classify(&error))?;
        answer::read(response, judge).await
    }

    /// What may be called, as the rules say now.
    async fn decision(&self, cluster: &Cluster, prepared: &Prepared) -> Result<Decision, Trouble> {
        let rules = match &self.rules_namespace {
            Some(namespace) => rules::read(cluster, namespace, &self.rules).await?,
            None => Arc::clone(&self.rules),
        };
        let refused = self.api_server.addresses(cluster, &self.lookup).await;
        Ok(Decision::new(rules, refused, &prepared.url))
    }
}

fn interval(repeat: &RepeatUntil) -> Duration {
    Duration::from_secs(u64::try_from(repeat.interval_seconds).unwrap_or(0).max(1))
}

/// Asking again cannot help.
fn is_final(end: &End) -> bool {
    [INVALID_HOOK, Trouble::InvalidUrl.as_str(), Trouble::AddressRefused.as_str(), Trouble::RulesInvalid.as_str()]
        .contains(&&*end.reason)
}

fn builder(guard: Guard, tls: rustls::ClientConfig) -> reqwest::ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .http1_only()
        // A connection that the receiver is about to close must not turn into a failed attempt.
        .pool_max_idle_per_host(0)
        .tls_backend_preconfigured(tls)
        .dns_resolver(guard)
}

/// Why an attempt failed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    InvalidUrl,
    InvalidHook,
    AddressRefused,
    ConnectFailed,
    TlsFailed,
    ConnectionClosed,
    SecretMissing,
    SecretInvalid,
    SecretUnread,
    RulesInvalid,
    RulesUnread,
}

impl Trouble {
    const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidUrl => "InvalidUrl",
            Self::InvalidHook => INVALID_HOOK,
            Self::AddressRefused => "AddressRefused",
            Self::ConnectFailed => "ConnectFailed",
            Self::TlsFailed => "TlsFailed",
            Self::ConnectionClosed => "ConnectionClosed",
            Self::SecretMissing => "SecretMissing",
            Self::SecretInvalid => "SecretInvalid",
            Self::SecretUnread => "SecretUnread",
            Self::RulesInvalid => "RulesInvalid",
            Self::RulesUnread => "RulesUnread",
        }
    }

    fn end(self) -> End {
        End::failed(self.as_str())
    }
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
struct Guard {
    decision: Arc<Decision>,
    lookup: Lookup,
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let decision = Arc::clone(&self.decision);
        let found = (self.lookup)(name.as_str().to_owned());
        Box::pin(async move {
            let good: Vec<SocketAddr> = found.await?.into_iter().filter(|a| decision.allows(a.ip())).collect();
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
