//! Takes written bytes in: one copy, into the buffer that becomes a segment.

use super::above::Ticket;
use super::buffer::BufferNo;
use super::dirty::Dirty;
use super::fate::Fate;
use super::inode::File;
use super::past::Number;
use super::state::State;
use crate::cache::Spent;
use std::future::pending;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::OwnedSemaphorePermit;
use weft_proto::layout::MAX_FILE;
use weft_proto::{Error, ErrorKind, Result, v1};

/// Bytes that are taken in at a time. An append of up to this length lands in one piece.
const MAX_STEP: usize = 1 << 20;

/// How bytes that are written come here, as to what is cached above.
#[derive(Clone, Copy)]
pub(crate) enum Way<'a> {
    /// It has them as well, and holds the pages for this request.
    Along(Option<&'a Ticket<'a>>),
    /// It has them not: they go past it, under this number if it may hold what was there before.
    Past(Option<&'a WritePast>),
    /// They were stored in the cache, which writes them back.
    Back,
}

/// What is written.
#[derive(Clone, Copy)]
pub(crate) struct Written<'a> {
    pub off: u64,
    pub data: &'a [u8],
    /// At the end of file, wherever that is.
    pub append: bool,
    pub way: Way<'a>,
    /// For who wants to know what becomes of it.
    pub fate: Option<&'a Fate>,
}

/// A write past the cache, until this is dropped: what was cached is gone then.
pub(crate) struct WritePast {
    file: Arc<File>,
    number: Number,
}

impl Drop for WritePast {
    fn drop(&mut self) {
        self.file.state.lock().past.end(self.number);
    }
}

impl File {
    /// A write past the cache begins, which that has filed in `misfiled`: until its end it has
    /// something else there than the file.
    pub fn write_past(self: &Arc<Self>, misfiled: Option<Range<u64>>) -> WritePast {
        let past = &mut self.state.lock().past;
        let number = past.begin();
        misfiled.into_iter().for_each(|range| past.wrote(range, number));
        WritePast { file: self.clone(), number }
    }

