//! The pure part of Interlock: facts in, plan out.
//!
//! [`plan`](plan::plan) reads a [`World`](world::World) and nothing else: no client, no clock, no randomness. What it
//! decides is data: effects with their preconditions, the status to record, when to look again, and a report.

pub mod api;
mod budgets;
pub mod classify;
pub mod effect;
pub mod image;
pub mod lint;
pub mod news;
pub mod order;
pub mod plan;
pub mod planted;
pub mod pod;
pub mod reason;
pub mod restart;
pub mod select;
pub mod template;
pub mod time;
pub mod validate;
pub mod world;
