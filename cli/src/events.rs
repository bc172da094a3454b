//! `weft events`: what has happened in the cluster, when and why.

use crate::control::ClusterArgs;
use crate::output::{Format, OutputArgs, say};
use anyhow::Result;
use humantime::format_rfc3339_millis;
use serde::Serialize;
use std::time::{Duration, UNIX_EPOCH};
use tokio::time::sleep;
use weft_control::Group;
use weft_proto::{ErrorKind, v1};

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Events that the metadata servers keep.
const KEPT: u32 = 10_000;

/// Show what has happened in the cluster: targets lost and back, repairs, servers, decisions
///
/// The metadata servers keep the newest 10,000 events.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft events --cluster 10.0.0.1:7100
  weft events --warnings -n 1000 --cluster 10.0.0.1:7100
  weft events --follow --output json --cluster 10.0.0.1:7100")]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Look at so many, the newest
    #[arg(short = 'n', long, default_value_t = 50, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    newest: u32,
    /// Only those that an admin may have to do something about
    #[arg(long)]
    warnings: bool,
    /// Go on with what happens from now on, until it is interrupted; as JSON, one event a line
    #[arg(long)]
    follow: bool,
}

/// One event, as scripts see it.
#[derive(Serialize)]
struct Row {
    number: u64,
    /// RFC 3339, UTC.
    time: String,
    warning: bool,
    kind: String,
    text: String,
}

pub async fn run(args: Args) -> Result<()> {
    let mut group = Group::new(weft_net::tcp(), args.cluster.cluster.clone());
    let mut after = 0;
    let mut rows: Vec<Row> = Vec::new();
    let mut newest_of_all = true;
    // Of those that are wanted, the newest.
    let first = if args.warnings { KEPT } else { args.newest };
    let (mut newest, mut begun) = (first, false);
    loop {
        let asked = v1::ListEventsRequest { after, limit: 0, newest };
        let listed = match group.call(asked).await {
            Ok(listed) => listed,
            // Whoever follows waits for the next leader.
            Err(error) if begun && can_wait(error.kind) => {
                sleep(LOOK_INTERVAL).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        // What comes after the newest of the beginning.
        (newest, begun) = (0, args.follow);
        after = listed.events.last().map_or(after, |event| event.number);
        let wanted = listed.events.into_iter().filter(|event| event.warning || !args.warnings);
        rows.extend(wanted.map(Row::from));
        if newest_of_all && !listed.more {
            rows.drain(..rows.len().saturating_sub(args.newest as usize));
            newest_of_all = false;
        }
        if args.follow && !newest_of_all {
            for row in rows.drain(..) {
                match args.output.output {
                    Format::Json => say(&serde_json::to_string(&row)?)?,
                    Format::Text => say(&text(&row))?,
                }
            }
        }
        if !listed.more && !args.follow {
            return args
                .output
                .print(&rows, |rows| rows.iter().map(text).collect::<Vec<_>>().join("\n"));
        }
        if !listed.more {
            sleep(LOOK_INTERVAL).await;
        }
    }
}

fn can_wait(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::NotLeader | ErrorKind::TimedOut)
}

impl From<v1::Event> for Row {
    fn from(event: v1::Event) -> Self {
        let since = Duration::from_nanos(u64::try_from(event.time_ns).unwrap_or(0));
        Self {
            number: event.number,
            time: format_rfc3339_millis(UNIX_EPOCH + since).to_string(),
            warning: event.warning,
            kind: event.kind,
            text: event.text,
        }
    }
}

fn text(row: &Row) -> String {
    let mark = if row.warning { "!" } else { " " };
    // Names come from outside.
    let plain = |text: &str| text.replace(char::is_control, "?");
    format!("{} {mark} {:<17} {}", row.time, plain(&row.kind), plain(&row.text))
}
