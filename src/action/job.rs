//! The `job` hook: one Job, made once under a name that is a function of the key, and awaited.
//!
//! Level-based: the Job is looked for before it is made, and one that another process of ours made with the same key is
//! ours. Only its condition `Complete` is success. A Job that is gone before it had a result is a failed attempt, never a
//! success. Whatever it hangs on (no node takes its pods, a quota, an image) ends by our own deadline.
//!
//! Its result is stored in the run first; only then the Job is given a time to live ([`recorded`]), so nothing can take
//! it away before it was seen. It is owned by the run and goes with it at the latest.
//!
//! Reasons: `Complete`, `JobFailed`, `JobMissing`, `NameTaken`, `JobRefused` (the API server does not take it),
//! `Timeout` (its own `activeDeadlineSeconds` included), `Cancelled`.

use interlock_core::{
    api::{
        hook::JobHook,
        names::{GROUP, HOOK_KEY, VERSION},
    },
    effect::HookCall,
};
use kube::{Api, core::DynamicObject};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    Attempt, End, INVALID_HOOK, TIMEOUT,
    cluster::{Cluster, JOBS, Pause, Seen, Trouble},
    names,
};
use crate::observe::{DEPLOYMENT_LABEL, label_value};

/// Carries out one attempt.
pub(super) async fn attempt(attempt: &Attempt<'_>, hook: &JobHook, stop: &CancellationToken) -> End {
    let (cluster, call) = (attempt.cluster, attempt.call);
    let api = cluster.api(&call.namespace, JOBS);
    let name = name(&call.key);
    // Not cut off anywhere: a Job that was asked for is known before it is given up.
    let job = match make(attempt, hook, &api, &name, stop).await {
        Ok(job) => job,
        Err(end) => return end,
    };
    let uid = job.metadata.uid.clone().unwrap_or_default();
    let watched = async {
        let mut follow = cluster.follow(&api, &name);
        loop {
            if let Some(end) = judge(&follow.next().await, &uid) {
                return end;
            }
        }
    };
    let end = tokio::select! {
        biased;
        () = stop.cancelled() => End::cancelled(),
        watched = timeout_at(attempt.until, watched) => match watched {
            Ok(end) => return end,
            // A last look: what ended in time has ended in time.
            Err(_) => match cluster.get(&api, &name).await.map(|job| judge(&Seen::There(job), &uid)) {
                Ok(Some(end)) => return end,
                Ok(None) | Err(_) => End::timed_out(TIMEOUT),
            },
        },
    };
    cluster.delete_surely(&api, &job).await;
    end
}

/// The result of this attempt is stored: the Job may go in its time.
pub(super) async fn recorded(cluster: &Cluster, call: &HookCall, hook: &JobHook) {
    let api = cluster.api(&call.namespace, JOBS);
    let name = name(&call.key);
    let mut pause = Pause::default();
    // What cannot be patched goes with its run.
    for _ in 0..5 {
        match cluster.get(&api, &name).await {
            Ok(job) if owner(&job) == Some(&call.run.uid) && key(&job) == Some(&call.key) => {
                let ttl = json!({
                    "metadata": {"uid": job.metadata.uid},
                    "spec": {"ttlSecondsAfterFinished": hook.ttl_seconds_after_result.max(0)},
                });
                match cluster.merge(&api, &name, &ttl).await {
                    Err(Trouble::Unknown) => {}
                    Ok(()) | Err(_) => return,
                }
            }
            Ok(_) | Err(Trouble::Missing | Trouble::Refused) => return,
            Err(_) => {}
        }
        pause.take().await;
    }
}

/// Takes the Job of an attempt away that does not run here.
pub(super) async fn cancelled(cluster: &Cluster, namespace: &str, key_: &str) {
    let api = cluster.api(namespace, JOBS);
    let mut pause = Pause::default();
    for _ in 0..5 {
        match cluster.get(&api, &name(key_)).await {
            Ok(job) if key(&job) == Some(key_) => return cluster.delete_surely(&api, &job).await,
            Ok(_) | Err(Trouble::Missing | Trouble::Refused) => return,
            Err(_) => pause.take().await,
        }
    }
}

/// The name of the Job of an attempt.
pub(super) fn name(key: &str) -> String {
    names::name("interlock-hook", &[key])
}

