//! What the tests on a real control plane share: a cluster, a namespace with a controller of its own, an outside
//! observer, a hook receiver, and a gate that stops the controller before or after a chosen write.

pub mod env;
pub mod gate;
pub mod objects;
pub mod observer;
pub mod receiver;

pub use env::Env;
pub use gate::{Gate, Moment};
