//! The reasons of a request's conditions, events and Deployments: a closed list, so that programs can rely on the words.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why something is as it is. The word is part of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

reasons! {
    /// Somebody ended the request.
    Aborted,
    /// All its pods are younger than the request, or have the image already.
    AlreadyRestarted,
    /// A PodDisruptionBudget does not allow it now.
    Budget,
    /// Somebody else keeps changing back what we write.
    Conflicting,
    /// No progress within the deadline.
    DeadlineExceeded,
    /// Somebody decided so.
    Decision,
    /// A decision has no effect.
    DecisionRefused,
    /// Its strategy would leave no ready pod.
    Downtime,
    /// Nothing was changed; this is what would happen.
    DryRun,
    /// It was deleted, or made anew under its name.
    Gone,
    /// It is going on.
    InProgress,
    /// The container is in the template, which is what has to be changed.
    InTemplate,
    /// The request cannot be carried out as it stands.
    Invalid,
    /// Somebody took the restart mark out of the template.
    MarkRemoved,
    /// It has no pods.
    NoPods,
    /// None of its pods has such a container.
    NoSidecar,
    /// It was not settled before its restart.
    NotSettled,
    /// Its own annotation keeps restarts from it.
    OptedOut,
    /// Another object controls it and would undo the change.
    OwnedByOther,
    /// The pause between two of them.
    Pause,
    /// It is paused by its user.
    Paused,
    /// A pod or an update fails.
    PodFailing,
    /// The API server refuses a write of ours for good.
    Refused,
    /// A Deployment of the request has failed.
    RestartFailed,
    /// It is being restarted.
    Restarting,
    /// Somebody decided something that lets it go on.
    Resumed,
    /// It has 0 replicas.
    ScaledToZero,
    /// It is awaited that it settles.
    Settling,
    /// Every pod runs what `skipWhen` names.
    SkipWhen,
    /// It is over, and well.
    Succeeded,
    /// The maintenance window is closed.
    Window,
}
