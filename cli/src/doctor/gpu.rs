//! GPUs, and whether NICs reach their memory directly.

use super::check::Check;
use super::system::System;

const PCI: &str = "sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
/// PCI Express extended capability of access control services.
const ACS: u16 = 0x000D;
/// Control bits that send traffic between two devices up to the root: request redirect, completion
/// redirect, upstream forwarding.
const REDIRECT: u16 = 0x0004 | 0x0008 | 0x0010;

pub fn driver(system: &System) -> Vec<Check> {
    let name = "GPUDirect";
    let gpus = system.gpus();
    if gpus.is_empty() {
        return vec![Check::none(name, "no GPU")];
    }
    let found = format!("{} GPUs", gpus.len());
    let module = |m: &str| system.exists(&format!("sys/module/{m}"));
    vec![if !module("nvidia") && !module("amdgpu") {
        Check::fail(
            "GPU driver",
            found,
            "no driver is loaded: install it and load nvidia or amdgpu",
        )
    } else if module("nvidia_peermem") {
        Check::ok(name, format!("{found}, nvidia-peermem"))
    } else if system.read("proc/driver/nvidia/version").is_some_and(|v| v.contains("Open Kernel")) {
        Check::ok(name, format!("{found}, open kernel modules: memory is exported as dma-buf"))
    } else if module("amdgpu") {
        Check::ok(name, format!("{found}, amdgpu: memory is exported as dma-buf"))
    } else {
        Check::warn(
            name,
            format!("{found}, no way to their memory for a NIC"),
            "modprobe nvidia-peermem, or use the open kernel modules (dma-buf); until then data \
             goes by host memory",
        )
    }]
}

/// NVIDIA's GPUs as programs find them: through the driver's library.
pub fn cuda(system: &System) -> Vec<Check> {
    let name = "CUDA";
    let vendor = |gpu: &String| system.read(&format!("{PCI}/{gpu}/vendor"));
    let nvidia = |gpu: &String| vendor(gpu).is_some_and(|vendor| vendor.trim() == NVIDIA);
    if !system.gpus().iter().any(nvidia) {
        return vec![Check::none(name, "no GPU of NVIDIA")];
    }
    let gpus = match weft_gpu::gpus() {
        Ok(gpus) => gpus,
        Err(error) => {
            let advice = "install NVIDIA's driver with its library libcuda.so.1: programs cannot \
                          read into the memory of GPUs without it";
            return vec![Check::fail(name, error.to_string(), advice)];
        }
    };
    let shown = gpus.iter().map(|gpu| {
        let ways = match (gpu.dma_buf, gpu.peer_memory) {
            (true, _) => "dma-buf",
            (false, true) => "peer memory",
            (false, false) => "through the host only",
        };
        format!("{} at {} ({ways})", gpu.name, gpu.pci)
    });
    vec![Check::ok(name, shown.collect::<Vec<_>>().join(", "))]
}

pub fn iommu(system: &System) -> Vec<Check> {
    let name = "IOMMU";
    if system.gpus().is_empty() {
        return vec![Check::none(name, "matters with a GPU")];
    }
    let groups = "sys/kernel/iommu_groups";
    let types: Vec<_> = (system.list(groups).iter())
        .filter_map(|g| system.read(&format!("{groups}/{g}/type")))
        .collect();
    let translated = types.iter().filter(|t| t.starts_with("DMA")).count();
    vec![if translated == 0 {
        Check::ok(name, if types.is_empty() { "off" } else { "passes addresses through" })
    } else {
        Check::warn(
            name,
            format!("translates for {translated} of {} groups", types.len()),
            "iommu=pt on the kernel's command line: traffic between NIC and GPU otherwise takes a \
             detour or fails",
        )
    }]
}

