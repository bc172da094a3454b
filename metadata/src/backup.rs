//! Backups: a copy of the state as of one moment, with a manifest that says whose it is and what
//! belongs to it. Made by the leader for an admin, kept anywhere, and the beginning of a new group
//! when the old one is lost ([`crate::restore`]).
//!
//! Invariants: a backup holds everything that was acknowledged before it was asked for; it is used
//! only if each file has the length and the CRC of its manifest, and, unless there is nothing
//! better, if all that is in them reads (`whole`), which is looked at when it is made, too; what
//! comes from outside names plain files only.

mod listener;
mod whole;

use crate::folder::SNAPSHOTS;
use crate::node::Node;
use crate::snapshot::{self, PIECE, io, measure_all};
use crate::store::{Told, unheard};
use listener::Listener;
pub(crate) use listener::Pieces;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::{Request, Response};
use weft_proto::{Error, ErrorKind, Result, Uuid, v1};

/// The file beside the others that says what they are. Written last: without it there is no backup.
pub const MANIFEST: &str = "backup.toml";
/// Version of what a manifest says.
const FORMAT: u32 = 1;
/// Bytes of the longest manifest.
const MAX_MANIFEST: u64 = 32 << 20;

/// What a backup is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    /// Of the program that made it.
    pub weft: String,
    /// The cluster, as 32 hexadecimal digits.
    pub cluster: String,
    /// The last entry of the log that is in it, and its term, or that of the leader who made it.
    pub index: u64,
    pub term: u64,
    /// When it was made, in seconds since 1970, by the leader's clock.
    pub taken: i64,
    /// The numbers of all servers that the group has had.
    pub servers: Vec<u64>,
    pub files: Vec<Part>,
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub name: String,
    /// Bytes.
    pub len: u64,
    pub crc32: u32,
}

impl Manifest {
    /// That of the files in a folder, which are a state as of an entry and a term. `told` hears how
    /// much of them was read.
    pub(crate) fn of(
        dir: &Path,
        cluster: Uuid,
        (index, term): (u64, u64),
        taken: i64,
        servers: Vec<u64>,
        told: &mut Told<'_>,
    ) -> Result<Self> {
        let files = measure_all(dir, told)?.into_iter();
        let files = files.map(|f| Part { name: f.name, len: f.len, crc32: f.crc32 }).collect();
        let cluster = cluster.to_string();
        Ok(Self { cluster, index, term, taken, servers, files, ..Self::empty() })
    }

    /// Takes a manifest apart. Errors: `Corrupt`, `NotSupported`; `TooLarge` or `Protocol` for
    /// files that make no sense.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |e| Error::new(ErrorKind::Corrupt, format!("{MANIFEST}: {e}"));
        let manifest: Self = toml::from_str(text).map_err(|e| bad(e.to_string()))?;
        if manifest.format != FORMAT {
            let what = format!(
                "{MANIFEST}: format {} is not {FORMAT}: use the version that made it, {}",
                manifest.format, manifest.weft
            );
            return Err(Error::new(ErrorKind::NotSupported, what));
        }
        snapshot::check_files(&manifest.files.iter().map(Part::to_wire).collect::<Vec<_>>())?;
        manifest.cluster_id()?;
        Ok(manifest)
    }

    /// As it is written.
    pub fn to_text(&self) -> Result<String> {
        toml::to_string(self)
            .map_err(|e| Error::new(ErrorKind::Internal, format!("{MANIFEST}: {e}")))
    }

    /// Reads that of the backup in a folder.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let read = |path: &Path| {
            let mut text = String::new();
            File::open(path)?.take(MAX_MANIFEST).read_to_string(&mut text)?;
            Ok(text)
        };
        match read(&path) {
            Ok(text) => Self::parse(&text),
            Err(e) if std::io::Error::kind(&e) == std::io::ErrorKind::NotFound => {
                let what = format!("there is no backup in {}: it has no {MANIFEST}", dir.display());
                Err(Error::new(ErrorKind::NotFound, what))
            }
            Err(e) => Err(io("read", &path, &e)),
        }
    }

    /// The cluster.
    pub fn cluster_id(&self) -> Result<Uuid> {
        let bad = |e| Error::new(ErrorKind::Corrupt, format!("{MANIFEST}: cluster: {e}"));
        self.cluster.parse().map_err(bad)
    }
}

