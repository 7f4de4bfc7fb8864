//! Both binaries as processes on a real control plane: what they print, how they exit, how they start and stop.

mod harness;

mod process;
mod verbs;
