//! Reads into the memory of a GPU.

use crate::memory::Slice;
use crate::shared::Copies;
use futures_util::future::join;
use futures_util::stream::{self, StreamExt};
use std::collections::VecDeque;
use weft_client::{Caller, OpenFile, OpenFlags, Placed, ReadData, ReadItem, Room};
use weft_proto::{Error, ErrorKind, Result};

/// What is read at a time; how many of these are read, and how many copied, at the same time.
const PIECE: usize = 4 << 20;
const READS: usize = 6;
const COPIES: usize = 4;
/// Reads of a batch that are longer than a piece are made so many at a time.
const LONG: usize = 4;

/// Fills memory of a GPU with what a file has from `off` on, and answers how many bytes that were:
/// fewer than there is room for only at the end of the file. When this has returned, the bytes are
/// there for all that is asked of any stream. On an error any part of the memory may have been
/// written.
///
/// Errors: those of [`OpenFile::read`]; `Io` of the driver.
pub async fn read(file: &OpenFile, off: u64, into: Slice<'_>) -> Result<usize> {
    into.ready().await?;
    let mut copying = VecDeque::new();
    let read = pieces(file, off, &into, &mut copying).await;
    // Nothing is written to the memory when this has returned, whatever has failed.
    let mut copied = Ok(());
    for copies in copying {
        copied = copied.and(Copies::over(copies).await);
    }
    if let Some((direct, _)) = into.direct() {
        direct.quiet().await;
    }
    copied.and(read)
}

/// Reads piece after piece, and begins to copy each when all before it are there.
async fn pieces(
    file: &OpenFile,
    off: u64,
    into: &Slice<'_>,
    copying: &mut VecDeque<Copies>,
) -> Result<usize> {
    let reads = (0..into.len().div_ceil(PIECE)).map(|at| async move {
        let piece = into.part(at * PIECE, PIECE);
        let data = one(file, off.saturating_add((at * PIECE) as u64), &piece).await?;
        Ok::<_, Error>((piece, data))
    });
    let mut reads = std::pin::pin!(stream::iter(reads).buffered(READS));
    let mut done = 0;
    while let Some(read) = reads.next().await {
        let (piece, data) = read?;
        let len = data.iter().map(|part| part.bytes.len()).sum::<usize>();
        done += len;
        if copying.len() == COPIES
            && let Some(oldest) = copying.pop_front()
        {
            oldest.over().await?;
        }
        if data.iter().any(|part| !part.is_there) {
            copying.push_back(piece.copy_in(data, ())?);
        }
        if len < piece.len() {
            break;
        }
    }
    Ok(done)
}

/// Reads a piece: what servers write there by themselves, where that was asked for and can be.
async fn one(file: &OpenFile, off: u64, piece: &Slice<'_>) -> Result<Vec<Placed>> {
    if let Some(into) = piece.direct()
        && let Some(placed) = file.read_placed(off, piece.len(), into).await?
    {
        return Ok(placed);
    }
    Ok(to_copy(&file.read(off, piece.len()).await?))
}

fn to_copy(data: &ReadData) -> Vec<Placed> {
    let parts = data.parts().iter().cloned();
    parts.map(|bytes| Placed { bytes, is_there: false }).collect()
}

/// Reads many, each into a place of its own ([`Caller::read_many`]), and answers for each how many
/// bytes that were, or what it met: `TooLarge` if it found no room, and nothing was written then.
/// Errors: `Invalid` if there are more reads than places or fewer; `Io` of what they come after.
pub async fn read_many(
    caller: &Caller,
    items: Vec<ReadItem>,
    into: &[Slice<'_>],
) -> Result<Vec<Result<usize>>> {
    if items.len() != into.len() {
        let what = format!("{} reads, but {} places for them", items.len(), into.len());
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    for place in into {
        place.ready().await?;
    }
    // What is long goes piece after piece, and is never here as a whole.
    let is_long = |at: &usize| items[*at].len.unwrap_or(into[*at].len()) > PIECE;
    let (long, short): (Vec<_>, Vec<_>) = (0..items.len()).partition(is_long);
    let unanswered = || Err(Error::new(ErrorKind::Internal, "a read of a batch was not answered"));
    let mut answers: Vec<Result<usize>> = into.iter().map(|_| unanswered()).collect();
    let all_long = stream::iter(long.into_iter().map(|at| {
        let (item, place) = (&items[at], &into[at]);
        async move { (at, read_long(caller, item, place).await) }
    }));
    let all_long = all_long.buffer_unordered(LONG).collect::<Vec<_>>();
    let (long, short) = join(all_long, read_short(caller, &items, into, short)).await;
    for (at, answer) in long.into_iter().chain(short) {
        answers[at] = answer;
    }
    Ok(answers)
}

/// Reads together what is short.
async fn read_short(
    caller: &Caller,
    items: &[ReadItem],
    into: &[Slice<'_>],
    which: Vec<usize>,
) -> Vec<(usize, Result<usize>)> {
    // Of those without a length a byte more tells whether all of it has found room.
    let ask = |at: &usize| {
        let ReadItem { path, off, len } = items[*at].clone();
        ReadItem { path, off, len: len.or(Some(into[*at].len().saturating_add(1))) }
    };
    let mut begun: Vec<(usize, usize, Result<Option<Copies>>)> = Vec::with_capacity(which.len());
    let take = |at: usize, data: Result<ReadData>, room: Room| {
        let len = data.as_ref().map_or(0, ReadData::len);
        let copies = data.and_then(|data| copy(&into[which[at]], data, room));
        begun.push((which[at], len, copies));
    };
    caller.read_many_held(which.iter().map(ask).collect(), take).await;
    let mut answers = Vec::with_capacity(begun.len());
    for (at, len, copies) in begun {
        let copied = match copies {
            Ok(Some(copies)) => copies.over().await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        answers.push((at, copied.map(|()| len)));
    }
    answers
}

fn copy(place: &Slice<'_>, data: ReadData, room: Room) -> Result<Option<Copies>> {
    if data.len() > place.len() {
        return Err(no_room(place));
    }
    match data.is_empty() {
        true => Ok(None),
        false => place.copy_in(to_copy(&data), room).map(Some),
    }
}

fn no_room(place: &Slice<'_>) -> Error {
    let what = format!("it is longer than its place of {} bytes", place.len());
    Error::new(ErrorKind::TooLarge, what)
}

/// Reads one of a batch that is long.
async fn read_long(caller: &Caller, item: &ReadItem, place: &Slice<'_>) -> Result<usize> {
    let file = caller.open(&item.path, OpenFlags::default()).await?;
    let wanted = match item.len {
        Some(len) => len,
        // What it grows by meanwhile was not asked for.
        None => {
            let left = file.stat().await?.size.saturating_sub(item.off);
            usize::try_from(left).unwrap_or(usize::MAX)
        }
    };
    if wanted > place.len() {
        return Err(no_room(place));
    }
    let done = read(&file, item.off, place.part(0, wanted)).await;
    // It was not written to.
    let _ = file.close().await;
    done
}
