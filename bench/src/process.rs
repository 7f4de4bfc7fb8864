//! What the kernel says of a process.

use std::{fs, io};

use anyhow::{Context, Result};

/// A process by its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    /// User and system time so far, in seconds.
    pub(crate) fn cpu_seconds(self) -> Result<f64> {
        let path = format!("/proc/{}/stat", self.0);
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        // The name of the program stands in parentheses and may hold blanks; utime and stime are fields 14 and 15 (proc(5)).
        let after = text.rsplit_once(')').map_or("", |(_, after)| after);
        let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Resident memory now, in KiB.
    pub(crate) fn resident_kib(self) -> Result<u64> {
        self.status("VmRSS")
    }

    /// The most resident memory since the start or since [`Self::forget_peak`], in KiB.
    pub(crate) fn peak_kib(self) -> Result<u64> {
        self.status("VmHWM")
    }

    /// The peak begins anew.
    pub(crate) fn forget_peak(self) -> io::Result<()> {
        fs::write(format!("/proc/{}/clear_refs", self.0), "5")
    }

    fn status(self, field: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.0);
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let value = line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok());
        value.with_context(|| format!("no {field} in {path}"))
    }
}
