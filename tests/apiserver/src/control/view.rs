//! What a controller has seen: the changes of some kinds, up to its lag.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;
use tokio::{sync::watch, time::Instant};

use super::{Lag, on, think};
use crate::{
    json::controller,
    store::{Ref, Store, What},
};

pub(super) struct View {
    store: Arc<Store>,
    plurals: &'static [&'static str],
    lag: Lag,
    cursor: usize,
    changes: watch::Receiver<u64>,
    objects: BTreeMap<Ref, Arc<Value>>,
}

impl View {
    pub(super) fn new(store: &Arc<Store>, plurals: &'static [&'static str], lag: Lag) -> Self {
        Self { store: Arc::clone(store), plurals, lag, cursor: 0, changes: store.changes(), objects: BTreeMap::new() }
    }

    /// The next turn of a controller: something new was seen or the time has come, the controllers run, and it has thought.
    pub(super) async fn turn(&mut self, timer: Option<Instant>, switch: &mut watch::Receiver<bool>) {
        self.wait(timer).await;
        on(switch).await;
        think(&self.store).await;
        self.take();
    }

    /// Takes what may be seen by now. Returns whether there was anything, and when more may be seen.
    pub(super) fn take(&mut self) -> (bool, Option<Instant>) {
        self.changes.borrow_and_update();
        let (lag, now) = (self.lag.get(), Instant::now());
        let (mut news, mut next) = (false, None);
        let (plurals, objects) = (self.plurals, &mut self.objects);
        self.cursor = self.store.each_from(self.cursor, |entry| {
            if entry.at + lag > now {
                next = Some(entry.at + lag);
                return false;
            }
            if plurals.contains(&entry.kind.plural) {
                news = true;
                match entry.what {
                    What::Deleted => drop(objects.remove(&entry.key())),
                    What::Added | What::Modified => drop(objects.insert(entry.key(), Arc::clone(&entry.object))),
                }
            }
            true
        });
        (news, next)
    }

    /// Returns once something new was seen, or at this time.
    pub(super) async fn wait(&mut self, timer: Option<Instant>) {
        loop {
            let (news, next) = self.take();
            if news || timer.is_some_and(|at| at <= Instant::now()) {
                return;
            }
            let wake = [timer, next].into_iter().flatten().min();
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = self.changes.changed() => if changed.is_err() { std::future::pending().await },
                () = sleep => {}
            }
        }
    }

    pub(super) fn of(&self, plural: &'static str) -> impl Iterator<Item = &Arc<Value>> {
        self.objects.iter().filter(move |((p, _, _), _)| *p == plural).map(|(_, o)| o)
    }

    /// Objects of a kind whose controller has this UID.
    pub(super) fn owned(&self, plural: &'static str, by: &'static str, uid: &str) -> Vec<Value> {
        self.of(plural).filter(|o| controller(o, by) == uid).map(|o| Value::clone(o)).collect()
    }
}
