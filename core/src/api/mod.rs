//! The API types of group `interlock.dev`, version `v1alpha1`: what people write and what the controller reports.
//!
//! They live in the core so that the planner and the CustomResourceDefinitions speak of the same types. This module
//! may not decide anything.

pub mod condition;
pub mod hook;
pub mod names;
pub mod policy;
pub mod reference;
pub mod restart;
pub mod run;
