//! Where hooks may go.
//!
//! - Refused unless listed: loopback and unspecified addresses, link-local, broadcast and multicast ones, metadata
//!   services, and the API server. A listed network opens such a range only if it lies wholly inside it: `0.0.0.0/0`
//!   opens nothing, `127.0.0.0/8` opens loopback. A metadata service is opened by its own address only.
//! - With a list of hosts or networks, everything that neither of them lists is refused. A listed host opens no address
//!   that is refused above: who answers for its name decides where it leads.
//! - A denied network is refused whatever else is listed.

use std::{
    collections::BTreeSet,
    fmt,
    net::IpAddr,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::api::ListParams;
use reqwest::Url;
use serde_json::Value;
use tokio::time::Instant;

use super::{Lookup, Trouble, address};
use crate::action::cluster::{self, CONFIG_MAPS, Cluster, SERVICES, SLICES};

/// ConfigMap in the controller's namespace that adds to the rules: keys `allowHosts`, `allowNetworks`, `denyNetworks`, one
/// entry a line. It is read for each request, so a change counts at once; an entry that cannot be read refuses all.
pub const RULES: &str = "interlock-hooks";

/// How long what the API server says about its own addresses is believed.
const BELIEVED: Duration = Duration::from_mins(1);

/// Where hooks may go, see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Addresses of this host itself may be called.
    pub loopback: bool,
    /// Hosts that may be called.
    pub allow_hosts: Vec<HostRule>,
    /// Networks that may be called.
    pub allow_networks: Vec<Network>,
    /// Networks that may not.
    pub deny_networks: Vec<Network>,
}

/// A host, or with `*.` before it every host below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRule {
    below: bool,
    name: String,
}

/// A network, such as `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub(super) address: IpAddr,
    pub(super) prefix: u8,
}

/// An entry that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRule(String);

impl FromStr for HostRule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let (below, name) = text.strip_prefix("*.").map_or((false, text), |rest| (true, rest));
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if name.is_empty() || !name.chars().all(good) {
            return Err(InvalidRule(format!(
                "{text:?} is no host: expected a name such as hooks.example.com or *.example.com"
            )));
        }
        Ok(Self { below, name })
    }
}

impl HostRule {
    fn matches(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        if self.below {
            host.strip_suffix(&self.name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        } else {
            host == self.name
        }
    }
}

impl FromStr for Network {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let wrong = || InvalidRule(format!("{text:?} is no network: expected an address or a CIDR such as 10.0.0.0/8"));
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let all = Self::of(address).prefix;
        match prefix.unwrap_or(all) {
            prefix if prefix <= all => Ok(Self { address, prefix }),
            _ => Err(wrong()),
        }
    }
}

