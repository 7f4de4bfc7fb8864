//! Addresses that no hook may call unless somebody lists them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Network;

/// Metadata services of clouds. Each is a range of its own, so that listing the range around it does not open it.
const METADATA: [IpAddr; 7] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Network {
    Network { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
}

const fn v6(first: u16, last: u16, prefix: u8) -> Network {
    Network { address: IpAddr::V6(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last)), prefix }
}

/// This host itself. 0.0.0.0/8 reaches it too.
const OWN: [Network; 4] = [v4(127, 0, 0, 0, 8), v4(0, 0, 0, 0, 8), v6(0, 1, 128), v6(0, 0, 128)];

/// Link-local, broadcast, multicast.
const OTHER: [Network; 5] =
    [v4(169, 254, 0, 0, 16), v4(255, 255, 255, 255, 32), v4(224, 0, 0, 0, 4), v6(0xfe80, 0, 10), v6(0xff00, 0, 8)];

/// The range for which an address is refused unless listed; `None` if it is like any other. The address is a plain one.
pub(super) fn refused_range(address: IpAddr, loopback_allowed: bool) -> Option<Network> {
    if METADATA.contains(&address) {
        return Some(Network::of(address));
    }
    let own = OWN.into_iter().filter(|_| !loopback_allowed);
    own.chain(OTHER).find(|range| range.contains(address))
}

/// Forms of IPv6 that end at an IPv4 address are judged by that one.
pub(super) fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => embedded(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// The IPv4 address in a mapped, compatible, translated, NAT64, 6to4, Teredo or ISATAP address.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        // `::` and `::1` are no IPv4 addresses.
        [0, 0, 0, 0, 0, 0, 0, _] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [0x2002, high, low, ..]
        | [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some(v4(high, low)),
        [0x2001, 0, .., high, low] => Some(v4(!high, !low)),
        _ => None,
    }
}