    /// Takes it in; waits while the write buffer of the mount is full. Answers how much was taken
    /// in: all, unless the wait ended in an error or the file would be too long; and whether it may
    /// stay in the buffer, which another mount's use of the same bytes forbids, or of any for an
    /// append. `records`: this, and what is going to be written. `permitted` is asked right before
    /// anything is taken in, under the lock of the file: who closes the file finds what was taken
    /// in before the answer came to be no, and what it permits is taken in.
    pub async fn write(
        self: &Arc<Self>,
        written: Written<'_>,
        records: Option<v1::Records>,
        permitted: impl Fn() -> Result<()>,
    ) -> Result<(usize, bool)> {
        let Written { off, data, way, .. } = written;
        // As on local filesystems, what fits is written, and the next write fails.
        let room = MAX_FILE.saturating_sub(off);
        if room == 0 && !data.is_empty() {
            let what = format!("write at {off}, and files end at {MAX_FILE} at the latest");
            return Err(Error::new(ErrorKind::TooLarge, what));
        }
        let data = &data[..data.len().min(room as usize)];
        self.prepare_to_write(records, way).await?;
        let (mut done, mut buffered) = (0, true);
        for data in data.chunks(MAX_STEP) {
            let step = Written { off: off + done as u64, data, ..written };
            match self.take_in(step, &permitted).await {
                Ok(stays) => buffered &= stays,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            done += data.len();
        }
        Ok((done, buffered))
    }

    /// [`Self::write`] of one step, if nothing has to be waited for and it may stay in the buffer.
    pub fn write_now(self: &Arc<Self>, written: Written<'_>) -> Option<usize> {
        let Written { off, data, way, .. } = written;
        let fits = off.checked_add(data.len() as u64).is_some_and(|end| end <= MAX_FILE);
        if !fits || data.len() > MAX_STEP {
            return None;
        }
        let budget = &self.context.budget;
        let in_doubt = || !self.context.leases.live();
        let permit = match way {
            Way::Back if in_doubt() => budget.try_take_more(data.len()),
            _ => budget.try_take(data.len()),
        }?;
        let taken = self.put_in(written, permit, true, &|| Ok(()));
        taken.ok().flatten().map(|_| data.len())
    }

    /// Answers whether the bytes may stay in the buffer.
    async fn take_in(
        self: &Arc<Self>,
        step: Written<'_>,
        permitted: &impl Fn() -> Result<()>,
    ) -> Result<bool> {
        let mut spared = matches!(step.way, Way::Back);
        loop {
            let permit = self.room(step.data.len(), step.way).await?;
            if let Some(stays) = self.put_in(step, permit, false, permitted)? {
                return Ok(stays);
            }
            if self.context.is_closing() {
                return Err(Error::new(ErrorKind::Disconnected, "the filesystem is being left"));
            }
            // Positioned and appended data are committed in different ways, and what was written
            // under the right to and without it: not together. A page that is written back would be
            // lost with what is given up then, and is none of that.
            if let Err(error) = self.flush().await
                && !std::mem::take(&mut spared)
            {
                return Err(error);
            }
        }
    }

    /// Waits for room in the write buffer of the mount. What is written back because it is taken
    /// back has room beside that: else a file that cannot be committed would hold up the recall of
    /// every other.
    async fn room(&self, len: usize, way: Way<'_>) -> Result<OwnedSemaphorePermit> {
        let budget = &self.context.budget;
        if !matches!(way, Way::Back) {
            return budget.take(len).await;
        }
        let taken_back = async {
            self.above.closed().await;
            match budget.take_more(len).await {
                Some(permit) => permit,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            permit = taken_back => Ok(permit),
            permit = budget.take(len) => permit,
        }
    }

    /// Copies `data` into the buffers and sends those that are full. Answers whether it may stay
    /// there; `None`, with nothing taken, if what is buffered must be committed before, or
    /// `must_stay` and it may not.
    ///
    /// A recall first forbids buffering and then flushes what it finds under this same lock, so
    /// nothing that is said to stay is missed.
    ///
    /// While the session may be over, what the cache writes back stays all the same, in doubt: who
    /// waits for that waits for pages that must not be shown any more, and not for servers that do
    /// not answer.
    fn put_in(
        self: &Arc<Self>,
        step: Written<'_>,
        permit: OwnedSemaphorePermit,
        must_stay: bool,
        permitted: &impl Fn() -> Result<()>,
    ) -> Result<Option<bool>> {
        let Written { off, data, append, way, .. } = step;
        let (full, scattered, stays) = {
            let state = &mut *self.state.lock();
            let (leases, session) = (&self.context.leases, self.context.sessions.current().id);
            let range = off..off + data.len() as u64;
            let right = match append || self.wholes.load(Ordering::Acquire) > 0 {
                false => leases.right_to(self.ino, &range),
                true => leases.right_to_write(self.ino),
            };
            // The right may have come with another answer than one to this file.
            if right.is_some()
                && !state.is_dirty()
                && let Some(attr) = leases.attr_before_changes(self.ino)
            {
                state.adopt(attr);
            }
            let back = matches!(way, Way::Back) && right.is_none();
            let in_doubt = back.then(|| leases.right_in_doubt(self.ino, &range)).flatten();
            let stays = right.is_some() || in_doubt.is_some();
            let other_way = state.dirty.append != append && !state.dirty.is_empty();
            let other_right = state.buffered_under.right != right && state.is_dirty();
            let unnumbered = matches!(way, Way::Past(None)) && self.is_cached();
            // Where a quota leaves too little, each write is committed by itself.
            let spent = match stays && in_doubt.is_none() {
                true => leases.spend(self.ino, state.owner(), data.len()),
                false => Spent::Nothing,
            };
            let alone = matches!(spent, Spent::TooMuch);
            let stays = stays && !alone;
            let must_not = must_stay && (!stays || unnumbered) || self.context.is_closing();
            let must_not = must_not || alone && state.is_dirty();
            // Pages are too long to come to so many.
            let is_page = matches!(way, Way::Back);
            let must_not = must_not || !is_page && state.dirty.is_in_pieces();
            if other_way || (other_right && in_doubt.is_none()) || must_not {
                return Ok(None);
            }
            permitted()?;
            match in_doubt {
                Some(right) => state.keeps_in_doubt(session, right),
                None => state.keeps_under(session, right),
            }
            state.dirty.append = append;
            if !data.is_empty() {
                state.waiting.written((self.context.clock)());
            }
            let full = self.buffer(state, step, permit);
            if let Spent::Credit(credit) = spent {
                state.dirty.spend(credit);
            }
            if state.dirty.is_empty() {
                // A page of which nothing is newer than what was written past it.
                state.forget_times();
            }
            (full, state.dirty.is_scattered(), stays)
        };
        self.launch(full);
        if scattered {
            self.flush_behind();
        }
        Ok(Some(stays))
    }

    /// Copies `data` into the buffers. Answers those that are full.
    fn buffer(
        &self,
        state: &mut State,
        step: Written<'_>,
        mut permit: OwnedSemaphorePermit,
    ) -> Vec<BufferNo> {
        let Written { off, data, append, way, fate } = step;
        let segment_len = state.layout.segment_len;
        let off = match append {
            false => off,
            // Wherever the file ends by now, it comes right after what goes with it.
            true => state.dirty.appended_end().unwrap_or(state.attr.size),
        };
        let range = off..off + data.len() as u64;
        let mut full = Vec::new();
        let mut take = |dirty: &mut Dirty, part: Range<u64>| {
            let (mut at, mut rest) =
                (part.start, &data[(part.start - off) as usize..(part.end - off) as usize]);
            while !rest.is_empty() {
                let room = if append { segment_len } else { segment_len - at % segment_len };
                let (head, tail) = rest.split_at(rest.len().min(room as usize));
                if let Some(part) = permit.split(head.len()) {
                    full.extend(dirty.write(at, head, segment_len, part));
                }
                at += head.len() as u64;
                rest = tail;
            }
        };
        match way {
            Way::Back => {
                state.past.rest(range.clone()).for_each(|part| take(&mut state.dirty, part))
            }
            Way::Along(_) => {
                state.past.filled(range.clone());
                take(&mut state.dirty, range.clone());
            }
            Way::Past(past) => {
                if let Some(past) = past.filter(|_| self.is_cached()) {
                    state.past.wrote(range.clone(), past.number);
                }
                take(&mut state.dirty, range.clone());
            }
        }
        if let Some(fate) = fate.filter(|_| !data.is_empty()) {
            fate.take();
            state.dirty.follow(range, fate);
        }
        full
    }
}
