//! Metrics for Prometheus. Names begin with `interlock_`; labels have few values, known beforehand, and never name an
//! object.

use std::{fmt, sync::Arc, time::Duration};

use interlock_core::{
    api::{
        hook::Phase,
        run::{Outcome, StepOutcome},
    },
    effect::Effect,
};
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

#[cfg(test)]
mod tests;

/// Content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Label = (&'static str, &'static str);

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// It was carried out.
    Ok,
    /// Its precondition no longer held.
    Lost,
    /// The API server does not want it: invalid, forbidden, over a quota.
    Refused,
    /// A failure that may pass: no answer, overload.
    Transient,
}

impl WriteResult {
    const ALL: [Self; 4] = [Self::Ok, Self::Lost, Self::Refused, Self::Transient];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Lost => "lost",
            Self::Refused => "refused",
            Self::Transient => "transient",
        }
    }
}

/// All metrics of the process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    runs: Family<[Label; 1], Counter>,
    active: Gauge,
    stalled: Gauge,
    hooks: Family<[Label; 2], Counter>,
    pods: Counter,
    writes: Family<[Label; 2], Counter>,
    plan: Histogram,
    first_write: Histogram,
    errors: Counter,
    panics: Counter,
    leader: Gauge,
    watches: Family<[Label; 1], Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// All metrics at zero. Series that are sure to come are there from the start, so that rates see their first step.
    pub fn new() -> Self {
        let mut inner = Inner {
            registry: Registry::with_prefix("interlock"),
            runs: Family::default(),
            active: Gauge::default(),
            stalled: Gauge::default(),
            hooks: Family::default(),
            pods: Counter::default(),
            writes: Family::default(),
            plan: Histogram::new([1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0]),
            first_write: Histogram::new(FIRST_WRITE),
            errors: Counter::default(),
            panics: Counter::default(),
            leader: Gauge::default(),
            watches: Family::default(),
        };
        for outcome in OUTCOMES {
            let _ = inner.runs.get_or_create_owned(&[("outcome", run_outcome(outcome))]);
        }
        for phase in [Phase::PreUpdate, Phase::PostUpdate] {
            for outcome in STEP_OUTCOMES {
                let _ =
                    inner.hooks.get_or_create_owned(&[("phase", phase.as_str()), ("outcome", step_outcome(outcome))]);
            }
        }
        let registry = &mut inner.registry;
        registry.register("runs", "Runs that ended, by outcome", inner.runs.clone());
        registry.register("runs_active", "Runs that have not ended", inner.active.clone());
        registry.register("runs_stalled", "Runs that stand still until a person acts", inner.stalled.clone());
        registry.register("hook_attempts", "Attempts of hooks, by phase and outcome", inner.hooks.clone());
        registry.register("pods_updated", "Pods that were updated in place", inner.pods.clone());
        registry.register("writes", "Writes to the API server, by effect and result", inner.writes.clone());
        registry.register("plan_duration_seconds", "Time taken to plan one Deployment", inner.plan.clone());
        registry.register(
            "event_to_write_seconds",
            "Time from the arrival of a change to the begin of the first write that it causes",
            inner.first_write.clone(),
        );
        registry.register("pass_errors", "Passes over a Deployment that ended with an error", inner.errors.clone());
        registry.register("panics", "Passes over a Deployment that panicked; each is a bug", inner.panics.clone());
        registry.register("leader", "1 while this process leads", inner.leader.clone());
        registry.register("watch_restarts", "Watches that had to be started again, by kind", inner.watches.clone());
        registry.register("build", "Version of this process", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        Self(Arc::new(inner))
    }

    /// A run has ended.
    pub fn run_ended(&self, outcome: Outcome) {
        self.0.runs.get_or_create(&[("outcome", run_outcome(outcome))]).inc();
    }

    /// So many runs have not ended, and so many of them are stalled.
    pub fn runs(&self, active: i64, stalled: i64) {
        self.0.active.set(active);
        self.0.stalled.set(stalled);
    }

    /// An attempt of a hook has ended.
    pub fn hook_attempt(&self, phase: Phase, outcome: StepOutcome) {
        self.0.hooks.get_or_create(&[("phase", phase.as_str()), ("outcome", step_outcome(outcome))]).inc();
    }

    /// So many more pods were updated in place.
    pub fn pods_updated(&self, pods: u64) {
        self.0.pods.inc_by(pods);
    }

    /// A write was carried out, or not: an effect by [`effect_kind`], or one that is no effect of a plan (such as
    /// `PolicyStatus`).
    pub fn write_of(&self, effect: &'static str, result: WriteResult) {
        // All results of a kind appear together.
        for each in WriteResult::ALL {
            let counter = self.0.writes.get_or_create_owned(&[("effect", effect), ("result", each.as_str())]);
            if each == result {
                counter.inc();
            }
        }
    }

    /// A plan took so long.
    pub fn planned(&self, took: Duration) {
        self.0.plan.observe(took.as_secs_f64());
    }

    /// A change has led to a write, which begins so long after the change arrived. While as many writes to pods are under
    /// way as may be, or one that everything waits for, the time until the answer is not counted: it is the API server's.
    pub fn first_write(&self, after: Duration) {
        self.0.first_write.observe(after.as_secs_f64());
    }

    /// A pass over a Deployment ended with an error.
    pub fn pass_error(&self) {
        self.0.errors.inc();
    }

    /// A pass over a Deployment panicked.
    pub fn panicked(&self) {
        self.0.panics.inc();
    }

    /// Does this process lead?
    pub fn leading(&self, leads: bool) {
        self.0.leader.set(i64::from(leads));
    }

    /// The watch of this kind was started again.
    pub fn watch_restarted(&self, kind: &'static str) {
        self.0.watches.get_or_create(&[("kind", kind)]).inc();
    }

    /// The text that `/metrics` answers, in the form of [`CONTENT_TYPE`].
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut text = String::with_capacity(8192);
        encode(&mut text, &self.0.registry)?;
        Ok(text)
    }
}

