//! Jobs.

use crate::world::Job;

/// Condition `Complete`, and nothing else: a Job that has failed is waited for until it is made again.
pub fn job(job: &Job) -> Result<(), String> {
    if job.deleting {
        return Err("is being deleted".into());
    }
    if let Some(why) = &job.failed {
        return Err(format!("has failed: {why}"));
    }
    if job.complete {
        return Ok(());
    }
    if job.suspended {
        return Err("is suspended".into());
    }
    Err(format!("has {} of {} completions", job.succeeded, job.completions))
}
