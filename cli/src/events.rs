//! `weft events`: what has happened in the cluster, when and why.

use crate::control::ClusterArgs;
use crate::output::{Format, OutputArgs, complain, describe, plain, tell};
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
    let mut group = Group::new(crate::network::transport(), args.cluster.cluster.clone());
    let wanted = |event: &v1::Event| event.warning || !args.warnings;
    // Of those that are wanted, the newest.
    let newest = if args.warnings { KEPT } else { args.newest };
    let past = list(&mut group, 0, newest).await?;
    let mut after = past.last().map_or(0, |event| event.number);
    let mut rows: Vec<Row> = past.into_iter().filter(wanted).map(Row::from).collect();
    rows.drain(..rows.len().saturating_sub(args.newest as usize));
    if !args.follow {
        return args
            .output
            .print(&rows, |rows| rows.iter().map(text).collect::<Vec<_>>().join("\n"));
    }
    let mut silent = false;
    loop {
        for row in rows.drain(..) {
            let line = match args.output.output {
                Format::Json => serde_json::to_string(&row)?,
                Format::Text => text(&row),
            };
            if !tell(&line)? {
                return Ok(());
            }
        }
        sleep(LOOK_INTERVAL).await;
        match list(&mut group, after, 0).await {
            Ok(new) => {
                silent = false;
                after = new.last().map_or(after, |event| event.number);
                rows.extend(new.into_iter().filter(wanted).map(Row::from));
            }
            // Until there is another leader. Who follows must not take that for peace.
            Err(error) if can_wait(error.kind) => {
                if !std::mem::replace(&mut silent, true) {
                    let why = describe(&error.into());
                    complain(&format!("weft: nothing is heard of the cluster now: {why}"));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// All events after this number; if not 0, only so many, the newest.
async fn list(
    group: &mut Group,
    mut after: u64,
    newest: u32,
) -> Result<Vec<v1::Event>, weft_proto::Error> {
    let mut events: Vec<v1::Event> = Vec::new();
    let mut more = true;
    while more {
        let newest = if events.is_empty() { newest } else { 0 };
        let listed = group.call(v1::ListEventsRequest { after, limit: 0, newest }).await?;
        after = listed.events.last().map_or(after, |event| event.number);
        more = listed.more && !listed.events.is_empty();
        events.extend(listed.events);
    }
    Ok(events)
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
    format!("{} {mark} {:<17} {}", row.time, plain(&row.kind), plain(&row.text))
}
