//! The folder that holds the data of one cluster.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

const PREFIX: &str = "interlock-devcluster-";
/// Locked while the cluster lives. The operating system frees a lock with its process, however that
/// ends.
const LOCK: &str = "lock";
/// Marks a folder that holds the logs of a failed start, for people to read.
const KEPT: &str = "kept-after-a-failure";

/// The folder of one cluster: temporary, or one that the caller named.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    /// Deletes the folder at the end; `None` for a folder of the caller.
    temp: Option<TempDir>,
    /// Deletes a temporary folder if this process ends without dropping this value: it is killed,
    /// or the cluster is in a `static`, as it is when the tests of one binary share it.
    janitor: Option<Child>,
    /// Held, not read.
    _lock: File,
}

impl DataDir {
    /// Uses `given`, or makes a temporary folder and clears away those that killed processes have
    /// left.
    pub(crate) fn new(given: Option<&Path>) -> Result<Self> {
        let (path, temp) = if let Some(path) = given {
            fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
            (std::path::absolute(path)?, None)
        } else {
            sweep();
            let temp = tempfile::Builder::new().prefix(PREFIX).tempdir().context("cannot create a temporary folder")?;
            (temp.path().to_owned(), Some(temp))
        };
        // Locked before it has its name: whoever sees the name finds it locked.
        let unnamed = path.join("lock.new");
        let lock = File::create(&unnamed)?;
        lock.lock()?;
        fs::rename(&unnamed, path.join(LOCK))?;
        let janitor = temp.is_some().then(|| janitor(&path)).transpose().context("cannot run `sh`")?;
        Ok(Self { path, temp, janitor, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the folder, for its logs, and drops the data of etcd in it.
    pub(crate) fn keep(&mut self) {
        let _ = fs::remove_dir_all(self.path.join("etcd"));
        let _ = File::create(self.path.join(KEPT));
        if let Some(temp) = self.temp.take() {
            let _ = temp.keep();
        }
        self.dismiss_janitor();
    }

    fn dismiss_janitor(&mut self) {
        if let Some(mut janitor) = self.janitor.take() {
            let _ = janitor.kill();
            let _ = janitor.wait();
        }
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        self.dismiss_janitor();
    }
}

/// A process that waits until its standard input, held by this process, closes, and then deletes
/// the folder.
fn janitor(path: &Path) -> std::io::Result<Child> {
    Command::new("sh")
        // The second lets the processes of the cluster end, which would go on writing.
        .args(["-c", r#"read -r _; sleep 1; rm -rf -- "$0""#])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C in a terminal must not end it before its work.
        .process_group(0)
        .spawn()
}

/// Removes temporary folders whose owner and janitor are gone, as after a crash of the machine. A
/// folder that cannot be read or removed is left to its user.
fn sweep() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) || entry.path().join(KEPT).exists() {
            continue;
        }
        if let Ok(lock) = File::open(entry.path().join(LOCK))
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
