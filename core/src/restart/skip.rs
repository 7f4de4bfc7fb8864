//! Who is left as it is, and why.

use std::collections::BTreeMap;

use super::{Reason, Restart, Subject, mark};
use crate::{
    api::{
        names,
        restart::{ContainerImage, RollingRestartSpec},
    },
    classify,
    world::{Deployment, Pod},
};

/// Why this Deployment is skipped; `None`: it is its turn.
pub(super) fn why(spec: &RollingRestartSpec, restart: &Restart, subject: &Subject) -> Option<(Reason, String)> {
    let d = &subject.deployment;
    if d.deleting {
        return Some((Reason::Gone, "it is being deleted".into()));
    }
    if d.annotation(names::RESTARTS) == Some("never") {
        return Some((Reason::OptedOut, format!("its annotation {} is \"never\"", names::RESTARTS)));
    }
    if let Some(owner) = &subject.controller {
        return Some((Reason::OwnedByOther, format!("{owner} controls it and would undo the change; restart that")));
    }
    if d.paused && !d.held() || d.user_paused() {
        return Some((Reason::Paused, "it is paused, so nothing would happen until somebody resumes it".into()));
    }
    if d.replicas == 0 {
        return Some((Reason::ScaledToZero, "it has 0 replicas".into()));
    }
    if subject.pods.is_empty() {
        return Some((Reason::NoPods, "it has no pods".into()));
    }
    if let Some(named) = all_have(&spec.skip_when, &subject.pods) {
        return Some((Reason::SkipWhen, format!("every pod runs {named}")));
    }
    if spec.sidecars.is_empty() {
        let (key, value) = mark(restart, spec.mark.unwrap_or_default());
        let marked = annotation(d, key) == Some(value.as_str());
        // Pods and requests have whole seconds.
        if marked || subject.pods.iter().all(|p| p.created > restart.created) {
            return Some((Reason::AlreadyRestarted, "all its pods are younger than the request".into()));
        }
    } else if let Some(reason) = no_sidecar(&spec.sidecars, subject) {
        return Some(reason);
    }
    let left = if spec.sidecars.is_empty() {
        d.replicas.saturating_sub(unavailable(d))
    } else {
        d.replicas.saturating_sub(most(d))
    };
    if left <= 0 && !spec.allow_downtime {
        let message = format!(
            "its strategy leaves no ready pod meanwhile ({}); raise maxSurge or the replicas, or set allowDowntime",
            strategy(d)
        );
        return Some((Reason::Downtime, message));
    }
    None
}

/// An annotation of the pod template.
pub(super) fn annotation<'d>(d: &'d Deployment, key: &str) -> Option<&'d str> {
    d.template.json().get("metadata")?.get("annotations")?.get(key)?.as_str()
}

fn no_sidecar(sidecars: &[ContainerImage], subject: &Subject) -> Option<(Reason, String)> {
    let template = classify::containers(&subject.deployment.template);
    if let Some(own) = sidecars.iter().find(|s| template.contains_key(&s.name)) {
        let message = format!(
            "container {} is in its template: change the template instead (kubectl set image deploy/{} {}={})",
            own.name, subject.deployment.name, own.name, own.image
        );
        return Some((Reason::InTemplate, message));
    }
    let has = |p: &Pod| p.containers.iter().any(|c| sidecars.iter().any(|s| s.name == c.name));
    if !subject.pods.iter().any(has) {
        return Some((Reason::NoSidecar, "no pod of it has such a container".into()));
    }
    let old = |p: &Pod| p.containers.iter().any(|c| sidecars.iter().any(|s| s.name == c.name && s.image != c.image));
    if !subject.pods.iter().any(old) {
        return Some((Reason::AlreadyRestarted, "all its pods have the image already".into()));
    }
    None
}

/// Do all pods run all of these? Then what they run, in words.
fn all_have(wanted: &[ContainerImage], pods: &[Pod]) -> Option<String> {
    let runs = |p: &Pod, w: &ContainerImage| p.containers.iter().any(|c| c.name == w.name && c.image == w.image);
    let all = !wanted.is_empty() && pods.iter().all(|p| wanted.iter().all(|w| runs(p, w)));
    all.then(|| {
        let named: BTreeMap<_, _> = wanted.iter().map(|w| (&w.name, &w.image)).collect();
        named.into_iter().map(|(name, image)| format!("{name}={image}")).collect::<Vec<_>>().join(", ")
    })
}

/// How many pods a roll of the Deployment controller takes down at once: maxUnavailable rounds down, maxSurge up, and one of
/// them is at least 1 (Kubernetes 1.37, deployment/util `ResolveFenceposts`). Recreate takes all.
pub(super) fn unavailable(d: &Deployment) -> i64 {
    if d.recreate {
        return d.replicas;
    }
    let down = d.max_unavailable.as_ref().map_or(Some(d.replicas / 4), |m| m.of(d.replicas)).unwrap_or(0);
    let surge = match &d.max_surge {
        None => 1,
        Some(crate::api::policy::IntOrPercent::Int(n)) => *n,
        Some(percent) => percent.of(100).unwrap_or(0), // only whether it is 0
    };
    let down = if down == 0 && surge == 0 { 1 } else { down };
    down.min(d.replicas)
}

/// How many pods of it may be changed in place at once.
pub(super) fn most(d: &Deployment) -> i64 {
    crate::plan::max_unavailable(&crate::api::policy::Update::default(), d.max_unavailable.as_ref(), d.replicas)
}

fn strategy(d: &Deployment) -> String {
    if d.recreate {
        return "type Recreate".to_owned();
    }
    format!("{} replicas, of which {} may be unavailable", d.replicas, unavailable(d).max(1))
}
