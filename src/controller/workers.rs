//! Carries out passes: a bounded number side by side, and a panic costs one item its turn and nobody else.

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use tokio::{
    task::{Id, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::queue::{Outcome, Queue};
use crate::observe::Item;

/// So many passes run side by side.
const PASSES: usize = 32;
/// Passes in flight get so long to end when the process is to stop.
const GRACE: Duration = Duration::from_secs(10);
/// The loop says that it is alive at least this often.
const BEAT: Duration = Duration::from_secs(5);

/// What the loop tells others.
pub(super) struct Signals {
    /// The loop came round.
    pub beat: Box<dyn Fn() + Send + Sync>,
    /// A pass panicked.
    pub panicked: Box<dyn Fn() + Send + Sync>,
}

/// Runs passes until `stop`, then waits for those in flight. A pass that returns an error ends it at once.
pub(super) async fn work<E, F>(
    queue: Arc<Queue>,
    pass: impl Fn(Item) -> F,
    signals: &Signals,
    stop: CancellationToken,
) -> Result<(), E>
where
    E: Send + 'static,
    F: Future<Output = Result<Outcome, E>> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut items: HashMap<Id, Item> = HashMap::new();
    while !stop.is_cancelled() {
        (signals.beat)();
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            Some(ended) = running.join_next_with_id() => finish(&queue, &mut items, signals, ended)?,
            item = queue.next(), if running.len() < PASSES => {
                let id = running.spawn(pass(item.clone())).id();
                items.insert(id, item);
            }
            () = tokio::time::sleep(BEAT) => {}
        }
    }
    queue.close();
    let deadline = Instant::now() + GRACE;
    while let Ok(Some(ended)) = tokio::time::timeout_at(deadline, running.join_next_with_id()).await {
        finish(&queue, &mut items, signals, ended)?;
    }
    if !running.is_empty() {
        tracing::warn!(passes = running.len(), "stopped with passes in flight; they will be taken up again");
    }
    Ok(())
}

fn finish<E>(
    queue: &Queue,
    items: &mut HashMap<Id, Item>,
    signals: &Signals,
    ended: Result<(Id, Result<Outcome, E>), tokio::task::JoinError>,
) -> Result<(), E> {
    let (id, outcome) = match ended {
        Ok((id, outcome)) => (id, outcome?),
        Err(error) => {
            (signals.panicked)();
            tracing::error!(item = ?items.get(&error.id()), "a pass panicked; this is a bug, please report it");
            (error.id(), Outcome::Failed { retry_after: None })
        }
    };
    if let Some(item) = items.remove(&id) {
        queue.done(&item, &outcome);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::observe::Key;

    fn item(name: &str) -> Item {
        Item::Deployment(Key::new("ns", name))
    }

    fn signals(panics: &Arc<AtomicUsize>) -> Signals {
        let panics = Arc::clone(panics);
        Signals {
            beat: Box::new(|| ()),
            panicked: Box::new(move || {
                panics.fetch_add(1, Ordering::SeqCst);
            }),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_leaves_others_alone_and_is_tried_again_later() {
        let (queue, panics, bad, good) =
            (Arc::new(Queue::default()), Arc::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let stop = CancellationToken::new();
        queue.trigger(item("bad"));
        queue.trigger(item("good"));
        let pass = {
            let (bad, good, queue, stop) = (Arc::clone(&bad), Arc::clone(&good), Arc::clone(&queue), stop.clone());
            move |it: Item| {
                let (bad, good, queue, stop) = (Arc::clone(&bad), Arc::clone(&good), Arc::clone(&queue), stop.clone());
                async move {
                    if it == item("bad") {
                        bad.fetch_add(1, Ordering::SeqCst);
                        panic!("provoked");
                    }
                    if good.fetch_add(1, Ordering::SeqCst) < 99 {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        queue.trigger(it);
                    } else {
                        stop.cancel();
                    }
                    Ok::<_, ()>(Outcome::Done(None))
                }
            }
        };
        work(queue, pass, &signals(&panics), stop).await.unwrap();
        assert_eq!(good.load(Ordering::SeqCst), 100);
        let bad = bad.load(Ordering::SeqCst);
        assert!((2..=6).contains(&bad), "{bad} tries in ten seconds");
        assert_eq!(panics.load(Ordering::SeqCst), bad);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_what_is_in_flight_but_not_for_ever() {
        let (queue, stop) = (Arc::new(Queue::default()), CancellationToken::new());
        for (seconds, expected) in [(3, 3), (1000, 10)] {
            queue.trigger(item(&seconds.to_string()));
            let (stop, start) = (stop.child_token(), Instant::now());
            let inner = stop.clone();
            let pass = move |_| {
                inner.cancel();
                async move {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    Ok::<_, ()>(Outcome::Done(None))
                }
            };
            work(Arc::clone(&queue), pass, &signals(&Arc::default()), stop).await.unwrap();
            assert_eq!(start.elapsed().as_secs(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_ends_the_loop() {
        let queue = Arc::new(Queue::default());
        queue.trigger(item("a"));
        let pass = |_| async { Err::<Outcome, _>("fenced") };
        assert_eq!(work(queue, pass, &signals(&Arc::default()), CancellationToken::new()).await, Err("fenced"));
    }
}
