//! One look, as lines of text.

use super::ask::Seen;
use crate::output::Table;
use crate::size::Size;
use std::time::Duration;
use weft_control::{Daemon, Load, Overview, Problem, Severity, TargetLine, headline};

/// Rows of each table.
const DAEMONS: usize = 40;
const ROWS: usize = 8;
const PROBLEMS: usize = 6;
/// The last second of the year 9999, since 1970.
const LAST: Duration = Duration::from_secs(253_402_300_799);

/// How it is shown.
#[derive(Default)]
pub struct Style {
    pub width: usize,
    pub colors: bool,
    /// How often it is, if it is again.
    pub every: Option<Duration>,
}

const BOLD: &str = "1";
const RED: &str = "31;1";
const YELLOW: &str = "33;1";
const GREEN: &str = "32;1";
const DIM: &str = "2";
const REVERSE: &str = "7";

impl Style {
    fn paint(&self, color: &str, text: &str) -> String {
        let text = fit(text, self.width);
        match self.colors && !text.is_empty() {
            true => format!("\x1b[{color}m{text}\x1b[0m"),
            false => text,
        }
    }
}

/// As much of a line as there is room for; names come from outside.
fn fit(text: &str, width: usize) -> String {
    let plain = text.chars().map(|c| if c.is_control() { '?' } else { c });
    match text.chars().count() > width && width > 1 {
        true => plain.take(width - 1).chain(['…']).collect(),
        false => plain.collect(),
    }
}

/// What is shown while nobody answers.
pub fn silent(why: &str, ago: Option<u64>, style: &Style) -> Vec<String> {
    let mut lines = vec![style.paint(RED, &format!("! no answer: {why}"))];
    lines.extend(ago.map(|s| style.paint(DIM, &format!("  what follows is of {s} s ago"))));
    lines
}

/// What a leader said.
pub fn frame(seen: &Seen, style: &Style) -> Vec<String> {
    let all = &seen.overview;
    let mut lines = vec![title(seen, style)];
    lines.extend(problems(&all.problems, style));
    if !all.leads {
        return lines;
    }
    lines.push(String::new());
    lines.extend(numbers(all).iter().map(|line| fit(line, style.width)));
    lines.push(String::new());
    lines.extend(daemons(all, style));
    if let Some(tenants) = all.tenants.as_ref().filter(|tenants| !tenants.is_empty()) {
        let mut table =
            Table::new(&["TENANT", "READS/S", "WRITES/S", "REQUESTS/S", "METADATA/S", "WAITED"]);
        for t in tenants.iter().take(ROWS) {
            table.row([
                fit(&t.name, 40),
                Size(t.read_bytes_per_s).to_string(),
                Size(t.written_bytes_per_s).to_string(),
                t.requests_per_s.to_string(),
                t.metadata_per_s.to_string(),
                ms(t.waited_us),
            ]);
        }
        lines.extend(with_heading(&table, style));
    }
    if let Some(directories) = all.directories.as_ref().filter(|all| !all.is_empty()) {
        let mut table = Table::new(&["REQUESTS/S", "DIRECTORY"]);
        for d in directories.iter().take(ROWS) {
            table.row([d.requests_per_s.to_string(), d.path.clone()]);
        }
        lines.extend(with_heading(&table, style));
    }
    lines.extend(sessions(all, style));
    lines
}

fn title(seen: &Seen, style: &Style) -> String {
    let all = &seen.overview;
    let health = match &headline(&all.health, &all.problems)[..] {
        "ok" => style.paint(GREEN, "ok"),
        some => {
            let worst = all.problems.iter().any(|p| p.severity == Severity::Critical);
            let known = all.health == "ok" || all.health == "degraded";
            style.paint(if known && !worst { YELLOW } else { RED }, some)
        }
    };
    let cluster = all.cluster.get(..8).unwrap_or("unknown");
    let leader = match all.leads {
        true => format!("server {} at {} leads", all.me, seen.from),
        false => "no leader".into(),
    };
    // What is later than this cannot be written so.
    let at = Duration::from_millis(all.at_ms.max(0).unsigned_abs()).min(LAST);
    let at = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + at);
    let every = style.every.map(|e| format!(", every {} s, q quits", e.as_secs_f64()));
    format!(
        "{} cluster {cluster}, health {health}, {} {}",
        style.paint(BOLD, "weft top"),
        fit(&leader, 60),
        style.paint(DIM, &format!("{at}{}", every.unwrap_or_default()))
    )
}

/// Few long requests are not none.
fn rate(a_second: u64, bytes: u64) -> String {
    if a_second == 0 && bytes > 0 { "<1".into() } else { a_second.to_string() }
}

fn problems(all: &[Problem], style: &Style) -> Vec<String> {
    let mut lines = Vec::new();
    for problem in all.iter().take(PROBLEMS) {
        let (mark, color) = match problem.severity {
            Severity::Critical => ("!!", RED),
            Severity::Warning => ("! ", YELLOW),
            Severity::Note => ("  ", BOLD),
        };
        lines.push(style.paint(color, &format!("{mark} {}", problem.text)));
        lines.push(fit(&format!("     {}", problem.consequence), style.width));
        if !problem.command.is_empty() {
            lines.push(style.paint(DIM, &format!("     > {}", problem.command)));
        }
    }
    if all.len() > PROBLEMS {
        lines.push(format!("   and {} more: weft status", all.len() - PROBLEMS));
    }
    lines
}

