//! Events and metrics, from the one report.

pub mod metrics;
