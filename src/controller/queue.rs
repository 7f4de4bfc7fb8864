//! What is to be looked at, and when.
//!
//! Per item at most one pass runs at a time. Triggers that come while it waits or runs are one. An item that failed
//! waits for its own backoff, which news of it shorten to some seconds; others are not affected.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::observe::Item;

/// First and longest pause after failures in a row.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// A plan is looked at again after so long at the latest, if it named a time: a clock that was set may have moved it.
const LONGEST_WAKE: Duration = Duration::from_hours(1);

/// An item that backs off is looked at again this soon after news of it: what failed may be cured, such as by a new
/// template.
const NEWS: Duration = Duration::from_secs(5);

/// How a pass ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All done. To be looked at again after this time, if nothing triggers it before.
    Done(Option<Duration>),
    /// There is more to do; others first.
    Again,
    /// It failed and is to be tried again, not before `retry_after`.
    Failed {
        /// What the API server asked for.
        retry_after: Option<Duration>,
    },
}

/// The queue.
#[derive(Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    changed: Notify,
    /// Something that runs was triggered.
    news: Notify,
}

#[derive(Default)]
struct Inner {
    items: HashMap<Item, State>,
    ready: VecDeque<Item>,
    timers: BTreeSet<(Instant, Item)>,
    closed: bool,
}

#[derive(Default)]
struct State {
    phase: Phase,
    failures: u32,
    /// In `timers` for this point.
    timer: Option<Instant>,
    /// The API server does not want to be asked before this point.
    not_before: Option<Instant>,
    /// The first trigger that no plan has taken in yet.
    since: Option<Instant>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    /// In `ready`.
    Ready,
    /// Waits for its timer, and for nothing else.
    BackingOff,
    Running,
    /// Running, and triggered since.
    Dirty,
}

impl Queue {
    /// This is to be looked at.
    pub(super) fn trigger(&self, item: Item) {
        let mut inner = self.lock();
        let state = inner.items.entry(item.clone()).or_default();
        if state.phase != Phase::BackingOff {
            state.since.get_or_insert_with(Instant::now);
        }
        match state.phase {
            Phase::Idle => {
                inner.make_ready(item);
                drop(inner);
                self.changed.notify_one();
            }
            Phase::Running => {
                state.phase = Phase::Dirty;
                drop(inner);
                self.news.notify_waiters();
            }
            Phase::BackingOff => {
                let soon = (Instant::now() + NEWS).max(state.not_before.unwrap_or_else(Instant::now));
                if state.timer.is_some_and(|at| at > soon) {
                    inner.set_timer(&item, soon - Instant::now());
                    drop(inner);
                    self.changed.notify_one();
                }
            }
            Phase::Ready | Phase::Dirty => {}
        }
    }

    /// The next item, once there is one. It is running until [`Queue::done`].
    pub(super) async fn next(&self) -> Item {
        loop {
            let changed = self.changed.notified();
            let wait = {
                let mut inner = self.lock();
                inner.expire(Instant::now());
                if let Some(item) = inner.ready.pop_front() {
                    inner.items.entry(item.clone()).or_default().phase = Phase::Running;
                    return item;
                }
                inner.timers.first().map(|(at, _)| *at)
            };
            match wait {
                Some(at) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => changed.await,
            }
        }
    }

    /// A plan for a running item is about to look at the world: what has come until now is in it. Returns when the first of
    /// it came.
    pub(super) fn look(&self, item: &Item) -> Option<Instant> {
        let mut inner = self.lock();
        let state = inner.items.get_mut(item)?;
        if state.phase == Phase::Dirty {
            state.phase = Phase::Running;
        }
        state.since.take()
    }

    /// Returns once a running item was triggered since the last look, or the queue is closed.
    pub(super) async fn news(&self, item: &Item) {
        loop {
            let news = self.news.notified();
            {
                let inner = self.lock();
                if inner.closed || inner.items.get(item).is_some_and(|state| state.phase == Phase::Dirty) {
                    return;
                }
            }
            news.await;
        }
    }

