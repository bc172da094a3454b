//! Medians of all runs, their ratios to the floors, as a table and as JSON.

use super::cases::{Case, Row, Unit};
use super::context::Sample;
use super::cpu::Cpu;
use crate::output::Table;
use serde::Serialize;

const GIB: f64 = (1u64 << 30) as f64;

/// The contract with scripts: fields are only ever added.
#[derive(Serialize, Debug)]
pub struct Report {
    pub machine: Machine,
    pub settings: Settings,
    pub floors: Vec<Figure>,
    pub workloads: Vec<Figure>,
    pub failed: Vec<Failure>,
}

#[derive(Serialize, Debug)]
pub struct Machine {
    pub version: &'static str,
    pub kernel: String,
    pub cpu: String,
    pub cores: usize,
    /// Kind and path of the filesystem that is measured, if any.
    pub mount: Option<String>,
    /// Of the folder that the floors use.
    pub scratch: String,
}

#[derive(Serialize, Debug)]
pub struct Settings {
    pub size_bytes: u64,
    pub operations: u64,
    pub files: u64,
    pub repeat: u32,
    pub limit_seconds: u64,
    /// How reads are made cold.
    pub cold: &'static str,
}

#[derive(Serialize, Debug)]
pub struct Failure {
    pub name: &'static str,
    pub error: String,
}

#[derive(Serialize, Debug)]
pub struct Figure {
    pub name: &'static str,
    pub about: &'static str,
    /// `bytes/s` or `operations/s`
    pub unit: &'static str,
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub runs: Vec<f64>,
    /// Of single operations, of all runs together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Latency>,
    /// CPU seconds by group, for a GiB moved; where bytes are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_seconds_per_gib: Option<Cpu>,
    /// CPU microseconds by group; where operations are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_operation: Option<Cpu>,
    /// How often the client copied each byte in its memory; where it is part of the bench.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies_per_byte: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compared: Vec<Comparison>,
}

#[derive(Serialize, Debug)]
pub struct Latency {
    pub p50: f32,
    pub p99: f32,
}

/// This figure divided by that floor.
#[derive(Serialize, Debug)]
pub struct Comparison {
    pub floor: &'static str,
    pub ratio: f64,
}

/// The figures of these cases, of which `floors` are known already.
pub fn figures(cases: &[&Case], samples: &[Sample], floors: &[Figure]) -> Vec<Figure> {
    let rows = cases.iter().flat_map(|case| case.rows);
    rows.filter_map(|row| figure(row, samples, floors)).collect()
}

fn figure(row: &Row, samples: &[Sample], floors: &[Figure]) -> Option<Figure> {
    let samples: Vec<&Sample> = samples.iter().filter(|s| s.name == row.name).collect();
    let runs: Vec<f64> = samples.iter().map(|s| rate(row.unit, s)).collect();
    let median = median(runs.clone())?;
    let amount = samples.iter().map(|s| amount(row.unit, s)).sum::<f64>().max(1.0);
    let scale = match row.unit {
        Unit::Bytes => GIB / amount,
        Unit::Operations => 1e6 / amount,
    };
    let cpu = samples.iter().fold(Cpu::default(), |sum, s| sum.plus(&s.cpu)).scaled(scale);
    let bytes = row.unit == Unit::Bytes;
    let compared = row.floors.iter().filter_map(|&name| {
        let floor = floors.iter().find(|f| f.name == name && f.median > 0.0)?;
        Some(Comparison { floor: name, ratio: median / floor.median })
    });
    Some(Figure {
        name: row.name,
        about: row.about,
        unit: if bytes { "bytes/s" } else { "operations/s" },
        median,
        min: runs.iter().copied().fold(f64::INFINITY, f64::min),
        max: runs.iter().copied().fold(0.0, f64::max),
        latency_us: latency(&samples),
        cpu_seconds_per_gib: bytes.then(|| cpu.clone()),
        cpu_us_per_operation: (!bytes).then_some(cpu),
        copies_per_byte: copies(&samples),
        compared: compared.collect(),
        runs,
    })
}

fn copies(samples: &[&Sample]) -> Option<f64> {
    let copied = samples.iter().map(|s| s.outcome.copied).sum::<Option<u64>>()?;
    let bytes: u64 = samples.iter().map(|s| s.outcome.bytes).sum();
    Some(copied as f64 / bytes.max(1) as f64)
}

fn amount(unit: Unit, sample: &Sample) -> f64 {
    match unit {
        Unit::Bytes => sample.outcome.bytes as f64,
        Unit::Operations => sample.outcome.operations as f64,
    }
}

