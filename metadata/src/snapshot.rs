//! State snapshots: made by the leader as a checkpoint in a folder, pulled piece by piece by a
//! follower that is too far behind for the log, checked, and handed to the event loop.
//!
//! Invariants: names that come from a peer are plain file names, looked up or created only below
//! this server's own folders; a file is used only if its length and CRC are those of the manifest;
//! at most one snapshot is kept for others, and none for longer than anyone pulls from it; none is
//! made of what does not read: others would take the damage over; nothing is left of a fetch that
//! was broken off.

mod files;

pub(crate) use files::{check, check_files, copy_whole, io, len, measure, measure_all, remove};

use crate::config::Member;
use crate::env::Env;
use crate::folder::SNAPSHOTS;
use crate::node::goes_on;
use crate::state::StateMachine;
use crate::store::Unreadable;
use crate::tables::members::Membership;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use weft_net::{Body, Peers};
use weft_proto::{Error, ErrorKind, Result, v1};

/// Bytes asked for at a time.
pub(crate) const PIECE: u64 = 1 << 20;
/// How long one piece may take.
const PIECE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most servers of which it is known when they read last.
const MAX_READERS: usize = 64;

/// The snapshots of one server, outgoing and incoming.
pub struct Snapshots {
    outgoing: PathBuf,
    incoming: PathBuf,
    me: Member,
    env: Env,
    state: Arc<StateMachine>,
    stop: watch::Receiver<bool>,
    made: Mutex<Option<Made>>,
    /// What does not read of the state, or of a piece of a copy, until that was heard of.
    unreadable: Mutex<Option<Error>>,
}

/// A snapshot that was made.
pub struct NewSnapshot {
    /// Of the last entry in it.
    pub index: u64,
    /// The group as of then, if it is recorded.
    pub members: Option<Membership>,
    /// What a follower needs to fetch it.
    pub manifest: v1::SnapshotManifest,
}

struct Made {
    manifest: v1::SnapshotManifest,
    dir: PathBuf,
    used: Instant,
    /// When each server read from it last; 0: those that do not say who they are.
    readers: BTreeMap<u64, Instant>,
}

impl Made {
    fn note_reader(&mut self, server: u64) {
        self.used = Instant::now();
        // Who asks says himself who he is.
        if self.readers.len() < MAX_READERS || self.readers.contains_key(&server) {
            self.readers.insert(server, self.used);
        }
    }
}

impl Snapshots {
    /// Prepares the folders; what an earlier run left in them is removed. None is made any more
    /// once `stop` is true.
    pub fn open(
        data_dir: &Path,
        me: Member,
        env: Env,
        state: Arc<StateMachine>,
        stop: watch::Receiver<bool>,
    ) -> Result<Self> {
        let (outgoing, incoming) = (data_dir.join(SNAPSHOTS), data_dir.join("incoming"));
        for dir in [&outgoing, &incoming] {
            remove(dir)?;
            fs::create_dir_all(dir).map_err(|e| io("create", dir, &e))?;
        }
        let (made, unreadable) = (Mutex::new(None), Mutex::new(None));
        Ok(Self { outgoing, incoming, me, env, state, stop, made, unreadable })
    }

    /// Makes a snapshot of the state as it is.
    pub async fn make(self: &Arc<Self>) -> Result<NewSnapshot> {
        let this = self.clone();
        self.env.blocking(move || this.make_now()).await
    }

    fn make_now(&self) -> Result<NewSnapshot> {
        self.discard();
        let dir = self.outgoing.join("making");
        self.make_in(&dir).inspect_err(|_| {
            // It would keep the room of what is compacted meanwhile.
            if let Err(e) = remove(&dir) {
                tracing::warn!("{e}");
            }
        })
    }

    fn make_in(&self, dir: &Path) -> Result<NewSnapshot> {
        remove(dir)?;
        let mut told = |_: u64| goes_on(&self.stop);
        let (index, members) = copy_whole(&self.state, dir, &mut told).map_err(|e| self.note(e))?;
        // Also of what nobody has read yet: filters, say.
        let files = measure_all(dir, &mut told).map_err(|e| self.note(e))?;
        let snapshot = format!("snapshot-{index}");
        let kept = self.outgoing.join(&snapshot);
        remove(&kept)?;
        fs::rename(dir, &kept).map_err(|e| io("rename", dir, &e))?;
        let manifest = v1::SnapshotManifest { snapshot, address: self.me.address.clone(), files };
        let (used, readers) = (Instant::now(), BTreeMap::new());
        let made = Made { manifest: manifest.clone(), dir: kept, used, readers };
        *self.made.lock() = Some(made);
        Ok(NewSnapshot { index, members, manifest })
    }

    /// When a follower last read from the snapshot that is kept, if one is.
    pub fn last_used(&self) -> Option<Instant> {
        self.made.lock().as_ref().map(|m| m.used)
    }

    /// When this server last read from it, as far as that is known.
    pub fn last_read(&self, server: u64) -> Option<Instant> {
        let made = self.made.lock();
        let readers = &made.as_ref()?.readers;
        readers.get(&server).max(readers.get(&0)).copied()
    }

