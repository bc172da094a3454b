//! What a daemon may say of a target: the map tells everybody, and keeps a target until an admin
//! has it forgotten.
//!
//! Invariant: nobody who is known is refused for what he has said before.

use weft_proto::map::MAX_BYTES;
use weft_proto::v1::{ClusterMap, TargetInfo};
use weft_proto::{Error, ErrorKind, Result};

/// Longest name of a daemon or a failure domain, and address, in bytes.
const MAX_NAME: usize = 255;
/// Most parts of a failure domain.
const MAX_LEVELS: usize = 8;
/// Longest path of a drive, in bytes, as the kernel has it.
const MAX_PATH: usize = 4096;
/// Most bytes of all targets in the map, the rest of which is for placement groups.
const MAX_TARGETS: usize = MAX_BYTES / 4;
/// What a target takes in the map beside its names, at most, and in the groups that it is in.
const BESIDE_NAMES: usize = 128;

/// Error: `Invalid`, it is none, or what is new of it is too long; or the map has no room for it.
pub(crate) fn check(map: &ClusterMap, target: &TargetInfo) -> Result<()> {
    let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
    if target.uuid.len() != 16 || target.address.is_empty() || target.address.len() > MAX_NAME {
        return invalid("a target needs a uuid of 16 bytes and its daemon's address".into());
    }
    let known = map.targets.iter().find(|t| t.uuid == target.uuid);
    let is_new = |of: fn(&TargetInfo) -> &String| known.is_none_or(|known| of(known) != of(target));
    let (domain, levels) = (target.domain.len(), target.domain.split('/').count());
    if is_new(|t| &t.domain) && (domain > MAX_NAME || levels > MAX_LEVELS) {
        return invalid(format!(
            "a failure domain has at most {MAX_NAME} bytes and {MAX_LEVELS} parts, and not \
             {domain} and {levels}"
        ));
    }
    let (daemon, path) = (target.daemon.len(), target.path.len());
    if is_new(|t| &t.daemon) && daemon > MAX_NAME {
        return invalid(format!("a daemon's name has at most {MAX_NAME} bytes, and not {daemon}"));
    }
    if is_new(|t| &t.path) && path > MAX_PATH {
        return invalid(format!("a target's path has at most {MAX_PATH} bytes, and not {path}"));
    }
    let (now, before) = (bytes(target), known.map_or(0, bytes));
    let all = map.targets.iter().map(bytes).sum::<usize>() - before + now;
    if now > before && all > MAX_TARGETS {
        return invalid(format!("the targets have {all} bytes, and may have {MAX_TARGETS}"));
    }
    Ok(())
}

/// The error for who registers a target that an admin has forgotten.
pub(crate) fn forgotten(id: u64) -> Error {
    let what = format!(
        "this was target {id}, which an admin has forgotten for good: the cluster needs nothing of \
         what it holds. weft target remove --abandon takes it from its daemon; formatted anew \
         (weft target add) the drive is a new target"
    );
    Error::new(ErrorKind::NotPermitted, what)
}

fn bytes(target: &TargetInfo) -> usize {
    let names = [&target.daemon, &target.address, &target.domain, &target.path];
    BESIDE_NAMES + names.map(String::len).iter().sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(n: u32) -> TargetInfo {
        TargetInfo {
            id: n,
            uuid: u128::from(n).to_be_bytes().to_vec().into(),
            daemon: "a".into(),
            address: "a:1".into(),
            domain: "rack/a".into(),
            path: "/dev/nvme0n1".into(),
            ..Default::default()
        }
    }

    fn refused(map: &ClusterMap, target: &TargetInfo) -> bool {
        check(map, target).is_err_and(|e| e.kind == ErrorKind::Invalid)
    }

    #[test]
    fn what_is_new_of_a_target_is_bounded() {
        let mut map = ClusterMap { targets: vec![target(1)], ..Default::default() };
        for known in [1, 2] {
            check(&map, &target(known)).unwrap();
            for (len, bad) in [(MAX_NAME, false), (MAX_NAME + 1, true), (1 << 20, true)] {
                let name = "n".repeat(len);
                let daemon = TargetInfo { daemon: name.clone(), ..target(known) };
                let domain = TargetInfo { domain: name.clone(), ..target(known) };
                let address = TargetInfo { address: name, ..target(known) };
                for target in [daemon, domain, address] {
                    assert_eq!(refused(&map, &target), bad, "{len}");
                }
            }
            for (len, bad) in [(MAX_PATH, false), (MAX_PATH + 1, true)] {
                let path = TargetInfo { path: "p".repeat(len), ..target(known) };
                assert_eq!(refused(&map, &path), bad, "{len}");
            }
            let deep = |levels| TargetInfo { domain: vec!["d"; levels].join("/"), ..target(known) };
            assert!(refused(&map, &deep(MAX_LEVELS + 1)) && !refused(&map, &deep(MAX_LEVELS)));
            assert!(refused(&map, &TargetInfo { uuid: Default::default(), ..target(known) }));
            assert!(refused(&map, &TargetInfo { address: String::new(), ..target(known) }));
        }
        // What was said to a version that bounded less stays right, elsewhere as well.
        let long =
            |len| TargetInfo { daemon: "n".repeat(len), path: "p".repeat(1 << 20), ..target(1) };
        map.targets = vec![long(1 << 20)];
        check(&map, &long(1 << 20)).unwrap();
        check(&map, &TargetInfo { address: "b:1".into(), ..long(1 << 20) }).unwrap();
        assert!(refused(&map, &long((1 << 20) + 1)));
    }

    #[test]
    fn all_targets_together_leave_room_in_the_map_and_who_is_known_is_heard() {
        let one = |n| TargetInfo { path: "p".repeat(MAX_PATH), ..target(n) };
        let most = (MAX_TARGETS / bytes(&one(0))) as u32;
        let mut map = ClusterMap { targets: (1..most).map(one).collect(), ..Default::default() };
        check(&map, &one(most)).unwrap();
        map.targets.push(one(most));
        assert!(prost::Message::encoded_len(&map) < MAX_TARGETS);
        assert!(refused(&map, &one(most + 1)));
        // A version that bounded less took it in.
        map.targets.push(one(most + 1));
        for known in [1, most + 1] {
            check(&map, &one(known)).unwrap();
            check(&map, &target(known)).unwrap();
            assert!(refused(&map, &TargetInfo { domain: "rack/ab".into(), ..one(known) }));
        }
    }
}
