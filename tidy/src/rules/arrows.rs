//! Packages depend on each other in the directions of ARCHITECTURE.md's code map only.

use crate::finding::Finding;
use crate::workspace::Workspace;

/// What a package may use of this workspace; the tests of any may use the tests' tools.
const ARROWS: &[(&str, &[&str])] = &[
    ("weft-proto", &[]),
    ("weft-erasure", &["weft-proto"]),
    ("weft-net", &["weft-proto"]),
    ("weft-control", &["weft-proto", "weft-net"]),
    ("weft-segments", &["weft-proto", "weft-erasure", "weft-net", "weft-control"]),
    ("weft-metadata", &["weft-proto", "weft-net", "weft-control", "weft-segments"]),
    ("weft-storaged", &["weft-proto", "weft-erasure", "weft-net", "weft-control", "weft-segments"]),
    ("weft-hot", &["weft-proto", "weft-erasure", "weft-net"]),
    ("weft-client", &["weft-proto", "weft-net", "weft-segments", "weft-hot"]),
    ("weft-fuse", &["weft-proto", "weft-client"]),
    ("weft-csi", &["weft-proto", "weft-net", "weft-client", "weft-fuse"]),
    ("weft-gpu", &["weft-proto", "weft-net", "weft-client"]),
    ("weft-c", &["weft-proto", "weft-client", "weft-gpu"]),
    ("weft-python", &["weft-proto", "weft-client", "weft-gpu"]),
    ("weft-jepsen-clock", &[]),
    ("weft-tidy", &[]),
];

/// Those that may use all others.
const TOPS: &[&str] = &["weft", "weft-cuda-sim", "weft-tests", "weft-fuzz", "weft-jepsen"];

pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &workspace.packages {
        if TOPS.contains(&package.name.as_str()) {
            continue;
        }
        let manifest = package.folder.join("Cargo.toml");
        let arrows = ARROWS.iter().find(|(name, _)| *name == package.name);
        let Some((_, allowed)) = arrows else {
            let what = "this package has no place in the code map (tidy/src/rules/arrows.rs)";
            findings.push(Finding::new("arrows", &manifest, 0, what));
            continue;
        };
        for used in package.dependencies("dependencies") {
            if workspace.package(&used).is_some() && !allowed.contains(&used.as_str()) {
                let what = format!("{} must not depend on {used}", package.name);
                findings.push(Finding::new("arrows", &manifest, 0, what));
            }
        }
    }
    findings
}
