//! The whole controller against an API server in the same process, under paused time: what takes minutes there takes
//! milliseconds here, so every write can be the one at which something goes wrong.

#![allow(clippy::pedantic)] // tests read better with less ceremony
#![allow(unreachable_pub)] // the modules of one test program
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod crashes;
mod leases;
mod random;
mod scenarios;
mod watches;
