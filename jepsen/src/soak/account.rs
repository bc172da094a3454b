//! What processes take, over hours, and whether it grows for ever.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// What is counted of a process.
const KINDS: [Kind; 4] = [
    Kind { name: "memory", unit: "KiB", slack: 6144.0, share: 0.06 },
    Kind { name: "descriptors", unit: "", slack: 6.0, share: 0.0 },
    Kind { name: "threads", unit: "", slack: 3.0, share: 0.0 },
    Kind { name: "files", unit: "KiB", slack: 16384.0, share: 0.25 },
];

/// One thing that is counted. It grows if it has become more, over all that is judged, by more than
/// `slack` and than this share of itself, and if that is no accident.
struct Kind {
    name: &'static str,
    unit: &'static str,
    slack: f64,
    share: f64,
}

/// Of all pairs of samples the later is the greater so much more often than the smaller (Kendall's
/// tau), if something grows.
const SURE: f64 = 0.5;

/// What happened before this share of the time is over is not judged: caches fill, that of the
/// metadata servers for half an hour.
const WARM_UP: f64 = 0.33;

/// Fewer samples say nothing.
const FEWEST: usize = 6;

/// What a process has, in the order of [`KINDS`].
#[derive(Clone, Copy, Debug)]
pub struct Sample([f64; KINDS.len()]);

impl Sample {
    /// Of this process, whose files are in this folder, if it has one.
    pub fn of(pid: u32, folder: &Path) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
            number.with_context(|| format!("/proc/{pid}/status has no {name}"))
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count() as f64;
        let memory = field("RssAnon:")? - kib_of_regions(pid)?;
        Ok(Self([memory, descriptors, field("Threads:")?, kib_of(folder) as f64]))
    }
}

/// What payloads have touched of the regions that they land in, which stay: eight of 64 MiB at
/// most. They are the mappings for which huge pages are asked (`hg`; `weft_net::AlignedBuf`).
fn kib_of_regions(pid: u32) -> Result<f64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let (mut touched, mut sum) = (0.0, 0.0);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Anonymous:") => {
                touched = words.next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
            }
            Some("VmFlags:") if words.any(|flag| flag == "hg") => sum += touched,
            _ => {}
        }
    }
    Ok(sum)
}

/// Of all files below a folder that are still there when they are looked at, but for targets, whose
/// size is what it is.
fn kib_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => kib_of(&entry.path()),
        Ok(_) if entry.file_name() == "target" => 0,
        Ok(found) => found.len() / 1024,
        Err(_) => 0,
    };
    entries.map(size).sum()
}

/// All samples, by process.
#[derive(Default)]
pub struct Account(BTreeMap<String, Vec<(f64, Sample)>>);

impl Account {
    /// What a process had after so many hours.
    pub fn note(&mut self, process: &str, hours: f64, sample: Sample) {
        self.0.entry(process.to_owned()).or_default().push((hours, sample));
    }

    /// What all have now, in short.
    pub fn newest(&self) -> String {
        let last: Vec<Sample> = self.0.values().filter_map(|all| Some(all.last()?.1)).collect();
        let sum = |kind: usize| last.iter().map(|sample| sample.0[kind]).sum::<f64>();
        let all: Vec<String> = (0..KINDS.len())
            .map(|kind| format!("{} {} {}", KINDS[kind].name, sum(kind), KINDS[kind].unit))
            .collect();
        all.join(", ")
    }

    /// A line for each process: of each kind the first and the last that is judged, and how much
    /// more an hour brings.
    pub fn report(&self) -> String {
        let mut told = String::new();
        for (process, samples) in &self.0 {
            let _ = write!(told, "{process:10}");
            for (number, kind) in KINDS.iter().enumerate() {
                let judged = judged(samples, number);
                let (Some(first), Some(last)) = (judged.first(), judged.last()) else { continue };
                let (slope, tau) = trend(&judged);
                let _ = write!(
                    told,
                    " | {} {} -> {} {} ({slope:+.1}/h, tau {tau:+.2})",
                    kind.name, first.1, last.1, kind.unit
                );
            }
            told.push('\n');
        }
        told
    }

    /// Whether there is enough to tell what grows.
    pub fn is_judged(&self) -> bool {
        self.0.values().all(|samples| judged(samples, 0).len() >= FEWEST)
    }

    /// What grows.
    pub fn grown(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (process, samples) in &self.0 {
            for (number, kind) in KINDS.iter().enumerate() {
                if let Some(growth) = grows(&judged(samples, number), kind) {
                    found.push(format!("{process}: {}: {growth:+.1} {}/h", kind.name, kind.unit));
                }
            }
        }
        found
    }
}

/// Of one kind, after the warm-up.
fn judged(samples: &[(f64, Sample)], kind: usize) -> Vec<(f64, f64)> {
    let end = samples.last().map_or(0.0, |(hours, _)| *hours);
    let late = samples.iter().filter(|(hours, _)| *hours > end * WARM_UP);
    late.map(|(hours, sample)| (*hours, sample.0[kind])).collect()
}

