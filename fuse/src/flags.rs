//! What every mount can have, whatever the filesystem.

use nix::mount::MsFlags;
use std::fmt;

/// What every mount can have, as `mount -o` says it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MountFlags {
    /// Set-user-id and set-group-id bits have effect.
    pub suid: bool,
    /// Device nodes have effect.
    pub dev: bool,
    pub noexec: bool,
    pub read_only: bool,
    pub noatime: bool,
    /// A change of a directory is durable before it is answered.
    pub dirsync: bool,
}

impl MountFlags {
    /// Sets one option. Answers whether there is such a one.
    pub fn set(&mut self, option: &str) -> bool {
        match option {
            "suid" | "nosuid" => self.suid = option == "suid",
            "dev" | "nodev" => self.dev = option == "dev",
            "exec" | "noexec" => self.noexec = option == "noexec",
            "ro" | "rw" => self.read_only = option == "ro",
            "atime" | "noatime" => self.noatime = option == "noatime",
            "async" | "dirsync" => self.dirsync = option == "dirsync",
            _ => return false,
        }
        true
    }

    pub(crate) fn to_kernel(self) -> MsFlags {
        let mut flags = MsFlags::empty();
        flags.set(MsFlags::MS_NOSUID, !self.suid);
        flags.set(MsFlags::MS_NODEV, !self.dev);
        flags.set(MsFlags::MS_NOEXEC, self.noexec);
        flags.set(MsFlags::MS_RDONLY, self.read_only);
        flags.set(MsFlags::MS_NOATIME, self.noatime);
        flags.set(MsFlags::MS_DIRSYNC, self.dirsync);
        flags
    }
}

impl fmt::Display for MountFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or = |on: bool, yes, no| if on { yes } else { no };
        write!(
            f,
            "{},{},{},{},{},{}",
            or(self.suid, "suid", "nosuid"),
            or(self.dev, "dev", "nodev"),
            or(self.noexec, "noexec", "exec"),
            or(self.read_only, "ro", "rw"),
            or(self.noatime, "noatime", "atime"),
            or(self.dirsync, "dirsync", "async")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_they_are_shown() {
        let mut flags = MountFlags::default();
        assert_eq!(flags.to_kernel(), MsFlags::MS_NOSUID | MsFlags::MS_NODEV);
        for option in ["suid", "dev", "noexec", "ro", "noatime", "dirsync"] {
            assert!(flags.set(option));
        }
        let mut same = MountFlags::default();
        assert!(flags.to_string().split(',').all(|option| same.set(option)));
        assert_eq!(same, flags);
        assert!(!flags.set("") && !flags.set("sync"));
    }
}
