//! Who listens to a backup while that is made.
//!
//! Invariants: work for a listener ends soon after that is gone, or the server stops, and only then
//! is the turn free; nobody waits longer than a limit for who takes nothing.

use crate::env::Env;
use crate::node::{goes_on, stopping};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use weft_control::to_status;
use weft_proto::{Error, ErrorKind, Result, v1};

/// What is told of a backup.
pub(crate) type Pieces = ReceiverStream<std::result::Result<v1::BackupPiece, Status>>;

/// Pieces that wait for whoever takes them.
const WAITING: usize = 4;
/// Longest that one waits: what is copied keeps the space of what is compacted meanwhile. A drive
/// or a file server that it is written to may take long to make a file durable.
const TAKE_TIMEOUT: Duration = Duration::from_secs(300);
/// How often it is told how much was read.
const SAY_INTERVAL: Duration = Duration::from_secs(5);

/// Who listens, for the thread that works.
pub(crate) struct Listener {
    to: mpsc::Sender<std::result::Result<v1::BackupPiece, Status>>,
    runtime: Handle,
    stop: watch::Receiver<bool>,
    /// When it was said last how much was read, to who wants to hear that.
    said: Option<Option<Instant>>,
    read: u64,
}

impl Listener {
    fn gone() -> Error {
        Error::new(ErrorKind::Unavailable, "nobody listens any more")
    }

    /// So many bytes more were read, before the first piece. Errors: nobody listens any more; this
    /// server stops.
    pub fn hear(&mut self, bytes: u64) -> Result<()> {
        goes_on(&self.stop)?;
        if self.to.is_closed() {
            return Err(Self::gone());
        }
        self.read += bytes;
        let is_due = |at: Option<Instant>| at.is_none_or(|at| at.elapsed() >= SAY_INTERVAL);
        if self.read > 0 && self.said.is_some_and(is_due) {
            self.said = Some(Some(Instant::now()));
            // Who has something to take already needs not hear that there will be.
            let _ = self.to.try_send(Ok(v1::BackupPiece { read: self.read, ..Default::default() }));
        }
        Ok(())
    }

    /// Waits until a piece can be taken. Errors: as [`Self::hear`]; `TimedOut`.
    pub fn take(&mut self, piece: v1::BackupPiece) -> Result<()> {
        let Self { to, stop, runtime, .. } = self;
        let late = || {
            let what = format!("no piece was taken for {TAKE_TIMEOUT:?}");
            Error::new(ErrorKind::TimedOut, what)
        };
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = stop.wait_for(|&stop| stop) => Err(stopping()),
                sent = timeout(TAKE_TIMEOUT, to.send(Ok(piece))) => {
                    sent.map_err(|_| late())?.map_err(|_| Self::gone())
                }
            }
        })
    }
}

/// Does work for who listens, on a thread. `says`: it wants to hear how much was read. Error:
/// `Busy` if there is no turn left.
pub(crate) fn work(
    env: &Env,
    turns: &Arc<Semaphore>,
    stop: watch::Receiver<bool>,
    says: bool,
    work: impl FnOnce(&mut Listener) -> Result<()> + Send + 'static,
) -> Result<Pieces> {
    let busy = || Error::new(ErrorKind::Busy, "another backup is being made: try again");
    let turn = turns.clone().try_acquire_owned().map_err(|_| busy())?;
    let (to, pieces) = mpsc::channel(WAITING);
    let (told, env) = (to.clone(), env.clone());
    let said = says.then_some(None);
    let mut listener = Listener { to, runtime: Handle::current(), stop, said, read: 0 };
    tokio::spawn(async move {
        let worked = env.blocking(move || {
            let done = work(&mut listener);
            // Not before: the next one uses the same folder.
            drop(turn);
            done
        });
        if let Err(e) = worked.await {
            tracing::warn!("a backup failed: {e}");
            // Nobody may listen any more.
            let _ = told.send(Err(to_status(e))).await;
        }
    });
    Ok(ReceiverStream::new(pieces))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc as threads;
    use tokio_stream::StreamExt;

    fn turns() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(1))
    }

    fn one(bytes: &'static [u8]) -> v1::BackupPiece {
        v1::BackupPiece { data: bytes.into(), ..Default::default() }
    }

    /// Work that would never end, until it is told so. Answers why it has ended.
    fn endless(of: Vec<v1::BackupPiece>) -> (impl FnOnce(&mut Listener) -> Result<()>, Why) {
        let (ended, why) = tokio::sync::oneshot::channel();
        let work = move |listener: &mut Listener| {
            let end = of.into_iter().try_for_each(|piece| listener.take(piece));
            let end = end.err().unwrap_or_else(|| {
                loop {
                    if let Err(e) = listener.hear(1) {
                        return e;
                    }
                }
            });
            let _ = ended.send(end.message.clone());
            Err(end)
        };
        (work, why)
    }

    type Why = tokio::sync::oneshot::Receiver<String>;

    /// The turn of one that nobody wants any more would be taken for hours.
    #[tokio::test]
    async fn the_work_ends_and_the_turn_is_free_when_nobody_listens_any_more() {
        let (turns, (_stopper, stop)) = (turns(), watch::channel(false));
        let (endless, why) = endless(Vec::new());
        let pieces = work(&Env::real(), &turns, stop.clone(), true, endless).unwrap();
        let other = work(&Env::real(), &turns, stop, true, |_| Ok(()));
        assert_eq!(other.expect_err("there is one turn").kind, ErrorKind::Busy);
        drop(pieces);
        assert!(why.await.unwrap().contains("nobody listens"));
        drop(turns.acquire().await.unwrap());
    }

    /// Also while it waits for who takes nothing.
    #[tokio::test]
    async fn the_work_ends_when_the_server_stops() {
        for of in [Vec::new(), vec![one(b"x"); WAITING + 1]] {
            let (turns, (stopper, stop)) = (turns(), watch::channel(false));
            let (endless, why) = endless(of);
            let pieces = work(&Env::real(), &turns, stop, true, endless).unwrap();
            stopper.send_replace(true);
            assert!(why.await.unwrap().contains("stopping"));
            drop(turns.acquire().await.unwrap());
            drop(pieces);
        }
    }

    /// The state may be larger than what can be read within any limit of time. An older version
    /// takes what it is told first for the manifest.
    #[tokio::test]
    async fn who_wants_to_hears_that_all_is_being_read() {
        for says in [true, false] {
            let (_stopper, stop) = watch::channel(false);
            let (heard, go) = threads::channel();
            let long = move |listener: &mut Listener| {
                listener.hear(7)?;
                let _ = go.recv();
                listener.take(one(b"first"))
            };
            let mut pieces = work(&Env::real(), &turns(), stop, says, long).unwrap();
            if says {
                let first = pieces.next().await.unwrap().unwrap();
                assert!(first.read == 7 && first.data.is_empty() && first.manifest.is_empty());
            }
            heard.send(()).unwrap();
            assert_eq!(pieces.next().await.unwrap().unwrap(), one(b"first"));
            assert!(pieces.next().await.is_none());
        }
    }
}
