//! The attempts that run, and the results of those that have ended.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use interlock_core::{
    api::run::{HookRunStatus, Step},
    effect::HookCall,
    world::AttemptResult,
};
use tokio::{task::AbortHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Runner, Tidy};
use crate::observe::Key;

/// How long a result is kept after it came. It is recorded in the run within moments; a run that cannot be written for
/// longer than this makes the attempt again. The seconds of a drain, at most an hour, count from a result that is not recorded.
const KEPT: Duration = Duration::from_hours(2);

type Attempts = HashMap<Key, BTreeMap<String, Attempt>>;

/// The attempts that run, and the results of those that have ended.
pub struct Actions {
    runner: Runner,
    ended: Arc<dyn Fn(&Key) + Send + Sync>,
    attempts: Arc<Mutex<Attempts>>,
    started: AtomicU64,
}

struct Attempt {
    /// Which start it was: a key may be started again after it was cancelled.
    number: u64,
    call: Arc<HookCall>,
    state: State,
}

enum State {
    Running(CancellationToken, AbortHandle),
    Ended(AttemptResult, Instant),
    /// Its result is stored in the run, and what it left was tidied up.
    Recorded(AttemptResult, Instant),
}

impl Actions {
    /// A register. `ended` is told the Deployment of each attempt that has ended.
    pub fn new(runner: Runner, ended: impl Fn(&Key) + Send + Sync + 'static) -> Self {
        Self { runner, ended: Arc::new(ended), attempts: Arc::default(), started: AtomicU64::new(0) }
    }

    /// Starts an attempt for the hooks of a Deployment, unless one with its key is known.
    pub fn start(&self, deployment: &Key, call: HookCall) {
        let mut all = self.lock();
        let attempts = all.entry(deployment.clone()).or_default();
        attempts.retain(|_, a| match &a.state {
            State::Running(..) => true,
            State::Ended(_, at) | State::Recorded(_, at) => at.elapsed() <= KEPT,
        });
        if attempts.contains_key(&call.key) {
            return;
        }
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let (stop, key) = (CancellationToken::new(), call.key.clone());
        let known = Arc::new(call.clone());
        let running = self.runner.start(call, stop.clone());
        let (register, ended) = (Arc::clone(&self.attempts), Arc::clone(&self.ended));
        let (owner, name) = (deployment.clone(), key.clone());
        // The task cannot store its result before we have stored the attempt: we hold the lock.
        let task = tokio::spawn(async move {
            let result = running.await;
            let mut all = register.lock().unwrap_or_else(PoisonError::into_inner);
            let attempt = all.get_mut(&owner).and_then(|attempts| attempts.get_mut(&name));
            // Cancelled meanwhile: nobody asks for the result.
            let Some(attempt) = attempt.filter(|a| a.number == number) else { return };
            attempt.state = State::Ended(result, Instant::now());
            drop(all);
            ended(&owner);
        });
        let state = State::Running(stop, task.abort_handle());
        attempts.insert(key, Attempt { number, call: known, state });
    }

    /// Stops attempts and forgets them. What they made is taken away, also by those that another process began.
    pub fn cancel(&self, deployment: &Key, keys: &[String]) {
        let mut all = self.lock();
        let mut attempts = all.remove(deployment).unwrap_or_default();
        for key in keys {
            match attempts.remove(key).map(|attempt| attempt.state) {
                Some(State::Running(stop, _)) => stop.cancel(),
                Some(State::Recorded(..)) => {}
                Some(State::Ended(..)) | None => {
                    let namespace = Arc::clone(&deployment.namespace);
                    tokio::spawn(self.runner.tidy(Tidy::Cancelled { namespace, key: key.clone() }));
                }
            }
        }
        if !attempts.is_empty() {
            all.insert(deployment.clone(), attempts);
        }
    }

    /// This status of a run is stored: what attempts left whose results it has may go in its time.
    pub fn recorded(&self, deployment: &Key, run: &str, status: &HookRunStatus) {
        let mut all = self.lock();
        for attempt in all.get_mut(deployment).into_iter().flat_map(BTreeMap::values_mut) {
            let State::Ended(result, at) = &attempt.state else { continue };
            let call = &attempt.call;
            if call.run.name == run && status.steps.iter().any(|step| step.outcome.is_some() && is(step, call)) {
                tokio::spawn(self.runner.tidy(Tidy::Recorded(Arc::clone(call))));
                attempt.state = State::Recorded(result.clone(), *at);
            }
        }
    }

    /// The Deployment has no run that has not ended: nothing of it is needed any more.
    pub fn forget(&self, deployment: &Key) {
        let gone = self.lock().remove(deployment);
        for attempt in gone.into_iter().flat_map(BTreeMap::into_values) {
            if let State::Running(stop, _) = attempt.state {
                stop.cancel();
            }
        }
    }

