//! Whether this machine can run a real node, asked of the machine itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::binaries::{Binary, build_dir};
use crate::process::find_in_path;

/// The folder of control groups.
pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";

/// Controllers that containers need.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

/// Creates what boot.sh and containerd create, in namespaces that end with the probe: mounts, an overlay on the file
/// system that the node would use, and the network of a pod.
const PROBES: [(&str, &str); 3] = [
    (
        "mount and process namespaces are not allowed: CAP_SYS_ADMIN is missing, or a sandbox forbids them; run on a \
         virtual machine or in a privileged container",
        "unshare --mount --pid --fork --kill-child=KILL --mount-proc mount -t tmpfs tmpfs /run",
    ),
    (
        "overlayfs does not work in the folder for temporary files; set TMPDIR to one on ext4, xfs or btrfs, or load \
         the kernel module `overlay`",
        "mkdir lower upper work merged && unshare --mount mount -t overlay overlay -o \
         lowerdir=lower,upperdir=upper,workdir=work merged",
    ),
    (
        "bridge and veth devices cannot be created: CAP_NET_ADMIN is missing, or the kernel modules `bridge` and `veth`",
        "unshare --net sh -c 'ip link add b0 type bridge && ip link add v0 type veth peer name v1 && ip link set v0 master b0'",
    ),
];

/// Whether a real node can run here; the error says why not and what to do.
///
/// # Errors
/// When it cannot.
pub fn can_run_real_node() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "a real node needs root, for namespaces, mounts and devices");
    for (program, package) in [("unshare", "util-linux"), ("mount", "mount"), ("ip", "iproute2"), ("find", "findutils")]
    {
        ensure!(find_in_path(program).is_some(), "`{program}` is missing; install the package {package}");
    }
    ensure!(
        find_in_path("cc").is_some() || build_dir(Binary::Runc)?.join(Binary::Runc.name()).is_file(),
        "there is no C compiler `cc` to build runc with; install one, such as the package gcc"
    );
    let dir = tempfile::tempdir().context("no temporary folder")?;
    for (reason, script) in PROBES {
        probe(dir.path(), script).with_context(|| reason.to_owned())?;
    }
    for hierarchy in cgroups()? {
        let dir = hierarchy.join(format!("interlock-probe-{}", std::process::id()));
        fs::create_dir(&dir)
            .and_then(|()| fs::remove_dir(&dir))
            .with_context(|| format!("control groups cannot be created in {}", hierarchy.display()))?;
    }
    Ok(())
}

/// The folders in which a control group has to be created for all controllers: several with version 1, one with
/// version 2.
pub(crate) fn cgroups() -> Result<Vec<PathBuf>> {
    let root = Path::new(CGROUPS);
    if let Ok(controllers) = fs::read_to_string(root.join("cgroup.controllers")) {
        let missing: Vec<&str> =
            CONTROLLERS.into_iter().filter(|c| !controllers.split_whitespace().any(|have| have == *c)).collect();
        ensure!(missing.is_empty(), "control groups lack the controllers {}", missing.join(", "));
        return Ok(vec![root.to_owned()]);
    }
    if let Some(missing) = CONTROLLERS.into_iter().find(|name| !root.join(name).join("cgroup.procs").exists()) {
        bail!("{CGROUPS}/{missing} is not mounted");
    }
    let mut all = Vec::new();
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        // Several controllers may share a folder under two names.
        if path.join("cgroup.procs").exists() && !path.is_symlink() && !path.ends_with("unified") {
            all.push(path);
        }
    }
    Ok(all)
}

fn probe(dir: &Path, script: &str) -> Result<()> {
    let output = Command::new("sh").args(["-c", script]).current_dir(dir).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
