//! Files that are there whole or not at all, whenever the power goes.

use std::fs::{self, File, Permissions};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::Path;

/// Puts a file of these bytes in the place of the one that is there, or where there is none,
/// durably. It has these permissions, or those of a new file. One writer at a time.
pub fn replace(path: &Path, bytes: &[u8], permissions: Option<Permissions>) -> Result<()> {
    let Some(name) = path.file_name() else { return Err(Error::from(ErrorKind::InvalidInput)) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let new = folder.join(format!(".{}.new", name.display()));
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
