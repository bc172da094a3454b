//! The socket at which an orchestrator speaks to the driver.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};

/// Where it is, as `unix:///PATH`, `unix:/PATH` or `/PATH` say it. Errors: what is wrong with it.
pub fn parse(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    match path.starts_with('/') && path.len() > 1 {
        true => Ok(path.into()),
        false => Err(format!("{text:?} is no endpoint: write unix:///csi/csi.sock")),
    }
}

/// Listens there, in place of what another process has left; only this user may connect. Errors:
/// `AddrInUse` if somebody listens there.
pub async fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        if UnixStream::connect(path).await.is_ok() {
            return Err(ErrorKind::AddrInUse.into());
        }
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_sockets_of_unix() {
        for good in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            assert_eq!(parse(good).unwrap(), Path::new("/csi/csi.sock"));
        }
        for bad in ["", "unix://", "tcp://127.0.0.1:1", "csi.sock", "unix:///"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn what_a_dead_process_has_left_makes_way() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("deep/csi.sock");
        let first = listen(&at).await.unwrap();
        let second = listen(&at).await.map(drop).map_err(|e| e.kind());
        assert_eq!(second, Err(ErrorKind::AddrInUse));
        drop(first);
        listen(&at).await.unwrap();
    }
}
