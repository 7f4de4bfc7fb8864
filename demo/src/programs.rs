//! The programs that a person would use: kubectl with its plugin, and `interlock`.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader},
    process::Command,
    time::timeout,
};

use crate::say::Say;

/// What becomes of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// The command and its output are shown while it runs.
    All,
    /// Only the command.
    Command,
    /// Nothing.
    Nothing,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code; -1 after a signal.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Where the programs are and what they talk to.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    say: Say,
    kubectl: PathBuf,
    interlock: PathBuf,
    kubeconfig: PathBuf,
    path: OsString,
}

impl Programs {
    /// `interlock` and the plugin stand beside this program.
    ///
    /// # Errors
    /// When they do not.
    pub(crate) fn find(say: Say, kubectl: PathBuf, kubeconfig: PathBuf) -> Result<Self> {
        let own = std::env::current_exe().context("cannot tell where this program is")?;
        let dir = own.parent().context("this program has no folder")?;
        let beside = |name: &str| {
            let path = dir.join(name);
            if !path.is_file() {
                bail!("{} is missing; `make build` (or `cargo build --workspace --bins`) makes it", path.display());
            }
            Ok(path)
        };
        let (interlock, plugin) = (beside("interlock")?, beside("kubectl-interlock")?);
        let folders = [plugin.parent(), kubectl.parent()].into_iter().flatten().map(Path::to_owned);
        let before = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(folders.chain(std::env::split_paths(&before))).context("PATH")?;
        Ok(Self { say, kubectl, interlock, kubeconfig, path })
    }

    /// A command that `interlock` will run with these arguments.
    pub(crate) fn interlock(&self) -> Command {
        self.command(&self.interlock)
    }

    /// PATH with all the programs.
    pub(crate) fn path(&self) -> Vec<PathBuf> {
        std::env::split_paths(&self.path).take(2).collect()
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        // A group of its own: Ctrl-C in a terminal reaches only this program, which then cleans up in order.
        command.env("KUBECONFIG", &self.kubeconfig).env("PATH", &self.path).kill_on_drop(true).process_group(0);
        command
    }

    /// Runs `kubectl` and demands success.
    ///
    /// # Errors
    /// When it fails (with what it said) or is not done after `within`.
    pub(crate) async fn kubectl(&self, line: &str, show: Show, within: Duration) -> Result<Ended> {
        self.succeed(&self.kubectl, "kubectl", line, show, within).await
    }

    /// Runs `interlock` and demands success.
    ///
    /// # Errors
    /// As for [`Self::kubectl`].
    pub(crate) async fn run_interlock(&self, line: &str, show: Show, within: Duration) -> Result<Ended> {
        self.succeed(&self.interlock, "interlock", line, show, within).await
    }

    async fn succeed(&self, program: &Path, name: &str, line: &str, show: Show, within: Duration) -> Result<Ended> {
        let ended = self.run(program, name, line, "", show, within).await?;
        if ended.code != 0 {
            bail!("`{name} {line}` ended with code {}: {}", ended.code, ended.stderr.trim());
        }
        Ok(ended)
    }

    /// Runs `kubectl`, whatever its exit code.
    ///
    /// # Errors
    /// When it cannot be run or is not done after `within`.
    pub(crate) async fn try_kubectl(&self, line: &str, show: Show, within: Duration) -> Result<Ended> {
        self.run(&self.kubectl, "kubectl", line, "", show, within).await
    }

    /// `kubectl apply` of an object that is not in a file.
    ///
    /// # Errors
    /// When it fails.
    pub(crate) async fn apply(&self, object: &serde_json::Value, show: Show) -> Result<Ended> {
        let input = object.to_string();
        let ended = self.run(&self.kubectl, "kubectl", "apply -f -", &input, show, Duration::from_secs(30)).await?;
        if ended.code != 0 {
            bail!("`kubectl apply` ended with code {}: {}", ended.code, ended.stderr.trim());
        }
        Ok(ended)
    }

    /// `line` is split at blanks: no argument of this program has one.
    async fn run(
        &self,
        program: &Path,
        name: &str,
        line: &str,
        input: &str,
        show: Show,
        within: Duration,
    ) -> Result<Ended> {
        if show != Show::Nothing {
            self.say.command(format_args!("{name} {line}"));
        }
        let mut command = self.command(program);
        command.args(line.split_whitespace()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let say = (show == Show::All).then_some(self.say);
        let work = async {
            if let Some(mut stdin) = stdin {
                // A program that does not read its input closes it; its exit code tells more.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
            let (stdout, stderr) = tokio::join!(lines(stdout, say), lines(stderr, say));
            let code = child.wait().await?.code().unwrap_or(-1);
            anyhow::Ok(Ended { code, stdout, stderr })
        };
        match timeout(within, work).await {
            Ok(ended) => ended.with_context(|| format!("{name} {line}")),
            Err(_) => bail!("`{name} {line}` was not done after {} s", within.as_secs()),
        }
    }
}

/// Everything that comes, shown line by line.
async fn lines(from: Option<impl AsyncRead + Unpin>, say: Option<Say>) -> String {
    let mut text = String::new();
    let Some(from) = from else { return text };
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(say) = say {
            say.quote(&line);
        }
        text += &line;
        text.push('\n');
    }
    text
}
