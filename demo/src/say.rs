//! What is printed: plain lines with the time since the start.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

/// Prints. A reader who has gone away (a closed pipe) is no reason to stop before everything is cleaned up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Say {
    start: Instant,
    colour: bool,
}

impl Say {
    pub(crate) fn new() -> Self {
        let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { start: Instant::now(), colour }
    }

    /// Something happened.
    pub(crate) fn line(self, text: impl Display) {
        self.write(&format!("[{:>6.1}s] {text}", self.start.elapsed().as_secs_f64()));
    }

    /// A new part begins.
    pub(crate) fn part(self, text: impl Display) {
        let line = format!("[{:>6.1}s] == {text}", self.start.elapsed().as_secs_f64());
        self.write(&self.bold(&line));
    }

    /// A command, as a person would type it.
    pub(crate) fn command(self, text: impl Display) {
        self.write(&format!("          $ {text}"));
    }

    /// A line that another program printed.
    pub(crate) fn quote(self, text: &str) {
        self.write(format!("          | {text}").trim_end());
    }

    /// Text as it is.
    pub(crate) fn text(self, text: impl Display) {
        self.write(&text.to_string());
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn bold(self, text: &str) -> String {
        if self.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(crate) fn red(self, text: &str) -> String {
        if self.colour { format!("\x1b[31m{text}\x1b[0m") } else { text.to_owned() }
    }

    #[allow(clippy::unused_self, reason = "all output goes through one value")]
    fn write(self, text: &str) {
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}
