//! Drives, local and behind a fabric.

use super::check::Check;
use super::system::System;

/// Seconds after which the kernel gives up a command, at which a hanging drive is still bearable.
const IO_TIMEOUT_MOST: u64 = 60;

pub fn drives(system: &System) -> Vec<Check> {
    let drive = |n: &String| {
        let hidden = system.read(&format!("sys/block/{n}/hidden")).as_deref() == Some("1");
        let kind = ["nvme", "sd", "vd", "pmem"].iter().any(|k| n.starts_with(k));
        kind && !hidden
    };
    let names: Vec<_> = system.list("sys/block").into_iter().filter(drive).collect();
    if names.is_empty() {
        return vec![Check::none("drives", "no NVMe, SCSI or virtio drive")];
    }
    names.iter().map(|name| one(system, name)).collect()
}

fn one(system: &System, name: &str) -> Check {
    let queue = |attribute: &str| format!("sys/block/{name}/queue/{attribute}");
    let title = format!("drive {name}");
    let sectors: u64 = system.number(&format!("sys/block/{name}/size")).unwrap_or(0);
    let cache = match system.read(&queue("write_cache")).as_deref() {
        Some("write back") => "volatile cache, flushed",
        Some("write through") => "no volatile cache",
        _ => "cache not known",
    };
    let scheduler = system.chosen(&queue("scheduler")).unwrap_or_else(|| "not known".into());
    let size = sectors.saturating_mul(512) / 1_000_000_000;
    let found = format!("{size} GB, {cache}, scheduler {scheduler}");
    if system.number::<u32>(&queue("logical_block_size")).is_some_and(|b| b > 4096) {
        return Check::fail(
            title,
            format!("{found}, blocks larger than 4096 bytes"),
            "format it with 512 or 4096 byte blocks (nvme format --lbaf)",
        );
    }
    if system.read(&format!("sys/block/{name}/ro")).as_deref() == Some("1") {
        return Check::warn(
            title,
            format!("{found}, read-only"),
            "look into its health: smartctl -a",
        );
    }
    // Virtual drives say that they rotate.
    if !name.starts_with("vd") && system.read(&queue("rotational")).as_deref() == Some("1") {
        return Check::warn(title, format!("{found}, rotating"), "use it for cold data at most");
    }
    if name.starts_with("nvme") && !["none", "not known"].contains(&&scheduler[..]) {
        let advice =
            format!("echo none > /sys/block/{name}/queue/scheduler: the drive orders by itself");
        return Check::warn(title, found, &advice);
    }
    Check::ok(title, found)
}

pub fn fabrics(system: &System) -> Vec<Check> {
    let name = "NVMe over Fabrics";
    if !system.exists("dev/nvme-fabrics") {
        let advice = "for drives behind a fabric: modprobe nvme-tcp or nvme-rdma, and name it in \
                      /etc/modules-load.d; not needed for local drives";
        return vec![Check::warn(name, "no /dev/nvme-fabrics", advice)];
    }
    let modules = ["tcp", "rdma"].map(|t| (t, system.exists(&format!("sys/module/nvme_{t}"))));
    let loaded: Vec<_> = modules.iter().filter(|(_, there)| *there).map(|(t, _)| *t).collect();
    let mut checks = vec![if loaded.is_empty() {
        let advice = "modprobe nvme-tcp or nvme-rdma";
        Check::warn(name, "the initiator is there, no transport is loaded", advice)
    } else {
        Check::ok(name, format!("transports: {}", loaded.join(", ")))
    }];
    for c in system.list("sys/class/nvme") {
        checks.extend(path(system, &c));
    }
    checks
}