/// The Job of this attempt: the one that is there, or a new one.
async fn make(
    attempt: &Attempt<'_>,
    hook: &JobHook,
    api: &Api<DynamicObject>,
    name: &str,
    stop: &CancellationToken,
) -> Result<DynamicObject, End> {
    let (cluster, call) = (attempt.cluster, attempt.call);
    let mut pause = Pause::default();
    loop {
        match cluster.get(api, name).await {
            Ok(job) if key(&job) == Some(&call.key) && owner(&job) == Some(&call.run.uid) => return Ok(job),
            Ok(_) => return Err(End::failed("NameTaken")),
            Err(Trouble::Missing) if Instant::now() >= attempt.until => return Err(End::timed_out(TIMEOUT)),
            Err(Trouble::Missing) => {
                let left = attempt.until.saturating_duration_since(Instant::now()).as_secs().max(1);
                let job = object(call, hook, name, left).ok_or_else(|| End::failed(INVALID_HOOK))?;
                match cluster.create(api, job).await {
                    Ok(job) => return Ok(job),
                    // Looked at again: whose is it?
                    Err(Trouble::Exists) => continue,
                    Err(Trouble::Missing | Trouble::Refused) => return Err(End::failed("JobRefused")),
                    // A quota may be free again in time; without an answer it may have been made.
                    Err(Trouble::Quota | Trouble::Lost | Trouble::Unknown) => {}
                }
            }
            Err(Trouble::Refused) => return Err(End::failed("JobRefused")),
            Err(_) => {}
        }
        tokio::select! {
            () = pause.take() => {}
            () = stop.cancelled() => return Err(given_up(cluster, api, name, call, End::cancelled()).await),
        }
        if Instant::now() >= attempt.until {
            return Err(given_up(cluster, api, name, call, End::timed_out(TIMEOUT)).await);
        }
    }
}

/// Nobody knows whether it was made: it is looked for once more, and taken away.
async fn given_up(cluster: &Cluster, api: &Api<DynamicObject>, name: &str, call: &HookCall, end: End) -> End {
    if let Ok(job) = cluster.get(api, name).await
        && key(&job) == Some(&call.key)
    {
        cluster.delete_surely(api, &job).await;
    }
    end
}

fn judge(seen: &Seen, uid: &str) -> Option<End> {
    let missing = || Some(End::failed("JobMissing"));
    match seen {
        Seen::Missing => missing(),
        // Another one of the same name: ours is gone.
        Seen::There(job) | Seen::Deleted(job) if job.metadata.uid.as_deref() != Some(uid) => missing(),
        // What it was when it went counts: one that was complete did its work.
        Seen::Deleted(job) => result(job).or_else(missing),
        Seen::There(job) => result(job).or_else(|| job.metadata.deletion_timestamp.as_ref().and_then(|_| missing())),
    }
}

/// Only a final condition is a result.
fn result(job: &DynamicObject) -> Option<End> {
    let conditions = job.data.pointer("/status/conditions").and_then(Value::as_array);
    let is = |condition: &&Value, type_: &str| {
        condition.get("type").is_some_and(|t| t == type_) && condition.get("status").is_some_and(|s| s == "True")
    };
    let find = |type_: &str| conditions.into_iter().flatten().find(|condition| is(condition, type_));
    if find("Complete").is_some() {
        return Some(End::succeeded("Complete"));
    }
    let failed = find("Failed")?;
    if failed.get("reason").is_some_and(|reason| reason == "DeadlineExceeded") {
        return Some(End::timed_out(TIMEOUT));
    }
    Some(End::failed("JobFailed"))
}

fn key(job: &DynamicObject) -> Option<&str> {
    job.metadata.annotations.as_ref()?.get(HOOK_KEY).map(String::as_str)
}

fn owner(job: &DynamicObject) -> Option<&String> {
    job.metadata.owner_references.as_ref()?.iter().find(|o| o.kind == "HookRun").map(|o| &o.uid)
}

/// Metadata of what belongs to an attempt.
pub(super) fn metadata(call: &HookCall, name: &str) -> Value {
    json!({
        "name": name,
        "namespace": call.namespace,
        "labels": labels(call),
        "annotations": {HOOK_KEY: call.key},
        "ownerReferences": [{
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "HookRun",
            "name": call.run.name,
            "uid": call.run.uid,
            "controller": true,
        }],
    })
}

