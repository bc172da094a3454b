//! What can be known of a machine: files below a root, and what only a system call tells.

use nix::sys::resource::{Resource, getrlimit};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

/// Longest file that is read, in bytes; a device's PCI configuration has this many.
const MAX_FILE: u64 = 4096;

pub struct System {
    root: PathBuf,
    pub live: Live,
}

/// What no file says.
pub struct Live {
    /// Bytes that this process may lock in memory (soft limit); `u64::MAX`: no limit.
    pub memlock: u64,
    /// Most open files (hard limit).
    pub open_files: u64,
    /// Whether an io_uring can be made, or why not.
    pub io_uring: Result<(), String>,
    /// Whether something keeps the clock right; `None` if nobody can tell.
    pub clock_synchronised: Option<bool>,
}

impl System {
    /// This machine.
    pub fn this() -> Self {
        let limit = |r| getrlimit(r).unwrap_or((0, 0));
        let live = Live {
            memlock: limit(Resource::RLIMIT_MEMLOCK).0,
            open_files: limit(Resource::RLIMIT_NOFILE).1,
            io_uring: io_uring::IoUring::new(8).map(drop).map_err(|e| e.to_string()),
            clock_synchronised: clock_synchronised(),
        };
        Self { root: PathBuf::from("/"), live }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub fn exists(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// The beginning of a file; empty if it cannot be read.
    pub fn bytes(&self, path: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Some attributes err in the middle; what came before them counts.
        if let Ok(file) = std::fs::File::open(self.at(path)) {
            let _ = file.take(MAX_FILE).read_to_end(&mut bytes);
        }
        bytes
    }

    /// Whether a file of any length has such a line.
    pub fn has_line(&self, path: &str, is_it: impl FnMut(String) -> bool) -> bool {
        let Ok(file) = std::fs::File::open(self.at(path)) else { return false };
        BufReader::new(file).lines().map_while(Result::ok).any(is_it)
    }

    /// What a symbolic link holds.
    pub fn link(&self, path: &str) -> Option<String> {
        std::fs::read_link(self.at(path)).ok()?.into_os_string().into_string().ok()
    }

    /// The trimmed text of a file that has any, fit for a terminal.
    pub fn read(&self, path: &str) -> Option<String> {
        let bytes = self.bytes(path);
        let text = String::from_utf8_lossy(&bytes);
        let clean: String =
            text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Some(clean).filter(|t| !t.is_empty())
    }

    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.read(path)?.parse().ok()
    }

    /// Names in a folder, sorted; none if it is not there.
    pub fn list(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(folder)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The chosen word of an attribute such as `mq-deadline [none]`.
    pub fn chosen(&self, path: &str) -> Option<String> {
        let text = self.read(path)?;
        let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        Some(inside.map_or(text.clone(), |(word, _)| word.to_owned()))
    }

    /// PCI devices whose class begins so (`0x0302` is a 3D controller).
    pub fn pci(&self, class: &str) -> Vec<String> {
        let folder = "sys/bus/pci/devices";
        let mut all = self.list(folder);
        all.retain(|d| {
            self.read(&format!("{folder}/{d}/class")).is_some_and(|c| c.starts_with(class))
        });
        all
    }

    /// GPUs that compute: NVIDIA's or AMD's display and processing accelerators.
    pub fn gpus(&self) -> Vec<String> {
        let mut all: Vec<_> =
            ["0x0300", "0x0302", "0x0380", "0x1200"].iter().flat_map(|c| self.pci(c)).collect();
        all.retain(|d| {
            let vendor = self.read(&format!("sys/bus/pci/devices/{d}/vendor"));
            matches!(vendor.as_deref(), Some("0x10de" | "0x1002"))
        });
        all
    }
}

fn clock_synchronised() -> Option<bool> {
    // SAFETY: all zeros is a valid timex, and `modes` 0 asks without changing anything.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the structure, which lives through the call.
    let answer = unsafe { libc::adjtimex(&raw mut state) };
    (answer >= 0).then_some(answer != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// A machine with no files but those in `root`.
    pub fn bare(root: &Path) -> System {
        let live =
            Live { memlock: 8 << 20, open_files: 1024, io_uring: Ok(()), clock_synchronised: None };
        System { root: root.to_path_buf(), live }
    }

    pub fn tree<'a>(root: &Path, files: &[(&'a str, &'a str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    /// The checks that a look makes of these files.
    pub fn looks(
        look: fn(&System) -> Vec<super::super::Check>,
        files: &[(&str, &str)],
    ) -> Vec<super::super::Check> {
        let dir = tempfile::tempdir().unwrap();
        tree(dir.path(), files);
        look(&bare(dir.path()))
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let system = System::this();
        assert!(system.live.open_files > 0);
        assert!(system.read("/proc/version").unwrap().contains("Linux"));
    }
}
