//! On a real node: kubelet, containerd and real containers, one node for the whole program. What is simulated elsewhere is
//! asked here of the real thing: that pods are updated in place, and that "done" is said when it is true.
//!
//! Where the machine does not allow a real node, every test is skipped and the table of `make test` says why.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(unreachable_pub)] // the modules of one test program

#[path = "../common/controller.rs"]
#[allow(dead_code)]
mod controller;
#[path = "../e2e/harness/mod.rs"]
#[allow(dead_code, unused_imports)] // shared with the end-to-end tests, which use more of it
mod harness;

mod load;
mod node;
mod truth;

mod chain;
mod drain;
mod failing;
mod images;
mod prepull;
mod resources;
mod slow;
