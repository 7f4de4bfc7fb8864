//! What is printed while it runs: lines with the time since the start, on standard error.

use std::{fmt::Display, time::Instant};

/// Prints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Say(Instant);

impl Say {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn line(self, text: impl Display) {
        eprintln!("[{:>6.1}s] {text}", self.0.elapsed().as_secs_f64());
    }
}
