//! All workloads under faults, for a while, under a fresh seed or `WEFT_SEED`. Needs root (network
//! namespaces).

use anyhow::{Context, Result, ensure};
use std::time::Duration;
use weft_jepsen::nemesis::Nemesis;
use weft_jepsen::run::{Plan, Wrong, run};
use weft_jepsen::workload;

fn plan(nemeses: &[Nemesis]) -> Result<Plan> {
    let seed = match std::env::var("WEFT_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => rand::random(),
    };
    eprintln!("seed {seed}");
    Ok(Plan {
        seed,
        clients: 3,
        workloads: workload::ALL.iter().collect(),
        nemeses: nemeses.to_vec(),
        time: Duration::ZERO,
        faults: 6,
        planted: None,
        history: None,
    })
}

fn judge(nemeses: &[Nemesis]) -> Result<()> {
    let summary = run(&plan(nemeses)?)?;
    eprintln!("{summary}");
    for (workload, [answered, _]) in &summary.calls {
        ensure!(*answered > 0, "nothing was answered to {workload}");
    }
    Ok(())
}

/// Of processes, the network and clocks.
#[test]
fn what_is_answered_is_kept_in_one_order_whoever_dies_or_is_cut_off() -> Result<()> {
    use Nemesis::*;
    judge(&[Kill, KillMount, Pause, Cut, CutOneWay, Lossy, Drain, Clock])
}

/// Of disks, and of the power of all servers.
#[test]
fn what_is_answered_is_kept_in_one_order_whatever_disks_do() -> Result<()> {
    use Nemesis::*;
    judge(&[Power, DiskHang, DiskError, DiskFull, Kill])
}

/// Two that no run misses.
#[test]
fn planted_bugs_are_found() -> Result<()> {
    for bug in ["LockTwice", "CacheOutlivesRecall"] {
        let planted = Some(bug.to_owned());
        let plan = Plan { planted, faults: 1, ..plan(&[Nemesis::Pause])? };
        let error = run(&plan).err().with_context(|| format!("{bug} was not found"))?;
        ensure!(error.is::<Wrong>(), "{bug}: not what was answered is wrong: {error:#}");
    }
    Ok(())
}
