//! What the kernel has mounted, and taking a mount away.

use std::ffi::{CString, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

/// What the source of our mounts starts with in the kernel's table, but for those that mount(8)
/// made: their source is what that was given.
pub const SOURCE_PREFIX: &str = "weft:";

/// The type of our mounts there.
const FS_TYPE: &str = "fuse.weft";

/// The type of the mount in which the kernel lists connections.
const CONTROL: &str = "fusectl";

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    pub mount_point: PathBuf,
    /// `major:minor` of the mounted filesystem, which also names its `/sys/class/bdi` folder.
    pub device: String,
    pub fs_type: String,
    pub source: String,
    /// Number of the user who mounted it, if it is a mount of FUSE.
    pub user: Option<u32>,
    /// It is only to be read there, whatever is true of it elsewhere.
    pub read_only: bool,
}

impl MountEntry {
    /// Is this a mount of Weft, alive or dead?
    pub fn is_weft(&self) -> bool {
        // Some kernels show no more of the type than that it is FUSE.
        self.fs_type == FS_TYPE || self.fs_type == "fuse" && self.source.starts_with(SOURCE_PREFIX)
    }
}

/// The kernel's side of a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Where it was mounted: absolute.
    pub mount_point: PathBuf,
    /// `major:minor`. `/sys/fs/fuse/connections` names it by the minor number, which the next mount
    /// of anybody gets when this one is over.
    pub device: String,
    /// What tells it from those that have its number later; `None` where that folder has nothing.
    pub life: Option<String>,
}

impl Connection {
    /// That of the mount that was just made at exactly this absolute path.
    pub fn at(path: &Path) -> Option<Self> {
        mount_control();
        let mount = mount_at(path).ok()??;
        if !mount.fs_type.starts_with("fuse") {
            return None;
        }
        let mut connection =
            Self { mount_point: path.to_owned(), device: mount.device, life: None };
        connection.life = connection.control().metadata().ok().map(|control| life(&control));
        Some(connection)
    }

    fn control(&self) -> PathBuf {
        let number = self.device.rsplit(':').next().unwrap_or_default();
        Path::new("/sys/fs/fuse/connections").join(number).join("abort")
    }

    /// Has the kernel answer an error to all that wait and to all that comes. False: it is over
    /// already. Errors: it is not to be had here.
    pub fn abort(&self) -> io::Result<bool> {
        // What is open stays that connection's, whoever has its number.
        if let Ok(mut control) = File::options().write(true).open(self.control()) {
            match &self.life {
                Some(known) if *known != life(&control.metadata()?) => return Ok(false),
                Some(_) => return control.write_all(b"1").map(|()| true),
                None => {}
            }
        } else if self.life.is_some() && mounts()?.iter().any(|m| m.fs_type == CONTROL) {
            return Ok(false);
        }
        // Where that is not mounted. Files that are open keep the mount, without the connection.
        if Self::at(&self.mount_point).is_none_or(|now| now.device != self.device) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no /sys/fs/fuse/connections"));
        }
        let mut path_only = File::options();
        let _open = path_only.read(true).custom_flags(libc::O_PATH).open(&self.mount_point)?;
        let name = CString::new(self.mount_point.as_os_str().as_bytes())?;
        // SAFETY: `name` is a NUL-terminated string that outlives the call.
        let forced =
            unsafe { libc::umount2(name.as_ptr(), libc::MNT_FORCE | libc::UMOUNT_NOFOLLOW) };
        match io::Error::last_os_error() {
            error if forced != 0 && error.kind() != io::ErrorKind::ResourceBusy => Err(error),
            _ => Ok(true),
        }
    }
}

/// Has the kernel's list of connections be in its place, as init systems do: in containers, and on
/// systems without one, nobody has. Who may not do that goes without it.
fn mount_control() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        if mounts().is_ok_and(|all| all.iter().any(|mount| mount.fs_type == CONTROL)) {
            return;
        }
        let (name, at) = (c"fusectl", c"/sys/fs/fuse/connections");
        // SAFETY: all are strings that end with a NUL and outlive the call; there is no data.
        unsafe { libc::mount(name.as_ptr(), at.as_ptr(), name.as_ptr(), 0, std::ptr::null()) };
    });
}

/// Of its file in the kernel's folder, which is made with the connection.
fn life(control: &Metadata) -> String {
    format!("{} {}.{:09}", control.ino(), control.mtime(), control.mtime_nsec())
}

