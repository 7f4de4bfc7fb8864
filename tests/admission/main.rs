//! Each property of the hold, on a real API server. No controller of ours runs in any of these tests: what is held here
//! is held by admission alone.

mod author;
mod break_glass;
mod content;
mod examples;
mod gate;
mod guards;
mod hold;
mod marks;
mod place;
mod restarts;
mod sticky;
