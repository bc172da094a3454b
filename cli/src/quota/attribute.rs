//! The virtual attributes by which quotas are set and read: `trusted.weft.quota` (root's), and
//! `user.weft.quota`, a line for each quota.

use anyhow::{Context, Result, bail};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const READ: &str = "user.weft.quota";
const SET: &str = "trusted.weft.quota";
const ALL: &str = "trusted.weft.quotas";

/// Whose quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// That of the folder that is named.
    Folder,
    User(u32),
    Group(u32),
    Project(u64),
}

/// A quota as the mount tells of it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Quota {
    /// `tree`, `user`, `group` or `project`.
    pub kind: String,
    /// The inode of the folder, or a number.
    pub id: u64,
    pub bytes: u64,
    pub soft_bytes: u64,
    pub used_bytes: u64,
    pub inodes: u64,
    pub soft_inodes: u64,
    pub used_inodes: u64,
    pub grace: u64,
    pub bytes_since: i64,
    pub inodes_since: i64,
    pub counting: bool,
    pub ends: bool,
    pub project: u64,
    pub path: String,
}

/// The quotas that a place counts for, nearest first, or that of somebody.
pub fn get(place: &Path, which: Which) -> Result<Vec<Quota>> {
    let name = match which {
        Which::Folder => READ.to_owned(),
        Which::User(id) => format!("{READ}.user.{id}"),
        Which::Group(id) => format!("{READ}.group.{id}"),
        Which::Project(id) => format!("{READ}.project.{id}"),
    };
    Ok(parse(&read(place, &name)?)?.0)
}

/// All quotas of the filesystem.
pub fn all(place: &Path) -> Result<Vec<Quota>> {
    let (mut found, mut name): (Vec<Quota>, _) = (Vec::new(), ALL.to_owned());
    loop {
        let (page, more) = parse(&read(place, &name)?)?;
        found.extend(page);
        match found.last().filter(|_| more) {
            Some(last) => name = format!("{ALL}.{}.{}", last.kind, last.id),
            None => return Ok(found),
        }
    }
}

/// Sets what `words` say.
pub fn set(place: &Path, which: Which, words: &str) -> Result<()> {
    let words = match which {
        Which::Folder => words.to_owned(),
        Which::User(id) => format!("user={id} {words}"),
        Which::Group(id) => format!("group={id} {words}"),
        Which::Project(id) => format!("of-project={id} {words}"),
    };
    let (path, name) = (c_string(place.as_os_str().as_bytes())?, c_string(SET.as_bytes())?);
    // SAFETY: both names are NUL-terminated and the value is as long as said.
    let rc = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), words.as_ptr().cast(), words.len(), 0)
    };
    if rc == 0 { Ok(()) } else { Err(explain(place)) }
}

/// Where a path lies in its mount.
pub fn path_in_mount(place: &Path) -> Option<String> {
    let path = place.canonicalize().ok()?;
    let mounts = weft_fuse::mounts().ok()?;
    let mount = mounts.into_iter().filter(|m| path.starts_with(&m.mount_point));
    let mount = mount.max_by_key(|m| m.mount_point.as_os_str().len())?;
    let within = path.strip_prefix(&mount.mount_point).ok()?;
    Some(format!("/{}", within.display()))
}

fn read(place: &Path, name: &str) -> Result<String> {
    let (path, name) = (c_string(place.as_os_str().as_bytes())?, c_string(name.as_bytes())?);
    // As long as Linux's attributes can be.
    let mut value = vec![0u8; 64 << 10];
    // SAFETY: both names are NUL-terminated and the buffer is as long as said.
    let len = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    let value = usize::try_from(len).ok().and_then(|len| value.get(..len));
    Ok(String::from_utf8_lossy(value.ok_or_else(|| explain(place))?).into_owned())
}

fn c_string(text: &[u8]) -> Result<CString> {
    CString::new(text).context("the path holds a NUL byte")
}

fn explain(path: &Path) -> anyhow::Error {
    let error = io::Error::last_os_error();
    let hint = match error.raw_os_error() {
        Some(libc::ENODATA) => {
            " (it has no quota of its own, it is not in a mount of weft, or you are not root)"
        }
        Some(libc::EOPNOTSUPP) => {
            " (it is not in a mount of weft, or not all metadata servers know quotas)"
        }
        Some(libc::EPERM) => " (only root sets quotas)",
        Some(libc::ENOTDIR) => " (only folders have quotas)",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("the quota of {}{hint}", path.display()))
}

/// The lines of an answer, and whether there are more.
fn parse(text: &str) -> Result<(Vec<Quota>, bool)> {
    let (mut found, mut more) = (Vec::new(), false);
    for line in text.lines() {
        match line {
            "more" => more = true,
            line => found.push(parse_line(line)?),
        }
    }
    Ok((found, more))
}

fn parse_line(line: &str) -> Result<Quota> {
    let (words, path) = line.split_once(" path=").unwrap_or((line, ""));
    let mut quota = Quota { path: path.to_owned(), ..Default::default() };
    for word in words.split_whitespace() {
        let Some((name, value)) = word.split_once('=') else { bail!("{line:?} is no quota") };
        let bad = || format!("{word:?} of a quota is no number");
        let number = || value.parse::<u64>().with_context(bad);
        match name {
            "tree" | "user" | "group" | "project" if quota.kind.is_empty() => {
                (quota.kind, quota.id) = (name.to_owned(), number()?);
            }
            "bytes" => quota.bytes = number()?,
            "soft-bytes" => quota.soft_bytes = number()?,
            "used-bytes" => quota.used_bytes = number()?,
            "inodes" => quota.inodes = number()?,
            "soft-inodes" => quota.soft_inodes = number()?,
            "used-inodes" => quota.used_inodes = number()?,
            "grace" => quota.grace = number()?,
            "bytes-since" => quota.bytes_since = value.parse().with_context(bad)?,
            "inodes-since" => quota.inodes_since = value.parse().with_context(bad)?,
            "counting" => quota.counting = number()? != 0,
            "ends" => quota.ends = number()? != 0,
            "project" => quota.project = number()?,
            // Of a newer version.
            _ => {}
        }
    }
    Ok(quota)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = "tree=7 bytes=10 soft-bytes=0 inodes=5 used-bytes=3 used-inodes=2 \
                    bytes-since=-1 counting=1 ends=0 project=4 new=x path=/a b\n\
                    user=5 bytes=1\nmore\n";
        let (found, more) = parse(text).unwrap();
        assert!(more && found.len() == 2);
        let tree = &found[0];
        assert_eq!((tree.kind.as_str(), tree.id, tree.bytes, tree.used_bytes), ("tree", 7, 10, 3));
        assert_eq!((tree.project, tree.counting, tree.path.as_str()), (4, true, "/a b"));
        assert_eq!((found[1].kind.as_str(), found[1].id), ("user", 5));
        for bad in ["tree", "tree=x", "bytes=-1", "\u{0}"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
