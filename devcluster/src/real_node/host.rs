//! What a real node has on the machine outside its namespaces: a bridge and control groups.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};

use super::preflight::{CGROUPS, cgroups};

/// Begins the names of bridges and control groups; the number of the owner's process follows.
const PREFIX: &str = "ilk";

/// Waits until its standard input, held by the owner, closes, and then removes the bridge and the control groups. Their
/// processes end with the node, but not at once.
const JANITOR: &str = r#"read -r _
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40; do
    ip link delete "$0"
    left=
    for group in "$1" "$1"/*; do
        if [ -d "$group/$0" ]; then
            find "$group/$0" -depth -type d -exec rmdir {} \;
            [ ! -d "$group/$0" ] || left=yes
        fi
    done
    [ -n "$left" ] || exit 0
    sleep 0.25
done"#;

/// A bridge with an address, and a control group for all pods. Dropped, it removes both; if this process ends without
/// that, they go as well.
#[derive(Debug)]
pub(crate) struct Host {
    name: String,
    /// The third number of the addresses 10.90.x.y.
    net: u8,
    janitor: Child,
}

impl Host {
    /// Creates both.
    pub(crate) fn new() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        sweep();
        // Process numbers have at most seven digits, and the name of a device fifteen characters.
        let name = format!("{PREFIX}{}n{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed) % 1000);
        let janitor = Command::new("sh")
            .args(["-c", JANITOR, &name, CGROUPS])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in a terminal must not end it before its work.
            .process_group(0)
            .spawn()
            .context("cannot run `sh`")?;
        let mut host = Self { name, net: 0, janitor };
        host.control_groups()?;
        host.bridge()?;
        Ok(host)
    }

    /// The name of the bridge and of the control group.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The address of the bridge, which is the node's.
    pub(crate) fn address(&self) -> String {
        format!("10.90.{}.1", self.net)
    }

    /// The addresses of pods.
    pub(crate) fn subnet(&self) -> String {
        format!("10.90.{}.0/24", self.net)
    }

    fn control_groups(&self) -> Result<()> {
        for hierarchy in cgroups()? {
            let dir = hierarchy.join(&self.name);
            fs::create_dir(&dir).with_context(|| format!("cannot create the control group {}", dir.display()))?;
            // With version 2 a group has only the controllers that the group above it hands down.
            for above in [&hierarchy, &dir] {
                for controller in ["+cpu", "+cpuset", "+memory", "+pids"] {
                    let _ = fs::write(above.join("cgroup.subtree_control"), controller);
                }
            }
        }
        Ok(())
    }

    fn bridge(&mut self) -> Result<()> {
        ip(&["link", "add", &self.name, "type", "bridge"])?;
        // Other nodes on this machine have other subnets; the first that nobody has is taken.
        let first = u8::try_from(std::process::id() % 256).unwrap_or_default();
        for step in 0..=u8::MAX {
            self.net = first.wrapping_add(step);
            let address = self.address();
            if ip(&["route", "show", "exact", &self.subnet()])?.is_empty() {
                ip(&["address", "add", &format!("{address}/24"), "dev", &self.name])?;
                ip(&["link", "set", &self.name, "up"])?;
                return Ok(());
            }
        }
        bail!("all subnets of 10.90.0.0/16 are in use")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

fn ip(args: &[&str]) -> Result<String> {
    let output = Command::new("ip").arg("-4").args(args).stdin(Stdio::null()).output().context("cannot run `ip`")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", args.join(" "), error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Removes what nodes have left whose owner and janitor were both killed.
fn sweep() {
    let mut left: Vec<PathBuf> = Vec::new();
    let places = cgroups().unwrap_or_default().into_iter().chain([PathBuf::from("/sys/class/net")]);
    for place in places {
        left.extend(fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    for path in left {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('n')).map(|(pid, _)| pid);
        let dead = owner.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists());
        if dead && path.starts_with("/sys/class/net") {
            let _ = ip(&["link", "delete", name]);
        } else if dead {
            let _ =
                Command::new("find").arg(&path).args(["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"]).output();
        }
    }
}
