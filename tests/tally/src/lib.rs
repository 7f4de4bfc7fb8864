//! What an enumerating test went through, as one row of the table that `make test` and `make test-long` print at their end.
//!
//! A test counts as it goes. When it is over, well or not, its row is appended to the file that `INTERLOCK_TALLY` names
//! (without it the row goes to standard output, which cargo shows with `--nocapture`).

use std::{
    fmt::Write as _,
    fs::OpenOptions,
    io::Write as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

/// The counts of one test. Dropping it writes the row; a test that panics without having counted its failure counts as one.
#[derive(Debug)]
pub struct Tally {
    name: &'static str,
    points: AtomicU64,
    seeds: AtomicU64,
    checks: AtomicU64,
    failures: AtomicU64,
    started: Instant,
}

impl Tally {
    /// Begins to count, and to take the time, under the name that the table shows.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            points: AtomicU64::new(0),
            seeds: AtomicU64::new(0),
            checks: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            started: Instant::now(),
        }
    }

    /// So many more points: states, writes, pairs of write and trouble, watches.
    pub fn points(&self, more: usize) {
        self.points.fetch_add(more as u64, Relaxed);
    }

    /// So many more seeds of random stories.
    pub fn seeds(&self, more: usize) {
        self.seeds.fetch_add(more as u64, Relaxed);
    }

    /// So many more checks: invariants or expectations that were looked at and could have failed.
    pub fn checks(&self, more: usize) {
        self.checks.fetch_add(more as u64, Relaxed);
    }

    /// One more failure. The test has to fail by itself as well.
    pub fn failure(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    fn row(&self) -> String {
        let mut failures = self.failures.load(Relaxed);
        if failures == 0 && std::thread::panicking() {
            failures = 1;
        }
        let mut row = String::new();
        let _ = writeln!(
            row,
            "{}\t{}\t{}\t{}\t{failures}\t{:.1}",
            self.name,
            self.points.load(Relaxed),
            self.seeds.load(Relaxed),
            self.checks.load(Relaxed),
            self.started.elapsed().as_secs_f64()
        );
        row
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let row = self.row();
        let Some(path) = std::env::var_os("INTERLOCK_TALLY") else {
            print!("points, seeds, checks, failures, seconds of {row}");
            return;
        };
        // One write per row, in append mode: rows of programs that run at the same time do not mix.
        let written =
            OpenOptions::new().create(true).append(true).open(&path).and_then(|mut f| f.write_all(row.as_bytes()));
        if let Err(error) = written {
            eprintln!("cannot write the tally of {} to {}: {error}", self.name, path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn a_row_has_six_columns() {
        let tally = Tally::new("t");
        tally.points(3);
        tally.seeds(2);
        tally.checks(5);
        tally.failure();
        let row = tally.row();
        let columns: Vec<&str> = row.trim_end().split('\t').collect();
        assert_eq!(columns[..5], ["t", "3", "2", "5", "1"]);
        assert_eq!(columns.len(), 6);
        assert!(columns[5].parse::<f64>().is_ok());
    }
}
