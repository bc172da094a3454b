//! Copies of direct writes that wait for room. Linux sends all pieces of such a write at once, up
//! to 65,535 of a MiB, and each has to be taken out of the memory that the next request comes into.
//!
//! Invariant: the copies hold no more than a part of the memory that this process may have, or one
//! write while storage is slow would end it, and with it what all other programs have not synced.

use bytes::Bytes;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weft_proto::{Error, ErrorKind, Result};

/// What all copies may take: one in so many bytes of memory.
const PART: usize = 4;

/// All copies of a mount.
pub struct Copies {
    held: Arc<AtomicUsize>,
    limit: usize,
}

/// The data of one write.
#[derive(Default)]
pub struct Copied {
    data: Bytes,
    /// Where it counts.
    held: Option<Arc<AtomicUsize>>,
}

impl Copies {
    pub fn new() -> Self {
        Self::with_limit(memory() / PART)
    }

    pub fn with_limit(limit: usize) -> Self {
        Self { held: Arc::default(), limit }
    }

    /// The data of a direct write; none of it with the error `NoMemory`.
    pub fn of(&self, data: &[u8]) -> (Copied, Result<()>) {
        let before = self.held.fetch_add(data.len(), Ordering::Relaxed);
        if before.saturating_add(data.len()) > self.limit {
            self.held.fetch_sub(data.len(), Ordering::Relaxed);
            let what = format!(
                "direct writes of {before} bytes wait for storage, which is slower; write less at \
                 a time"
            );
            return (Copied::default(), Err(Error::new(ErrorKind::NoMemory, what)));
        }
        let held = Some(self.held.clone());
        (Copied { data: Bytes::copy_from_slice(data), held }, Ok(()))
    }
}

impl Copied {
    /// Data that counts nowhere.
    pub fn unbounded(data: &[u8]) -> Self {
        Self { data: Bytes::copy_from_slice(data), held: None }
    }
}

impl Deref for Copied {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            held.fetch_sub(self.data.len(), Ordering::Relaxed);
        }
    }
}

/// Bytes of memory that this process may have: of the machine, or of its control group.
fn memory() -> usize {
    let pages = nix::unistd::sysconf(nix::unistd::SysconfVar::_PHYS_PAGES).ok().flatten();
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    let of_machine = pages.zip(page).map_or(usize::MAX, |(pages, page)| (pages * page) as usize);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().flat_map(limits).filter_map(|path| {
        // Without a limit, and where it cannot be read, it says no number.
        fs::read_to_string(path).ok()?.trim().parse::<usize>().ok()
    });
    limits.fold(of_machine, usize::min)
}

/// Where the limits of a control group, and of those that it is in, are said, for a line of
/// `/proc/self/cgroup`.
fn limits(line: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (root, file) = match parts.next() {
        Some("") => ("/sys/fs/cgroup", "memory.max"),
        Some(of) if of.split(',').any(|name| name == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    let group = Path::new(parts.next().unwrap_or_default());
    let all = group.ancestors().filter_map(|group| group.strip_prefix("/").ok());
    all.map(|group| Path::new(root).join(group).join(file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_given_back() {
        let copies = Copies::with_limit(3 << 20);
        let piece = vec![7; 1 << 20];
        let held: Vec<_> = (0..3).map(|_| copies.of(&piece)).collect();
        assert!(held.iter().all(|(copy, room)| copy[..] == piece[..] && room.is_ok()));
        let (none, room) = copies.of(&piece);
        assert_eq!(room.map_err(|e| e.kind), Err(ErrorKind::NoMemory));
        assert!(none.is_empty());
        drop((held, none));
        assert!(copies.of(&piece).1.is_ok());
    }

    #[test]
    fn the_limits_of_all_control_groups_count() {
        let paths = ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max"];
        let all = limits("0::/a/b");
        assert_eq!(all[..2], paths.map(PathBuf::from));
        assert_eq!(all[2..], [PathBuf::from("/sys/fs/cgroup/memory.max")]);
        let old = limits("9:cpu,memory:/pod");
        assert_eq!(old[0], Path::new("/sys/fs/cgroup/memory/pod/memory.limit_in_bytes"));
        assert!(limits("3:cpu:/pod").is_empty() && limits("garbage").is_empty());
        assert!(memory() > 0);
    }
}
