//! The ReplicaSet controller and the garbage collector, on their own view of ReplicaSets.

use interlock_core::pod;

use super::{Sim, SimPod};

impl Sim {
    pub fn available(&self, p: &SimPod) -> bool {
        pod::available_at(&p.pod, self.d.min_ready_seconds).is_some_and(|at| at <= self.now)
    }

    /// One sync of every ReplicaSet. Did anything change?
    pub fn replica_set_controller(&mut self) -> bool {
        let before = self.next;
        // Background deletion.
        let gone: Vec<String> = self
            .pods
            .iter()
            .filter(|p| self.sets.iter().all(|s| s.uid != p.pod.owner))
            .map(|p| p.pod.name.clone())
            .collect();
        for name in gone {
            self.note(format!("GC deletes pod {name}"));
            self.remove_pod(&name);
        }
        for seen in self.rsc_sets.clone() {
            if self.sets.iter().all(|s| s.uid != seen.uid) {
                continue;
            }
            let mut failure = None;
            let have: Vec<SimPod> = self.pods.iter().filter(|p| p.pod.owner == seen.uid).cloned().collect();
            let count = i64::try_from(have.len()).unwrap();
            for _ in count..seen.replicas {
                let total = i64::try_from(self.pods.len()).unwrap();
                if self.quota.is_some_and(|q| total >= q) {
                    failure = Some("exceeded quota: pods".to_owned());
                    break;
                }
                self.create_pod(&seen);
            }
            if count > seen.replicas {
                let mut doomed = have;
                // Not ready first, then the youngest (controller_utils.go, ActivePodsWithRanks).
                doomed.sort_by_key(|p| (p.pod.ready, std::cmp::Reverse(p.pod.created), p.pod.name.clone()));
                for p in doomed.into_iter().take(usize::try_from(count - seen.replicas).unwrap()) {
                    self.note(format!("RSC deletes pod {}", p.pod.name));
                    self.remove_pod(&p.pod.name);
                }
            }
            let pods: Vec<&SimPod> = self.pods.iter().filter(|p| p.pod.owner == seen.uid).collect();
            let replicas = i64::try_from(pods.len()).unwrap();
            let available = i64::try_from(pods.iter().filter(|p| self.available(p)).count()).unwrap();
            let rv = self.next + 1;
            let Some(real) = self.sets.iter_mut().find(|s| s.uid == seen.uid) else { continue };
            let old = real.clone();
            real.observed_generation = real.observed_generation.max(seen.generation);
            real.status_replicas = replicas;
            real.available = available;
            real.failure = failure;
            if *real != old {
                self.next = rv;
                real.resource_version = rv.to_string();
            }
        }
        self.next != before
    }

    pub fn remove_pod(&mut self, name: &str) {
        self.pods.retain(|p| p.pod.name != name);
        self.deleted += 1;
        self.fresh_rv();
    }
}
