//! Devcluster.