fn numbers(all: &Overview) -> Vec<String> {
    let (c, l, r, s) = (&all.capacity, &all.load, &all.repair, &all.scrub);
    let percent = |part: u64, whole: u64| u128::from(part) * 100 / u128::from(whole.max(1));
    let used = percent(c.used_bytes, c.total_bytes);
    let free = c.total_bytes.saturating_sub(c.used_bytes) as f64 * c.file_part;
    let left = r.missing_chunks.saturating_add(r.moving_chunks);
    let repair = match (left, r.eta_s) {
        (0, _) => "all is whole".into(),
        (_, Some(s)) => format!(
            "{} chunks missing, {} moving: {}/s, {s} s left",
            r.missing_chunks, r.moving_chunks, r.chunks_per_s
        ),
        (_, None) => format!(
            "{} chunks missing, {} moving: does not go on now",
            r.missing_chunks, r.moving_chunks
        ),
    };
    vec![
        format!(
            "room      {} {used} %, {} of {} on drives; about {} of files fit still; {} of {} \
             targets up",
            gauge(used),
            Size(c.used_bytes),
            Size(c.total_bytes),
            Size(free as u64),
            c.targets_up,
            c.targets
        ),
        format!(
            "reads     {:>11}/s {:>8} requests/s {:>9} each",
            Size(l.read_bytes_per_s).to_string(),
            rate(l.reads_per_s, l.read_bytes_per_s),
            ms(l.read_us)
        ),
        format!(
            "writes    {:>11}/s {:>8} requests/s {:>9} each; {} requests wait",
            Size(l.written_bytes_per_s).to_string(),
            rate(l.writes_per_s, l.written_bytes_per_s),
            ms(l.write_us),
            l.waiting
        ),
        format!("metadata  {:>22} operations/s", l.metadata_per_s),
        format!("repair    {repair}; scrub {} % of this round", percent(s.done_bytes, s.of_bytes)),
    ]
}

fn gauge(percent: u128) -> String {
    let full = (percent.min(100) / 5) as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(20 - full))
}

fn ms(us: u64) -> String {
    match us {
        0 => "-".into(),
        10_000.. => format!("{} ms", us / 1000),
        _ => format!("{:.1} ms", us as f64 / 1e3),
    }
}

fn daemons(all: &Overview, style: &Style) -> Vec<String> {
    let mut shown: Vec<&Daemon> = all.daemons.iter().collect();
    let busy = |l: &Load| l.read_bytes_per_s.saturating_add(l.written_bytes_per_s);
    if shown.len() > DAEMONS {
        shown.sort_by_key(|d| (d.state == "up", std::cmp::Reverse(busy(&d.load))));
        shown.truncate(DAEMONS);
    }
    let mut table = Table::new(&[
        "DAEMON", "STATE", "USED", "READS/S", "WRITES/S", "REQ/S", "READ", "WRITE", "WAIT",
        "TARGETS",
    ]);
    for d in &shown {
        let used = u128::from(d.used_bytes) * 100 / u128::from(d.total_bytes.max(1));
        table.row([
            fit(&d.name, 28),
            d.state.clone(),
            format!("{used} %"),
            Size(d.load.read_bytes_per_s).to_string(),
            Size(d.load.written_bytes_per_s).to_string(),
            d.load.reads_per_s.saturating_add(d.load.writes_per_s).to_string(),
            ms(d.load.read_us),
            ms(d.load.write_us),
            d.load.waiting.to_string(),
            targets(&d.targets),
        ]);
    }
    let mut lines = with_heading(&table, style);
    for (line, daemon) in lines.iter_mut().skip(1).zip(&shown) {
        if daemon.state != "up" {
            *line = style.paint(RED, line);
        }
    }
    let more = (all.daemons.len() - shown.len()).saturating_add(all.daemons_left_out);
    if more > 0 {
        lines.push(format!("and {more} more daemons"));
    }
    lines
}

/// The numbers of targets, with what is odd of each.
fn targets(all: &[TargetLine]) -> String {
    let one = |t: &TargetLine| {
        let odd = [
            (t.state != "up").then(|| t.state.clone()),
            t.full.then(|| "full".into()),
            t.draining.then(|| "drains".into()),
            (t.errors > 0).then(|| format!("{} errors", t.errors)),
            (t.stalled_ms > 2000).then(|| "hangs".into()),
        ];
        let odd: Vec<String> = odd.into_iter().flatten().collect();
        if odd.is_empty() { t.id.to_string() } else { format!("{} {}", t.id, odd.join(" ")) }
    };
    all.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn sessions(all: &Overview, style: &Style) -> Vec<String> {
    let mut table = Table::new(&["CLIENT", "OPEN FILES", "LAST HEARD"]);
    for s in all.sessions.iter().take(ROWS) {
        let idle = format!("{:.1} s", s.idle_ms as f64 / 1e3);
        table.row([fit(&s.client, 50), s.open_files.to_string(), idle]);
    }
    let mut lines = with_heading(&table, style);
    let more = all.sessions_total.saturating_sub(ROWS);
    if more > 0 {
        lines.push(format!("and {more} more clients"));
    }
    lines
}

fn with_heading(table: &Table, style: &Style) -> Vec<String> {
    let text = table.render("");
    let mut lines: Vec<String> = text.lines().map(|line| fit(line, style.width)).collect();
    if let Some(heading) = lines.first_mut() {
        *heading = style.paint(REVERSE, heading);
    }
    lines
}

#[cfg(test)]
mod tests;
