//! RollingRestarts: one pass plans one of them by the core's planner and carries the plan out.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use interlock_core::restart::{RestartPlan, plan};
use tokio::time::Instant;

use super::{Error, Shared, queue::Outcome};
use crate::{
    execute::{Failure, Subject},
    observe::{Item, Key},
};

/// Planning takes at most one part in so many of the time, whatever happens in the namespace.
const SHARE: u32 = 5;
/// And is put off by this at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What is remembered of each request. Only what the API server refused for good is of weight, and that is found out again.
#[derive(Default)]
pub(super) struct Memories(Mutex<HashMap<Key, Memory>>);

#[derive(Clone, Default)]
struct Memory {
    /// UID of the request that this is about.
    uid: String,
    /// When it was last planned, and how long that took.
    planned: Option<(Instant, Duration)>,
    refusals: BTreeMap<String, String>,
}

pub(super) async fn pass(shared: &Shared, key: &Key) -> Result<Outcome, Error> {
    // Whoever sees only some of the Deployments must not decide about a whole namespace.
    if shared.scope.narrowed() {
        return Ok(Outcome::Done(None));
    }
    let memories = || shared.restarts.0.lock().unwrap_or_else(PoisonError::into_inner);
    let mut memory = memories().get(key).cloned().unwrap_or_default();
    if let Some((at, took)) = memory.planned {
        let rest = took.saturating_mul(SHARE).min(LONGEST_PAUSE).saturating_sub(at.elapsed());
        if !rest.is_zero() {
            return Ok(Outcome::Done(Some(rest)));
        }
    }
    shared.queue.look(&Item::Restart(key.clone()));
    let start = Instant::now();
    let Some(mut world) = shared.observe.restart_world(key, shared.clock.now()) else {
        memories().remove(key);
        return Ok(Outcome::Done(None));
    };
    if memory.uid != world.restart.uid {
        memory = Memory { uid: world.restart.uid.clone(), ..Memory::default() };
    }
    world.refusals.clone_from(&memory.refusals);
    let made = plan(&world);
    memory.planned = Some((Instant::now(), start.elapsed()));
    let wake = made.wake;
    let carried_out = carry_out(shared, key, &world.restart, made, &mut memory.refusals).await;
    memories().insert(key.clone(), memory);
    match carried_out {
        // A race that was lost is planned again at once.
        Ok(true) | Err(Failure::Lost { .. }) => Ok(Outcome::Again),
        Ok(false) => {
            let millis = wake.map(|at| u64::try_from(at.millis_since(shared.clock.now())).unwrap_or(0));
            Ok(Outcome::Done(millis.map(Duration::from_millis)))
        }
        Err(Failure::Fenced) => Err(Error::Fenced),
        Err(Failure::Transient { what, message, retry_after }) => {
            tracing::warn!(restart = %key, what, message, "a write failed; trying again");
            Ok(Outcome::Failed { retry_after })
        }
        Err(failure @ Failure::Refused { .. }) => {
            tracing::warn!(restart = %key, %failure, "a write is refused; trying again");
            Ok(Outcome::Failed { retry_after: None })
        }
    }
}

/// Effects, then events, then the status. True: something was written, so there may be more to do.
async fn carry_out(
    shared: &Shared,
    key: &Key,
    restart: &interlock_core::restart::Restart,
    plan: RestartPlan,
    refusals: &mut BTreeMap<String, String>,
) -> Result<bool, Failure> {
    let mut wrote = false;
    for (name, uid, effect) in plan.effects {
        let subject = Subject { key: Key::new(&key.namespace, &name), uid, by: Item::Restart(key.clone()) };
        match shared.executor.perform(&subject, vec![effect]).await {
            Ok(_) => wrote = true,
            Err(Failure::Refused { what, message }) => {
                tracing::warn!(restart = %key, deployment = name, what, message, "refused for good");
                refusals.insert(name, message);
                wrote = true;
            }
            Err(failure) => return Err(failure),
        }
    }
    if let Some(status) = &plan.status {
        shared.executor.restart_status(key, &restart.resource_version, status).await?;
        wrote = true;
    }
    // After the status: what was told is not told again.
    for told in &plan.events {
        shared.executor.tell_of_restart(restart, told).await?;
    }
    Ok(wrote)
}
