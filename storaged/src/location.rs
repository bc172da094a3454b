//! Where a target's drive is: a path of this machine, or a namespace behind a fabric.

use crate::nvmeof::Remote;
use std::fmt;
use std::path::{Path, PathBuf};
use weft_proto::{Error, ErrorKind, Result};

/// Where a drive is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    /// Block device or file.
    Local(PathBuf),
    /// A namespace over NVMe-oF.
    Fabric(Remote),
}

impl Location {
    /// Reads `/dev/...`, a file's path, or `nvme-tcp://HOST:PORT/NQN?uuid=UUID` (also `nvme-rdma`).
    /// Errors: `Invalid`, saying what is wrong with it.
    pub fn parse(path: &Path) -> Result<Self> {
        let text = path.to_str().unwrap_or_default();
        match text.split_once("://") {
            Some(("nvme-tcp" | "nvme-rdma", _)) => text.parse().map(Self::Fabric),
            // A file's name may hold "://", though not after a word at its very beginning.
            Some((scheme, _)) if scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') => {
                Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "{text}: {scheme}:// is not known; a target is a path, nvme-tcp:// or \
                         nvme-rdma://"
                    ),
                ))
            }
            _ => Ok(Self::Local(path.to_path_buf())),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => path.display().fmt(f),
            Self::Fabric(remote) => remote.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_fabrics_are_told_apart() {
        let parse = |text: &str| Location::parse(Path::new(text));
        for path in ["/dev/disk/by-id/x", "file", "./a://b", "/a/nvme-tcp://b"] {
            assert_eq!(parse(path).unwrap(), Location::Local(path.into()));
            assert_eq!(parse(path).unwrap().to_string(), path);
        }
        assert!(matches!(parse("nvme-tcp://h/nqn.a").unwrap(), Location::Fabric(_)));
        assert!(parse("nvme-fc://h/nqn.a").unwrap_err().message.contains("nvme-rdma://"));
        assert!(parse("nvme-tcp://h").is_err());
    }
}
