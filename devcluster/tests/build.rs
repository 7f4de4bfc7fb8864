//! Building, with a stand-in for `go`: what people see, and that nothing is built twice.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result};
use devcluster::{Binary, build_dir};

/// A folder with a `go` that runs this script, and a cache.
struct Setup(tempfile::TempDir);

impl Setup {
    fn new(go: Option<&str>) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::create_dir(dir.path().join("bin"))?;
        if let Some(script) = go {
            let path = dir.path().join("bin/go");
            fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self(dir))
    }

    fn start(&self) -> Result<Child> {
        let path = format!("{}:/usr/bin:/bin", self.0.path().join("bin").display());
        let child = Command::new(env!("CARGO_BIN_EXE_devcluster"))
            .args(["build", "kubectl"])
            .env("PATH", path)
            .env("INTERLOCK_CACHE", self.0.path().join("cache"))
            .env_remove("DEVCLUSTER_BIN")
            .env_remove("KUBEBUILDER_ASSETS")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(child)
    }

    fn run(&self) -> Result<Output> {
        Ok(self.start()?.wait_with_output()?)
    }

    fn built(&self) -> Result<std::path::PathBuf> {
        let key = build_dir(Binary::Kubectl)?;
        Ok(self.0.path().join("cache/devcluster").join(key.file_name().context("key")?).join("kubectl"))
    }
}

/// Stands in for `go build`: takes a second, notes that it ran in `$INTERLOCK_CACHE/runs`, and
/// writes what `-o` names.
const WORKING_GO: &str = r#"sleep 1
echo run >> "$INTERLOCK_CACHE/runs"
while [ "$1" != -o ]; do shift; done
echo '#!/bin/sh' > "$2""#;

#[test]
fn processes_that_need_the_same_binary_build_it_once() -> Result<()> {
    let setup = Setup::new(Some(WORKING_GO))?;
    let both = [setup.start()?, setup.start()?];
    let mut messages = String::new();
    for child in both {
        let output = child.wait_with_output()?;
        assert!(output.status.success());
        messages += &String::from_utf8_lossy(&output.stderr);
    }
    assert_eq!(fs::read_to_string(setup.0.path().join("cache/runs"))?, "run\n");
    assert_eq!(messages.matches("building kubectl v").count(), 1, "{messages}");
    assert!(messages.contains("another process builds the same binaries, waiting"), "{messages}");
    assert!(setup.built()?.is_file());

    let again = setup.run()?;
    assert!(again.status.success() && again.stderr.is_empty(), "a ready binary needs no words");
    Ok(())
}

#[test]
fn a_failing_build_shows_why_and_leaves_no_binary() -> Result<()> {
    let setup = Setup::new(Some("echo the module proxy does not answer; exit 1"))?;
    let output = setup.run()?;
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(message.contains("building kubectl failed") && message.contains("proxy does not answer"), "{message}");
    assert!(!setup.built()?.exists());
    Ok(())
}

#[test]
fn without_go_the_message_says_what_to_do() -> Result<()> {
    if Path::new("/usr/bin/go").exists() || Path::new("/bin/go").exists() {
        // A PATH without it would be one without `sh` too.
        return Ok(());
    }
    let output = Setup::new(None)?.run()?;
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(message.contains("there is no `go` command in PATH") && message.contains("DEVCLUSTER_BIN"), "{message}");
    Ok(())
}
