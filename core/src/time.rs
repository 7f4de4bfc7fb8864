//! A point in time as the planner sees it. The core reads no clock: `now` is a fact of the world.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Milliseconds since the Unix epoch. On the wire RFC 3339 with milliseconds, or whole seconds where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Time {
    /// This point and `seconds` more.
    pub const fn plus_seconds(self, seconds: i64) -> Self {
        self.plus_millis(seconds.saturating_mul(1000))
    }

    /// This point and `millis` more.
    pub const fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// Milliseconds from `earlier` to this point; negative when it is the other way round.
    pub const fn millis_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The same, cut to whole seconds, as `metav1.Time` stores it.
    pub const fn whole_seconds(self) -> Self {
        Self(self.0.div_euclid(1000).saturating_mul(1000))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        if self.0.rem_euclid(1000) == 0 { write!(f, "{time:.0}") } else { write!(f, "{time:.3}") }
    }
}

impl FromStr for Time {
    type Err = jiff::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<jiff::Timestamp>().map(|t| Self(t.as_millisecond()))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Time {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "format": "date-time"})
    }
    fn inline_schema() -> bool {
        true
    }
}
