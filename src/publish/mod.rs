//! Events and metrics, from the one report.
