//! How a volume is to be used: what this driver can do, and what it refuses.

use crate::wire::volume_capability::access_mode::Mode;
use crate::wire::volume_capability::{AccessType, MountVolume};
use crate::wire::{CapacityRange, VolumeCapability};
use serde::{Deserialize, Serialize};
use tonic::Status;
use weft_fuse::MountFlags;

/// Types of filesystem by which this one may be called; none is as good.
const FS_TYPES: [&str; 3] = ["", "weft", "fuse.weft"];
/// Options of a mount that are options of `weft mount`.
const SIZES: [&str; 3] = ["cache", "write_buffer", "read_ahead"];
/// Longest option of a mount, and most of them.
const MAX_FLAG: usize = 64;
const MAX_FLAGS: usize = 32;

/// A way to use a volume that this driver can do.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Default, Debug)]
pub struct Use {
    /// Nobody changes anything.
    pub read_only: bool,
    /// At most one place of this machine has it.
    pub single: bool,
    /// Options of the mount.
    pub flags: Vec<String>,
}

/// Reads one. Errors: `INVALID_ARGUMENT`.
pub fn read(capability: Option<&VolumeCapability>) -> Result<Use, Status> {
    let capability = capability.ok_or_else(|| missing("the volume's capability"))?;
    let mode = capability.access_mode.as_ref().ok_or_else(|| missing("the access mode"))?.mode;
    let mode = Mode::try_from(mode)
        .ok()
        .filter(|mode| *mode != Mode::Unknown)
        .ok_or_else(|| Status::invalid_argument(format!("access mode {mode} is not known")))?;
    let mount = match &capability.access_type {
        Some(AccessType::Mount(mount)) => mount,
        Some(AccessType::Block(_)) => {
            let what = "weft has no block volumes: use volumeMode Filesystem";
            return Err(Status::invalid_argument(what));
        }
        None => return Err(missing("the access type")),
    };
    check_mount(mount)?;
    Ok(Use {
        read_only: matches!(mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly),
        single: mode == Mode::SingleNodeSingleWriter,
        flags: mount.mount_flags.clone(),
    })
}

/// Checks those of a list, which must hold one at least. Errors: `INVALID_ARGUMENT`.
pub fn check_all(capabilities: &[VolumeCapability]) -> Result<(), Status> {
    if capabilities.is_empty() {
        return Err(missing("the volume's capabilities"));
    }
    capabilities.iter().try_for_each(|capability| read(Some(capability)).map(drop))
}

/// That something was to be said. `INVALID_ARGUMENT`.
pub fn missing(what: &str) -> Status {
    Status::invalid_argument(format!("the request lacks {what}"))
}

fn check_mount(mount: &MountVolume) -> Result<(), Status> {
    let fs_type = mount.fs_type.as_str();
    if !FS_TYPES.contains(&fs_type) {
        let what = format!("weft cannot be a filesystem of type {fs_type:?}: leave fsType out");
        return Err(Status::invalid_argument(what));
    }
    if mount.mount_flags.len() > MAX_FLAGS {
        return Err(Status::invalid_argument("too many mount options"));
    }
    mount.mount_flags.iter().try_for_each(|flag| arguments_of(flag).map(drop))
}

/// One option of a mount, as arguments of `weft mount`. Errors: `INVALID_ARGUMENT`.
pub fn arguments_of(flag: &str) -> Result<Argument, Status> {
    let bad = || {
        let shown: String = flag.chars().take(MAX_FLAG).collect();
        Status::invalid_argument(format!("there is no mount option {shown:?}"))
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'=' | b'.');
    if flag.len() > MAX_FLAG || !flag.bytes().all(plain) {
        return Err(bad());
    }
    match flag.split_once('=') {
        Some(("soft", seconds)) if seconds.parse::<u64>().is_ok_and(|seconds| seconds > 0) => {
            Ok(Argument::Option(flag.to_owned()))
        }
        Some((name, value)) if SIZES.contains(&name) && !value.is_empty() => {
            Ok(Argument::Size(format!("--{}={value}", name.replace('_', "-"))))
        }
        None if matches!(flag, "hard" | "closesync" | "noclosesync") => {
            Ok(Argument::Option(flag.to_owned()))
        }
        None if MountFlags::default().set(flag) => Ok(Argument::Option(flag.to_owned())),
        _ => Err(bad()),
    }
}

/// What an option of a mount is for `weft mount`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Argument {
    /// What follows `-o`.
    Option(String),
    /// An argument by itself.
    Size(String),
}

/// The size that a range asks for, bytes; 0: none is asked for. Errors: `INVALID_ARGUMENT` of one
/// that makes no sense, `OUT_OF_RANGE` of one that nothing can have.
pub fn wanted(range: Option<&CapacityRange>) -> Result<(u64, u64), Status> {
    let Some(range) = range else { return Ok((0, 0)) };
    let bytes = |n: i64| {
        u64::try_from(n).map_err(|_| Status::invalid_argument(format!("a capacity of {n} bytes")))
    };
    let (required, limit) = (bytes(range.required_bytes)?, bytes(range.limit_bytes)?);
    if limit != 0 && required > limit {
        let what = format!("{required} bytes are required, and {limit} are the limit");
        return Err(Status::invalid_argument(what));
    }
    Ok((required, limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::volume_capability::{AccessMode, BlockVolume};

    fn mounted(mode: i32, fs_type: &str, flags: &[&str]) -> VolumeCapability {
        let mount = MountVolume {
            fs_type: fs_type.into(),
            mount_flags: flags.iter().map(|flag| flag.to_string()).collect(),
            ..Default::default()
        };
        VolumeCapability {
            access_type: Some(AccessType::Mount(mount)),
            access_mode: Some(AccessMode { mode }),
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let read = |capability: VolumeCapability| read(Some(&capability)).map_err(|e| e.code());
        for mode in 1..=7 {
            let found = read(mounted(mode, "", &["noatime", "soft=9", "cache=8MiB"])).unwrap();
            assert_eq!(found.read_only, mode == 2 || mode == 3, "{mode}");
            assert_eq!(found.single, mode == 6, "{mode}");
        }
        let invalid = Err(tonic::Code::InvalidArgument);
        for (mode, fs, flag) in
            [(0, "", "ro"), (8, "", "ro"), (1, "ext4", "ro"), (1, "", "sfot=1"), (1, "", "soft=0")]
        {
            assert_eq!(read(mounted(mode, fs, &[flag])), invalid, "{mode} {fs} {flag}");
        }
        for flag in ["", "a,b", "cache=", "-x", "log_file=/etc/passwd", &"x".repeat(65)] {
            assert_eq!(read(mounted(1, "", &[flag])), invalid, "{flag}");
        }
        let block = AccessType::Block(BlockVolume {});
        let mode = Some(AccessMode { mode: 1 });
        let block = VolumeCapability { access_type: Some(block), access_mode: mode };
        assert_eq!(read(block), invalid);
        assert_eq!(read(VolumeCapability::default()), invalid);
        assert!(check_all(&[]).is_err());
    }

    #[test]
    fn sizes_make_sense() {
        let wanted = |required_bytes, limit_bytes| {
            wanted(Some(&CapacityRange { required_bytes, limit_bytes })).ok()
        };
        assert_eq!(wanted(5, 0), Some((5, 0)));
        assert_eq!(wanted(0, 7), Some((0, 7)));
        assert_eq!((wanted(8, 7), wanted(-1, 0), wanted(0, -1)), (None, None, None));
    }
}
