//! The Deployment controller (Kubernetes 1.37, pkg/controller/deployment: sync.go, rolling.go, recreate.go,
//! util/deployment_util.go), on its own view of ReplicaSets.

use interlock_core::{
    api::{names, policy::IntOrPercent},
    world::ReplicaSet,
};

use super::Sim;

const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";

fn age(s: &ReplicaSet) -> (i64, String) {
    (s.created.0 / 1000, s.name.clone())
}

fn up(value: &IntOrPercent, replicas: i64) -> i64 {
    match value {
        IntOrPercent::Int(n) => *n,
        IntOrPercent::Percent(p) => {
            let p: i64 = p.trim_end_matches('%').parse().unwrap();
            (replicas * p + 99) / 100
        }
    }
}

impl Sim {
    fn limits(&self) -> (i64, i64) {
        let surge = if self.d.recreate { 0 } else { up(&self.surge, self.d.replicas) };
        let unavailable =
            self.d.max_unavailable.as_ref().map_or(self.d.replicas / 4, |m| m.of(self.d.replicas).unwrap());
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        (surge, unavailable.min(self.d.replicas))
    }

    /// One sync. Did anything change?
    pub fn deployment_controller(&mut self) -> bool {
        let (next, log) = (self.next, self.log.len());
        let _ = self.sync();
        let changed = self.next != next;
        debug_assert!(changed || self.log.len() >= log);
        changed
    }

    fn new_set(&self) -> Option<ReplicaSet> {
        self.dc_sets.iter().filter(|s| s.template == self.d.template).min_by_key(|s| age(s)).cloned()
    }

    /// Updates a ReplicaSet by resourceVersion, as the controller does.
    fn update_set(&mut self, new: &mut ReplicaSet) -> Result<(), ()> {
        let rv = self.fresh_rv();
        let Some(real) = self.sets.iter_mut().find(|s| s.uid == new.uid) else {
            self.next -= 1;
            return Err(());
        };
        if real.resource_version != new.resource_version {
            self.next -= 1;
            return Err(());
        }
        if real.replicas != new.replicas {
            real.generation += 1;
            real.replicas = new.replicas;
        }
        real.annotations = new.annotations.clone();
        real.resource_version = rv;
        *new = real.clone();
        let copy = new.clone();
        if let Some(seen) = self.dc_sets.iter_mut().find(|s| s.uid == copy.uid) {
            *seen = copy;
        }
        self.reparse();
        Ok(())
    }

    fn get_new(&mut self, create: bool) -> Result<Option<ReplicaSet>, ()> {
        let found = self.new_set();
        let max_old = self
            .dc_sets
            .iter()
            .filter(|s| found.as_ref().is_none_or(|f| f.uid != s.uid))
            .map(ReplicaSet::revision)
            .max()
            .unwrap_or(0);
        let (surge, _) = self.limits();
        let copy = |sim: &Self, set: &mut ReplicaSet| {
            for (k, v) in &sim.d.annotations {
                if !k.starts_with(names::DEPLOYMENT_PREFIX) && k != names::LAST_APPLIED {
                    set.annotations.insert(k.clone(), v.clone());
                }
            }
            if set.revision() < max_old + 1 {
                set.annotations.insert(names::REVISION.into(), (max_old + 1).to_string());
            }
        };
        let as_seen = |s: &ReplicaSet| self.dc_sets.iter().any(|d| d.uid == s.uid && d.revision() == s.revision());
        let blind = !self.sets.iter().all(as_seen);
        if let Some(mut set) = found {
            let (before, revision) = (set.annotations.clone(), set.revision());
            copy(self, &mut set);
            if blind && set.revision() != revision {
                self.numbered_blindly.insert(set.uid.clone());
            }
            if set.annotations != before {
                self.note(format!("DC annotates {}", set.name));
                self.update_set(&mut set)?;
                return Ok(Some(set));
            }
            let revision = set.revision().to_string();
            if self.d.annotations.get(names::REVISION) != Some(&revision) {
                self.d.annotations.insert(names::REVISION.into(), revision);
                self.d.resource_version = self.fresh_rv();
            }
            return Ok(Some(set));
        }
        if !create {
            return Ok(None);
        }
        let mut name = format!("web-{}", self.d.template.hash());
        while let Some(taken) = self.sets.iter().find(|s| s.name == name) {
            if taken.template == self.d.template {
                return Err(()); // not in its view yet
            }
            name.push('x'); // collisionCount
        }
        let room = self.d.replicas + surge - self.dc_sets.iter().map(|s| s.replicas).sum::<i64>();
        let replicas = if self.d.recreate { self.d.replicas } else { room.max(0).min(self.d.replicas) };
        let mut set = ReplicaSet {
            uid: self.fresh_uid("rs"),
            resource_version: self.fresh_rv(),
            generation: 1,
            created: self.now.whole_seconds(),
            hash_label: name.trim_start_matches("web-").into(),
            name,
            history: false,
            copy: false,
            annotations: std::collections::BTreeMap::new(),
            own_hooks: None,
            own_after: None,
            replicas,
            template: self.d.template.clone(),
            observed_generation: 0,
            status_replicas: 0,
            available: 0,
            failure: None,
        };
        copy(self, &mut set);
        if blind {
            self.numbered_blindly.insert(set.uid.clone());
        }
        set.annotations.insert(DESIRED.into(), self.d.replicas.to_string());
        set.annotations.insert(MAX.into(), (self.d.replicas + surge).to_string());
        self.note(format!("DC creates {} ({}) with {replicas}", set.name, super::image_of(&set.template)));
        self.sets.push(set.clone());
        self.dc_sets.push(set.clone());
        self.reparse();
        Ok(Some(set))
    }

