//! What the tests on a real control plane share: a cluster, a namespace with a controller of its own, an outside
//! observer, a hook receiver, and a gate that stops the controller before or after a chosen write.

pub mod cluster;
pub mod env;
pub mod process;
pub mod receiver;

pub use apiserver::{Gate, gate, gate::Moment, objects, stage};
pub use cluster::Spoilt;
pub use env::Env;
