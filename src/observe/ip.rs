//! Addresses of pods in memory.

use std::{fmt, net::IpAddr};

/// An address as it is written: that of a pod takes no memory of its own.
#[derive(Debug)]
pub(super) enum Ip {
    /// Canonical.
    Address(IpAddr),
    /// Any other text.
    Other(Box<str>),
}

impl Ip {
    /// Whatever the text is.
    pub(super) fn new(text: &str) -> Self {
        match text.parse::<IpAddr>() {
            Ok(address) if address.to_string() == text => Self::Address(address),
            Ok(_) | Err(_) => Self::Other(text.into()),
        }
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Other(text) => text.fmt(f),
        }
    }
}
