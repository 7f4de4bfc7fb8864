//! Hooks on the real control plane: every kind in every case, as one table; death at every write of an update with all of
//! them; and what must never be seen.

mod acts;
mod canary;
mod cell;
mod death;
mod faults;
mod table;
