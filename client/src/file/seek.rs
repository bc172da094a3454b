//! Finds data and holes: what is buffered is data, and so is every byte of an extent, zeros too.

use super::inode::File;
use super::state::State;
use crate::types::Seek;
use std::ops::Range;
use std::sync::Arc;
use weft_proto::{Error, ErrorKind, Result};

/// Most questions about the extents of one file: each answer tells of thousands.
const MAX_QUESTIONS: usize = 100_000;

impl File {
    /// The first offset from `off` on where there is `what`.
    pub async fn seek(self: &Arc<Self>, off: u64, what: Seek) -> Result<u64> {
        self.refresh().await?;
        let mut at = off;
        for _ in 0..MAX_QUESTIONS {
            let found = self.state.lock().find(&mut at, what);
            match found {
                Ok(Some(at)) => return Ok(at),
                Ok(None) => {
                    let what = format!("no data at or behind {off} of inode {}", self.ino);
                    return Err(Error::new(ErrorKind::NoData, what));
                }
                Err(gap) => self.learn(gap).await?,
            }
        }
        Err(self.too_busy())
    }
}

impl State {
    /// The first offset from `at` on where there is `what`, which moves on; or what has to be
    /// known.
    fn find(&self, at: &mut u64, what: Seek) -> Result<Option<u64>, Range<u64>> {
        let size = self.size();
        if *at >= size {
            return Ok(None);
        }
        while *at < size {
            let (end, is_data) = self.run(*at..size)?;
            if is_data == (what == Seek::Data) {
                return Ok(Some(*at));
            }
            *at = end;
        }
        Ok((what == Seek::Hole).then_some(size))
    }

    /// How far what is at the start of `range` goes on at least, and whether it is data.
    fn run(&self, range: Range<u64>) -> Result<(u64, bool), Range<u64>> {
        let dirty = self.dirty.next_range(range.start).unwrap_or(range.end..range.end);
        let until = dirty.start.min(range.end);
        if until == range.start {
            return Ok((dirty.end.min(range.end), true));
        }
        let committed = until.min(self.attr.size);
        match range.start < committed {
            true => self.extents.run(range.start..committed),
            false => Ok((until, false)),
        }
    }
}
