//! What the files of a mount are called: a name that its path alone gives, and no other path.

use ring::digest::{SHA256, digest};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest name in bytes: the kernel takes 255, and what tells the files of a mount apart comes
/// yet.
const LONGEST: usize = 200;
/// Of a longer one, so much of its end is shown: that tells paths apart best.
const SHOWN: usize = 160;
/// Bytes of the digest that stands for the rest.
const DIGEST: usize = 16;

/// What a version before called it: a long path by its end alone, which others may share.
pub(super) fn before(path: &Path) -> String {
    let mut whole = plain(path);
    whole.split_off(whole.len().saturating_sub(LONGEST))
}

/// A path as one file name; different paths give different names.
pub(super) fn escape(path: &Path) -> String {
    let whole = plain(path);
    if whole.len() <= LONGEST {
        return whole;
    }
    let digest = digest(&SHA256, path.as_os_str().as_bytes());
    let digest: String =
        digest.as_ref().iter().take(DIGEST).map(|byte| format!("{byte:02x}")).collect();
    // No short name has this sign.
    format!("{}~{digest}", &whole[whole.len() - SHOWN..])
}

/// In letters, digits, `_`, `.`, `-` and `%` only, however long that is.
fn plain(path: &Path) -> String {
    let mut name = String::new();
    for &byte in path.as_os_str().as_bytes().strip_prefix(b"/").unwrap_or_default() {
        match byte {
            b'/' => name.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => name.push(byte as char),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}
