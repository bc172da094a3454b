//! Room on the disk of an index, which need not be the target's own.
//!
//! An index that cannot be made durable ends all writes to its target, deletes too, and may not
//! even be opened again. So what makes it larger is refused before, for as long as its disk has
//! less left than a reserve; what makes it smaller goes on and lives of that.

use super::file::{self, Space};
use parking_lot::Mutex;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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

/// A look that is due: whoever has it looks, or leaves it to another.
pub(super) struct Look(Arc<Room>);

#[derive(Default)]
struct State {
    looked: Option<Instant>,
    /// Somebody looks, or is about to: the disk may hang.
    looking: bool,
    /// Bytes that are left, if that is too little.
    low: Option<u64>,
}

impl Room {
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), state: Mutex::default() }
    }

    /// The next look, when it is time and nobody has it.
    pub fn due(self: &Arc<Self>) -> Option<Look> {
        let mut state = self.state.lock();
        let waits = state.looked.is_some_and(|looked| looked.elapsed() < LOOK_INTERVAL);
        if waits || state.looking {
            return None;
        }
        *state = State { looked: Some(Instant::now()), looking: true, ..*state };
        Some(Look(self.clone()))
    }

    fn look(&self) {
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
        let before = self.state.lock().low;
        // A quarter more, so that it is not taken back with each table that is written anew.
        let enough = if before.is_some() { reserve + reserve / 4 } else { reserve };
        let low = Some(free).filter(|free| *free < enough);
        self.state.lock().low = low;
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

impl Look {
    /// Looks how much is left. Blocks.
    pub fn look(self) {
        self.0.look();
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.0.state.lock().looking = false;
    }
}

#[cfg(test)]
mod tests {
    use super::super::start::MAX_LOOKUPS;
    use super::super::{BLOCK, Content, Engine, TargetOptions};
    use super::*;
    use bytes::Bytes;
    use futures_util::FutureExt;
    use weft_proto::{ChunkId, SegmentId, SessionId};

    fn with_engine(test: impl AsyncFnOnce(&Engine)) {
        let dir = tempfile::tempdir().unwrap();
        let options = TargetOptions::new(dir.path().join("target"), Some(64 << 20));
        Engine::format(&options, &Content::Blank).unwrap();
        let engine = Engine::open(&options).unwrap();
        let rt = tokio::runtime::Runtime::new().unwrap();
        rt.block_on(async {
            test(&engine).await;
            engine.close().await.unwrap();
        });
    }

    /// Else each heartbeat would leave one more behind while the disk hangs.
    #[test]
    fn there_is_one_look_at_a_time_and_one_that_is_given_up_is_left_to_another() {
        with_engine(async |engine| {
            let room = &engine.core.index.room;
            let time_goes_by = || room.state.lock().looked = None;
            let turns = engine.core.lookups.acquire_many(MAX_LOOKUPS as u32).await.unwrap();
            time_goes_by();
            let mut waits = Box::pin(engine.look_at_room());
            assert_eq!((&mut waits).now_or_never(), None);
            time_goes_by();
            assert!(room.due().is_none());
            engine.look_at_room().await;
            drop(waits);
            assert!(room.due().is_some());
            drop(turns);
        });
    }

    #[test]
    fn without_room_for_its_index_a_target_deletes_and_takes_nothing_new() {
        with_engine(looked_after);
    }

    async fn looked_after(engine: &Engine) {
        let id = |seq| ChunkId { segment: SegmentId { session: SessionId(1), seq }, shard: 0 };
        let block = Bytes::from(vec![7; BLOCK as usize]);
        let put = |seq| engine.put(id(seq), block.clone(), vec![crc32fast::hash(&block)]);
        let room = &engine.core.index.room;
        let due = room.due();
        assert!(due.is_some() && room.due().is_none());
        drop(due);
        assert!(room.due().is_none(), "not so soon");
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
        assert!(!engine.stat().index_full);
        // A small disk keeps less, and has to have a quarter more before it is taken again.
        room.note(PART, PART * PART);
        room.check().unwrap();
        room.note(PART - 1, PART * PART);
        assert_eq!(room.check().map_err(|e| e.kind), Err(ErrorKind::NoSpace));
        room.note(PART + PART / 4 - 1, PART * PART);
        assert!(engine.stat().index_full);
        // Nobody puts anything there any more.
        room.state.lock().looked = None;
        engine.look_at_room().await;
        assert!(!engine.stat().index_full);
    }
}
