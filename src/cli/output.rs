//! What goes to standard output: aligned tables, ages, JSON and YAML.

use std::io::Write as _;

use interlock_core::time::Time;
use serde::Serialize;

use super::exit::Failure;

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A table.
    #[default]
    #[value(hide = true)]
    Table,
    /// A table with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Form of the output where there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Structured {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

impl From<Structured> for Format {
    fn from(form: Structured) -> Self {
        match form {
            Structured::Json => Self::Json,
            Structured::Yaml => Self::Yaml,
        }
    }
}

/// Writes to standard output. A reader that has gone (`| head`) is no error.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The value as JSON or YAML; `None` for tables.
pub fn structured(format: Format, value: &impl Serialize) -> Result<Option<String>, Failure> {
    let text = match format {
        Format::Table | Format::Wide => return Ok(None),
        Format::Json => serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|e| e.to_string()),
        Format::Yaml => serde_saphyr::to_string(value).map_err(|e| e.to_string()),
    };
    text.map(Some).map_err(|why| Failure::error(format!("cannot write the output: {why}")))
}

/// Rows in aligned columns, three spaces apart, the way kubectl prints them. Empty cells show as `-`.
pub fn table<R: AsRef<[String]>>(head: &[&str], rows: &[R]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
            *width = (*width).max(shown(cell).chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        padded.join("   ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut head.iter().copied());
    for row in rows {
        text += &line(&mut row.as_ref().iter().map(|cell| shown(cell)));
    }
    text
}

fn shown(cell: &str) -> &str {
    if cell.is_empty() { "-" } else { cell }
}

/// Lines of `name: value` with the values aligned. A value of several lines is continued under itself.
pub fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) + 1;
    let mut text = String::new();
    for (name, value) in fields {
        let mut label = format!("{name}:");
        for line in value.lines() {
            text += format!("{label:width$}  {line}").trim_end();
            text.push('\n');
            label.clear();
        }
    }
    text
}

/// How long ago, as kubectl writes ages. A time to come is `0s`.
pub fn age(since: Time, now: Time) -> String {
    duration(now.millis_since(since))
}

/// A duration in milliseconds, as kubectl writes ages.
pub fn duration(millis: i64) -> String {
    let s = millis.max(0) / 1000;
    let (m, h, d) = (s / 60, s / 3600, s / 86400);
    let two = |big: i64, unit: char, rest: i64, small: char| {
        if rest == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{rest}{small}") }
    };
    match () {
        () if s < 120 => format!("{s}s"),
        () if m < 10 => two(m, 'm', s % 60, 's'),
        () if h < 3 => format!("{m}m"),
        () if h < 8 => two(h, 'h', m % 60, 'm'),
        () if h < 48 => format!("{h}h"),
        () if d < 8 => two(d, 'd', h % 24, 'h'),
        () if d < 730 => format!("{d}d"),
        () => two(d / 365, 'y', d % 365, 'd'),
    }
}

/// The present, by this machine's clock.
pub fn now() -> Time {
    Time(jiff::Timestamp::now().as_millisecond())
}

/// The word that serialisation gives an enum.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_have_no_trailing_spaces() {
        let rows = [["web".to_owned(), String::new()], ["a-long-name".to_owned(), "x".to_owned()]];
        assert_eq!(table(&["NAME", "STATE"], &rows), "NAME          STATE\nweb           -\na-long-name   x\n");
    }

    #[test]
    fn fields_are_aligned_and_continued() {
        let text = fields(&[("State", "Gate".into()), ("Waiting for", "a\nb".into()), ("None", String::new())]);
        assert_eq!(text, "State:        Gate\nWaiting for:  a\n              b\n");
    }

    #[test]
    fn ages_read_like_kubectls() {
        for (seconds, text) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (47 * 3600, "47h"),
            (50 * 3600, "2d2h"),
            (9 * 86400, "9d"),
            (731 * 86400, "2y1d"),
        ] {
            assert_eq!(duration(seconds * 1000), text);
        }
    }
}
