//! Where the development cluster keeps what outlives one run.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// The folder for built binaries and detached clusters: `$INTERLOCK_CACHE/devcluster`, else
/// `$XDG_CACHE_HOME/interlock/devcluster`, else `~/.cache/interlock/devcluster`.
///
/// It lies outside the checkout, so that a fresh clone on the same machine does not build
/// Kubernetes again.
///
/// # Errors
/// When none of the three variables is set.
pub fn cache_dir() -> Result<PathBuf> {
    let var = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = var("INTERLOCK_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("interlock")))
        .or_else(|| var("HOME").map(|dir| dir.join(".cache").join("interlock")))
        .context(
            "no place for built binaries: none of INTERLOCK_CACHE, XDG_CACHE_HOME and HOME is set; \
             set INTERLOCK_CACHE to a folder with 2 GB of free space",
        )?;
    // Child processes run in other folders, so a relative setting must not travel on as it is.
    Ok(std::path::absolute(base)?.join("devcluster"))
}