    /// Results by key; `None` while the attempt runs.
    pub fn results(&self, deployment: &Key) -> BTreeMap<String, Option<AttemptResult>> {
        let all = self.lock();
        let attempts = all.get(deployment).into_iter().flatten();
        let result = |attempt: &Attempt| match &attempt.state {
            State::Running(..) => None,
            State::Ended(result, _) | State::Recorded(result, _) => Some(result.clone()),
        };
        attempts.map(|(key, attempt)| (key.clone(), result(attempt))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Actions {
    /// The controller has ended: its attempts end where they stand. Nothing is taken away: whoever comes next goes on
    /// with what there is.
    fn drop(&mut self) {
        let all = std::mem::take(&mut *self.lock());
        for attempt in all.into_values().flat_map(BTreeMap::into_values) {
            if let State::Running(_, task) = attempt.state {
                task.abort();
            }
        }
    }
}

fn is(step: &Step, call: &HookCall) -> bool {
    (&step.hook, step.phase, step.attempt, step.started_at) == (&call.hook, call.phase, call.attempt, call.started_at)
        && step.pod_uid.as_deref() == call.pod.as_ref().map(|pod| pod.uid.as_str())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use interlock_core::{
        api::{hook::HttpHook, run::StepOutcome},
        effect::Call,
        time::Time,
    };
    use tokio::sync::Notify;

    use super::{super::fixture, *};

    fn call(key: &str) -> HookCall {
        fixture::call(key, Call::Http(HttpHook::default()))
    }

    #[tokio::test(start_paused = true)]
    async fn one_attempt_per_key_and_a_wake_up_when_it_has_ended() {
        let (started, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let (count, tell) = (Arc::clone(&started), Arc::clone(&ended));
        let runner = Runner::of(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            async {
                tokio::time::sleep(Duration::from_secs(5)).await;
                AttemptResult { outcome: StepOutcome::Succeeded, reason: "Http200".into(), at: Time(0) }
            }
        });
        let actions = Actions::new(runner, move |_| tell.notify_one());
        let key = Key::new("ns", "web");
        actions.start(&key, call("a"));
        actions.start(&key, call("a"));
        assert_eq!(actions.results(&key), BTreeMap::from([("a".to_owned(), None)]));
        ended.notified().await;
        assert_eq!(actions.results(&key)["a"].as_ref().unwrap().reason, "Http200");
        actions.start(&key, call("a"));
        assert_eq!(started.load(Ordering::SeqCst), 1);

        actions.start(&key, call("b"));
        actions.cancel(&key, &["b".to_owned(), "unknown".to_owned()]);
        assert_eq!(actions.results(&key).len(), 1);
        actions.forget(&key);
        assert!(actions.results(&key).is_empty());
    }

    /// Regression 17: a Job that goes before its result was stored. Nothing is tidied up before, and once after.
    #[tokio::test(start_paused = true)]
    async fn r17_what_an_attempt_left_may_go_when_its_result_is_stored_and_not_before() {
        let tidied: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&tidied);
        let result = AttemptResult { outcome: StepOutcome::Succeeded, reason: "Complete".into(), at: Time(0) };
        let mut runner = Runner::of(move |_| std::future::ready(result.clone()));
        runner.tidy = Arc::new(move |what| -> super::super::Tidying {
            log.lock().unwrap().push(match what {
                Tidy::Recorded(call) => format!("recorded {}", call.key),
                Tidy::Cancelled { key, .. } => format!("cancelled {key}"),
            });
            Box::pin(std::future::ready(()))
        });
        let actions = Actions::new(runner, |_| ());
        let key = Key::new("ns", "web");
        let call = call("a");
        let mut step = fixture::step(&call);
        let status = |step: &Step| HookRunStatus { steps: vec![step.clone()], ..HookRunStatus::default() };
        actions.start(&key, call);
        tokio::task::yield_now().await;
        assert!(actions.results(&key)["a"].is_some());
        actions.recorded(&key, "r", &status(&step));
        assert_eq!(*tidied.lock().unwrap(), [""; 0]);
        step.outcome = Some(StepOutcome::Succeeded);
        actions.recorded(&key, "another run", &status(&step));
        assert_eq!(*tidied.lock().unwrap(), [""; 0]);
        actions.recorded(&key, "r", &status(&step));
        actions.recorded(&key, "r", &status(&step));
        tokio::task::yield_now().await;
        assert_eq!(*tidied.lock().unwrap(), ["recorded a"]);
        actions.cancel(&key, &["a".to_owned(), "of another process".to_owned()]);
        tokio::task::yield_now().await;
        assert_eq!(*tidied.lock().unwrap(), ["recorded a", "cancelled of another process"]);
    }
}
