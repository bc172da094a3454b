//! Kernel, clock, limits, FUSE: what every role stands on.

use super::check::Check;
use super::system::System;

/// Ports of the samples in `deploy/`.
const PORTS: [u16; 2] = [7100, 7200];

pub fn kernel(system: &System) -> Vec<Check> {
    let name = "kernel";
    let release = system.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let advice = "use 6.1 or newer (FUSE over io_uring: 6.14)";
    vec![match version(&release) {
        None => Check::warn(name, "its version cannot be read", advice),
        Some(v) if v < (5, 10) => Check::fail(name, release, advice),
        Some(v) if v < (6, 1) => Check::warn(name, release, advice),
        Some(_) => Check::ok(name, release),
    }]
}

pub fn clock(system: &System) -> Vec<Check> {
    let name = "clock";
    let advice = "run chrony, systemd-timesyncd or ptp4l: times of files come from these clocks";
    vec![match system.live.clock_synchronised {
        Some(true) => Check::ok(name, "synchronised"),
        Some(false) => Check::warn(name, "nothing keeps it right", advice),
        None => Check::warn(name, "the kernel does not say whether it is right", advice),
    }]
}

pub fn open_files(system: &System) -> Vec<Check> {
    let (name, limit) = ("open files", system.live.open_files);
    let advice = "raise the hard limit (LimitNOFILE= of the unit, /etc/security/limits.conf): \
                  every peer and every table of the index takes one";
    vec![match limit {
        n if n < 4096 => Check::fail(name, format!("at most {n}"), advice),
        n if n < 65536 => Check::warn(name, format!("at most {n} (65536 are plenty)"), advice),
        n if n == u64::MAX => Check::ok(name, "no limit"),
        n => Check::ok(name, format!("at most {n}")),
    }]
}

