//! Interlock.
