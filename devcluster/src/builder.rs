//! Building missing binaries: one process at a time, with progress for whoever waits.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::binaries::{BUILD_FLAGS, Binary, GoModule};
use crate::process::{find_in_path, tail};

/// How often a waiting human gets a line.
const PROGRESS_EVERY: Duration = Duration::from_secs(20);

/// Builds `missing` into `dir`. Other processes that build into `dir` are waited for first, and
/// what they built is taken.
pub(crate) fn build(dir: &Path, missing: &[Binary]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create the cache folder {}", dir.display()))?;
    // A lock of the operating system ends with its process, so a killed build leaves nothing behind
    // that blocks the next.
    let lock = File::create(dir.join("lock"))?;
    take(&lock, dir)?;
    let todo: Vec<Binary> = missing.iter().copied().filter(|binary| !dir.join(binary.name()).is_file()).collect();
    for (index, &binary) in todo.iter().enumerate() {
        build_one(dir, binary, index + 1, todo.len())?;
    }
    Ok(())
}

fn take(lock: &File, dir: &Path) -> Result<()> {
    let started = Instant::now();
    let mut next_line = Duration::ZERO;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", dir.join("lock").display()));
            }
        }
        let waited = started.elapsed();
        if waited >= next_line {
            eprintln!("devcluster: another process builds the same binaries, waiting for it ({})", human(waited));
            next_line = waited + PROGRESS_EVERY;
        }
        thread::sleep(Duration::from_millis(500));
    }
}

fn build_one(dir: &Path, binary: Binary, number: usize, of: usize) -> Result<()> {
    let name = binary.name();
    let module = binary.module();
    let source = write_module(dir, module)?;
    // Built under another name and renamed: a file with the final name is always complete.
    let unfinished = dir.join(format!(".{name}.unfinished"));
    let log_path = dir.join(format!("build-{name}.log"));
    let log = File::create(&log_path)?;
    let go = find_in_path("go").with_context(|| {
        format!(
            "cannot build {name}: there is no `go` command in PATH, and neither {} nor a folder named by DEVCLUSTER_BIN or \
             KUBEBUILDER_ASSETS holds a ready {name}.\nInstall Go {} or later, or set DEVCLUSTER_BIN to a folder with {name}",
            dir.display(),
            go_version(module),
        )
    })?;
    if binary.needs_c() && find_in_path("cc").is_none() {
        bail!("cannot build {name}: there is no C compiler `cc` in PATH; install one, such as the package gcc");
    }
    eprintln!(
        "devcluster: building {name} {} ({number} of {of}), this takes about {} the first time",
        binary.pinned_version(),
        human(binary.first_build()),
    );
    let started = Instant::now();
    let mut command = Command::new(go);
    command
        .current_dir(&source)
        .env("CGO_ENABLED", if binary.needs_c() { "1" } else { "0" })
        // A go.work file above the cache folder would change the versions.
        .env("GOWORK", "off")
        .arg("build")
        .args(BUILD_FLAGS)
        .args(["-tags", module.tags, "-ldflags", module.ldflags, "-o"])
        .args([unfinished.as_os_str(), OsStr::new(binary.package())])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut child = command.spawn().context("cannot run `go`")?;
    let mut next_line = PROGRESS_EVERY;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() >= next_line {
            eprintln!("devcluster: still building {name} ({number} of {of}), {}", human(started.elapsed()));
            next_line += PROGRESS_EVERY;
        }
        thread::sleep(Duration::from_millis(100));
    };
    if !status.success() {
        bail!("building {name} failed ({status}); the end of {}:\n{}", log_path.display(), tail(&log_path, 30));
    }
    fs::rename(&unfinished, dir.join(name))?;
    eprintln!("devcluster: built {name} ({number} of {of}) in {}", human(started.elapsed()));
    Ok(())
}

/// Writes the embedded module files where `go` can read them and returns their folder.
fn write_module(dir: &Path, module: &GoModule) -> Result<std::path::PathBuf> {
    let source = dir.join("src").join(module.name);
    fs::create_dir_all(&source)?;
    fs::write(source.join("go.mod"), module.go_mod)?;
    fs::write(source.join("go.sum"), module.go_sum)?;
    for (path, text) in module.sources {
        let path = source.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&source))?;
        fs::write(path, text)?;
    }
    Ok(source)
}

/// The Go version that the module asks for, for a message.
fn go_version(module: &GoModule) -> &'static str {
    module.go_mod.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or("1.26")
}

/// A duration for people: `45 s`, `6 min`, `6 min 20 s`.
pub(crate) fn human(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}
