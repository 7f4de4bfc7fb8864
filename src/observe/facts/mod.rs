//! From objects to facts. Every conversion is total: a field that is missing, of another type or absurd counts as
//! absent, and no content makes one panic.

pub mod annotations;
pub mod budget;
pub mod deployment;
pub mod json;
pub mod pod;
pub mod policy;
pub mod replicaset;
pub mod restart;
pub mod run;
pub mod workload;
