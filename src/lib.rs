//! Interlock: in-place updates with lifecycle hooks for plain Kubernetes Deployments.
//!
//! `watch -> gather -> plan(&World) -> Plan -> execute`: the decisions are in [`interlock_core`]; this crate is the shell.

pub mod action;
pub mod api;
pub mod cli;
pub mod controller;
pub mod execute;
pub mod install;
pub mod lease;
pub mod observe;
pub mod publish;
pub mod serve;
pub mod telemetry;
pub mod wait;
