//! `weft plan`: how many enclosures a cluster needs, by arithmetic that fits on one page.
//!
//! Decimal units (GB, TB), as drives and links are sold.

use crate::output::{OutputArgs, Table};
use anyhow::{Result, bail};
use serde::Serialize;
use weft_proto::Profile;

/// Work out how many drive enclosures a cluster needs
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft plan --gpus 32 --gpu-gbytes-per-s 10 --dataset-tb 500 --profile 4+2
  weft plan --gpus 512 --gpu-gbytes-per-s 4 --dataset-tb 8000 --profile 8+2 \\
      --enclosure-gbytes-per-s 75 --enclosure-tb 300 --drives 24 --fill 85

How it is worked out (G GPUs that read R GB/s each, D TB of data, profile k+m, enclosures of W \
GB/s and
C TB with d drives, fill f, share s of the bandwidth for repair):
  demand            = G * R
  redundancy        = (k + m) / k
  by bandwidth      = demand / W
  by capacity       = D * redundancy / (C * f)
  enclosures N      = the greater of the two, rounded up, at least 1
  per GPU           = N * W / G
  used share        = D * redundancy / (N * C)
  usable fraction   = k / (k + m)
  rebuild of a drive      = (k + 1) * C * used / d / (s * (N - 1/d) * W)
  rebuild of an enclosure = (k + 1) * C * used / (s * (N - 1) * W)
A rebuild reads k shards and writes one for each that was lost (a copy reads one), and \
everything that is
left takes part. W counts what an enclosure delivers to the network, not what its drives could. \
Reads
cost no more with redundancy; writes cost (k + m) / k. An enclosure is taken for a failure \
domain.")]
pub struct Args {
    #[command(flatten)]
    need: Need,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args, Clone, Debug, Serialize)]
struct Need {
    /// Number of GPUs that read at the same time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    gpus: u32,
    /// GB/s that each GPU reads
    #[arg(long, value_name = "GB/s", value_parser = positive)]
    gpu_gbytes_per_s: f64,
    /// TB of data, before redundancy
    #[arg(long, value_name = "TB", value_parser = positive)]
    dataset_tb: f64,
    /// Redundancy: K+M, or replica=N
    #[arg(long, default_value = "8+2")]
    #[serde(serialize_with = "as_text")]
    profile: Profile,
    /// GB/s that one enclosure delivers to the network
    #[arg(long, value_name = "GB/s", default_value_t = 75.0, value_parser = positive)]
    enclosure_gbytes_per_s: f64,
    /// TB of raw capacity of one enclosure
    #[arg(long, value_name = "TB", default_value_t = 300.0, value_parser = positive)]
    enclosure_tb: f64,
    /// Drives of one enclosure
    #[arg(long, value_name = "N", default_value_t = 24, value_parser =
        clap::value_parser!(u32).range(1..=1000))]
    drives: u32,
    /// Percent of the raw capacity that may be used; leave room for repair and growth
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser =
        clap::value_parser!(u32).range(1..=100))]
    fill: u32,
    /// Percent of the bandwidth that repair may take from the readers
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser =
        clap::value_parser!(u32).range(1..=100))]
    rebuild_share: u32,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if n.is_finite() && n > 0.0 && n <= 1e12 => Ok(n),
        _ => Err("it is a number above 0".into()),
    }
}

fn as_text<S: serde::Serializer>(profile: &Profile, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(profile)
}

#[derive(Serialize, Debug)]
struct Plan {
    need: Need,
    enclosures: u64,
    /// bandwidth or capacity
    bound_by: &'static str,
    enclosures_by_bandwidth: f64,
    enclosures_by_capacity: f64,
    demand_gbytes_per_s: f64,
    redundancy: f64,
    usable_fraction: f64,
    raw_tb: f64,
    used_fraction: f64,
    gbytes_per_s: f64,
    per_gpu_gbytes_per_s: f64,
    /// While one enclosure is away; null if there is only one.
    per_gpu_gbytes_per_s_without_one: Option<f64>,
    rebuild_drive_hours: Option<f64>,
    rebuild_enclosure_hours: Option<f64>,
    /// Enclosures from which on the loss of one leaves all data readable; null if none does.
    enclosures_to_survive_one: Option<u64>,
    warnings: Vec<String>,
}

pub fn run(args: Args) -> Result<()> {
    let plan = plan(&args.need)?;
    args.output.print(&plan, text)
}

