//! Hook runners, and the register of the attempts that run.
//!
//! At least once with a key: an attempt whose key is known here, running or ended, is not started again. After a
//! restart nothing is known, and the planner asks again for what has no result, with the same key.

pub mod http;

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use interlock_core::{effect::HookCall, world::AttemptResult};
use tokio::{task::AbortHandle, time::Instant};

use crate::observe::Key;

/// How long a result is kept after it came. It is recorded in the run within moments; a run that cannot be written for
/// longer than this makes the attempt again.
const KEPT: Duration = Duration::from_mins(10);

/// Carries out one attempt.
pub type Runner = Arc<dyn Fn(HookCall) -> Pin<Box<dyn Future<Output = AttemptResult> + Send>> + Send + Sync>;

/// The attempts that run, and the results of those that have ended.
pub struct Actions {
    runner: Runner,
    ended: Arc<dyn Fn(&Key) + Send + Sync>,
    attempts: Arc<Mutex<HashMap<Key, BTreeMap<String, Attempt>>>>,
}

enum Attempt {
    Running(AbortHandle),
    Ended(AttemptResult, Instant),
}

impl Actions {
    /// A register. `ended` is told the Deployment of each attempt that has ended.
    pub fn new(runner: Runner, ended: impl Fn(&Key) + Send + Sync + 'static) -> Self {
        Self { runner, ended: Arc::new(ended), attempts: Arc::default() }
    }

    /// The runner of `http` hooks.
    pub fn http(client: http::HttpClient) -> Runner {
        Arc::new(move |call| {
            let client = client.clone();
            Box::pin(async move { http::attempt(&client, &call).await })
        })
    }

    /// Starts an attempt for the hooks of a Deployment, unless one with its key is known.
    pub fn start(&self, deployment: &Key, call: HookCall) {
        let mut all = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let attempts = all.entry(deployment.clone()).or_default();
        attempts.retain(|_, a| !matches!(a, Attempt::Ended(_, at) if at.elapsed() > KEPT));
        if attempts.contains_key(&call.key) {
            return;
        }
        let key = call.key.clone();
        let running = (self.runner)(call);
        let (register, ended) = (Arc::clone(&self.attempts), Arc::clone(&self.ended));
        let (owner, name) = (deployment.clone(), key.clone());
        let task = tokio::spawn(async move {
            let result = running.await;
            let mut all = register.lock().unwrap_or_else(PoisonError::into_inner);
            // Cancelled meanwhile: nobody asks for the result.
            if let Some(attempt) = all.get_mut(&owner).and_then(|attempts| attempts.get_mut(&name)) {
                *attempt = Attempt::Ended(result, Instant::now());
            }
            drop(all);
            ended(&owner);
        });
        // The task cannot have stored its result yet: we hold the lock.
        attempts.insert(key, Attempt::Running(task.abort_handle()));
    }

    /// Stops attempts and forgets them.
    pub fn cancel(&self, deployment: &Key, keys: &[String]) {
        let mut all = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(attempts) = all.get_mut(deployment) else { return };
        for key in keys {
            if let Some(Attempt::Running(task)) = attempts.remove(key) {
                task.abort();
            }
        }
        if attempts.is_empty() {
            all.remove(deployment);
        }
    }

    /// The Deployment has no run that has not ended: nothing of it is needed any more.
    pub fn forget(&self, deployment: &Key) {
        let gone = self.attempts.lock().unwrap_or_else(PoisonError::into_inner).remove(deployment);
        for attempt in gone.into_iter().flat_map(BTreeMap::into_values) {
            if let Attempt::Running(task) = attempt {
                task.abort();
            }
        }
    }

    /// Results by key; `None` while the attempt runs.
    pub fn results(&self, deployment: &Key) -> BTreeMap<String, Option<AttemptResult>> {
        let all = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let attempts = all.get(deployment).into_iter().flatten();
        let result = |attempt: &Attempt| match attempt {
            Attempt::Running(_) => None,
            Attempt::Ended(result, _) => Some(result.clone()),
        };
        attempts.map(|(key, attempt)| (key.clone(), result(attempt))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use interlock_core::{
        api::{policy::Phase, run::StepOutcome},
        time::Time,
    };
    use tokio::sync::Notify;

    use super::*;

    fn call(key: &str) -> HookCall {
        HookCall {
            key: key.into(),
            hook: "h".into(),
            phase: Phase::PreUpdate,
            attempt: 1,
            url: String::new(),
            timeout_seconds: 1,
            body: serde_json::Value::Null,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_attempt_per_key_and_a_wake_up_when_it_has_ended() {
        let (started, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let (count, tell) = (Arc::clone(&started), Arc::clone(&ended));
        let runner: Runner = Arc::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async {
                tokio::time::sleep(Duration::from_secs(5)).await;
                AttemptResult { outcome: StepOutcome::Succeeded, reason: "Http200".into(), at: Time(0) }
            })
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
}