/// Access control services on a bridge send what one device says to another up to the root.
pub fn acs(system: &System) -> Vec<Check> {
    let name = "PCI ACS";
    if system.gpus().is_empty() {
        return vec![Check::none(name, "matters with a GPU")];
    }
    let bridges = system.pci("0x0604");
    let configs: Vec<_> =
        bridges.iter().map(|b| (b, system.bytes(&format!("{PCI}/{b}/config")))).collect();
    // Without root the kernel shows the first 64 bytes. Some machines hide what comes after 256.
    let is_hidden = |bytes: &[u8]| bytes.len() < 256 || bytes.len() == 256 && is_express(bytes);
    if configs.iter().any(|(_, bytes)| is_hidden(bytes)) {
        return vec![Check::warn(name, "cannot be read", "run this as root")];
    }
    let on: Vec<_> = configs
        .iter()
        .filter(|(_, bytes)| acs_control(bytes).is_some_and(|c| c & REDIRECT != 0))
        .map(|(b, _)| b.as_str())
        .collect();
    vec![if on.is_empty() {
        Check::ok(name, format!("off on all {} bridges", bridges.len()))
    } else {
        let some = on.iter().take(4).copied().collect::<Vec<_>>().join(", ");
        Check::warn(
            name,
            format!("on for {} of {} bridges ({some})", on.len(), bridges.len()),
            "switch it off in the firmware, or setpci -s BRIDGE ECAP_ACS+0x6.w=0000 at boot (not \
             in virtual machines): traffic between NIC and GPU then stays below their switch",
        )
    }]
}

/// Whether a device has more than 256 bytes of configuration: a bridge to old PCI has not.
fn is_express(config: &[u8]) -> bool {
    let byte = |at: u8| config.get(usize::from(at)).copied().unwrap_or_default();
    let mut at = if byte(0x06) & 0x10 == 0 { 0 } else { byte(0x34) };
    for _ in 0..48 {
        match (at & !3, byte(at & !3)) {
            (0, _) => return false,
            (_, 0x10) => return true,
            (this, _) => at = byte(this | 1),
        }
    }
    false
}

/// The control word of the ACS capability, from a device's configuration space.
fn acs_control(config: &[u8]) -> Option<u16> {
    let word = |at: usize| Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]));
    let mut at = 0x100;
    // A chain that runs in a circle ends, too: each capability takes four bytes at least.
    for _ in 0..(4096 - 0x100) / 4 {
        if word(at)? == ACS {
            return word(at + 6);
        }
        at = usize::from(word(at + 2)? >> 4) & !3;
        if at < 0x100 {
            return None;
        }
    }
    None
}