/// Copies the files of a backup into a folder, durably, and looks at what was copied. Nobody else
/// may read them: they have all names.
pub(crate) fn copy_files(manifest: &Manifest, from: &Path, to: &Path) -> Result<()> {
    for part in &manifest.files {
        let (source, target) = (from.join(&part.name), to.join(&part.name));
        let mut source = File::open(&source).map_err(|e| io("open", &source, &e))?;
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target);
        let copied = made.and_then(|mut file| {
            std::io::copy(&mut source, &mut file)?;
            file.sync_all()
        });
        copied.map_err(|e| io("copy to", &target, &e))?;
    }
    // Anew: what was looked at before may have changed.
    manifest.verify_files(to, &mut unheard)?;
    File::open(to).and_then(|d| d.sync_all()).map_err(|e| io("sync", to, &e))
}

impl Part {
    fn to_wire(&self) -> v1::snapshot_manifest::File {
        let Self { name, len, crc32 } = self.clone();
        v1::snapshot_manifest::File { name, len, crc32 }
    }
}

/// A backup that is being told; its files go with it.
pub(crate) struct Copy {
    dir: PathBuf,
    manifest: Manifest,
    /// The disk was low on room when it was begun.
    was_low: bool,
}

/// What is copied keeps the space of what is merged meanwhile: rather no backup than a cluster that
/// takes nothing new. Error: `NoSpace`.
fn keeps_room(node: &Node, was_low: bool) -> Result<()> {
    if was_low || !node.low_on_room() {
        return Ok(());
    }
    let what = format!(
        "the disk of {} has less left than its reserve, and the backup, which keeps some of that, \
         is given up: make room there",
        node.config.data_dir.display()
    );
    Err(Error::new(ErrorKind::NoSpace, what))
}

impl Copy {
    /// Makes one of what a leader has, if all of that reads. Errors: that of `told`; `NoSpace`.
    pub(crate) fn make(node: &Node, told: &mut Told<'_>) -> Result<Self> {
        let dir = node.config.data_dir.join(SNAPSHOTS).join("backup");
        snapshot::remove(&dir)?;
        // Removed also when this fails.
        let mut copy = Self { dir, manifest: Manifest::empty(), was_low: node.low_on_room() };
        let was_low = copy.was_low;
        let told: &mut Told<'_> = &mut |read| keeps_room(node, was_low).and_then(|()| told(read));
        let (index, _) = snapshot::copy_whole(&node.state, &copy.dir, told).map_err(|e| {
            if e.is_damage {
                node.damage.note_copy(&e.error);
            }
            e.error
        })?;
        node.damage.is_copied();
        let cluster = node.cluster().unwrap_or(Uuid::NIL);
        let (at, taken) = ((index, node.view().term), node.env.clock.now_ns() / 1_000_000_000);
        let servers = node.state.numbers()?;
        copy.manifest = Manifest::of(&copy.dir, cluster, at, taken, servers, told)?;
        Ok(copy)
    }

    fn tell(&self, node: &Node, to: &mut Listener) -> Result<()> {
        let manifest = self.manifest.to_text()?;
        to.take(v1::BackupPiece { manifest, ..Default::default() })?;
        for part in &self.manifest.files {
            let path = self.dir.join(&part.name);
            let mut file = File::open(&path).map_err(|e| io("open", &path, &e))?;
            let mut left = part.len;
            while left > 0 {
                keeps_room(node, self.was_low)?;
                let mut data = vec![0; left.min(PIECE) as usize];
                file.read_exact(&mut data).map_err(|e| io("read", &path, &e))?;
                left -= data.len() as u64;
                to.take(v1::BackupPiece { data: data.into(), ..Default::default() })?;
            }
        }
        Ok(())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(e) = snapshot::remove(&self.dir) {
            tracing::warn!("{e}");
        }
    }
}

impl Manifest {
    fn empty() -> Self {
        let weft = env!("CARGO_PKG_VERSION").into();
        let (cluster, servers, files) = (String::new(), Vec::new(), Vec::new());
        Self { format: FORMAT, weft, cluster, index: 0, term: 0, taken: 0, servers, files }
    }
}

/// Makes a backup of what this leader has, and tells it piece by piece to who listens, at whose
/// pace. Error: `Busy` if there is no turn left.
pub(crate) async fn tell(
    node: &Arc<Node>,
    turns: &Arc<Semaphore>,
    asked: Request<v1::BackupRequest>,
) -> Result<Response<Pieces>> {
    // All that was acknowledged before is in what is copied.
    node.read_barrier().await?;
    let (of, stop, says) = (node.clone(), node.stop.clone(), asked.get_ref().says_read);
    let make = move |listener: &mut Listener| {
        Copy::make(&of, &mut |read| listener.hear(read))?.tell(&of, listener)
    };
    listener::work(&node.env, turns, stop, says, make).map(Response::new)
}

#[cfg(test)]
pub(crate) mod tests;
