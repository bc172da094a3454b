//! `weft doctor`: what an admin must get right on one machine, looked up, judged, with advice.
//!
//! It only looks. What it knows comes from sysfs, procfs and a few system calls ([`system`]); each
//! check is a function from that to what was found and a verdict, so that it can be tried on a tree
//! of files. What cannot be found out is said to be so and is never called good.

mod check;
mod drives;
mod fabric;
mod gpu;
mod host;
mod system;

use crate::output::OutputArgs;
use anyhow::Result;
use check::{Check, Verdict};
use serde::Serialize;
use std::process::ExitCode;
use system::System;

/// Check what this machine must have right to run Weft well
///
/// Looks and never changes anything. Some answers need root.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft doctor                        # everything
  weft doctor --role storage         # a machine with drives
  weft doctor --role client --output json

Exit codes: 0 nothing failed, 1 something failed (with --strict: or was warned of), 2 wrong \
usage.")]
pub struct Args {
    /// What this machine does; repeat the flag for several [default: everything]
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Vec<Role>,
    /// Count warnings as failures
    #[arg(long)]
    strict: bool,
    /// Show what does not apply to this machine, too
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Role {
    /// Mounts the filesystem; GPUs
    Client,
    /// Runs a storage daemon
    Storage,
    /// Runs a metadata server
    Metadata,
}
use Role::{Client, Metadata, Storage};

type Look = fn(&System) -> Vec<Check>;

/// Every look, the roles that it matters to, in the order in which it is shown.
const LOOKS: &[(Look, &[Role])] = &[
    (host::kernel, &[Client, Storage, Metadata]),
    (host::clock, &[Client, Storage, Metadata]),
    (host::open_files, &[Client, Storage, Metadata]),
    (host::ports, &[Storage, Metadata]),
    (host::huge_pages, &[Storage, Metadata]),
    (host::governor, &[Client, Storage, Metadata]),
    (host::io_uring, &[Storage]),
    (host::fuse, &[Client]),
    (host::names, &[Client]),
    (drives::drives, &[Storage]),
    (drives::fabrics, &[Storage]),
    (drives::multipath, &[Storage]),
    (drives::io_timeout, &[Storage]),
    (fabric::links, &[Client, Storage, Metadata]),
    (fabric::rdma, &[Client, Storage]),
    (fabric::memlock, &[Client, Storage]),
    (gpu::driver, &[Client]),
    (gpu::cuda, &[Client]),
    (gpu::iommu, &[Client]),
    (gpu::acs, &[Client]),
    (gpu::numa, &[Client, Storage]),
];

#[derive(Serialize)]
struct Report {
    healthy: bool,
    failures: usize,
    warnings: usize,
    checks: Vec<Check>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let report = examine(&System::this(), &args.role);
    args.output.print(&report, |report| text(report, args.all))?;
    let bad = report.failures + if args.strict { report.warnings } else { 0 };
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn examine(system: &System, roles: &[Role]) -> Report {
    let wanted = |of: &[Role]| roles.is_empty() || roles.iter().any(|r| of.contains(r));
    let looks = LOOKS.iter().filter(|(_, of)| wanted(of));
    let checks: Vec<_> = looks.flat_map(|(look, _)| look(system)).collect();
    let count = |verdict| checks.iter().filter(|c| c.verdict == verdict).count();
    let (failures, warnings) = (count(Verdict::Fail), count(Verdict::Warn));
    Report { healthy: failures == 0, failures, warnings, checks }
}

fn text(report: &Report, all: bool) -> String {
    let mut out = String::new();
    let shown = |c: &&Check| all || c.verdict != Verdict::NotApplicable;
    let width =
        report.checks.iter().filter(shown).map(|c| c.name.chars().count()).max().unwrap_or(0);
    for check in report.checks.iter().filter(shown) {
        out += &format!("{:<5} {:<width$}  {}\n", check.verdict.word(), check.name, check.found);
        if let Some(advice) = &check.advice {
            out += &format!("      {:width$}  -> {advice}\n", "");
        }
    }
    let hidden = report.checks.iter().filter(|c| !shown(c)).count();
    out += &format!("\n{} failed, {} warnings", report.failures, report.warnings);
    if hidden > 0 {
        out += &format!("; {hidden} checks do not apply here (--all shows them)");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use system::tests::{bare, tree};

    #[test]
    fn a_machine_of_which_nothing_is_known_is_no_reason_to_panic() {
        let dir = tempfile::tempdir().unwrap();
        let report = examine(&bare(dir.path()), &[]);
        assert!(!report.healthy, "no FUSE, so nothing can be mounted");
        assert!(report.checks.len() >= LOOKS.len(), "every look says something");
        for check in &report.checks {
            let advised = matches!(check.verdict, Verdict::Warn | Verdict::Fail);
            assert_eq!(check.advice.is_some(), advised, "{}: {}", check.name, check.found);
        }
        let metadata = examine(&bare(dir.path()), &[Role::Metadata]);
        assert!(metadata.checks.iter().all(|c| c.name != "FUSE"));
        assert!(text(&report, true).lines().count() > text(&report, false).lines().count());
    }

    #[test]
    fn garbage_in_every_file_is_survived() {
        let dir = tempfile::tempdir().unwrap();
        for garbage in
            ["", "\u{0}\u{1}", "-1", "99999999999999999999999", "[", "a b c", "0x", "\n\n"]
        {
            tree(
                dir.path(),
                &[
                    "proc/sys/net/ipv4/ip_local_port_range",
                    "proc/sys/net/ipv4/ip_local_reserved_ports",
                    "sys/kernel/mm/transparent_hugepage/enabled",
                    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                    "proc/sys/kernel/io_uring_disabled",
                    "sys/module/fuse/parameters/enable_uring",
                    "dev/fuse",
                    "sys/block/nvme0n1/queue/scheduler",
                    "sys/block/nvme0n1/queue/write_cache",
                    "sys/block/nvme0n1/queue/logical_block_size",
                    "sys/block/nvme0n1/size",
                    "sys/block/nvme0n1/device/numa_node",
                    "sys/module/nvme_core/parameters/multipath",
                    "sys/module/nvme_core/parameters/io_timeout",
                    "sys/class/net/eth0/mtu",
                    "sys/class/net/eth0/speed",
                    "sys/class/net/eth0/device/numa_node",
                    "sys/class/infiniband/mlx5_0/ports/1/link_layer",
                    "sys/class/infiniband/mlx5_0/ports/1/state",
                    "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0",
                    "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0",
                    "sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence",
                    "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode",
                    "sys/class/net/eth0/qos/pfc",
                    "sys/bus/pci/devices/0000:00:01.0/class",
                    "sys/bus/pci/devices/0000:00:01.0/config",
                    "sys/bus/pci/devices/0000:01:00.0/vendor",
                    "sys/kernel/iommu_groups/0/type",
                ]
                .map(|path| (path, garbage)),
            );
            let report = examine(&bare(dir.path()), &[]);
            assert!(!text(&report, true).contains('\u{1}'), "nothing drives the terminal");
        }
    }
}
