//! Logging of every role: `tracing` to standard error, filtered by `--log` or `WEFT_LOG`.

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    Text,
    Json,
}

impl std::fmt::Display for LogFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::Json { "json" } else { "text" })
    }
}

/// An empty one is none: an environment file may have a line without a value.
fn format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" | "" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("it is text or json".into()),
    }
}

#[derive(clap::Args, Debug)]
pub struct LogArgs {
    /// What to log on standard error: a level (error, warn, info, debug, trace), or
    /// module=level pairs such as weft_storaged=debug,info
    #[arg(long, global = true, env = "WEFT_LOG", value_name = "FILTER", help_heading = "Logging")]
    pub log: Option<String>,
    /// How it is written: as text, or as one JSON object a line
    #[arg(
        long,
        global = true,
        env = "WEFT_LOG_FORMAT",
        value_parser = format,
        default_value = "text",
        value_name = "text|json",
        help_heading = "Logging"
    )]
    pub log_format: LogFormat,
}

impl LogArgs {
    /// Starts logging; `default` applies when the user chose nothing.
    pub fn start(&self, default: &str) -> Result<()> {
        let filter = self.log.as_deref().unwrap_or(default);
        let filter = EnvFilter::try_new(filter)
            .with_context(|| format!("--log {filter:?} is not a log filter; try --log debug"))?;
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false);
        let started = match self.log_format {
            LogFormat::Text => log.try_init(),
            LogFormat::Json => log.json().try_init(),
        };
        started.map_err(|e| anyhow::anyhow!("cannot start logging: {e}"))
    }
}
