//! Tests of `fabric`.

use super::super::check::Verdict;
use super::super::system::tests::looks;
use super::*;

const GOOD: &[(&str, &str)] = &[
    ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
    ("sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet"),
    ("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)"),
    ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "IB/RoCE v1"),
    ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1", "RoCE v2"),
    ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth0"),
    ("sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence", "0"),
    ("sys/class/infiniband/mlx5_0/device/vendor", "0x15b3"),
    ("sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode", "RoCE v2"),
    ("sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos", "106"),
    ("sys/class/net/eth0/mtu", "9000"),
    ("sys/class/net/eth0/qos/pfc", "0,0,0,1,0,0,0,0"),
    ("sys/class/net/eth0/qos/trust", "dscp"),
    ("sys/class/net/eth0/ecn/roce_np/enable/3", "1"),
    ("sys/class/net/eth0/ecn/roce_rp/enable/3", "1"),
];

/// Those of `GOOD` that are not well any more with these changes.
fn ill(changes: &[(&'static str, &'static str)]) -> Vec<(String, Verdict)> {
    let mut files = GOOD.to_vec();
    files.extend(changes);
    let all = looks(rdma, &files).into_iter().filter(|c| c.verdict != Verdict::Ok);
    all.map(|c| (c.name.split(' ').next().unwrap().to_owned(), c.verdict)).collect()
}

#[test]
fn each_thing_that_roce_needs_is_missed_when_it_is_missing() {
    assert!(ill(&[]).is_empty(), "{:?}", ill(&[]));
    let port = |file| -> &'static str {
        Box::leak(format!("sys/class/infiniband/mlx5_0/ports/1/{file}").into_boxed_str())
    };
    for (change, name, verdict) in [
        ((port("gid_attrs/types/1"), "IB/RoCE v1"), "GID", Verdict::Fail),
        ((port("state"), "1: DOWN"), "RDMA", Verdict::Warn),
        ((port("hw_counters/out_of_sequence"), "7"), "losses", Verdict::Warn),
        (("sys/class/net/eth0/mtu", "1500"), "RDMA", Verdict::Warn),
        (("sys/class/net/eth0/qos/pfc", "0,0,0,0,0,0,0,0"), "PFC", Verdict::Warn),
        (("sys/class/net/eth0/ecn/roce_rp/enable/3", "0"), "ECN", Verdict::Warn),
        (("sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos", "0"), "RoCE", Verdict::Warn),
        (
            ("sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode", "IB/RoCE v1"),
            "RoCE",
            Verdict::Fail,
        ),
    ] {
        assert_eq!(ill(&[change]), [(name.to_owned(), verdict)], "{change:?}");
    }
}

#[test]
fn little_locked_memory_matters_with_rdma_only() {
    assert_eq!(looks(memlock, &[])[0].verdict, Verdict::Ok);
    assert_eq!(looks(memlock, GOOD)[0].verdict, Verdict::Fail);
}

#[test]
fn fast_links_want_large_packets() {
    let link = |speed, mtu| {
        let files = [
            ("sys/class/net/eth0/speed", speed),
            ("sys/class/net/eth0/mtu", mtu),
            ("sys/class/net/eth0/device/vendor", "0x15b3"),
            ("sys/class/net/lo/mtu", "65536"),
        ];
        looks(links, &files)[0].verdict
    };
    assert_eq!(link("100000", "9000"), Verdict::Ok);
    assert_eq!(link("100000", "1500"), Verdict::Warn);
    assert_eq!(link("1000", "1500"), Verdict::Ok);
    assert_eq!(link("-1", "1500"), Verdict::NotApplicable);
}