/// By how much in an hour, if it does.
fn grows(series: &[(f64, f64)], kind: &Kind) -> Option<f64> {
    if series.len() < FEWEST {
        return None;
    }
    let (slope, tau) = trend(series);
    let hours = series[series.len() - 1].0 - series[0].0;
    let middle = median(series.iter().map(|(_, value)| *value).collect());
    let too_much = kind.slack.max(kind.share * middle);
    (tau > SURE && slope * hours > too_much).then_some(slope)
}

/// What an hour brings: the median of what all pairs say (Theil and Sen). And how much more often
/// the later of two is the greater than the smaller, of all pairs (Kendall's tau).
fn trend(series: &[(f64, f64)]) -> (f64, f64) {
    let pairs = series.iter().enumerate().flat_map(|(number, early)| {
        series[number + 1..].iter().map(move |late| (late.0 - early.0, late.1 - early.1))
    });
    let pairs: Vec<(f64, f64)> = pairs.filter(|(hours, _)| *hours > 0.0).collect();
    if pairs.is_empty() {
        return (0.0, 0.0);
    }
    let sign = |(_, more): &(f64, f64)| if *more == 0.0 { 0.0 } else { more.signum() };
    let tau = pairs.iter().map(sign).sum::<f64>() / pairs.len() as f64;
    (median(pairs.into_iter().map(|(hours, more)| more / hours).collect()), tau)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forty samples in two hours, of what this says.
    fn account(of: impl Fn(f64) -> [f64; 4]) -> Account {
        let mut account = Account::default();
        for number in 1..=40 {
            let hours = f64::from(number) / 20.0;
            account.note("mount", hours, Sample(of(hours)));
        }
        account
    }

    /// Up and down by as much as this, without order.
    fn noise(hours: f64, most: f64) -> f64 {
        ((hours * 20.0 * 7919.0) % 101.0 / 50.5 - 1.0) * most
    }

    #[test]
    fn memory_that_payloads_land_in_is_no_leak() {
        let folder = tempfile::tempdir().unwrap();
        let taken = || Sample::of(std::process::id(), folder.path()).unwrap().0[0];
        let before = taken();
        let mut buffers: Vec<_> = (0..3).map(|_| weft_net::AlignedBuf::take(16 << 20)).collect();
        buffers.iter_mut().for_each(|buffer| buffer.as_mut_slice().fill(1));
        let with_buffers = taken();
        let other = vec![1_u8; 48 << 20];
        let with_other = taken();
        drop((buffers, other));
        assert!(with_buffers - before < 8e3, "{before} -> {with_buffers}");
        assert!(with_other - with_buffers > 40e3, "{with_buffers} -> {with_other}");
    }

    #[test]
    fn what_stays_is_no_leak() {
        let busy = |hours| [90_000.0 + noise(hours, 9000.0), 60.0 + noise(hours, 9.0), 21.0, 4e5];
        assert!(account(busy).grown().is_empty(), "{}", account(busy).report());
        // A cache that fills, and is full.
        let warm = |hours: f64| [40_000.0 + 80_000.0 * hours.min(0.6), 60.0, 21.0, 4e5];
        assert!(account(warm).grown().is_empty(), "{}", account(warm).report());
    }

    #[test]
    fn what_grows_is_found() {
        let grown = |of: &dyn Fn(f64) -> [f64; 4]| account(of).grown();
        let memory =
            grown(&|hours| [90_000.0 + 9000.0 * hours + noise(hours, 3000.0), 60.0, 21.0, 4e5]);
        assert!(memory.len() == 1 && memory[0].contains("memory"), "{memory:?}");
        let descriptors =
            grown(&|hours| [90_000.0, 60.0 + 10.0 * hours + noise(hours, 3.0), 21.0, 4e5]);
        assert!(descriptors.len() == 1 && descriptors[0].contains("descr"), "{descriptors:?}");
        let threads = grown(&|hours: f64| [90_000.0, 60.0, 21.0 + (4.0 * hours).floor(), 4e5]);
        assert!(threads.len() == 1 && threads[0].contains("threads"), "{threads:?}");
        let files = grown(&|hours| [90_000.0, 60.0, 21.0, 4e5 + 3e5 * hours]);
        assert!(files.len() == 1 && files[0].contains("files"), "{files:?}");
    }

    #[test]
    fn a_process_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("below")).unwrap();
        fs::write(folder.path().join("below/file"), vec![0; 9 << 10]).unwrap();
        let before = Sample::of(std::process::id(), folder.path()).unwrap().0;
        assert_eq!(before[3], 9.0);
        let _open: Vec<_> = (0..500).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let after = Sample::of(std::process::id(), folder.path()).unwrap().0;
        // Other tests open and close files meanwhile.
        assert!(after[1] > before[1] + 400.0 && before[0] > 0.0 && before[2] > 0.0);
    }
}
