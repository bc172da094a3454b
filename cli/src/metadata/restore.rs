//! `weft metadata restore`: begins the group anew, from a backup.

use super::serve;
use crate::output::say;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// For how many hours nothing is deleted from targets, unless told.
const HOLD_HOURS: u64 = 24;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder of the backup
    #[arg(value_name = "DIR")]
    from: PathBuf,
    #[command(flatten)]
    server: serve::Place,
    /// Hours for which nothing is deleted from targets: so long a newer backup may still be taken
    /// instead. The space of what is deleted is free only then
    #[arg(long, value_name = "HOURS", default_value_t = HOLD_HOURS)]
    hold: u64,
    /// Take one that does not read as a whole, when there is no other: what does not read is lost
    #[arg(long)]
    damaged: bool,
}

#[allow(clippy::disallowed_methods, reason = "wall time: the state keeps until when it holds")]
pub fn run(args: Args) -> Result<()> {
    let config = args.server.config()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let hold = Duration::from_secs(args.hold.saturating_mul(3600));
    let now_ns = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
    let (from, bits) = (&args.from, rand::random());
    let restored = weft_metadata::restore(&config, from, hold, now_ns, bits, args.damaged)
        .with_context(|| format!("cannot restore metadata server {}", config.id))?;
    let age = now.as_secs().saturating_sub(u64::try_from(restored.taken).unwrap_or_default());
    say(&format!(
        "server {} has cluster {} as of {} min ago, and is its only metadata server; {} sessions \
         were ended, nothing is deleted from targets for {} h",
        config.id,
        restored.cluster,
        age / 60,
        restored.sessions,
        args.hold
    ))?;
    say("start it as usual, add others with `weft metadata add`, mount anew, then run `weft fsck`")
}
