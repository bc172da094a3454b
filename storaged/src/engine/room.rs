//! Room on the disk of an index, which need not be the target's own.
//!
//! An index that cannot be made durable ends all writes to its target, deletes too, and may not
//! even be opened again. So what makes it larger is refused before, for as long as its disk has
//! less left than a reserve; what makes it smaller goes on and lives of that.

use super::file::{self, Space};
use parking_lot::Mutex;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::{Error, ErrorKind, Result};

/// Bytes that are kept for what is in memory, and for tables that are written anew before the old
/// ones are freed; of a small disk one part in [`PART`].
const RESERVE: u64 = 128 << 20;
const PART: u64 = 20;
/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is known of it.
pub(super) struct Room {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    looked: Option<Instant>,
    /// Bytes that are left, if that is too little.
    low: Option<u64>,
}

impl Room {
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), state: Mutex::default() }
    }

    /// Whether it is time to look again; whoever is told so does.
    pub fn is_due(&self) -> bool {
        let mut state = self.state.lock();
        let due = state.looked.is_none_or(|looked| looked.elapsed() >= LOOK_INTERVAL);
        if due {
            state.looked = Some(Instant::now());
        }
        due
    }

    /// Looks how much is left. Blocks.
    pub fn look(&self) {
        match File::open(&self.dir).and_then(|dir| file::space(&dir)) {
            Ok(Space { available, free, all }) => {
                // SAFETY: a plain system call.
                let is_root = unsafe { libc::geteuid() } == 0;
                self.note(if is_root { free } else { available }, all);
            }
            Err(error) => {
                let dir = self.dir.display();
                tracing::warn!("how much room the index {dir} has left is not known: {error}");
            }
        }
    }

    /// `free` bytes are left of `all`.
    fn note(&self, free: u64, all: u64) {
        let reserve = RESERVE.min(all / PART);
        let low = Some(free).filter(|free| *free < reserve);
        let before = std::mem::replace(&mut self.state.lock().low, low);
        let (dir, free, reserve) = (self.dir.display(), free >> 20, reserve >> 20);
        match (before, low) {
            (None, Some(_)) => tracing::error!(
                "the disk of the index {dir} has {free} MiB left, less than the reserve of \
                 {reserve} MiB: its target takes no new chunks until there is more"
            ),
            (Some(_), None) => {
                tracing::info!("the disk of the index {dir} has {free} MiB left again");
            }
            _ => {}
        }
    }

    /// Whether the index may grow. Error: `NoSpace`.
    pub fn check(&self) -> Result<()> {
        let Some(free) = self.state.lock().low else { return Ok(()) };
        let what = format!(
            "the disk of the index {} has {} MiB left, less than its reserve: make room there",
            self.dir.display(),
            free >> 20
        );
        // There is no room for a chunk of any length.
        Err(Error { hint: "0".into(), ..Error::new(ErrorKind::NoSpace, what) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BLOCK, Content, Engine, TargetOptions};
    use super::*;
    use bytes::Bytes;
    use weft_proto::{ChunkId, SegmentId, SessionId};

    #[test]
    fn without_room_for_its_index_a_target_deletes_and_takes_nothing_new() {
        let dir = tempfile::tempdir().unwrap();
        let options = TargetOptions::new(dir.path().join("target"), Some(64 << 20));
        Engine::format(&options, &Content::Blank).unwrap();
        let engine = Engine::open(&options).unwrap();
        let rt = tokio::runtime::Runtime::new().unwrap();
        rt.block_on(looked_after(&engine));
        rt.block_on(engine.close()).unwrap();
    }

    async fn looked_after(engine: &Engine) {
        let id = |seq| ChunkId { segment: SegmentId { session: SessionId(1), seq }, shard: 0 };
        let block = Bytes::from(vec![7; BLOCK as usize]);
        let put = |seq| engine.put(id(seq), block.clone(), vec![crc32fast::hash(&block)]);
        let room = &engine.core.index.room;
        assert!(room.is_due() && !room.is_due());
        put(1).await.unwrap();
        // Nobody looks by himself.
        let never = |state: &mut State| state.looked = Some(Instant::now() + LOOK_INTERVAL * 1000);
        never(&mut room.state.lock());
        room.note(RESERVE - 1, u64::MAX);
        let refused = put(2).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoSpace, "{refused:?}");
        put(1).await.expect("it is here");
        // Of what is lost it may take more.
        let crcs = vec![crc32fast::hash(&block)];
        engine.put_back(id(3), block.clone(), crcs).await.unwrap();
        assert_eq!(engine.delete(vec![id(1)]).await.unwrap(), 1);
        room.look();
        put(2).await.expect("there is room");
        // A small disk keeps less.
        room.note(PART, PART * PART);
        room.check().unwrap();
        room.note(PART - 1, PART * PART);
        assert_eq!(room.check().map_err(|e| e.kind), Err(ErrorKind::NoSpace));
    }
}
