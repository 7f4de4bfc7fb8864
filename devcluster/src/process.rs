//! Child processes that never outlive their owner.
//!
//! Two cases: the owner drops its [`Process`] (an ordinary end, a panic), and the owner is killed
//! and runs no code any more. For the second the kernel must do it. On Linux `setpriv --pdeathsig
//! KILL` asks it to; where `setpriv` is missing, a small watchdog waits on a pipe that closes with
//! the owner.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, mpsc};
use std::thread;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Whether `setpriv` is there and knows `--pdeathsig`.
static SETPRIV: LazyLock<bool> = LazyLock::new(|| {
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
});

/// The thread that starts every child.
///
/// The kernel sends the death signal when the *thread* that started the child ends, not the
/// process. A thread of a test or of an async runtime may end at any time, so children are started
/// by a thread that lives as long as this process.
static SPAWNER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
    let (sender, orders) = mpsc::channel::<Order>();
    thread::Builder::new()
        .name("devcluster-spawner".into())
        .spawn(move || {
            for mut order in orders {
                // An order whose sender gave up needs no answer; its child, if any, ends with the
                // dropped handle's owner.
                let _ = order.reply.send(order.command.spawn());
            }
        })
        .expect("a thread can be started");
    sender
});

struct Order {
    command: Command,
    reply: mpsc::Sender<io::Result<Child>>,
}

/// Percent by which the heap of a component, all written in Go, grows before it is collected (default 100). Collecting is
/// a good part of what a young API server does, and memory is not what is short here.
const COLLECT_AT: &str = "400";

/// A running child. Dropping it kills it (SIGKILL) and waits for its end.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Kills the child when this process ends; only where `setpriv` is missing.
    watchdog: Option<Child>,
}

impl Process {
    /// Starts `program` with `args` in the folder `dir`, both output streams appended to `log`.
    pub(crate) fn spawn(program: &Path, args: &[String], dir: &Path, log: &Path) -> Result<Self> {
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write the log {}", log.display()))?;
        let mut command = tied(program, *SETPRIV);
        command.args(args).current_dir(dir).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        command.env("GOGC", COLLECT_AT);
        Self::spawn_command(command, *SETPRIV).with_context(|| format!("cannot start {}", program.display()))
    }

    /// Starts a command made by [`tied`].
    fn spawn_command(mut command: Command, setpriv: bool) -> Result<Self> {
        // A group of its own: Ctrl-C in a terminal reaches the owner only, which decides in which
        // order things end.
        command.process_group(0);
        let child = order(command)?;
        let mut process = Self { child, watchdog: None };
        if !setpriv {
            process.watchdog = Some(order(watchdog(process.child.id()))?);
        }
        Ok(process)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status if the child has ended by itself.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends a signal. A child that has ended already is an error.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        // Asked first: after the end of a child was collected, its number may belong to another
        // process.
        if let Some(status) = self.exited() {
            anyhow::bail!("the process has ended already ({status})");
        }
        kill_process(Pid::from_child(&self.child), signal)?;
        Ok(())
    }

    /// SIGKILL without waiting for the end, so that several can end at the same time.
    pub(crate) fn start_kill(&mut self) {
        // An error here means that the child has ended.
        let _ = self.child.kill();
    }

    /// SIGKILL, then waits for the end.
    pub(crate) fn kill(&mut self) {
        // The watchdog first: it knows only a number, which is free for other processes once the
        // child is collected.
        if let Some(mut watchdog) = self.watchdog.take() {
            let _ = watchdog.kill();
            let _ = watchdog.wait();
        }
        self.start_kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command whose process the kernel kills with this process, if `setpriv` is there; arguments of
/// the program may follow.
pub(crate) fn tied(program: &Path, setpriv: bool) -> Command {
    if !setpriv {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", "sh", "-c"])
        // The owner may have died before setpriv made its request; then this process has another
        // parent by now.
        .arg(r#"[ "$PPID" = "$0" ] && exec "$@""#)
        .arg(std::process::id().to_string())
        .arg(program);
    command
}

/// A process that kills `pid` once its standard input, held by this process, is closed.
fn watchdog(pid: u32) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"read -r _; kill -9 "$0""#])
        .arg(pid.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    command
}

/// Has the spawner thread start a command.
fn order(command: Command) -> Result<Child> {
    let (reply, answer) = mpsc::channel();
    SPAWNER.send(Order { command, reply }).ok().context("the thread that starts processes has ended")?;
    Ok(answer.recv().context("the thread that starts processes has ended")??)
}

/// The last `lines` lines of a file, or a note why there are none.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    // Far more than any message of interest, far less than a log of a long run.
    const LIMIT: u64 = 64 * 1024;
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LIMIT)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    match read() {
        Ok(text) if text.trim().is_empty() => "(empty)".to_owned(),
        Ok(text) => {
            let all: Vec<&str> = text.trim_end().lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(error) => format!("({}: {error})", path.display()),
    }
}

/// Finds a program in PATH, as a shell would.
pub(crate) fn find_in_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn alive(pid: u32) -> bool {
        // A zombie is dead; it only waits for somebody to collect its status.
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z')))
    }

    fn sleeper(setpriv: bool) -> Process {
        let mut command = tied(Path::new("sleep"), setpriv);
        command.arg("600");
        Process::spawn_command(command, setpriv).unwrap()
    }

    #[test]
    fn a_dropped_process_is_gone() {
        for setpriv in [*SETPRIV, false] {
            let process = sleeper(setpriv);
            let pid = process.pid();
            assert!(alive(pid));
            drop(process);
            assert!(!alive(pid), "setpriv: {setpriv}");
        }
    }

    #[test]
    fn a_process_survives_the_thread_that_asked_for_it() {
        let mut process = thread::spawn(|| sleeper(*SETPRIV)).join().unwrap();
        thread::sleep(Duration::from_millis(100));
        assert_eq!(process.exited(), None);
    }

    #[test]
    fn the_watchdog_kills_when_its_pipe_closes() {
        let mut process = sleeper(false);
        drop(process.watchdog.as_mut().unwrap().stdin.take());
        let started = Instant::now();
        while process.exited().is_none() {
            assert!(started.elapsed() < Duration::from_secs(10));
            thread::sleep(Duration::from_millis(10));
        }
    }
}