    /// Keeps what is damaged until that is heard of.
    fn note(&self, Unreadable { error, is_damage }: Unreadable) -> Error {
        if is_damage {
            *self.unreadable.lock() = Some(error.clone());
        }
        error
    }

    /// What does not read of the state, or of a piece of a copy, if that was met since the last
    /// call. That there is no room for a copy, say, is no damage.
    pub fn take_unreadable(&self) -> Option<Error> {
        self.unreadable.lock().take()
    }

    /// Removes the snapshot that is kept for followers.
    pub fn discard(&self) {
        if let Some(made) = self.made.lock().take()
            && let Err(e) = remove(&made.dir)
        {
            tracing::warn!("{e}");
        }
    }

    /// Serves one piece.
    pub async fn piece(
        &self,
        request: v1::SnapshotPieceRequest,
    ) -> Result<(v1::SnapshotPiece, Vec<Bytes>)> {
        let gone = || {
            let name = &request.snapshot;
            Error::new(ErrorKind::NotFound, format!("snapshot {name:?} is not here (any more)"))
        };
        let (path, file_len) = {
            let mut made = self.made.lock();
            let made = made
                .as_mut()
                .filter(|m| m.manifest.snapshot == request.snapshot)
                .ok_or_else(gone)?;
            let file =
                made.manifest.files.iter().find(|f| f.name == request.file).ok_or_else(gone)?;
            let found = (made.dir.join(&file.name), file.len);
            made.note_reader(request.server);
            found
        };
        if request.off > file_len {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("{} ends at {file_len}", request.file),
            ));
        }
        let len = u64::from(request.len).min(PIECE).min(file_len - request.off);
        let off = request.off;
        let read = move || {
            let mut bytes = vec![0; len as usize];
            let file = File::open(&path).map_err(|e| io("open", &path, &e))?;
            let read = file.read_exact_at(&mut bytes, off);
            Ok(read.map(|()| bytes).map_err(|e| files::unreadable("read", &path, &e)))
        };
        let bytes = self.env.blocking(read).await?.map_err(|e| self.note(e))?;
        Ok((v1::SnapshotPiece { end: off + len == file_len }, vec![bytes.into()]))
    }

    /// Where a fetched snapshot lies.
    pub fn fetched(&self, manifest: &v1::SnapshotManifest) -> Result<PathBuf> {
        files::plain(&manifest.snapshot)?;
        Ok(self.incoming.join(&manifest.snapshot))
    }

    /// Removes what was fetched: of a fetch that was broken off it is of no use, and takes room.
    pub async fn forget_fetched(&self) -> Result<()> {
        let incoming = self.incoming.clone();
        let anew = move || {
            remove(&incoming)?;
            fs::create_dir_all(&incoming).map_err(|e| io("create", &incoming, &e))
        };
        self.env.blocking(anew).await
    }

    /// Pulls a snapshot from the server that made it, to where nothing is. Only one runs at a time.
    pub async fn fetch(&self, peers: &Peers, manifest: &v1::SnapshotManifest) -> Result<PathBuf> {
        check(manifest)?;
        let dir = self.fetched(manifest)?;
        fs::create_dir_all(&dir).map_err(|e| io("create", &dir, &e))?;
        for file in &manifest.files {
            self.fetch_file(peers, manifest, file, &dir).await?;
        }
        let synced = dir.clone();
        self.env
            .blocking(move || {
                File::open(&synced).and_then(|d| d.sync_all()).map_err(|e| io("sync", &synced, &e))
            })
            .await?;
        Ok(dir)
    }

    async fn fetch_file(
        &self,
        peers: &Peers,
        manifest: &v1::SnapshotManifest,
        file: &v1::snapshot_manifest::File,
        dir: &Path,
    ) -> Result<()> {
        let path = dir.join(&file.name);
        let mut to = File::create(&path).map_err(|e| io("create", &path, &e))?;
        let mut crc = crc32fast::Hasher::new();
        let mut off = 0;
        while off < file.len {
            let request = v1::SnapshotPieceRequest {
                snapshot: manifest.snapshot.clone(),
                file: file.name.clone(),
                off,
                len: PIECE as u32,
                server: self.me.id.0,
            };
            let deadline = Instant::now() + PIECE_TIMEOUT;
            let peer = peers.peer(&manifest.address);
            let answer = peer.exchange(&request, Body::default(), deadline).await?;
            let got: u64 = answer.payload.iter().map(|b| b.len() as u64).sum();
            if got == 0 || got > file.len - off {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    format!("{}: a piece of {got} bytes at {off} of {}", file.name, file.len),
                ));
            }
            (to, crc) = self
                .env
                .blocking(move || {
                    for part in &answer.payload {
                        crc.update(part);
                        to.write_all(part)
                            .map_err(|e| io("write a piece to", Path::new("snapshot"), &e))?;
                    }
                    Ok((to, crc))
                })
                .await?;
            off += got;
        }
        if crc.finalize() != file.crc32 {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("{} of {} arrived damaged", file.name, manifest.snapshot),
            ));
        }
        self.env.blocking(move || to.sync_all().map_err(|e| io("sync", &path, &e))).await
    }
}

#[cfg(test)]
mod tests;
