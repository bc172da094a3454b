//! Tests of snapshot.

use super::*;

#[test]
fn names_from_a_peer_stay_inside() {
    for bad in ["", "..", ".x", "a/b", "../x", "a\0b", "/etc/passwd", &"x".repeat(300)] {
        assert!(plain(bad).is_err(), "{bad:?}");
    }
    for good in ["CURRENT", "MANIFEST-000005", "000007.sst", "snapshot-12"] {
        plain(good).unwrap();
    }
    let file = |name: &str, len| v1::snapshot_manifest::File { name: name.into(), len, crc32: 0 };
    let manifest =
        |files| v1::SnapshotManifest { snapshot: "s".into(), address: "a:1".into(), files };
    assert!(check(&manifest(vec![file("a", 1), file("b", 2)])).is_ok());
    assert!(check(&manifest(vec![file("a", u64::MAX), file("b", 2)])).is_err());
    assert!(check(&manifest(vec![file("../a", 1)])).is_err());
}