pub fn numa(system: &System) -> Vec<Check> {
    let name = "NUMA";
    let nodes = system.list("sys/devices/system/node");
    let nodes =
        nodes.iter().filter(|n| n.strip_prefix("node").is_some_and(|d| d.parse::<u32>().is_ok()));
    if nodes.count() < 2 {
        return vec![Check::none(name, "one node")];
    }
    let node = |path: String| system.number::<i32>(&format!("{path}/numa_node"));
    let group = |folder: &str, prefix: &str| -> Vec<(String, i32)> {
        let names = system.list(folder).into_iter().filter(|n| n.starts_with(prefix));
        names.filter_map(|n| Some((n.clone(), node(format!("{folder}/{n}/device"))?))).collect()
    };
    let nics = group("sys/class/net", "");
    let drives = group("sys/class/nvme", "nvme");
    let gpus: Vec<_> = system
        .gpus()
        .into_iter()
        .filter_map(|g| Some((g.clone(), node(format!("{PCI}/{g}"))?)))
        .collect();
    let has = |all: &[(String, i32)], node: i32| all.iter().any(|(_, n)| *n == node);
    let show = |what: &str, all: &[(String, i32)]| {
        let all: Vec<_> = all.iter().map(|(n, node)| format!("{n}@{node}")).collect();
        if all.is_empty() { format!("no {what}") } else { all.join(" ") }
    };
    let found = [show("NIC", &nics), show("NVMe drive", &drives), show("GPU", &gpus)].join("; ");
    let known = nics.iter().chain(&drives).chain(&gpus);
    if known.clone().any(|(_, n)| *n < 0) {
        let advice =
            "the firmware does not say where these are: update it, or look at the board's manual";
        return vec![Check::warn(name, found, advice)];
    }
    let lonely = drives.iter().chain(&gpus).find(|(_, n)| !nics.is_empty() && !has(&nics, *n));
    vec![match lonely {
        Some((device, n)) => Check::warn(
            name,
            found.clone(),
            &format!(
                "{device} is on node {n}, which has no NIC: its traffic crosses the sockets; move \
                 one card"
            ),
        ),
        None => Check::ok(name, found),
    }]
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::super::system::tests::{bare, looks, tree};
    use super::*;
    use std::fs;

    const GPU: [(&str, &str); 2] = [
        ("sys/bus/pci/devices/0000:17:00.0/class", "0x030200"),
        ("sys/bus/pci/devices/0000:17:00.0/vendor", "0x10de"),
    ];

    fn with_gpu<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        [&GPU[..], more].concat()
    }

    #[test]
    fn ways_to_gpu_memory() {
        let verdict =
            |more: &[(&'static str, &'static str)]| looks(driver, &with_gpu(more))[0].verdict;
        assert_eq!(looks(driver, &[])[0].verdict, Verdict::NotApplicable);
        assert_eq!(verdict(&[]), Verdict::Fail);
        let nvidia = ("sys/module/nvidia/refcnt", "1");
        assert_eq!(verdict(&[nvidia]), Verdict::Warn);
        assert_eq!(verdict(&[nvidia, ("sys/module/nvidia_peermem/refcnt", "0")]), Verdict::Ok);
        let open =
            ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module 580");
        assert_eq!(verdict(&[nvidia, open]), Verdict::Ok);
        let group =
            |kind| looks(iommu, &with_gpu(&[("sys/kernel/iommu_groups/3/type", kind)]))[0].verdict;
        assert_eq!((group("DMA-FQ"), group("identity")), (Verdict::Warn, Verdict::Ok));
    }

    #[test]
    fn what_the_driver_knows_matters_with_a_gpu_of_its_vendor() {
        assert_eq!(looks(cuda, &[])[0].verdict, Verdict::NotApplicable);
        let other = ("sys/bus/pci/devices/0000:17:00.0/vendor", "0x1002");
        assert_eq!(looks(cuda, &[GPU[0], other])[0].verdict, Verdict::NotApplicable);
        // With a driver this machine has one, else it is said to be missing.
        let found = looks(cuda, &GPU).remove(0);
        let here = weft_gpu::gpus().is_ok();
        assert_eq!(found.verdict, if here { Verdict::Ok } else { Verdict::Fail }, "{found:?}");
    }

    /// Configuration space with two extended capabilities, the second at 0x148 being ACS.
    fn config(control: u16) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        bytes[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x82, 0x14]); // AER, next 0x148
        bytes[0x148..0x14c].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00]);
        bytes[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
        bytes
    }

    #[test]
    fn access_control_is_read_from_configuration_space() {
        assert_eq!(acs_control(&config(0x1d)), Some(0x1d));
        assert_eq!(acs_control(&vec![0; 4096]), None);
        assert_eq!(acs_control(&[0xff; 4096]), None, "a device that does not answer");
        assert_eq!(acs_control(&config(1)[..0x149]), None);
        let mut circle = config(1);
        circle[0x148..0x14c].copy_from_slice(&[0x05, 0x00, 0x01, 0x10]); // next 0x100
        assert_eq!(acs_control(&circle), None);

        let dir = tempfile::tempdir().unwrap();
        tree(dir.path(), &with_gpu(&[("sys/bus/pci/devices/0000:16:00.0/class", "0x060400")]));
        let at = dir.path().join("sys/bus/pci/devices/0000:16:00.0/config");
        // Two capabilities, the second at 0x50: none is that of PCI Express, or one is.
        let mut old = [0; 256];
        (old[0x06], old[0x34], old[0x40], old[0x41], old[0x50]) = (0x10, 0x40, 0x01, 0x50, 0x0d);
        let hidden = std::array::from_fn::<u8, 256, _>(|n| if n == 0x50 { 0x10 } else { old[n] });
        for (bytes, verdict) in [
            (config(0x1d), Verdict::Warn),
            (config(0x01), Verdict::Ok),
            (vec![0; 64], Verdict::Warn), // not root
            (old.to_vec(), Verdict::Ok),
            (hidden.to_vec(), Verdict::Warn),
        ] {
            fs::write(&at, bytes).unwrap();
            assert_eq!(acs(&bare(dir.path()))[0].verdict, verdict);
        }
    }

    #[test]
    fn a_device_without_a_nic_on_its_socket_is_named() {
        let place = |nic: &'static str, drive: &'static str| {
            let files = [
                ("sys/devices/system/node/node0/cpulist", "0-31"),
                ("sys/devices/system/node/node1/cpulist", "32-63"),
                ("sys/class/net/eth0/device/numa_node", nic),
                ("sys/class/nvme/nvme0/device/numa_node", drive),
            ];
            looks(numa, &files).remove(0)
        };
        assert_eq!(place("0", "0").verdict, Verdict::Ok);
        assert!(place("0", "1").advice.unwrap().contains("nvme0 is on node 1"));
        assert_eq!(place("-1", "0").verdict, Verdict::Warn);
        assert_eq!(looks(numa, &[])[0].verdict, Verdict::NotApplicable);
    }
}
