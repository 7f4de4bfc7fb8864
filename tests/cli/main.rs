//! Both binaries as processes on a real control plane: what they print, how they exit, how they start and stop.

#[path = "../common/controller.rs"]
mod controller;
mod harness;

mod order;
mod process;
mod restart;
mod verbs;
