//! The wall clock, as the planner is told it.

use interlock_core::time::Time;
use tokio::time::Instant;

/// Where `now` comes from.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// The system's clock.
    System,
    /// A fixed point plus what has passed on tokio's clock since: for tests in paused time.
    Tokio {
        /// The point on tokio's clock.
        start: Instant,
        /// What the wall clock showed then.
        at: Time,
    },
}

impl Clock {
    /// The point in time now.
    pub fn now(self) -> Time {
        match self {
            Self::System => Time(jiff::Timestamp::now().as_millisecond()),
            Self::Tokio { start, at } => at.plus_millis(i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX)),
        }
    }
}