    fn others(&self, new: Option<&ReplicaSet>) -> Vec<ReplicaSet> {
        let mut all: Vec<_> = self.dc_sets.iter().filter(|s| new.is_none_or(|n| n.uid != s.uid)).cloned().collect();
        all.sort_by_key(age);
        all
    }

    fn scale_set(&mut self, set: &ReplicaSet, to: i64) -> Result<(), ()> {
        let (surge, _) = self.limits();
        let mut new = set.clone();
        new.replicas = to;
        new.annotations.insert(DESIRED.into(), self.d.replicas.to_string());
        new.annotations.insert(MAX.into(), (self.d.replicas + surge).to_string());
        if new.replicas != set.replicas || new.annotations != set.annotations {
            self.rested = false;
            let blind = self.dc_sets.iter().map(|s| &s.name).ne(self.sets.iter().map(|s| &s.name));
            if set.replicas > 0 && self.sets.iter().all(|s| s.uid == set.uid || s.replicas == 0) {
                self.emptied_at = self.now;
            }
            // A held Deployment that went through 0 and back sooner than anybody could act (docs/limits.md).
            let at_once = set.history && self.now.millis_since(self.emptied_at) < 100;
            if set.replicas == 0 && (blind || at_once) {
                // It chose by what it had seen, and nobody can prevent that.
                self.pardoned.insert(set.template.hash().to_owned());
                self.authorised.insert(set.template.hash().to_owned());
            }
            self.note(format!("DC scales {} ({}) {} -> {to}", set.name, super::image_of(&set.template), set.replicas));
            self.update_set(&mut new)?;
        }
        Ok(())
    }

    /// `isScalingEvent`: does it only scale, and not roll?
    pub fn scales(&self) -> bool {
        self.dc_sets.iter().filter(|s| s.replicas > 0).any(|s| {
            s.annotations.get(DESIRED).and_then(|d| d.parse::<i64>().ok()).is_some_and(|d| d != self.d.replicas)
        })
    }

    fn sync(&mut self) -> Result<(), ()> {
        self.get_new(false)?;
        if self.d.paused || self.scales() {
            let new = self.get_new(false)?;
            let old = self.others(new.as_ref());
            self.scale(new.as_ref(), &old)?;
            if self.d.paused {
                self.cleanup(new.as_ref())?;
            }
        } else if self.d.recreate {
            let new = self.get_new(false)?;
            let old: Vec<_> = self.others(new.as_ref()).into_iter().filter(|s| s.replicas > 0).collect();
            if !old.is_empty() {
                for set in old {
                    self.scale_set(&set, 0)?;
                }
            } else if self.others(new.as_ref()).iter().all(|s| s.status_replicas == 0) {
                let new = self.get_new(true)?.ok_or(())?;
                if new.replicas != self.d.replicas {
                    self.scale_set(&new, self.d.replicas)?;
                }
                if self.complete() {
                    self.cleanup(Some(&new))?;
                }
            }
        } else {
            let new = self.get_new(true)?.ok_or(())?;
            self.rolling(&new)?;
        }
        self.status();
        Ok(())
    }