/// Seconds. Fine around the ten milliseconds that are promised.
const FIRST_WRITE: [f64; 15] =
    [5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 8e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5, 1.0];

const OUTCOMES: [Outcome; 5] =
    [Outcome::Succeeded, Outcome::Superseded, Outcome::Returned, Outcome::Aborted, Outcome::Audited];

const fn run_outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded => "Succeeded",
        Outcome::Superseded => "Superseded",
        Outcome::Returned => "Returned",
        Outcome::Aborted => "Aborted",
        Outcome::Audited => "Audited",
    }
}

const STEP_OUTCOMES: [StepOutcome; 6] = [
    StepOutcome::Succeeded,
    StepOutcome::Failed,
    StepOutcome::TimedOut,
    StepOutcome::Skipped,
    StepOutcome::Cancelled,
    StepOutcome::Superseded,
];

const fn step_outcome(outcome: StepOutcome) -> &'static str {
    match outcome {
        StepOutcome::Succeeded => "Succeeded",
        StepOutcome::Failed => "Failed",
        StepOutcome::TimedOut => "TimedOut",
        StepOutcome::Skipped => "Skipped",
        StepOutcome::Cancelled => "Cancelled",
        StepOutcome::Superseded => "Superseded",
    }
}

/// The kind of an effect.
pub const fn effect_kind(effect: &Effect) -> &'static str {
    match effect {
        Effect::CreateRun { .. } => "CreateRun",
        Effect::RecordStatus { .. } => "RecordStatus",
        Effect::DeleteRun { .. } => "DeleteRun",
        Effect::PatchPod { .. } => "PatchPod",
        Effect::ResizePod { .. } => "ResizePod",
        Effect::SetReadinessGate { .. } => "SetReadinessGate",
        Effect::CreateReplicaSet { .. } => "CreateReplicaSet",
        Effect::PatchReplicaSet { .. } => "PatchReplicaSet",
        Effect::DeleteReplicaSet { .. } => "DeleteReplicaSet",
        Effect::PatchDeployment { .. } => "PatchDeployment",
        Effect::MirrorConditions { .. } => "MirrorConditions",
        Effect::StartHook(_) => "StartHook",
        Effect::CancelHooks(_) => "CancelHooks",
        Effect::Event { .. } => "Event",
    }
}