/// The kernel gives ports to outgoing connections: then a daemon does not start, now and then.
pub fn ports(system: &System) -> Vec<Check> {
    let name = "ports";
    let range = system.read("proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = range.split_whitespace().map(str::parse::<u16>);
    let (Some(Ok(low)), Some(Ok(high))) = (bounds.next(), bounds.next()) else {
        return vec![Check::none(name, "the range of outgoing connections cannot be read")];
    };
    let reserved = system.read("proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    let taken = |port: u16| (low..=high).contains(&port) && !covers(&reserved, port);
    let clash: Vec<_> = PORTS.iter().filter(|&&p| taken(p)).map(u16::to_string).collect();
    vec![if clash.is_empty() {
        Check::ok(name, format!("outgoing connections use {low}-{high}"))
    } else {
        Check::warn(
            name,
            format!("outgoing connections use {low}-{high}, with {} in it", clash.join(" and ")),
            "sysctl net.ipv4.ip_local_reserved_ports=7100,7200 (or the ports that you use)",
        )
    }]
}

/// Whether a list such as `7100,7200-7300` has the port.
fn covers(list: &str, port: u16) -> bool {
    list.split(',').any(|part| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let bound = |text: &str| text.trim().parse::<u16>().ok();
        matches!((bound(low), bound(high)), (Some(l), Some(h)) if (l..=h).contains(&port))
    })
}

pub fn huge_pages(system: &System) -> Vec<Check> {
    let name = "transparent huge pages";
    let at = "sys/kernel/mm/transparent_hugepage";
    let Some(enabled) = system.chosen(&format!("{at}/enabled")) else {
        return vec![Check::none(name, "this kernel has none")];
    };
    let defrag = system.chosen(&format!("{at}/defrag")).unwrap_or_default();
    vec![if enabled == "always" && defrag == "always" {
        Check::warn(
            name,
            "always, and every fault waits for one to be made",
            "echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag: compaction stalls \
             requests",
        )
    } else {
        Check::ok(name, format!("{enabled}, made {defrag}"))
    }]
}

pub fn governor(system: &System) -> Vec<Check> {
    let name = "CPU frequency";
    let at = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    vec![match system.read(at) {
        None => Check::none(name, "not steered by this system"),
        Some(g) if g == "performance" => Check::ok(name, g),
        Some(g) => Check::warn(
            name,
            format!("governor {g}"),
            "cpupower frequency-set -g performance: short requests end before a core has sped up",
        ),
    }]
}

pub fn io_uring(system: &System) -> Vec<Check> {
    let name = "io_uring";
    vec![match &system.live.io_uring {
        Ok(()) => Check::ok(name, "works"),
        Err(e) => {
            let switch = system.read("proc/sys/kernel/io_uring_disabled");
            let off = switch
                .filter(|s| s != "0")
                .map_or(String::new(), |s| format!(" (kernel.io_uring_disabled is {s})"));
            Check::fail(
                name,
                format!("cannot be used: {e}{off}"),
                "sysctl kernel.io_uring_disabled=0; in a container, allow io_uring in its seccomp \
                 profile",
            )
        }
    }]
}

pub fn fuse(system: &System) -> Vec<Check> {
    let name = "FUSE";
    if !system.exists("dev/fuse") {
        let advice = "modprobe fuse; in a container, pass the device /dev/fuse";
        return vec![Check::fail(name, "/dev/fuse is not there: nothing can be mounted", advice)];
    }
    let helper = ["usr/bin/fusermount3", "bin/fusermount3"].iter().any(|p| system.exists(p));
    let mut checks = vec![if helper {
        Check::ok(name, "/dev/fuse and fusermount3 are there")
    } else {
        Check::warn(
            name,
            "/dev/fuse is there, fusermount3 is not: only root can mount",
            "install the package fuse3",
        )
    }];
    let name = "FUSE over io_uring";
    checks.push(match system.read("sys/module/fuse/parameters/enable_uring").as_deref() {
        Some("Y" | "1") => Check::ok(name, "on"),
        Some(_) => Check::warn(
            name,
            "off",
            "echo Y > /sys/module/fuse/parameters/enable_uring (options fuse enable_uring=1 in \
             /etc/modprobe.d): the kernel then hands over requests with fewer system calls",
        ),
        None => Check::none(name, "this kernel does not have it (from 6.14 on)"),
    });
    checks
}

/// The number of the PID namespace of a whole machine (Linux, `PROC_PID_INIT_INO`).
const WHOLE_MACHINE: &str = "pid:[4026531836]";

/// Whether the kernel may keep the names that a mount looks up; else it asks for each.
pub fn names(system: &System) -> Vec<Check> {
    let name = "names in the kernel";
    let without = "it asks a mount for each name, each time";
    let release = system.read("proc/sys/kernel/osrelease").unwrap_or_default();
    // Or a part of it that a compiler has split off.
    let is_walk = |line: String| {
        let mut parts = line.split_ascii_whitespace().nth(2).unwrap_or_default().split('.');
        parts.next() == Some("link_path_walk")
    };
    let sees_walks = system.read("proc/thread-self/stack").is_some()
        && system.has_line("proc/kallsyms", is_walk);
    vec![if version(&release).is_some_and(|v| v < (6, 6)) {
        Check::warn(name, format!("Linux {release}: {without}"), "use 6.6 or newer")
    } else if !sees_walks {
        Check::warn(
            name,
            format!("/proc/self/stack and /proc/kallsyms tell this user nothing: {without}"),
            "look again as root, and mount as root: what is there needs CONFIG_STACKTRACE and \
             CONFIG_KALLSYMS",
        )
    } else if system.link("proc/self/ns/pid").is_some_and(|own| own != WHOLE_MACHINE) {
        Check::warn(
            name,
            format!("this is a PID namespace of its own: of programs outside it, {without}"),
            "mount in the host's PID namespace (hostPID: true of a pod)",
        )
    } else {
        Check::ok(name, "kept while leases say that they are good")
    }]
}

/// Of a kernel.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::super::system::tests::{bare, looks, tree};
    use super::*;

    fn verdict(look: fn(&System) -> Vec<Check>, files: &[(&str, &str)]) -> Verdict {
        looks(look, files)[0].verdict
    }

    #[test]
    fn kernels_are_judged_by_their_numbers() {
        let kernel_of = |v| verdict(kernel, &[("proc/sys/kernel/osrelease", v)]);
        assert_eq!(kernel_of("6.1.0-31-amd64"), Verdict::Ok);
        assert_eq!(kernel_of("5.15.0"), Verdict::Warn);
        assert_eq!(kernel_of("4.18.0-553.el8"), Verdict::Fail);
        assert_eq!(kernel_of("linux"), Verdict::Warn);
    }

    #[test]
    fn a_kernel_keeps_names_where_the_mount_may_see_who_walks() {
        let stack = ("proc/thread-self/stack", "[<0>] proc_pid_stack+0xaa/0x110");
        let symbols = ("proc/kallsyms", "0000000000000000 T link_path_walk");
        let of = |release| ("proc/sys/kernel/osrelease", release);
        assert_eq!(verdict(names, &[stack, symbols, of("6.12.1")]), Verdict::Ok);
        assert_eq!(verdict(names, &[stack, symbols, of("6.1.0")]), Verdict::Warn);
        assert_eq!(verdict(names, &[symbols, of("6.12.1")]), Verdict::Warn);
        assert_eq!(verdict(names, &[stack, of("6.12.1")]), Verdict::Warn);
        let part = ("proc/kallsyms", "0000000000000000 t link_path_walk.part.0.constprop.0");
        assert_eq!(verdict(names, &[stack, part, of("6.12.1")]), Verdict::Ok);
        let dir = tempfile::tempdir().unwrap();
        tree(dir.path(), &[stack, symbols, of("6.12.1"), ("proc/self/ns/x", "")]);
        let own = |at| {
            let link = dir.path().join("proc/self/ns/pid");
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(at, link).unwrap();
            names(&bare(dir.path()))[0].verdict
        };
        assert_eq!((own(WHOLE_MACHINE), own("pid:[4026532415]")), (Verdict::Ok, Verdict::Warn));
    }

    #[test]
    fn a_port_that_the_kernel_may_give_away_is_noticed() {
        let range = |range, reserved| {
            let files = [
                ("proc/sys/net/ipv4/ip_local_port_range", range),
                ("proc/sys/net/ipv4/ip_local_reserved_ports", reserved),
            ];
            verdict(ports, &files)
        };
        assert_eq!(range("32768\t60999", ""), Verdict::Ok);
        assert_eq!(range("1024 65535", ""), Verdict::Warn);
        assert_eq!(range("1024 65535", "80,7000-7150"), Verdict::Warn);
        assert_eq!(range("1024 65535", "7100,7200-7300"), Verdict::Ok);
    }

    #[test]
    fn fuse_without_its_uring_is_a_hint_only() {
        let files = [
            ("dev/fuse", ""),
            ("usr/bin/fusermount3", ""),
            ("sys/module/fuse/parameters/enable_uring", "N"),
        ];
        let all = looks(fuse, &files);
        assert_eq!([all[0].verdict, all[1].verdict], [Verdict::Ok, Verdict::Warn]);
        assert!(all[1].advice.as_ref().unwrap().contains("enable_uring"));
    }
}
