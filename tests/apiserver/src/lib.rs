//! A small API server in the test's own process: no sockets, so that a whole controller runs against it under paused
//! time. The store keeps versions, generations and UIDs as the real one does; admission holds as `deploy/hold.yaml` does;
//! the Deployment controller, the ReplicaSet controller, the garbage collector and the kubelet work on views that can lag.
//! What it answers and where scripts end on it is compared with a real control plane (tests/e2e/compare.rs).

#![allow(clippy::pedantic, missing_docs, unreachable_pub)] // test code; each test uses its part

pub mod admission;
pub mod calls;
pub mod control;
pub mod gate;
pub mod json;
pub mod kinds;
pub mod objects;
pub mod observer;
pub mod patch;
pub mod picture;
pub mod refusal;
pub mod rng;
pub mod rules;
mod schema;
pub mod script;
pub mod selector;
pub mod server;
pub mod stage;
pub mod store;
pub mod watch;

pub use self::{
    control::ControlPlane, gate::Gate, observer::Observer, picture::Picture, rng::Rng, server::Server, stage::Stage,
    store::Store,
};
