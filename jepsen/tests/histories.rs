//! All workloads under faults, for a while, under a fresh seed or `WEFT_SEED`. Needs root (network
//! namespaces).

use anyhow::{Result, ensure};
use std::time::Duration;
use weft_jepsen::nemesis::Nemesis;
use weft_jepsen::run::{Plan, run};
use weft_jepsen::workload;

fn judge(nemeses: &[Nemesis]) -> Result<()> {
    let seed = match std::env::var("WEFT_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => rand::random(),
    };
    let plan = Plan {
        seed,
        clients: 3,
        workloads: workload::ALL.iter().collect(),
        nemeses: nemeses.to_vec(),
        time: Duration::ZERO,
        faults: 6,
        planted: None,
        history: None,
    };
    eprintln!("seed {seed}");
    let summary = run(&plan)?;
    eprintln!("{summary}");
    for (workload, [answered, _]) in &summary.calls {
        ensure!(*answered > 0, "nothing was answered to {workload}");
    }
    Ok(())
}

/// Of processes and the network.
#[test]
fn what_is_answered_is_kept_in_one_order_whoever_dies_or_is_cut_off() -> Result<()> {
    use Nemesis::*;
    judge(&[Kill, KillMount, Pause, Cut, CutOneWay, Lossy, Drain])
}

/// Of disks, and of the power of all servers.
#[test]
fn what_is_answered_is_kept_in_one_order_whatever_disks_do() -> Result<()> {
    use Nemesis::*;
    judge(&[Power, DiskHang, DiskError, DiskFull, Kill])
}
