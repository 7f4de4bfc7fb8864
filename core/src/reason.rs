//! The reasons of conditions, waits and events: a closed list, so that programs can rely on the words.

/// Why something is as it is. The word is part of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Somebody ended the run; it stays held.
    Aborted,
    /// The annotation on the Deployment does not parse.
    AnnotationInvalid,
    /// Annotations that an undo dropped were put back.
    AnnotationsRestored,
    /// A person has to approve.
    Approval,
    /// Nothing was held; this is what would have happened.
    Audited,
    /// The acknowledgement of the Deployment controller is awaited.
    Barrier,
    /// It has not come for a minute.
    BarrierTimeout,
    /// A PodDisruptionBudget allows nothing now.
    Budget,
    /// A PodDisruptionBudget can never allow anything.
    BudgetImpossible,
    /// A hook was stopped because its update has ended or needs it no more.
    Cancelled,
    /// The ReplicaSet's template is being changed.
    Committing,
    /// The Deployment controller has not finished.
    Completing,
    /// Somebody else keeps changing back what we write.
    Conflicting,
    /// No progress within the deadline.
    DeadlineExceeded,
    /// A decision has no effect.
    DecisionRefused,
    /// Predecessors have not settled in time.
    GateTimeout,
    /// The update is held.
    Held,
    /// A hook failed, and its update with it.
    HookFailed,
    /// A hook runs.
    HookRunning,
    /// A hook waits for its next attempt.
    HookBackoff,
    /// It has been held for longer than allowed.
    HoldTooLong,
    /// It is going on.
    InProgress,
    /// A Deployment slipped past the hold.
    MissedHold,
    /// There is no hook of this phase.
    NoHooks,
    /// Pods without the readiness gate are updated without being drained first.
    NoReadinessGate,
    /// The change cannot go in place and the policy allows nothing else.
    NotInPlace,
    /// The change does not count under the policy.
    NotTriggered,
    /// The order is circular.
    OrderCycle,
    /// Some pods stay old because the policy says so.
    Partitioned,
    /// It has not begun.
    Pending,
    /// Hooks of single pods cannot run on the native way.
    PodHooksSkipped,
    /// A pod fails.
    PodFailing,
    /// Pods are changing.
    Updating,
    /// The policy is not valid.
    PolicyInvalid,
    /// The policy was deleted and says that what is held is released.
    PolicyDeleted,
    /// A predecessor has not settled.
    Predecessor,
    /// A quota refuses pods.
    QuotaExceeded,
    /// The API server refuses a write of ours for good.
    Refused,
    /// The hold has ended.
    Released,
    /// Somebody else ended the hold.
    ReleasedByOther,
    /// The main ReplicaSet was deleted while held, and is repaired.
    ReplicaSetDeleted,
    /// A resize was refused or cannot be carried out.
    ResizeRefused,
    /// The template went back to what runs.
    Returned,
    /// Pods were put back to the old template.
    Reverted,
    /// Pods are being put back to the old template.
    Reverting,
    /// Another update of the policy goes first.
    Slot,
    /// It succeeded.
    Succeeded,
    /// More pods than hooks of single pods can be recorded for.
    TooManyPods,
    /// A newer template replaced it.
    Superseded,
    /// The user has paused the Deployment.
    UserPaused,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 50] = [
        Self::Aborted,
        Self::AnnotationInvalid,
        Self::AnnotationsRestored,
        Self::Approval,
        Self::Audited,
        Self::Barrier,
        Self::BarrierTimeout,
        Self::Budget,
        Self::BudgetImpossible,
        Self::Cancelled,
        Self::Committing,
        Self::Completing,
        Self::Conflicting,
        Self::DeadlineExceeded,
        Self::DecisionRefused,
        Self::GateTimeout,
        Self::Held,
        Self::HookFailed,
        Self::HookRunning,
        Self::HookBackoff,
        Self::HoldTooLong,
        Self::InProgress,
        Self::MissedHold,
        Self::NoHooks,
        Self::NoReadinessGate,
        Self::NotInPlace,
        Self::NotTriggered,
        Self::OrderCycle,
        Self::Partitioned,
        Self::Pending,
        Self::PodHooksSkipped,
        Self::PodFailing,
        Self::Updating,
        Self::PolicyInvalid,
        Self::PolicyDeleted,
        Self::Predecessor,
        Self::QuotaExceeded,
        Self::Refused,
        Self::Released,
        Self::ReleasedByOther,
        Self::ReplicaSetDeleted,
        Self::ResizeRefused,
        Self::Returned,
        Self::Reverted,
        Self::Reverting,
        Self::Slot,
        Self::Succeeded,
        Self::TooManyPods,
        Self::Superseded,
        Self::UserPaused,
    ];

    /// The reason that a stored word stands for.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.as_str() == word)
    }

    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Aborted => "Aborted",
            Self::AnnotationInvalid => "AnnotationInvalid",
            Self::AnnotationsRestored => "AnnotationsRestored",
            Self::Approval => "Approval",
            Self::Audited => "Audited",
            Self::Barrier => "Barrier",
            Self::BarrierTimeout => "BarrierTimeout",
            Self::Budget => "Budget",
            Self::BudgetImpossible => "BudgetImpossible",
            Self::Cancelled => "Cancelled",
            Self::Committing => "Committing",
            Self::Completing => "Completing",
            Self::Conflicting => "Conflicting",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::DecisionRefused => "DecisionRefused",
            Self::GateTimeout => "GateTimeout",
            Self::Held => "Held",
            Self::HookFailed => "HookFailed",
            Self::HookRunning => "HookRunning",
            Self::HookBackoff => "HookBackoff",
            Self::HoldTooLong => "HoldTooLong",
            Self::InProgress => "InProgress",
            Self::MissedHold => "MissedHold",
            Self::NoHooks => "NoHooks",
            Self::NoReadinessGate => "NoReadinessGate",
            Self::NotInPlace => "NotInPlace",
            Self::NotTriggered => "NotTriggered",
            Self::OrderCycle => "OrderCycle",
            Self::Partitioned => "Partitioned",
            Self::Pending => "Pending",
            Self::PodHooksSkipped => "PodHooksSkipped",
            Self::PodFailing => "PodFailing",
            Self::Updating => "Updating",
            Self::PolicyInvalid => "PolicyInvalid",
            Self::PolicyDeleted => "PolicyDeleted",
            Self::Predecessor => "Predecessor",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::Refused => "Refused",
            Self::Released => "Released",
            Self::ReleasedByOther => "ReleasedByOther",
            Self::ReplicaSetDeleted => "ReplicaSetDeleted",
            Self::ResizeRefused => "ResizeRefused",
            Self::Returned => "Returned",
            Self::Reverted => "Reverted",
            Self::Reverting => "Reverting",
            Self::Slot => "Slot",
            Self::Succeeded => "Succeeded",
            Self::TooManyPods => "TooManyPods",
            Self::Superseded => "Superseded",
            Self::UserPaused => "UserPaused",
        }
    }
}
