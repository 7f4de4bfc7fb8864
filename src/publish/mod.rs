//! Events and metrics, from the one report.

pub mod events;
pub mod metrics;