impl Network {
    pub(super) const fn of(address: IpAddr) -> Self {
        let prefix = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        Self { address, prefix }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = 32_u32.saturating_sub(self.prefix.into());
                let cut = |a: std::net::Ipv4Addr| u32::from(a).checked_shr(shift).unwrap_or(0);
                cut(own) == cut(other)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let shift = 128_u32.saturating_sub(self.prefix.into());
                let cut = |a: std::net::Ipv6Addr| u128::from(a).checked_shr(shift).unwrap_or(0);
                cut(own) == cut(other)
            }
            _ => false,
        }
    }

    /// Is it wholly inside the other one?
    fn inside(&self, other: &Self) -> bool {
        self.prefix >= other.prefix && other.contains(self.address)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The address that stands in the URL itself.
pub(super) fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// What one request may do.
pub(super) struct Decision {
    rules: Arc<Rules>,
    /// Addresses of the API server; without a port: every port.
    api_server: BTreeSet<Place>,
    host_listed: bool,
    port: u16,
}

impl Decision {
    pub(super) fn new(rules: Arc<Rules>, api_server: BTreeSet<Place>, url: &Url) -> Self {
        let host_listed = url.host_str().is_some_and(|host| rules.allow_hosts.iter().any(|rule| rule.matches(host)));
        Self { rules, api_server, host_listed, port: url.port_or_known_default().unwrap_or(0) }
    }

    /// May this address be called?
    pub(super) fn allows(&self, given: IpAddr) -> bool {
        let plain = address::plain(given);
        let any = |networks: &[Network], test: &dyn Fn(&Network) -> bool| networks.iter().any(test);
        if any(&self.rules.deny_networks, &|n| n.contains(plain) || n.contains(given)) {
            return false;
        }
        let allow = &self.rules.allow_networks;
        let opened = |range: &Network| any(allow, &|n| n.contains(plain) && n.inside(range));
        let api_server = [None, Some(self.port)].iter().any(|port| self.api_server.contains(&(plain, *port)));
        if api_server && !opened(&Network::of(plain)) {
            return false;
        }
        if let Some(range) = address::refused_range(plain, self.rules.loopback)
            && !opened(&range)
        {
            return false;
        }
        let lists = !self.rules.allow_hosts.is_empty() || !allow.is_empty();
        !lists || self.host_listed || any(allow, &|n| n.contains(plain) || n.contains(given))
    }
}

/// The rules with what the ConfigMap adds.
pub(super) async fn read(cluster: &Cluster, namespace: &str, rules: &Arc<Rules>) -> Result<Arc<Rules>, Trouble> {
    match cluster.get(&cluster.api(namespace, CONFIG_MAPS), RULES).await {
        Ok(map) => with(rules, &map.data).map(Arc::new).map_err(|_| Trouble::RulesInvalid),
        Err(cluster::Trouble::Missing) => Ok(Arc::clone(rules)),
        Err(_) => Err(Trouble::RulesUnread),
    }
}

fn with(rules: &Rules, map: &Value) -> Result<Rules, InvalidRule> {
    let mut rules = rules.clone();
    add(&mut rules.allow_hosts, map, "allowHosts")?;
    add(&mut rules.allow_networks, map, "allowNetworks")?;
    add(&mut rules.deny_networks, map, "denyNetworks")?;
    Ok(rules)
}

fn add<T: FromStr<Err = InvalidRule>>(to: &mut Vec<T>, map: &Value, key: &str) -> Result<(), InvalidRule> {
    let text = map.pointer(&format!("/data/{key}")).and_then(Value::as_str).unwrap_or_default();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    for line in lines.filter(|line| !line.is_empty()) {
        to.push(line.parse()?);
    }
    Ok(())
}

/// An address, and a port of it or all of them.
type Place = (IpAddr, Option<u16>);

/// Where the API server is: as this process was told, and as the API server itself says (Service `kubernetes` and its
/// EndpointSlices), where that can be read.
#[derive(Debug, Default)]
pub struct ApiServer {
    fixed: BTreeSet<Place>,
    names: BTreeSet<(String, u16)>,
    told: Mutex<Option<(Instant, BTreeSet<Place>)>>,
    ask: bool,
}

impl ApiServer {
    /// The server of the client, and the one of the pod's environment.
    pub fn of(server: &::http::Uri) -> Self {
        let mut all = Self { ask: true, ..Self::default() };
        let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 });
        if let Some(host) = server.host() {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            match host.parse::<IpAddr>() {
                Ok(address) => {
                    all.fixed.insert((address::plain(address), Some(port)));
                }
                Err(_) => {
                    all.names.insert((host.to_owned(), port));
                }
            }
        }
        if let Some(Ok(address)) = std::env::var("KUBERNETES_SERVICE_HOST").ok().map(|text| text.parse::<IpAddr>()) {
            all.fixed.insert((address::plain(address), None));
        }
        all
    }

    pub(super) async fn addresses(&self, cluster: &Cluster, lookup: &Lookup) -> BTreeSet<Place> {
        let mut all = self.fixed.clone();
        for (name, port) in &self.names {
            let found = lookup(name.clone()).await.unwrap_or_default();
            all.extend(found.into_iter().map(|a| (address::plain(a.ip()), Some(*port))));
        }
        if self.ask {
            all.extend(self.told(cluster).await);
        }
        all
    }

    async fn told(&self, cluster: &Cluster) -> BTreeSet<Place> {
        let known = self.told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match known {
            Some((at, told)) if at.elapsed() < BELIEVED => told,
            known => match ask(cluster).await {
                Ok(told) => {
                    *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), told.clone()));
                    told
                }
                // What it said before is better than nothing.
                Err(_) => known.map(|(_, told)| told).unwrap_or_default(),
            },
        }
    }
}

async fn ask(cluster: &Cluster) -> Result<BTreeSet<Place>, cluster::Trouble> {
    let parse = |text: &Value| text.as_str()?.parse::<IpAddr>().ok().map(address::plain);
    let service = cluster.get(&cluster.api("default", SERVICES), "kubernetes").await?;
    let addresses = service.data.pointer("/spec/clusterIPs").and_then(Value::as_array);
    let mut all: BTreeSet<_> = addresses.into_iter().flatten().filter_map(|text| Some((parse(text)?, None))).collect();
    let of = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
    for slice in cluster.list(&cluster.api("default", SLICES), of).await? {
        let ports = slice.data.get("ports").and_then(Value::as_array);
        let ports: Vec<u16> =
            ports.into_iter().flatten().filter_map(|p| u16::try_from(p.get("port")?.as_u64()?).ok()).collect();
        let endpoints = slice.data.get("endpoints").and_then(Value::as_array).into_iter().flatten();
        for address in endpoints.filter_map(|e| e.get("addresses")?.as_array()).flatten().filter_map(parse) {
            all.extend(ports.iter().map(|port| (address, Some(*port))));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
