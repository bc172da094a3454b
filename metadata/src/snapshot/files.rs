//! The files of a snapshot or a backup: what their names and lengths may be, and what is in them.

use crate::state::StateMachine;
use crate::store::{Told, Unreadable};
use crate::tables::members::Membership;
use nix::errno::Errno;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use weft_proto::{Error, ErrorKind, Result, v1};

/// Most files and bytes that are taken from one snapshot.
const MAX_FILES: usize = 100_000;
const MAX_BYTES: u64 = 1 << 42;
/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Refuses a manifest that could do harm.
pub(crate) fn check(manifest: &v1::SnapshotManifest) -> Result<()> {
    plain(&manifest.snapshot)?;
    check_files(&manifest.files)
}

/// Bytes of all files of a snapshot.
pub(crate) fn len(manifest: &v1::SnapshotManifest) -> u64 {
    manifest.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.len))
}

/// Refuses files that are too many, too long, or whose names could lead elsewhere.
pub(crate) fn check_files(files: &[v1::snapshot_manifest::File]) -> Result<()> {
    files.iter().try_for_each(|f| plain(&f.name))?;
    let bytes = files.iter().try_fold(0u64, |sum, f| sum.checked_add(f.len));
    if files.len() > MAX_FILES || bytes.is_none_or(|b| b > MAX_BYTES) {
        return Err(Error::new(ErrorKind::TooLarge, "a snapshot of unreasonable size"));
    }
    Ok(())
}

/// Refuses names that are not plain file names.
pub(super) fn plain(name: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 255 || name.starts_with('.') || !name.chars().all(fine) {
        return Err(Error::new(ErrorKind::Protocol, format!("{name:?} is not a plain file name")));
    }
    Ok(())
}

/// Copies the state as it is to a folder, and reads all of the copy. Answers as of which entry it
/// is, and the group as of then, if it is recorded. Error also if `told` has had enough.
pub(crate) fn copy_whole(
    state: &StateMachine,
    dir: &Path,
    told: &mut Told<'_>,
) -> Result<(u64, Option<Membership>), Unreadable> {
    let copied = state.copy(dir);
    // In any case: what is damaged may be what says of when the copy is.
    match state.verify_copy(dir, told) {
        Ok(Some(error)) => Err(Unreadable { error, is_damage: true }),
        Ok(None) => copied,
        Err(error) => copied.and(Err(Unreadable { error, is_damage: false })),
    }
}

/// The files of a folder, by name, with their lengths and checksums. Error also if `told` has had
/// enough.
pub(crate) fn measure_all(
    dir: &Path,
    told: &mut Told<'_>,
) -> Result<Vec<v1::snapshot_manifest::File>, Unreadable> {
    let listed = fs::read_dir(dir).and_then(|d| d.collect::<std::io::Result<Vec<_>>>());
    let listed = listed.map_err(|e| unreadable("list", dir, &e))?;
    let name_of = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = listed.into_iter().map(name_of).collect();
    names.sort();
    let measured = names.into_iter().map(|name| {
        let (len, crc32) = measure(&dir.join(&name), told)?;
        Ok(v1::snapshot_manifest::File { name, len, crc32 })
    });
    measured.collect()
}

pub(crate) fn measure(path: &Path, told: &mut Told<'_>) -> Result<(u64, u32), Unreadable> {
    let mut crc = crc32fast::Hasher::new();
    let mut len = 0;
    let mut buffer = vec![0; PIECE];
    let mut file = File::open(path).map_err(|e| unreadable("open", path, &e))?;
    loop {
        let n = file.read(&mut buffer).map_err(|e| unreadable("read", path, &e))?;
        if n == 0 {
            return Ok((len, crc.finalize()));
        }
        len += n as u64;
        crc.update(&buffer[..n]);
        told(n as u64)?;
    }
}

pub(crate) fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io("remove", dir, &e)),
        _ => Ok(()),
    }
}

pub(crate) fn io(what: &str, path: &Path, e: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot {what} {}: {e}", path.display()))
}

pub(super) fn unreadable(what: &str, path: &Path, e: &std::io::Error) -> Unreadable {
    Unreadable { error: io(what, path, e), is_damage: is_damage(e) }
}

/// Whether what lies there does not read, and not that this server can read nothing now.
fn is_damage(e: &std::io::Error) -> bool {
    e.raw_os_error() == Some(Errno::EIO as i32) || e.kind() == std::io::ErrorKind::UnexpectedEof
}
