//! End to end on a real control plane (API server, controller manager, scheduler, KWOK). One cluster for the whole
//! program, one namespace and one controller per test, an outside observer in each.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(unreachable_pub)] // the modules of one test program

#[path = "../common/controller.rs"]
mod controller;
mod harness;

mod chain;
mod compare;
mod content;
mod crashes;
mod examples;
mod failures;
mod hooks;
mod jobs;
mod killed;
mod order;
mod order_kinds;
mod random;
mod restart;
mod scenarios;
mod semantics;
mod steps;
mod two;
mod watches;
mod ways;
