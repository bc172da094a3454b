//! What reads and the writer share: what is open, and whether the drive is left alone.

use crate::index::Index;
use crate::metrics::METRICS;
use crate::piece::Piece;
use crate::store::{Place, REGION, Store};
use bytes::Bytes;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;
use weft_net::sync::Mutex;
use weft_proto::{Error, ErrorKind, Uuid};

/// A drive that failed, or took too long, is asked nothing for so long.
const REST: Duration = Duration::from_secs(10);

/// Where pieces are kept, and how many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HotOptions {
    /// A folder on a drive of this machine; it is made if it is not there.
    pub dir: PathBuf,
    /// Bytes, all of which are taken at once.
    pub size: u64,
}

impl HotOptions {
    /// The least size, bytes.
    pub const MIN_SIZE: u64 = 4 * REGION;
}

/// What reads and the writer share.
pub struct Shared {
    pub options: HotOptions,
    pub cluster: Uuid,
    /// None before it is open, and after the end.
    pub open: Mutex<Option<Open>>,
    /// No reads, and no writes, until then.
    rest_until: [Mutex<Option<Instant>>; 2],
    /// No writes from now on.
    rests: Notify,
}

/// What the drive is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Read,
    Write,
}

pub struct Open {
    pub store: Arc<Store>,
    pub index: Index,
    /// Pieces that are on their way to the drive.
    pub pending: HashSet<Piece>,
}

pub enum Job {
    Put {
        piece: Piece,
        content: Bytes,
        /// Whatever has to go for it.
        forced: bool,
        queued: OwnedSemaphorePermit,
        done: oneshot::Sender<bool>,
    },
    Close(oneshot::Sender<()>),
}

impl Shared {
    /// Nothing is open yet.
    pub fn new(options: HotOptions, cluster: Uuid) -> Self {
        let (open, rest_until, rests) = Default::default();
        Self { options, cluster, open, rest_until, rests }
    }

    /// Whether the drive is not asked for that now.
    pub fn rests(&self, what: Use) -> bool {
        let mut until = self.rest_until[what as usize].lock();
        let rests = until.is_some_and(|until| Instant::now() < until);
        if !rests {
            *until = None;
        }
        rests
    }

    /// The drive failed, or takes too long: it is not asked for that for a while.
    pub fn rest(&self, what: Use, why: &Error) {
        METRICS.errors.inc();
        let until = Instant::now() + REST;
        if self.rest_until[what as usize].lock().replace(until).is_none() {
            let uses = if what == Use::Read { "read from" } else { "written to" };
            tracing::warn!("the hot tier is not {uses} for {REST:?}: {why}");
        }
        if what == Use::Write {
            self.rests.notify_waiters();
        }
    }

    /// Returns when the drive is not written to.
    pub async fn writes_rest(&self) {
        let begins = self.rests.notified();
        if !self.rests(Use::Write) {
            begins.await;
        }
    }

    /// What was read of a piece is not what was put.
    pub fn is_no_good(&self, piece: &Piece, place: Place, error: &Error) {
        let mut open = self.open.lock();
        let Some(open) = open.as_mut() else { return };
        if !open.index.forget(piece, place) {
            // Something else was put there meanwhile.
            return;
        }
        METRICS.kept.set(open.index.kept() as i64);
        if error.kind == ErrorKind::Corrupt {
            METRICS.corrupt.inc();
            tracing::warn!("the hot tier: {error}; the targets are asked");
        } else {
            self.rest(Use::Read, error);
        }
    }
}