fn plan(need: &Need) -> Result<Plan> {
    let (k, m) = (f64::from(need.profile.k()), f64::from(need.profile.m()));
    let demand = f64::from(need.gpus) * need.gpu_gbytes_per_s;
    let redundancy = (k + m) / k;
    let by_bandwidth = demand / need.enclosure_gbytes_per_s;
    let raw_needed = need.dataset_tb * redundancy;
    let by_capacity = raw_needed / (need.enclosure_tb * f64::from(need.fill) / 100.0);
    let most = by_bandwidth.max(by_capacity);
    if most > 1e9 {
        bail!(
            "{most:.3e} enclosures: check the units (GB/s per GPU, TB, GB/s and TB per enclosure)"
        );
    }
    // What is whole but for rounding is whole.
    let enclosures = ((most - 1e-9).ceil() as u64).max(1);
    let n = enclosures as f64;
    let used = raw_needed / (n * need.enclosure_tb);
    let bandwidth = n * need.enclosure_gbytes_per_s;
    let gpus = f64::from(need.gpus);
    let hours = |lost_tb: f64, left: f64| {
        let share = f64::from(need.rebuild_share) / 100.0;
        let rate = left * need.enclosure_gbytes_per_s * share;
        (rate > 0.0 && m > 0.0).then(|| lost_tb * 1000.0 * (k + 1.0) / rate / 3600.0)
    };
    let per_enclosure = need.enclosure_tb * used;
    let drives = f64::from(need.drives);
    let survive = (m > 0.0).then(|| ((k + m) / m).ceil() as u64);
    let mut it = Plan {
        need: need.clone(),
        enclosures,
        bound_by: if by_bandwidth >= by_capacity { "bandwidth" } else { "capacity" },
        enclosures_by_bandwidth: by_bandwidth,
        enclosures_by_capacity: by_capacity,
        demand_gbytes_per_s: demand,
        redundancy,
        usable_fraction: 1.0 / redundancy,
        raw_tb: n * need.enclosure_tb,
        used_fraction: used,
        gbytes_per_s: bandwidth,
        per_gpu_gbytes_per_s: bandwidth / gpus,
        per_gpu_gbytes_per_s_without_one: (enclosures > 1)
            .then(|| (bandwidth - need.enclosure_gbytes_per_s) / gpus),
        rebuild_drive_hours: hours(per_enclosure / drives, n - 1.0 / drives),
        rebuild_enclosure_hours: hours(per_enclosure, n - 1.0),
        enclosures_to_survive_one: survive,
        warnings: Vec::new(),
    };
    it.warnings = warnings(&it);
    Ok(it)
}

fn warnings(plan: &Plan) -> Vec<String> {
    let mut out = Vec::new();
    let profile = plan.need.profile;
    match plan.enclosures_to_survive_one {
        None => out.push(format!("{profile} has no redundancy: any lost drive loses data")),
        Some(least) if plan.enclosures < least => out.push(format!(
            "{profile} over {} enclosures does not survive the loss of one: that takes {least}",
            plan.enclosures
        )),
        Some(_) => {}
    }
    let drives = u64::from(plan.need.drives) * plan.enclosures;
    if drives < u64::from(profile.width()) {
        out.push(format!(
            "{drives} drives are too few for the {} shards of {profile}",
            profile.width()
        ));
    }
    if plan.used_fraction > 0.9 {
        out.push(format!(
            "{:.0} % of the raw capacity is used: little room for repair and growth; plan with \
             --fill 85",
            plan.used_fraction * 100.0
        ));
    }
    // After the loss of one the same data must fit on the rest before redundancy is whole again.
    let others = (plan.enclosures.saturating_sub(1)) as f64;
    if others > 0.0
        && plan.used_fraction * plan.enclosures as f64 > others
        && plan.used_fraction <= 0.9
    {
        out.push(
            "a lost enclosure cannot be rebuilt before it is replaced: the rest is too small"
                .into(),
        );
    }
    let demand = plan.need.gpu_gbytes_per_s;
    if plan.per_gpu_gbytes_per_s_without_one.is_some_and(|rate| rate < demand) {
        out.push(format!(
            "while one enclosure is away, a GPU gets less than its {demand} GB/s; one more would \
             keep it"
        ));
    }
    out
}

fn text(plan: &Plan) -> String {
    let mut table = Table::new(&["", ""]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    let hours = |h: Option<f64>| match h {
        None => "not possible".into(),
        Some(h) if h < 1.0 => format!("{:.0} min", (h * 60.0).max(1.0)),
        Some(h) => format!("{h:.1} h"),
    };
    let need = &plan.need;
    row("enclosures", format!("{} ({}-bound)", plan.enclosures, plan.bound_by));
    row(
        "  by bandwidth",
        format!(
            "{:.2} ({:.0} GB/s over {} GB/s)",
            plan.enclosures_by_bandwidth, plan.demand_gbytes_per_s, need.enclosure_gbytes_per_s
        ),
    );
    row(
        "  by capacity",
        format!(
            "{:.2} ({} TB x {:.2} over {} TB at {} %)",
            plan.enclosures_by_capacity,
            need.dataset_tb,
            plan.redundancy,
            need.enclosure_tb,
            need.fill
        ),
    );
    row(
        "bandwidth",
        format!("{:.0} GB/s, {:.2} GB/s a GPU", plan.gbytes_per_s, plan.per_gpu_gbytes_per_s),
    );
    if let Some(rate) = plan.per_gpu_gbytes_per_s_without_one {
        row("  one away", format!("{rate:.2} GB/s a GPU"));
    }
    row(
        "capacity",
        format!(
            "{:.0} TB raw, {:.1} % used, {:.1} % of raw is usable ({})",
            plan.raw_tb,
            plan.used_fraction * 100.0,
            plan.usable_fraction * 100.0,
            need.profile
        ),
    );
    row("rebuild of a drive", hours(plan.rebuild_drive_hours));
    row("rebuild of an enclosure", hours(plan.rebuild_enclosure_hours));
    if let Some(n) = plan.enclosures_to_survive_one {
        let verdict = if plan.enclosures >= n { "yes" } else { "no" };
        row("survives a lost enclosure", format!("{verdict} (from {n} on)"));
    }
    let warnings: Vec<_> = plan.warnings.iter().map(|w| format!("note: {w}\n")).collect();
    let table = table.render("");
    format!("{}\n{}", table.trim_start(), warnings.concat())
}

#[cfg(test)]
mod tests;
