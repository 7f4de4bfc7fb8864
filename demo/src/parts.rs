//! The parts of the demo and how long each took.

use std::{fmt::Write as _, time::Instant};

use crate::say::Say;

/// The parts so far.
pub(crate) struct Parts {
    say: Say,
    done: Vec<(&'static str, f64)>,
    current: Option<(&'static str, Instant)>,
}

impl Parts {
    pub(crate) fn new(say: Say) -> Self {
        Self { say, done: Vec::new(), current: None }
    }

    pub(crate) fn say(&self) -> Say {
        self.say
    }

    /// The part before has ended; announces the next.
    pub(crate) fn begin(&mut self, name: &'static str) {
        self.end();
        self.say.part(format_args!("{}. {name}", self.done.len() + 1));
        self.current = Some((name, Instant::now()));
    }

    /// The last part has ended.
    pub(crate) fn end(&mut self) {
        if let Some((name, since)) = self.current.take() {
            self.done.push((name, since.elapsed().as_secs_f64()));
        }
    }

    /// Each part with its seconds.
    pub(crate) fn table(&self) -> String {
        let width = self.done.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
        let mut text = format!("{}\n", self.say.bold(&format!("{:width$}  seconds", "part")));
        for (name, seconds) in &self.done {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:width$}  {seconds:>7.1}");
        }
        text
    }
}