    /// Passes are to come to an end.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.news.notify_waiters();
    }

    /// Are they?
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// A pass has ended.
    pub(super) fn done(&self, item: &Item, outcome: &Outcome) {
        let mut inner = self.lock();
        let Some(state) = inner.items.get_mut(item) else { return };
        let dirty = state.phase == Phase::Dirty;
        state.phase = Phase::Idle;
        match outcome {
            Outcome::Failed { retry_after } => {
                // What waits because of a failure is not slow.
                state.since = None;
                let pause = if dirty { backoff(state.failures).min(NEWS) } else { backoff(state.failures) };
                let pause = pause.max(retry_after.unwrap_or_default());
                state.not_before = retry_after.map(|after| Instant::now() + after);
                state.failures = state.failures.saturating_add(1);
                state.phase = Phase::BackingOff;
                inner.set_timer(item, pause);
            }
            Outcome::Again => {
                state.failures = 0;
                inner.make_ready(item.clone());
            }
            Outcome::Done(wake) => {
                state.failures = 0;
                if dirty {
                    inner.make_ready(item.clone());
                } else if let Some(wake) = wake {
                    inner.set_timer(item, (*wake).min(LONGEST_WAKE));
                } else {
                    inner.items.remove(item);
                }
            }
        }
        drop(inner);
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn make_ready(&mut self, item: Item) {
        let state = self.items.entry(item.clone()).or_default();
        state.phase = Phase::Ready;
        if let Some(at) = state.timer.take() {
            self.timers.remove(&(at, item.clone()));
        }
        self.ready.push_back(item);
    }

    fn set_timer(&mut self, item: &Item, after: Duration) {
        let at = Instant::now() + after;
        let state = self.items.entry(item.clone()).or_default();
        if let Some(old) = state.timer.replace(at) {
            self.timers.remove(&(old, item.clone()));
        }
        self.timers.insert((at, item.clone()));
    }

    fn expire(&mut self, now: Instant) {
        while let Some((at, _)) = self.timers.first()
            && *at <= now
            && let Some((_, item)) = self.timers.pop_first()
        {
            if let Some(state) = self.items.get_mut(&item) {
                state.timer = None;
                self.make_ready(item);
            }
        }
    }
}

/// Doubled with each failure in a row, then spread over its upper half, so that what failed together does not come
/// again together.
fn backoff(failures: u32) -> Duration {
    let (first, longest) = BACKOFF;
    let full = first.saturating_mul(2_u32.saturating_pow(failures)).min(longest);
    full.mul_f64(0.5 + fraction() / 2.0)
}

