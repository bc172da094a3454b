//! The network: links, RDMA devices, what RoCE needs to lose nothing.
//!
//! Priority flow control and congestion notification are set in the NIC's firmware or by `dcb` over
//! netlink; sysfs shows them for few drivers. What it does show everywhere are the counters of a
//! fabric that loses packets.

use super::check::Check;
use super::system::System;

/// MTU of an Ethernet that carries RDMA's largest packets, 4096 bytes and headers.
const RDMA_MTU: u32 = 4200;
/// Links from this speed on, in Mb/s, are meant for data.
const FAST: i64 = 10_000;
/// Registered buffers of a busy daemon or client, in bytes.
const LOCKED: u64 = 1 << 30;

const RDMA: &str = "sys/class/infiniband";

pub fn links(system: &System) -> Vec<Check> {
    let link = |name: &String| {
        let read = |attribute: &str| system.read(&format!("sys/class/net/{name}/{attribute}"));
        let speed: i64 = read("speed")?.parse().ok()?;
        let mtu: u32 = read("mtu")?.parse().ok()?;
        let hardware = system.exists(&format!("sys/class/net/{name}/device"));
        if !hardware || speed <= 0 {
            return None;
        }
        let found = format!("{} Gb/s, MTU {mtu}", speed as f64 / 1000.0);
        let title = format!("link {name}");
        Some(if speed >= FAST && mtu < RDMA_MTU {
            let advice =
                format!("ip link set {name} mtu 9000, and the same on every switch between");
            Check::warn(title, found, &advice)
        } else {
            Check::ok(title, found)
        })
    };
    let all: Vec<_> = system.list("sys/class/net").iter().filter_map(link).collect();
    if all.is_empty() { vec![Check::none("links", "no NIC tells its speed")] } else { all }
}

pub fn rdma(system: &System) -> Vec<Check> {
    let devices = system.list(RDMA);
    if devices.is_empty() {
        return vec![Check::none("RDMA", "no device; TCP is used")];
    }
    devices.iter().flat_map(|device| ports(system, device)).collect()
}

fn ports(system: &System, device: &str) -> Vec<Check> {
    let mut checks = Vec::new();
    for port in system.list(&format!("{RDMA}/{device}/ports")) {
        let at = format!("{RDMA}/{device}/ports/{port}");
        let title = format!("RDMA {device}/{port}");
        let state =
            system.read(&format!("{at}/state")).unwrap_or_else(|| "of unknown state".into());
        let layer = system.read(&format!("{at}/link_layer")).unwrap_or_default();
        let rate = system.read(&format!("{at}/rate")).unwrap_or_default();
        let found = format!("{layer} {state} {rate}");
        if !state.contains("ACTIVE") {
            checks.push(Check::warn(
                title,
                found,
                "not used while it is so: check cable, link and subnet manager",
            ));
            continue;
        }
        checks.push(Check::ok(title, found));
        if layer == "Ethernet" {
            checks.extend(roce(system, device, &port));
        }
    }
    checks
}

fn roce(system: &System, device: &str, port: &str) -> Vec<Check> {
    let mut checks = vec![gids(system, device, port)];
    // Software devices have no switch to tell anything to.
    let soft = !system.exists(&format!("{RDMA}/{device}/device"));
    let netdev = netdev(system, device, port);
    if let Some(netdev) = netdev.as_deref() {
        checks.push(mtu(system, device, netdev));
    }
    if soft {
        checks.push(Check::none(format!("lossless {device}"), "a software device"));
        return checks;
    }
    checks.push(mode(system, device, port));
    checks.push(pfc(system, device, netdev.as_deref()));
    checks.push(ecn(system, device, port, netdev.as_deref()));
    checks.push(losses(system, device, port));
    checks
}

/// The Ethernet below the port.
fn netdev(system: &System, device: &str, port: &str) -> Option<String> {
    let at = format!("{RDMA}/{device}/ports/{port}/gid_attrs/ndevs");
    let names = system.list(&at).into_iter();
    names.filter_map(|i| system.read(&format!("{at}/{i}"))).find(|n| !n.contains(['/', ' ']))
}

/// RoCE v1 does not pass a router, and switches do not mark it.
fn gids(system: &System, device: &str, port: &str) -> Check {
    let title = format!("GID type {device}");
    let at = format!("{RDMA}/{device}/ports/{port}/gid_attrs/types");
    // Empty entries of the table answer with an error, so reading none of them is no finding.
    let types: Vec<_> =
        system.list(&at).iter().filter_map(|i| system.read(&format!("{at}/{i}"))).collect();
    let v2 = types.iter().filter(|t| t.contains("v2")).count();
    if v2 > 0 {
        Check::ok(title, format!("{v2} of RoCE v2"))
    } else {
        let advice = "give the Ethernet below an IP address and set the port to RoCE v2 \
                      (cma_roce_mode, or mlxconfig ROCE_CC...): v1 is not routed";
        Check::fail(title, format!("no RoCE v2 GID among {}", types.len()), advice)
    }
}