/// All mounts that this thread sees, oldest first.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(std::fs::read("/proc/thread-self/mountinfo")?
        .split(|&b| b == b'\n')
        .filter_map(parse)
        .collect())
}

/// The topmost mount at exactly this absolute path.
pub fn mount_at(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rev().find(|m| m.mount_point == path))
}

/// `36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/sda rw`: the optional fields end at `-`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let mount_point = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let read_only = fields.next()?.split(|&b| b == b',').any(|option| option == b"ro");
    let mut rest = fields.skip_while(|f| *f != b"-").skip(1);
    let mut text = || rest.next().map(|f| String::from_utf8_lossy(&unescape(f)).into_owned());
    let (fs_type, source) = (text()?, text()?);
    let options = text().unwrap_or_default();
    let user = options.split(',').find_map(|o| o.strip_prefix("user_id=")?.parse().ok());
    Some(MountEntry { mount_point, device, fs_type, source, user, read_only })
}

/// The kernel writes blanks and backslashes as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| byte == b'\\').and_then(|digits| {
            digits.iter().try_fold(0u8, |n, d| match d {
                b'0'..=b'7' => n.checked_mul(8)?.checked_add(d - b'0'),
                _ => None,
            })
        });
        out.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    out
}

/// Makes a path absolute and free of links without asking the filesystem that is mounted there:
/// a dead mount answers everything with `ENOTCONN`, one whose cluster is away nothing at all.
pub fn resolve_mount_point(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return absolute.canonicalize();
    };
    let resolved = parent.canonicalize()?.join(name);
    // What is mounted is no link, and one whose cluster is away would not answer that for long.
    if mount_at(&resolved)?.is_none() && is_symlink(&resolved) {
        return resolved.canonicalize();
    }
    Ok(resolved)
}

fn is_symlink(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|m| m.is_symlink())
}

/// Takes the topmost mount at `path` away; `lazy` also when files in it are open (it then
/// disappears from the tree now and ends when they are closed).
///
/// Errors: `ResourceBusy` if files in it are open and not `lazy`; what else the kernel says.
pub fn unmount(path: &Path, lazy: bool) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    if unsafe { libc::umount2(name.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::PermissionDenied {
        fusermount(path, lazy)
    } else {
        Err(error)
    }
}

/// The set-user-id helper of Debian's `fuse3` unmounts for users what they mounted.
fn fusermount(path: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path);
    let output = command.stdin(Stdio::null()).output().map_err(|e| {
        io::Error::new(e.kind(), format!("cannot run fusermount3 (package fuse3): {e}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let busy = text.contains("busy");
    Err(io::Error::new(if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other }, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_optional_fields_parse() {
        let entry = parse(
            br"36 35 0:57 / /mnt/a\040b\134c rw shared:1 master:2 - fuse.weft weft:x rw,user_id=7",
        )
        .unwrap();
        assert_eq!(entry.mount_point, Path::new(r"/mnt/a b\c"));
        assert_eq!((entry.device.as_str(), entry.is_weft()), ("0:57", true));
        assert_eq!((entry.source.as_str(), entry.user), ("weft:x", Some(7)));
        let is_read_only = |line: &[u8]| parse(line).unwrap().read_only;
        assert!(!is_read_only(b"36 35 98:0 / /mnt rw - ext4 /dev/sda ro"), "elsewhere it is");
        assert!(is_read_only(b"36 35 98:0 / /mnt noatime,ro - ext4 /dev/sda rw"));
        for bad in
            [&b""[..], b"36", b"36 35 98:0 / /mnt rw", b"36 35 98:0 / /mnt rw -", b"\\999 - -"]
        {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn escapes_are_undone_only_where_they_are_escapes() {
        assert_eq!(unescape(br"a\040b"), b"a b");
        assert_eq!(unescape(br"\777\04"), br"\777\04");
        assert_eq!(unescape(br"\"), br"\");
    }

    #[test]
    fn the_root_is_mounted_and_a_fresh_folder_is_not() {
        assert!(mount_at(Path::new("/")).unwrap().is_some());
        let dir = std::env::temp_dir();
        let path = resolve_mount_point(&dir.join("..").join("weft-nothing-here")).unwrap();
        assert_eq!(mount_at(&path).unwrap(), None);
        assert_eq!(unmount(&path, false).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
