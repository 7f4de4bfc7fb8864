//! Logs: to standard error, for people or as JSON.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// What is logged when nothing else is asked for.
const DEFAULT_LEVEL: &str = "info";

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One readable line per event; coloured on a terminal.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level or filter does not parse.
    #[error(
        "{from}: cannot read log filter {filter:?}: {why}; use a level (error, warn, info, debug, trace) or directives \
         such as info,kube=debug"
    )]
    Filter {
        /// Where it was given.
        from: &'static str,
        /// What was given.
        filter: String,
        /// What the parser says.
        why: String,
    },
    /// Another subscriber is installed.
    #[error("logging is already set up in this process")]
    Twice,
}

/// Sets up logging for the process. `level` (from `--log-level`) wins over `RUST_LOG`, which wins over `info`.
pub fn init(format: LogFormat, level: Option<&str>) -> Result<(), TelemetryError> {
    let filter = filter(level, std::env::var("RUST_LOG").ok().as_deref())?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Human => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            builder.with_ansi(colour).with_target(false).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).with_ansi(false).try_init(),
    }
    .map_err(|_| TelemetryError::Twice)
}

fn filter(option: Option<&str>, environment: Option<&str>) -> Result<EnvFilter, TelemetryError> {
    let (from, text) = match (option, environment.filter(|e| !e.trim().is_empty())) {
        (Some(text), _) => ("--log-level", text),
        (None, Some(text)) => ("RUST_LOG", text),
        (None, None) => ("default", DEFAULT_LEVEL),
    };
    EnvFilter::try_new(text).map_err(|error| TelemetryError::Filter {
        from,
        filter: text.to_owned(),
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_wins_over_environment_and_both_over_the_default() {
        assert_eq!(filter(Some("debug"), Some("trace")).unwrap().to_string(), "debug");
        assert_eq!(filter(None, Some("warn,kube=debug")).unwrap().to_string(), "kube=debug,warn");
        assert_eq!(filter(None, Some(" ")).unwrap().to_string(), "info");
        assert_eq!(filter(None, None).unwrap().to_string(), "info");
    }

    #[test]
    fn a_filter_that_does_not_parse_says_where_it_came_from() {
        let text = filter(Some("interlock=loud"), None).unwrap_err().to_string();
        assert!(text.starts_with("--log-level: cannot read log filter \"interlock=loud\""), "{text}");
        assert!(filter(None, Some("a=b=c")).unwrap_err().to_string().starts_with("RUST_LOG"));
    }
}
