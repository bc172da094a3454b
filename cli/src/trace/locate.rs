//! Which cluster a file is of, and where it is there.

use crate::mount::Spec;
use anyhow::{Context, Result, bail};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weft_proto::InodeId;

/// A file of a cluster.
pub struct Place {
    pub cluster: Vec<String>,
    /// The directory that the path is looked up from.
    pub subdir: String,
    /// From that on.
    pub path: Vec<u8>,
    /// Its number, as the kernel of this machine has it.
    pub ino: Option<InodeId>,
}

/// Finds a file: in a mount of this machine, whatever cluster is named, for a number means
/// something in its own cluster only; or else in that which is named.
pub fn locate(file: &Path, cluster: &[String]) -> Result<Place> {
    let at = file.display();
    let found = file.canonicalize();
    let mounted = found.as_ref().ok().and_then(|path| mount_of(path));
    match (mounted, &found) {
        (Some((spec, below)), Ok(path)) => {
            let meta = std::fs::metadata(path).with_context(|| format!("cannot look at {at}"))?;
            Ok(Place {
                cluster: spec.cluster,
                subdir: spec.subdir,
                path: absolute(&below),
                ino: (!meta.is_dir()).then_some(InodeId(meta.ino())),
            })
        }
        (None, found) if cluster.is_empty() => match found {
            Ok(_) => bail!(
                "{at} is not in a mount of weft. To trace a path of a cluster, name that: \
                 weft trace {at} --cluster ADDR,.. (or WEFT_CLUSTER)"
            ),
            Err(error) => bail!(
                "cannot look at {at}: {error}. To trace a path of a cluster without a mount, name \
                 that: weft trace {at} --cluster ADDR,.. (or WEFT_CLUSTER)"
            ),
        },
        _ => Ok(Place {
            cluster: cluster.to_vec(),
            subdir: String::new(),
            path: absolute(file),
            ino: None,
        }),
    }
}

/// The mount that a path is in, the newest of several at one place, and the path below it.
fn mount_of(path: &Path) -> Option<(Spec, PathBuf)> {
    let mounts = weft_fuse::mounts().ok()?.into_iter();
    let above = mounts.filter(|m| path.starts_with(&m.mount_point));
    let mount = above.max_by_key(|m| m.mount_point.as_os_str().len())?;
    let spec = mount.is_weft().then(|| Spec::parse(&mount.source).ok()).flatten()?;
    Some((spec, path.strip_prefix(&mount.mount_point).ok()?.to_owned()))
}

fn absolute(path: &Path) -> Vec<u8> {
    let path = path.as_os_str().as_bytes();
    match path.starts_with(b"/") {
        true => path.to_vec(),
        false => [b"/", path].concat(),
    }
}