/// A connection to a drive, and what happens when it breaks.
fn path(system: &System, controller: &str) -> Option<Check> {
    let read = |attribute: &str| system.read(&format!("sys/class/nvme/{controller}/{attribute}"));
    let transport = read("transport").filter(|t| t == "tcp" || t == "rdma")?;
    let title = format!("path {controller}");
    let state = read("state").unwrap_or_else(|| "of unknown state".into());
    let found = format!("{transport}, {state}, {}", read("address").unwrap_or_default());
    let fast_fail = read("fast_io_fail_tmo").unwrap_or_default();
    Some(if state != "live" {
        Check::fail(title, found, "check link, switch and target; the kernel goes on to reconnect")
    } else if fast_fail == "off" || fast_fail == "-1" {
        Check::warn(
            title,
            format!("{found}, fast_io_fail_tmo off"),
            "when the path breaks, I/O waits instead of failing: connect through weft storaged, or \
             echo 5 > /sys/class/nvme/CONTROLLER/fast_io_fail_tmo",
        )
    } else {
        Check::ok(title, found)
    })
}

pub fn multipath(system: &System) -> Vec<Check> {
    let name = "NVMe multipath";
    vec![match system.read("sys/module/nvme_core/parameters/multipath").as_deref() {
        None => Check::none(name, "no NVMe driver is loaded, or it is built without"),
        Some("Y" | "1") => Check::ok(name, "native: paths to one drive are one device"),
        Some(_) => Check::warn(
            name,
            "off: each path is a device of its own",
            "nvme_core.multipath=Y on the kernel's command line, if any drive has two paths",
        ),
    }]
}

pub fn io_timeout(system: &System) -> Vec<Check> {
    let name = "NVMe timeout";
    vec![match system.number::<u64>("sys/module/nvme_core/parameters/io_timeout") {
        None => Check::none(name, "no NVMe driver is loaded"),
        Some(s) if s > IO_TIMEOUT_MOST => Check::warn(
            name,
            format!("{s} s"),
            "nvme_core.io_timeout=30: until then a drive that hangs keeps its requests",
        ),
        Some(s) => Check::ok(name, format!("{s} s")),
    }]
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::super::system::tests::looks;
    use super::*;

    #[test]
    fn drives_are_judged_one_by_one() {
        let all = looks(
            drives,
            &[
                ("sys/block/nvme0n1/size", "7814037168"),
                ("sys/block/nvme0n1/queue/scheduler", "[none] mq-deadline"),
                ("sys/block/nvme0n1/queue/write_cache", "write through"),
                ("sys/block/nvme0n1/queue/rotational", "0"),
                ("sys/block/nvme0c1n1/hidden", "1"),
                ("sys/block/nvme1n1/queue/scheduler", "none [mq-deadline]"),
                ("sys/block/nvme2n1/queue/logical_block_size", "16384"),
                ("sys/block/sda/queue/rotational", "1"),
                ("sys/block/loop0/size", "8"),
            ],
        );
        let verdicts: Vec<_> = all.iter().map(|c| (&c.name[6..], c.verdict)).collect();
        assert_eq!(
            verdicts,
            [
                ("nvme0n1", Verdict::Ok),
                ("nvme1n1", Verdict::Warn),
                ("nvme2n1", Verdict::Fail),
                ("sda", Verdict::Warn)
            ]
        );
        assert!(
            all[0].found.contains("4000 GB, no volatile cache, scheduler none"),
            "{}",
            all[0].found
        );
    }

    #[test]
    fn a_broken_path_fails_and_one_that_would_wait_is_warned_of() {
        let path = |state, fast| {
            let files = [
                ("dev/nvme-fabrics", ""),
                ("sys/module/nvme_tcp/refcnt", "1"),
                ("sys/class/nvme/nvme0/transport", "tcp"),
                ("sys/class/nvme/nvme0/state", state),
                ("sys/class/nvme/nvme0/fast_io_fail_tmo", fast),
                ("sys/class/nvme/nvme1/transport", "pcie"),
            ];
            let all = looks(fabrics, &files);
            assert_eq!((all.len(), all[0].verdict), (2, Verdict::Ok));
            all[1].verdict
        };
        assert_eq!(path("live", "5"), Verdict::Ok);
        assert_eq!(path("live", "off"), Verdict::Warn);
        assert_eq!(path("connecting", "5"), Verdict::Fail);
        let timeout =
            |s| looks(io_timeout, &[("sys/module/nvme_core/parameters/io_timeout", s)])[0].verdict;
        assert_eq!((timeout("30"), timeout("4294967295")), (Verdict::Ok, Verdict::Warn));
    }
}
