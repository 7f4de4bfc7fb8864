//! The window of an update: how many pods may be out of service because of it, counted in one place.

use std::collections::BTreeSet;

use super::{podhooks::At, pods::Seen};
use crate::pod::Stage;

/// Which pods are within the window, as the plan being made leaves them.
///
/// A pod is within it while it is down, for whatever reason, or at its hooks. One joins only while these are fewer than
/// `most`; one that is down has joined already, so there can be more. Being within it is therefore no leave to go down: before
/// its update a pod waits for those that are down or at the hooks after theirs, after it for those that are down. These wait
/// for nobody, so pods never wait for one another.
#[derive(Clone, Debug)]
pub(super) struct Window<'w> {
    /// maxUnavailable, in pods.
    pub most: i64,
    within: i64,
    down: i64,
    /// Available, and at the hooks after their update.
    late: i64,
    /// Taken down by this very plan.
    taken: BTreeSet<&'w str>,
}

impl<'w> Window<'w> {
    /// `missing`: pods that are wanted and do not exist.
    pub(super) fn of(seen: &[Seen<'w>], places: &[At], missing: i64, most: i64) -> Self {
        let mut window = Self { most, within: missing, down: missing, late: 0, taken: BTreeSet::new() };
        for (s, at) in seen.iter().zip(places) {
            let down = !available(&s.stage);
            window.down += i64::from(down);
            window.late += i64::from(!down && *at == At::After);
            window.within += i64::from(down || at.at_hooks());
        }
        window
    }

    /// How many may still join.
    pub(super) fn free(&self) -> i64 {
        (self.most - self.within).max(0)
    }

    /// Are no more pods within it than may be? Others can have failed on their own.
    pub(super) const fn kept(&self) -> bool {
        self.within <= self.most
    }

    /// One more that was not within it. False: it has to wait.
    pub(super) fn join(&mut self, at: At) -> bool {
        let free = self.free() > 0;
        self.within += i64::from(free);
        self.late += i64::from(free && at == At::Due);
        free
    }

    /// A pod within the window goes out of service. False: as many as may be are, so it has to wait.
    pub(super) fn take_down(&mut self, seen: &Seen<'w>, at: At) -> bool {
        let name = seen.pod.name.as_str();
        if !available(&seen.stage) || self.taken.contains(name) {
            return true;
        }
        let late = if matches!(at, At::Due | At::After) { 0 } else { self.late };
        if self.down + late >= self.most {
            return false;
        }
        self.down += 1;
        self.taken.insert(name)
    }
}

/// Whatever the template.
pub(super) const fn available(stage: &Stage) -> bool {
    match stage {
        Stage::Done => true,
        Stage::Old { available } => *available,
        Stage::Moving { .. } => false,
    }
}