fn mode(system: &System, device: &str, port: &str) -> Check {
    let title = format!("RoCE mode {device}");
    let at = format!("sys/kernel/config/rdma_cm/{device}/ports/{port}");
    let tos = system.read(&format!("{at}/default_roce_tos")).unwrap_or_else(|| "0".into());
    match system.read(&format!("{at}/default_roce_mode")) {
        Some(mode) if mode.contains("v2") && tos != "0" => {
            Check::ok(title, format!("{mode}, type of service {tos}"))
        }
        Some(mode) if mode.contains("v2") => Check::warn(
            title,
            format!("{mode}, type of service 0: packets fall into the switches' lossy class"),
            "echo 106 > .../rdma_cm/DEVICE/ports/1/default_roce_tos (DSCP 26, or what your \
             switches expect)",
        ),
        Some(mode) => {
            Check::fail(title, mode, "cma_roce_mode -d DEVICE -p 1 -m 2: v1 is not routed")
        }
        None => Check::warn(
            title,
            "not shown",
            "mkdir /sys/kernel/config/rdma_cm/DEVICE (modprobe rdma_cm, mount configfs), then \
             look again",
        ),
    }
}

fn mtu(system: &System, device: &str, netdev: &str) -> Check {
    let title = format!("RDMA MTU {device}");
    match system.number::<u32>(&format!("sys/class/net/{netdev}/mtu")) {
        Some(mtu) if mtu >= RDMA_MTU => {
            Check::ok(title, format!("{netdev} has {mtu}: packets of 4096 bytes"))
        }
        Some(mtu) => Check::warn(
            title,
            format!(
                "{netdev} has {mtu}: packets of {} bytes at most",
                if mtu >= 2200 { 2048 } else { 1024 }
            ),
            &format!(
                "ip link set {netdev} mtu 9000 (at least {RDMA_MTU}), and on every switch between"
            ),
        ),
        None => Check::warn(title, format!("that of {netdev} cannot be read"), "look at ip link"),
    }
}

fn pfc(system: &System, device: &str, netdev: Option<&str>) -> Check {
    let title = format!("PFC {device}");
    let netdev = netdev.unwrap_or("NETDEV");
    let advice = format!(
        "look at `dcb pfc show dev {netdev}` (or mlnx_qos -i {netdev}): on for the priority of \
         RoCE, on hosts and switches alike, trust by DSCP"
    );
    let read = |attribute: &str| system.read(&format!("sys/class/net/{netdev}/qos/{attribute}"));
    match read("pfc") {
        Some(on) if on.split([' ', ',']).any(|p| p.trim() == "1") => Check::ok(
            title,
            format!("{on}, trust {}", read("trust").unwrap_or_else(|| "not shown".into())),
        ),
        Some(off) => Check::warn(title, format!("off on every priority ({off})"), &advice),
        None => Check::warn(title, "this driver does not show it in sysfs", &advice),
    }
}

fn ecn(system: &System, device: &str, port: &str, netdev: Option<&str>) -> Check {
    let title = format!("ECN {device}");
    let at = format!("sys/class/net/{}/ecn", netdev.unwrap_or_default());
    let on = |side: &str| {
        let folder = format!("{at}/{side}/enable");
        let names = system.list(&folder);
        (!names.is_empty()).then(|| {
            names
                .iter()
                .filter(|n| system.read(&format!("{folder}/{n}")).as_deref() == Some("1"))
                .count()
        })
    };
    let counter = |name: &str| {
        system.number::<u64>(&format!("{RDMA}/{device}/ports/{port}/hw_counters/{name}"))
    };
    let advice = "enable congestion control for the priority of RoCE on the NIC (roce_np, \
                  roce_rp) and ECN marking for it on the switches";
    match (on("roce_np"), on("roce_rp")) {
        (Some(np), Some(rp)) if np > 0 && rp > 0 => {
            Check::ok(title, format!("on for {np} priorities (notify), {rp} (react)"))
        }
        (Some(_), _) | (_, Some(_)) => Check::warn(title, "off", advice),
        (None, None) => match (counter("np_cnp_sent"), counter("rp_cnp_handled")) {
            (Some(sent), Some(handled)) if sent + handled > 0 => {
                Check::ok(title, format!("in use: {sent} notifications sent, {handled} reacted to"))
            }
            _ => Check::warn(title, "this driver does not show it in sysfs", advice),
        },
    }
}

/// Whether the fabric has lost packets since the driver was loaded.
fn losses(system: &System, device: &str, port: &str) -> Check {
    let title = format!("losses {device}");
    let at = format!("{RDMA}/{device}/ports/{port}/hw_counters");
    let names = ["out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"];
    let counts: Vec<(&str, u64)> =
        names.iter().filter_map(|n| Some((*n, system.number(&format!("{at}/{n}"))?))).collect();
    let lost: Vec<_> =
        counts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    if counts.is_empty() {
        Check::none(title, "this driver counts none")
    } else if lost.is_empty() {
        Check::ok(title, "none since the driver was loaded")
    } else {
        Check::warn(
            title,
            lost.join(", "),
            "if these grow under load, the fabric is not lossless: check PFC and ECN on hosts and \
             switches",
        )
    }
}

pub fn memlock(system: &System) -> Vec<Check> {
    let name = "locked memory";
    let advice = "LimitMEMLOCK=infinity in the unit (the samples have it), memlock in limits.conf \
                  for programs that use the library";
    let rdma = !system.list(RDMA).is_empty();
    vec![match system.live.memlock {
        u64::MAX => Check::ok(name, "no limit"),
        n if n >= LOCKED => Check::ok(name, format!("{} MiB", n >> 20)),
        n if rdma => {
            Check::fail(name, format!("{} MiB: RDMA cannot register its buffers", n >> 20), advice)
        }
        n => Check::ok(
            name,
            format!(
                "{} MiB in this shell, enough without RDMA; a storage daemon that is not root \
                 reads and writes with less CPU if it has more (the sample unit sets \
                 LimitMEMLOCK=infinity)",
                n >> 20
            ),
        ),
    }]
}

#[cfg(test)]
mod tests;
