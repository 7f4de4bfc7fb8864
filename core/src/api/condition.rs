//! `metav1.Condition`, and the rule that a transition time moves only on a flip.

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Status {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// It cannot be told yet.
    Unknown,
}

impl Status {
    /// The word as the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Status {
    fn from(yes: bool) -> Self {
        if yes { Self::True } else { Self::False }
    }
}

/// One condition of an object, in the form of `metav1.Condition`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Condition {
    /// Type of the condition, in CamelCase.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 316)))]
    pub type_: String,
    /// True, False or Unknown.
    pub status: Status,
    /// The generation of the object that this condition speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` last changed.
    pub last_transition_time: Time,
    /// One word for programs.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub reason: String,
    /// A sentence for people.
    #[cfg_attr(feature = "schema", schemars(length(max = 32768)))]
    pub message: String,
}

/// Finds a condition by type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Is the condition of this type True?
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == Status::True)
}

/// Sets a condition. The transition time of the one that is there is kept unless the status flips.
pub fn set(conditions: &mut Vec<Condition>, mut new: Condition) {
    new.last_transition_time = new.last_transition_time.whole_seconds();
    match conditions.iter_mut().find(|c| c.type_ == new.type_) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time;
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}
