//! Logs and traces.