    fn scale(&mut self, new: Option<&ReplicaSet>, old: &[ReplicaSet]) -> Result<(), ()> {
        let all: Vec<ReplicaSet> = old.iter().chain(new).cloned().collect();
        let active: Vec<ReplicaSet> = all.iter().filter(|s| s.replicas > 0).cloned().collect();
        let one = match active.as_slice() {
            [] => new.cloned().or_else(|| old.iter().max_by_key(|s| age(s)).cloned()),
            [one] => Some(one.clone()),
            [..] => None,
        };
        if let Some(one) = one {
            if one.replicas == self.d.replicas {
                return Ok(());
            }
            return self.scale_set(&one, self.d.replicas);
        }
        if active.is_empty() {
            return Ok(());
        }
        let saturated = new.is_some_and(|n| {
            n.replicas == self.d.replicas
                && n.annotations.get(DESIRED) == Some(&self.d.replicas.to_string())
                && n.available == self.d.replicas
        });
        if saturated {
            for set in old.iter().filter(|s| s.replicas > 0) {
                self.scale_set(set, 0)?;
            }
            return Ok(());
        }
        if self.d.recreate {
            return Ok(());
        }
        // In proportion; leftovers go to the largest.
        let (surge, _) = self.limits();
        let total: i64 = active.iter().map(|s| s.replicas).sum();
        let allowed = if self.d.replicas > 0 { self.d.replicas + surge } else { 0 };
        let add = allowed - total;
        let mut sorted = active;
        sorted.sort_by_key(|s| (-s.replicas, if add > 0 { -(s.created.0) } else { s.created.0 }));
        let mut sizes: Vec<i64> = Vec::new();
        let mut added = 0;
        for set in &sorted {
            let part = if add == 0 {
                0
            } else {
                let desired = set.annotations.get(MAX).and_then(|m| m.parse::<i64>().ok()).filter(|m| *m > 0);
                let base = desired.unwrap_or(self.d.replicas.max(1));
                #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
                let wanted = (set.replicas as f64 * allowed as f64 / base as f64).round() as i64 - set.replicas;
                if add > 0 { wanted.min(add - added) } else { wanted.max(add - added) }
            };
            added += part;
            sizes.push(set.replicas + part);
        }
        if let Some(first) = sizes.first_mut()
            && add != 0
        {
            *first = (*first + add - added).max(0);
        }
        for (set, size) in sorted.iter().zip(sizes) {
            self.scale_set(set, size.max(0))?;
        }
        Ok(())
    }

    fn cleanup(&mut self, new: Option<&ReplicaSet>) -> Result<(), ()> {
        let mut old = self.others(new);
        let excess = old.len().saturating_sub(usize::try_from(self.d.history_limit).unwrap());
        old.sort_by_key(|s| (s.revision(), age(s)));
        for set in old.into_iter().take(excess) {
            if set.status_replicas != 0 || set.replicas != 0 || set.generation > set.observed_generation {
                continue;
            }
            if self.sets.iter().any(|s| s.uid == set.uid) {
                self.note(format!("DC cleans up {} ({})", set.name, super::image_of(&set.template)));
                self.fresh_rv();
                self.sets.retain(|s| s.uid != set.uid);
            }
            self.dc_sets.retain(|s| s.uid != set.uid);
        }
        Ok(())
    }

    fn rolling(&mut self, new: &ReplicaSet) -> Result<(), ()> {
        let (surge, max_unavailable) = self.limits();
        let desired = self.d.replicas;
        let old = self.others(Some(new));
        let all: i64 = old.iter().map(|s| s.replicas).sum::<i64>() + new.replicas;
        if new.replicas > desired {
            return self.scale_set(new, desired);
        }
        if new.replicas < desired {
            let room = (desired + surge - all).max(0).min(desired - new.replicas);
            if room > 0 {
                return self.scale_set(new, new.replicas + room);
            }
        }
        let min_available = desired - max_unavailable;
        let mut most = all - min_available - (new.replicas - new.available);
        if old.iter().any(|s| s.replicas > 0) && most > 0 {
            let mut sizes: Vec<(ReplicaSet, i64)> = old.iter().map(|s| (s.clone(), s.replicas)).collect();
            for (set, size) in &mut sizes {
                let part = most.min(*size - set.available).max(0);
                if *size > 0 && part > 0 {
                    *size -= part;
                    most -= part;
                }
            }
            let available: i64 = old.iter().map(|s| s.available).sum::<i64>() + new.available;
            let mut spare = (available - min_available).max(0);
            for (_, size) in &mut sizes {
                let part = spare.min(*size);
                *size -= part;
                spare -= part;
            }
            let mut scaled = false;
            for (set, size) in sizes {
                if size != set.replicas {
                    self.scale_set(&set, size)?;
                    scaled = true;
                }
            }
            if scaled {
                return Ok(());
            }
        }
        if self.complete() {
            self.cleanup(Some(new))?;
        }
        Ok(())
    }

    fn status(&mut self) {
        let new = self.new_set();
        let mut status = self.d.status.clone();
        status.observed_generation = self.d.generation;
        status.replicas = self.dc_sets.iter().map(|s| s.status_replicas).sum();
        status.updated = new.as_ref().map_or(0, |n| n.status_replicas);
        status.available = self.dc_sets.iter().map(|s| s.available).sum();
        status.replica_failure = new.as_ref().and_then(|n| n.failure.clone());
        if status != self.d.status {
            self.d.status = status;
            self.d.resource_version = self.fresh_rv();
        }
    }
}
