//! Writes from the memory of a GPU.

use crate::memory::Slice;
use std::collections::VecDeque;
use weft_client::OpenFile;
use weft_net::Buffer;
use weft_proto::{Error, ErrorKind, Result};

/// What is copied at a time, and how much of it is under way while what came before is written.
const PIECE: usize = 4 << 20;
const PIECES: usize = 3;
/// Most bytes of one write as a whole, which is held here.
const MAX_WHOLE: usize = 1 << 30;

/// Writes memory of a GPU to a file at `off`, or, `whole`, as one write, for files that are
/// appended to. Answers how many bytes were written: all of them, or an error, after which any part
/// of them may have been written.
///
/// Errors: those of [`OpenFile::write`]; `Io` of the driver; `TooLarge` of a whole of over 1 GiB.
pub async fn write(file: &OpenFile, off: u64, from: Slice<'_>, whole: bool) -> Result<usize> {
    if whole && from.len() > MAX_WHOLE {
        let what = format!("{} bytes of a GPU cannot be appended in one piece", from.len());
        return Err(Error::new(ErrorKind::TooLarge, what));
    }
    from.ready().await?;
    let piece = if whole { from.len() } else { PIECE };
    let (mut begun, mut done, mut copying) = (0, 0, VecDeque::new());
    loop {
        while begun < from.len() && copying.len() < PIECES {
            let next = from.part(begun, piece);
            copying.push_back(next.copy_out()?);
            begun += next.len();
        }
        let Some(copy) = copying.pop_front() else { return Ok(done) };
        let bytes = Buffer::join(copy.filled().await?);
        let end = done + bytes.len();
        while done < end {
            let left = &bytes[bytes.len() - (end - done)..];
            match file.write(off.saturating_add(done as u64), left).await? {
                0 => {
                    return Err(Error::new(
                        ErrorKind::Io,
                        "no more was written, and no error told",
                    ));
                }
                written => done += written,
            }
        }
    }
}
