//! Hook runners.
