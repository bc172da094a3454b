//! The append workload under a fixed and a fresh seed. Needs root (network namespaces).

use anyhow::Result;
use weft_jepsen::workload::{Plan, run};

#[test]
fn no_acknowledged_append_is_lost_doubled_or_reordered() -> Result<()> {
    let seed = match std::env::var("WEFT_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => rand::random(),
    };
    run(&Plan { seed, clients: 3, faults: 6, calls: 30, history: None })
}
