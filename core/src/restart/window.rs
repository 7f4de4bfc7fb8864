//! The maintenance window: a schedule as cron has it, in a time zone, and how long it stays open.

use std::str::FromStr as _;

use croner::Cron;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::{api::restart::Window, time::Time};

/// The time zone by its name, from the database that is compiled in: what the machine has makes no difference.
fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZoneDatabase::bundled()
        .get(name)
        .map_err(|_| format!("spec.window.timeZone: there is no time zone `{name}`; write one such as Europe/Berlin"))
}

fn schedule(text: &str) -> Result<Cron, String> {
    let fields = text.split_whitespace().count();
    if fields != 5 {
        return Err(format!(
            "spec.window.schedule: `{text}` has {fields} fields; write minute, hour, day of month, month, day of week"
        ));
    }
    Cron::from_str(text).map_err(|error| format!("spec.window.schedule: `{text}`: {error}"))
}

/// What is wrong with a window.
pub fn check(window: &Window) -> Result<(), String> {
    zone(&window.time_zone)?;
    schedule(&window.schedule).map(drop)
}

/// `now`, while it is open; else when it opens next.
pub(super) fn opens(window: &Window, now: Time) -> Result<Time, String> {
    let (zone, schedule) = (zone(&window.time_zone)?, schedule(&window.schedule)?);
    let never = |_| format!("spec.window.schedule: `{}` never comes", window.schedule);
    let at = |time: Time| {
        jiff::Timestamp::from_millisecond(time.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_zoned(zone.clone())
    };
    // The last opening that could still be going on, or the first one to come.
    let earliest = at(now.plus_seconds(window.duration_seconds.saturating_neg()));
    let next = schedule.find_next_occurrence(&earliest, false).map_err(never)?;
    Ok(Time(next.timestamp().as_millisecond()).max(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(schedule: &str, zone: &str) -> Window {
        Window { schedule: schedule.into(), duration_seconds: 3600, time_zone: zone.into() }
    }

    fn time(text: &str) -> Time {
        text.parse().unwrap_or_default()
    }

    #[test]
    fn it_is_open_from_its_schedule_for_its_duration_in_its_time_zone() {
        let nightly = window("0 2 * * *", "Europe/Berlin");
        for (now, opens) in [
            ("2026-07-01T00:00:00Z", "2026-07-01T00:00:00Z"), // 02:00 in summer
            ("2026-07-01T00:59:59Z", "2026-07-01T00:59:59Z"),
            ("2026-07-01T01:00:00Z", "2026-07-02T00:00:00Z"),
            ("2026-12-01T00:30:00Z", "2026-12-01T01:00:00Z"), // 02:00 in winter
            ("2026-12-01T01:30:00Z", "2026-12-01T01:30:00Z"),
        ] {
            assert_eq!(opens_at(&nightly, now), opens, "{now}");
        }
        // Mondays only: Tuesday waits for six days.
        assert_eq!(opens_at(&window("30 22 * * 1", "Etc/UTC"), "2026-12-01T10:00:00Z"), "2026-12-07T22:30:00Z");
    }

    fn opens_at(window: &Window, now: &str) -> String {
        opens(window, time(now)).map_or_else(|why| why, |at| at.to_string())
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (schedule, zone, word) in [
            ("0 2 * *", "Etc/UTC", "4 fields"),
            ("0 2 * * * *", "Etc/UTC", "6 fields"),
            ("61 2 * * *", "Etc/UTC", "schedule"),
            ("0 2 * * *", "Mars/Olympus", "timeZone"),
        ] {
            let why = check(&window(schedule, zone)).err().unwrap_or_default();
            assert!(why.contains(word), "{why}");
        }
    }
}
