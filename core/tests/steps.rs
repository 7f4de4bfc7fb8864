//! DESIGN section 4, step by step, in a simulated cluster.

#![allow(clippy::pedantic)] // tests read better with less ceremony
mod sim;

use interlock_core::api::run::Outcome;
use sim::{Sim, kubelet::identities, plain_policy, policy};

#[test]
fn a_plain_update_goes_in_place() {
    let mut sim = Sim::running(1, 4, "app:v1", vec![policy("p", plain_policy())]);
    let before = identities(&sim);
    sim.set_image("app:v2");
    sim.settle();
    sim.well();
    assert_eq!(before, identities(&sim));
    assert_eq!(sim.runs[0].status.ended.as_ref().map(|e| e.outcome), Some(Outcome::Succeeded));
    assert_eq!((sim.created, sim.deleted), (0, 0));
    println!("{}", sim.story());
}