fn labels(call: &HookCall) -> Map<String, Value> {
    let all = [
        ("app.kubernetes.io/managed-by", "interlock".to_owned()),
        (DEPLOYMENT_LABEL, label_value(&call.deployment.name)),
        (HOOK_KEY, names::hash(&[&call.key])),
    ];
    all.into_iter().map(|(key, value)| (key.to_owned(), Value::String(value))).collect()
}

/// The Job; `None` if its template cannot be one.
fn object(call: &HookCall, hook: &JobHook, name: &str, seconds: u64) -> Option<Value> {
    let mut spec = hook.template.0.get("spec")?.as_object()?.clone();
    spec.insert("serviceAccountName".into(), json!(hook.service_account_name));
    // The old name of the same field.
    spec.remove("serviceAccount");
    spec.insert("automountServiceAccountToken".into(), json!(hook.mount_token));
    spec.entry("restartPolicy").or_insert(json!("Never"));
    restrict(&mut spec)?;
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            tell(container.as_object_mut()?, call);
        }
    }
    let mut template = json!({"metadata": {}, "spec": spec});
    for (part, ours) in
        [("labels", labels(call)), ("annotations", Map::from_iter([(HOOK_KEY.to_owned(), json!(call.key))]))]
    {
        let given = hook.template.0.get("metadata").and_then(|m| m.get(part)).and_then(Value::as_object);
        let mut all = given.cloned().unwrap_or_default();
        all.extend(ours);
        *template.get_mut("metadata")?.as_object_mut()?.entry(part).or_insert(Value::Null) = Value::Object(all);
    }
    Some(json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(call, name),
        "spec": {
            "backoffLimit": hook.backoff_limit,
            "activeDeadlineSeconds": seconds,
            "template": template,
        },
    }))
}

/// What Pod Security `restricted` asks for, where nothing else is said.
fn restrict(spec: &mut Map<String, Value>) -> Option<()> {
    if spec.get("os").and_then(|os| os.get("name")).is_some_and(|name| name == "windows") {
        return Some(());
    }
    let pod = spec.entry("securityContext").or_insert(json!({})).as_object_mut()?;
    pod.entry("runAsNonRoot").or_insert(json!(true));
    pod.entry("seccompProfile").or_insert(json!({"type": "RuntimeDefault"}));
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let own = container.as_object_mut()?.entry("securityContext").or_insert(json!({})).as_object_mut()?;
            // A privileged container cannot say that it does not escalate.
            if own.get("privileged").is_none_or(|p| p != true) {
                own.entry("allowPrivilegeEscalation").or_insert(json!(false));
                own.entry("capabilities").or_insert(json!({"drop": ["ALL"]}));
            }
        }
    }
    Some(())
}

/// The facts, as variables of the environment. They stand first, so that others can refer to them.
fn tell(container: &mut Map<String, Value>, call: &HookCall) {
    let mut facts = vec![
        ("INTERLOCK_KEY", call.key.clone()),
        ("INTERLOCK_NAMESPACE", call.namespace.clone()),
        ("INTERLOCK_DEPLOYMENT", call.deployment.name.clone()),
        ("INTERLOCK_RUN", call.run.name.clone()),
        ("INTERLOCK_HOOK", call.hook.clone()),
        ("INTERLOCK_PHASE", call.phase.as_str().to_owned()),
        ("INTERLOCK_ATTEMPT", call.attempt.to_string()),
        ("INTERLOCK_FACTS", call.facts.to_string()),
    ];
    if let Some(pod) = &call.pod {
        facts.push(("INTERLOCK_POD", pod.name.clone()));
        facts.push(("INTERLOCK_POD_UID", pod.uid.clone()));
    }
    let given = container.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
    let others = given.into_iter().filter(|v| !facts.iter().any(|(name, _)| v.get("name").is_some_and(|n| n == *name)));
    // A dollar sign begins a reference, two are one.
    let ours = facts.iter().map(|(name, value)| json!({"name": name, "value": value.replace('$', "$$")}));
    let env: Vec<Value> = ours.chain(others).collect();
    container.insert("env".into(), Value::Array(env));
}

#[cfg(test)]
mod tests;
