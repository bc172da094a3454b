//! Files that are there whole or not at all, whenever the power goes.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Puts a file of these bytes in the place of the one that is there, or where there is none,
/// durably. It has these permissions, or those of a new file. One writer at a time.
pub fn replace(path: &Path, bytes: &[u8], permissions: Option<Permissions>) -> Result<()> {
    let (folder, name) = place(path)?;
    let new = folder.join(format!(".{name}.new"));
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = File::create_new(&new)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

/// Makes a file that is not there yet, durably. From its first moment it has no more than this
/// mode. Errors: `AlreadyExists`.
pub fn create(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let (folder, name) = place(path)?;
    // Of its own for each writer: the first that is done wins.
    let new = folder.join(format!(".{name}.{:016x}", rand::random::<u64>()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    let made = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&new, path));
    fs::remove_file(&new)?;
    made?;
    File::open(folder)?.sync_all()
}

/// The folder of a file, and its name there.
fn place(path: &Path) -> Result<(&Path, std::path::Display<'_>)> {
    let name = path.file_name().ok_or(Error::from(ErrorKind::InvalidInput))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok((folder.unwrap_or(Path::new(".")), Path::new(name).display()))
}
