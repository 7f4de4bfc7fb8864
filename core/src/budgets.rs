//! What PodDisruptionBudgets still allow, counted down as pods are chosen.

use std::collections::BTreeSet;

use crate::world::Budget;

/// The budgets of one Deployment within one plan.
pub(crate) struct Budgets<'w> {
    left: Vec<(&'w Budget, i64)>,
}

impl<'w> Budgets<'w> {
    /// `steady`: names of the pods that are well. A budget's own count lags behind what we have just begun; our own view does
    /// not.
    pub(crate) fn new(budgets: &'w [Budget], steady: &BTreeSet<&str>) -> Self {
        let left = budgets
            .iter()
            .map(|b| {
                let ours = i64::try_from(b.pods.iter().filter(|p| steady.contains(p.as_str())).count()).unwrap_or(0);
                let by_us = ours.saturating_add(b.others_ready).saturating_sub(b.desired_healthy);
                (b, if b.current { by_us.min(b.allowed) } else { 0 })
            })
            .collect();
        Self { left }
    }

    /// Takes one disruption from every budget that covers the pod, or none and the name of the one that has none left.
    pub(crate) fn take(&mut self, pod: &str) -> Result<(), String> {
        if let Some((budget, _)) = self.left.iter().find(|(b, left)| b.pods.contains(pod) && *left <= 0) {
            return Err(budget.name.clone());
        }
        for (budget, left) in &mut self.left {
            if budget.pods.contains(pod) {
                *left -= 1;
            }
        }
        Ok(())
    }

    /// Can this one never allow anything?
    pub(crate) fn impossible(&self, name: &str) -> bool {
        self.left.iter().any(|(b, _)| b.name == name && b.current && b.expected > 0 && b.desired_healthy >= b.expected)
    }
}
