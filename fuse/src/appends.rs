//! Pieces of appends, in order. An asynchronous append that is longer than one request Linux sends
//! in pieces, all at once, and they come here in any order. An append goes to the end of file,
//! whatever its offset, so they land one after the other, each behind the one before, or the call
//! fails.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use weft_proto::{Error, ErrorKind, Result};

/// So long a piece that is meant for beyond the end of file waits for one before it, while none
/// lands. There is none if others have cut the file, and Linux does not know.
pub const GAP_TIMEOUT: Duration = Duration::from_secs(1);

/// A piece, as Linux numbers it.
#[derive(Clone, Copy)]
pub struct Piece {
    /// All pieces of one call come from one thread.
    pub thread: u32,
    pub offset: u64,
    pub len: usize,
}

/// Appends through one handle. Linux has only one call of a file under way at a time.
#[derive(Default)]
pub struct Appends {
    /// Held while a piece lands.
    pub order: tokio::sync::Mutex<Order>,
    pub landed: Notify,
    /// Pieces that have come and are about to land, by thread and offset.
    waiting: Mutex<BTreeSet<(u32, u64)>>,
}

#[derive(Default)]
pub struct Order {
    last: Option<Last>,
    /// Pieces that have landed, or failed.
    pub landings: u64,
    /// A piece of a call failed: what comes behind it fails, too.
    failed: Option<Failed>,
}

/// The last piece that has landed.
struct Last {
    thread: u32,
    /// Where it ends, as Linux numbers it.
    end: u64,
    /// Size of the file then.
    size: u64,
}

struct Failed {
    thread: u32,
    /// What comes from there on is behind it; a call that is made anew begins before.
    from: u64,
    at: Instant,
    error: Error,
}

/// A piece that is about to land.
pub struct Waiting<'a> {
    appends: &'a Appends,
    by: (u32, u64),
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.appends.waiting.lock().remove(&self.by);
    }
}

/// Where a piece is, as to the last one.
#[derive(PartialEq, Eq, Debug)]
pub enum Place {
    /// It comes next, as far as can be told.
    Next,
    /// Something is to come before.
    Ahead,
    /// It should have come before, unless the file was cut meanwhile; or one before it failed.
    Late,
}

impl Appends {
    pub fn wait(&self, piece: &Piece) -> Waiting<'_> {
        let by = (piece.thread, piece.offset);
        self.waiting.lock().insert(by);
        Waiting { appends: self, by }
    }

    /// Whether none of its thread that waits comes before it.
    pub fn is_first(&self, piece: &Piece) -> bool {
        let waiting = self.waiting.lock();
        waiting.range((piece.thread, 0)..(piece.thread, piece.offset)).next().is_none()
    }

    /// Where a piece is in a file of this size.
    pub fn place(&self, order: &Order, piece: &Piece, size: u64) -> Place {
        if order.failure(piece).is_some() {
            return Place::Late;
        }
        // What one that came before it made the file has it lie within that, or beyond what there
        // is, where Linux has not heard that others have cut it. A call that begins where Linux
        // hears since that the file ends does neither.
        let is_before = |l: &Last| {
            let within = piece.offset < l.size || piece.offset > size;
            l.thread == piece.thread && piece.offset < l.end && within
        };
        // Whoever has cut the file has Linux begin before that.
        if order.last.as_ref().is_some_and(|l| is_before(l) && l.size <= size) {
            return Place::Late;
        }
        let follows = order.last.as_ref().is_some_and(|l| l.end == piece.offset);
        match follows || piece.offset <= size && self.is_first(piece) {
            true => Place::Next,
            false => Place::Ahead,
        }
    }

    /// A piece has landed, and made the file so long, or failed: Linux believes in the same end as
    /// before then.
    pub fn land(&self, order: &mut Order, piece: &Piece, size: u64, written: &Result<usize>) {
        match written {
            Ok(done) if *done == piece.len => {
                let end = piece.offset.saturating_add(piece.len as u64);
                order.last = Some(Last { thread: piece.thread, end, size });
                order.failed.take_if(|failed| failed.thread == piece.thread);
            }
            Ok(done) => {
                let what = format!("{done} bytes of {} were appended", piece.len);
                order.fail(piece, piece.offset + 1, Error::new(ErrorKind::Io, what));
            }
            Err(error) => order.fail(piece, piece.offset + 1, error.clone()),
        }
        order.landings += 1;
        self.landed.notify_waiters();
    }

    /// A piece does not land, since it is late: its call fails, and the next begins anew.
    pub fn refuse(&self, order: &mut Order, piece: &Piece) -> Error {
        order.landings += 1;
        self.landed.notify_waiters();
        if let Some(error) = order.failure(piece) {
            return error.clone();
        }
        let what = "pieces of one asynchronous append came in another order, and others append \
                    to the file: write no more than 1 MiB at a time";
        let error = Error::new(ErrorKind::Io, what);
        order.fail(piece, 0, error.clone());
        error
    }

    /// No call is under way, and the next goes by what Linux believes still.
    pub fn begin_anew(&self) {
        if let Ok(mut order) = self.order.try_lock() {
            (order.last, order.failed) = (None, None);
        }
    }
}

