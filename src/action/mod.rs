//! Hook runners.

pub mod http;
