//! Hours of load and faults, with an account of memory, descriptors, threads and files of every
//! process.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

use anyhow::Result;
use clap::Parser;
use std::time::Duration;
use weft_jepsen::soak::{Soak, soak};

/// Works on a real cluster for hours while faults strike it; fails if anything grows
#[derive(Parser)]
struct Args {
    /// Decides which faults strike
    #[arg(long)]
    seed: Option<u64>,
    /// How long
    #[arg(long, default_value_t = 120)]
    minutes: u64,
    /// How long faults strike before it is looked at what all processes have
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Mounts
    #[arg(long, default_value_t = 3)]
    clients: u8,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(rand::random);
    eprintln!("seed {seed}");
    let told = soak(&Soak {
        seed,
        clients: args.clients.max(1),
        time: Duration::from_secs(60 * args.minutes),
        round: Duration::from_secs(args.seconds),
    })?;
    println!("{told}");
    Ok(())
}