impl Order {
    fn fail(&mut self, piece: &Piece, from: u64, error: Error) {
        let (thread, at) = (piece.thread, Instant::now());
        (self.last, self.failed) = (None, Some(Failed { thread, from, at, error }));
    }

    /// Why a piece fails with another of its call.
    fn failure(&self, piece: &Piece) -> Option<&Error> {
        let Failed { thread, from, at, error } = self.failed.as_ref()?;
        let is_behind = *thread == piece.thread && *from <= piece.offset;
        (is_behind && at.elapsed() < GAP_TIMEOUT).then_some(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn piece(number: u64) -> Piece {
        Piece { thread: 5, offset: number * MIB, len: MIB as usize }
    }

    /// Others have made the file far longer than Linux believes.
    #[tokio::test]
    async fn pieces_that_have_come_land_in_order() {
        let appends = Appends::default();
        let mut order = appends.order.try_lock().unwrap();
        let (_third, second) = (appends.wait(&piece(2)), appends.wait(&piece(1)));
        assert_eq!(appends.place(&order, &piece(0), 10 * MIB), Place::Next);
        appends.land(&mut order, &piece(0), 11 * MIB, &Ok(MIB as usize));
        assert_eq!(appends.place(&order, &piece(2), 11 * MIB), Place::Ahead);
        assert_eq!(appends.place(&order, &piece(1), 11 * MIB), Place::Next);
        drop(second);
        appends.land(&mut order, &piece(1), 12 * MIB, &Ok(MIB as usize));
        assert_eq!(appends.place(&order, &piece(2), 12 * MIB), Place::Next);
        // Of another thread's nothing is known, and of none that has not come.
        let other = Piece { thread: 6, ..piece(9) };
        assert_eq!(appends.place(&order, &other, 12 * MIB), Place::Next);
        appends.land(&mut order, &piece(4), 13 * MIB, &Ok(MIB as usize));
        assert_eq!(appends.place(&order, &piece(3), 13 * MIB), Place::Late);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_behind_a_piece_that_failed_fails_too() {
        let appends = Appends::default();
        let full = Error::new(ErrorKind::NoSpace, "no room");
        for anew in [true, false] {
            let mut order = appends.order.try_lock().unwrap();
            appends.land(&mut order, &piece(0), 0, &Err(full.clone()));
            for number in 1..4 {
                assert_eq!(appends.place(&order, &piece(number), 0), Place::Late);
                assert_eq!(appends.refuse(&mut order, &piece(number)).kind, ErrorKind::NoSpace);
            }
            let other = Piece { thread: 6, ..piece(1) };
            assert_eq!(appends.place(&order, &other, MIB), Place::Next);
            // It is tried again.
            assert_eq!(appends.place(&order, &piece(0), 0), Place::Next);
            drop(order);
            // Linux has undone it, or does not.
            match anew {
                true => appends.begin_anew(),
                false => tokio::time::advance(GAP_TIMEOUT).await,
            }
            let order = appends.order.try_lock().unwrap();
            assert_eq!(appends.place(&order, &piece(1), MIB), Place::Next);
        }
    }

    #[tokio::test]
    async fn a_call_that_begins_where_others_have_cut_the_file_is_not_late() {
        let appends = Appends::default();
        let mut order = appends.order.try_lock().unwrap();
        let line = |offset| Piece { thread: 5, offset, len: 4096 };
        // Linux has not heard of it, and then it has.
        appends.land(&mut order, &line(8192), 4096, &Ok(4096));
        assert_eq!(appends.place(&order, &line(4096), 4096), Place::Next);
        assert_eq!(appends.place(&order, &line(12288), 4096), Place::Next);
        // Others have cut it once more, or appended.
        assert_eq!(appends.place(&order, &line(4096), 0), Place::Ahead);
        assert_eq!(appends.place(&order, &line(0), 0), Place::Next);
        assert_eq!(appends.place(&order, &line(8192), 8192), Place::Next);
        // It has not heard of it, and the first piece comes after the second.
        appends.land(&mut order, &piece(9), MIB, &Ok(MIB as usize));
        assert_eq!(appends.place(&order, &piece(8), MIB), Place::Late);
    }
}