fn rate(unit: Unit, sample: &Sample) -> f64 {
    amount(unit, sample) / sample.outcome.seconds.max(1e-9)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get((values.len().max(1) - 1) / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

fn latency(samples: &[&Sample]) -> Option<Latency> {
    let mut all: Vec<f32> = samples.iter().flat_map(|s| &s.outcome.latencies_us).copied().collect();
    all.sort_by(f32::total_cmp);
    let at = |share: f64| all.get(((all.len() as f64 * share) as usize).min(all.len().max(1) - 1));
    Some(Latency { p50: *at(0.5)?, p99: *at(0.99)? })
}

impl Report {
    /// For people.
    pub fn text(&self) -> String {
        let mut out = format!(
            "weft {} on {} cores of {}, Linux {}\n",
            self.machine.version, self.machine.cores, self.machine.cpu, self.machine.kernel
        );
        if let Some(mount) = &self.machine.mount {
            out += &format!("measured: {mount}\n");
        }
        out += &format!("floors on: {}\n", self.machine.scratch);
        out += &format!("cold reads: {}\n", self.settings.cold);
        if !self.floors.is_empty() {
            out +=
                &format!("\nFloors, medians of {}\n{}", self.settings.repeat, table(&self.floors));
        }
        if !self.workloads.is_empty() {
            out += &format!("\nWorkloads\n{}", table(&self.workloads));
        }
        if !self.failed.is_empty() {
            out += "\nFailed\n";
        }
        for failure in &self.failed {
            out += &format!("  {}: {}\n", failure.name, failure.error);
        }
        out
    }
}

fn table(figures: &[Figure]) -> String {
    let compared = figures.iter().any(|f| !f.compared.is_empty());
    let mut heading = vec!["NAME", "MEDIAN", "MIN-MAX", "P50 us", "P99 us", "CPU"];
    let copied = figures.iter().any(|f| f.copies_per_byte.is_some());
    heading.extend(copied.then_some("COPIES"));
    heading.extend(compared.then_some("OF THE FLOOR"));
    let mut table = Table::new(&heading);
    for figure in figures {
        let latency = |pick: fn(&Latency) -> f32| {
            figure.latency_us.as_ref().map_or_else(String::new, |l| format!("{:.0}", pick(l)))
        };
        let ratios: Vec<String> =
            figure.compared.iter().map(|c| format!("{} {}", c.floor, ratio(c.ratio))).collect();
        let copies =
            figure.copies_per_byte.map_or_else(String::new, |copies| format!("{copies:.2}"));
        let mut row = vec![
            figure.name.to_owned(),
            speed(figure, figure.median),
            format!("{}-{}", number(figure, figure.min), number(figure, figure.max)),
            latency(|l| l.p50),
            latency(|l| l.p99),
            cpu(figure),
        ];
        row.extend(copied.then_some(copies));
        row.push(ratios.join(", "));
        table.row(row);
    }
    table.render("  ")
}

fn number(figure: &Figure, value: f64) -> String {
    match figure.unit {
        "bytes/s" => format!("{:.0}", value / f64::from(1 << 20)),
        _ => format!("{value:.0}"),
    }
}

fn speed(figure: &Figure, value: f64) -> String {
    let unit = if figure.unit == "bytes/s" { "MiB/s" } else { "/s" };
    format!("{} {unit}", number(figure, value))
}

fn ratio(value: f64) -> String {
    if value < 0.1 { format!("{value:.3}") } else { format!("{value:.2}") }
}

/// The sum, and where it was spent if not all in the bench itself.
fn cpu(figure: &Figure) -> String {
    let (cpu, unit, digits) = match (&figure.cpu_seconds_per_gib, &figure.cpu_us_per_operation) {
        (Some(cpu), _) => (cpu, "s/GiB", 2),
        (None, Some(cpu)) => (cpu, "us/op", 0),
        (None, None) => return String::new(),
    };
    let show = |used: f64| format!("{used:.digits$}");
    // Who used next to nothing is left out; JSON has everybody.
    let used = cpu.0.iter().filter(|(_, used)| show(**used) != show(0.0));
    let parts: Vec<String> = used.map(|(who, used)| format!("{who} {}", show(*used))).collect();
    let total = format!("{} {unit}", show(cpu.total()));
    if parts.len() > 1 { format!("{total} ({})", parts.join(", ")) } else { total }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cases::{FLOORS, WORKLOADS};
    use crate::bench::task::Outcome;

    fn sample(name: &'static str, bytes: u64, operations: u64, seconds: f64) -> Sample {
        let latencies_us = (1..=100).map(|l| l as f32).collect();
        let outcome = Outcome { bytes, operations, seconds, latencies_us, copied: None };
        let cpu = Cpu([("bench", 1.0), ("storage", 0.5)].into());
        Sample { name, outcome, cpu }
    }

    #[test]
    fn medians_ratios_and_cpu() {
        let gib = 1 << 30;
        let samples = [
            sample("disk_write", 2 * gib, 1, 1.0),
            sample("seq_write", gib, 1, 1.0),
            sample("seq_write", gib, 1, 2.0),
            sample("seq_write", gib, 1, 4.0),
            sample("stat_1", 0, 1000, 0.5),
        ];
        let floors = figures(&FLOORS.iter().collect::<Vec<_>>(), &samples, &[]);
        let figures = figures(&WORKLOADS.iter().collect::<Vec<_>>(), &samples, &floors);
        assert_eq!(floors.len(), 1);
        let write = &figures[0];
        assert_eq!((write.name, write.median), ("seq_write", GIB / 2.0));
        assert_eq!((write.min, write.max), (GIB / 4.0, GIB));
        assert_eq!(write.compared.len(), 1, "floors that were not measured are left out");
        assert_eq!((write.compared[0].floor, write.compared[0].ratio), ("disk_write", 0.25));
        let cpu = &write.cpu_seconds_per_gib.as_ref().unwrap().0;
        assert_eq!((cpu["bench"], cpu["storage"]), (1.0, 0.5));
        let stat = &figures[1];
        assert_eq!((stat.name, stat.median), ("stat_1", 2000.0));
        assert_eq!(stat.cpu_us_per_operation.as_ref().unwrap().total(), 1500.0);
        let latency = stat.latency_us.as_ref().unwrap();
        assert_eq!((latency.p50, latency.p99), (51.0, 100.0));
        let text = table(&figures);
        assert!(text.contains("512 MiB/s") && text.contains("disk_write 0.25"), "{text}");
        assert!(text.contains("1.50 s/GiB (bench 1.00, storage 0.50)"), "{text}");
        assert_eq!((ratio(0.0049), ratio(14.126)), ("0.005".into(), "14.13".into()));
    }

    #[test]
    fn medians_of_few() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![3.0, 1.0]), Some(2.0));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
    }
}
