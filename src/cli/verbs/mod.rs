//! The verbs of `kubectl interlock`. Each reads, decides in a pure function that tests can call, and prints.

pub mod decide;
pub mod exits;
pub mod explain;
#[cfg(test)]
pub(crate) mod fixture;
pub mod history;
pub mod restart;
pub mod state;
pub mod status;
pub mod tables;
pub mod tree;
pub mod undo;
pub mod wait;