/// A number from 0 to 1 that need not be unpredictable.
fn fraction() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    let bits = RandomState::new().hash_one(0_u8) >> 40;
    f64::from(u32::try_from(bits).unwrap_or(0)) / f64::from(1_u32 << 24)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Key;

    fn item(name: &str) -> Item {
        Item::Deployment(Key::new("ns", name))
    }

    async fn within(queue: &Queue, seconds: u64) -> Option<Item> {
        tokio::time::timeout(Duration::from_secs(seconds), queue.next()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn news_shortens_a_long_backoff() {
        let queue = Queue::default();
        queue.trigger(item("a"));
        for _ in 0..8 {
            let next = queue.next().await;
            queue.done(&next, &Outcome::Failed { retry_after: None });
        }
        assert_eq!(within(&queue, 20).await, None, "it backs off for half a minute at least");
        queue.trigger(item("a"));
        assert_eq!(within(&queue, 6).await, Some(item("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn triggers_are_coalesced_and_one_pass_runs_at_a_time() {
        let queue = Queue::default();
        queue.trigger(item("a"));
        queue.trigger(item("a"));
        assert_eq!(queue.next().await, item("a"));
        assert_eq!(within(&queue, 9).await, None);
        queue.trigger(item("a"));
        queue.trigger(item("a"));
        assert_eq!(within(&queue, 9).await, None, "it is running");
        queue.done(&item("a"), &Outcome::Done(None));
        assert_eq!(within(&queue, 0).await, Some(item("a")), "it was triggered meanwhile");
        queue.done(&item("a"), &Outcome::Done(None));
        assert_eq!(within(&queue, 9).await, None);
        assert!(queue.lock().items.is_empty(), "nothing is kept of what is at rest");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_hears_of_news_and_a_look_takes_them_in() {
        let queue = Queue::default();
        queue.trigger(item("a"));
        let start = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        queue.next().await;
        assert_eq!(queue.look(&item("a")), Some(start), "the first trigger counts");
        assert_eq!(queue.look(&item("a")), None);
        let a = item("a");
        let heard = |seconds| tokio::time::timeout(Duration::from_secs(seconds), queue.news(&a));
        assert!(heard(9).await.is_err());
        let (news, ()) = tokio::join!(heard(9), async { queue.trigger(item("a")) });
        assert!(news.is_ok());
        assert!(queue.look(&item("a")).is_some());
        assert!(heard(9).await.is_err());
        queue.close();
        assert!(queue.is_closed() && heard(9).await.is_ok());
        queue.done(&item("a"), &Outcome::Done(None));
        assert_eq!(within(&queue, 9).await, None, "it was taken in");
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_wakes_at_its_time_or_by_a_trigger_but_not_by_both() {
        let queue = Queue::default();
        for _ in 0..2 {
            queue.trigger(item("a"));
            queue.next().await;
            queue.done(&item("a"), &Outcome::Done(Some(Duration::from_secs(30))));
        }
        let start = Instant::now();
        assert_eq!(within(&queue, 29).await, None);
        assert_eq!(queue.next().await, item("a"));
        assert!(start.elapsed() >= Duration::from_secs(30));
        queue.done(&item("a"), &Outcome::Done(None));
        assert_eq!(within(&queue, 99).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_alone() {
        let queue = Queue::default();
        let mut longest = Duration::ZERO;
        queue.trigger(item("a"));
        for _ in 0..10 {
            let start = Instant::now();
            assert_eq!(queue.next().await, item("a"));
            longest = longest.max(start.elapsed());
            queue.done(&item("a"), &Outcome::Failed { retry_after: None });
            queue.trigger(item("b"));
            assert_eq!(within(&queue, 0).await, Some(item("b")), "others are not affected");
            queue.done(&item("b"), &Outcome::Done(None));
        }
        assert!(longest >= Duration::from_secs(30) && longest <= Duration::from_secs(61), "{longest:?}");
        queue.next().await;
        queue.done(&item("a"), &Outcome::Done(None));
        queue.trigger(item("a"));
        queue.next().await;
        queue.done(&item("a"), &Outcome::Failed { retry_after: None });
        assert_eq!(within(&queue, 2).await, Some(item("a")), "success starts the backoff anew");
    }

    #[tokio::test(start_paused = true)]
    async fn the_api_server_is_asked_again_when_it_wants_to_be() {
        let queue = Queue::default();
        queue.trigger(item("a"));
        queue.next().await;
        queue.done(&item("a"), &Outcome::Failed { retry_after: Some(Duration::from_secs(20)) });
        queue.trigger(item("a"));
        assert_eq!(within(&queue, 19).await, None, "whatever the news");
        assert_eq!(within(&queue, 2).await, Some(item("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_more_to_do_lets_others_go_first() {
        let queue = Queue::default();
        queue.trigger(item("a"));
        queue.trigger(item("b"));
        assert_eq!(queue.next().await, item("a"));
        queue.done(&item("a"), &Outcome::Again);
        assert_eq!(queue.next().await, item("b"));
        assert_eq!(queue.next().await, item("a"));
    }
}
