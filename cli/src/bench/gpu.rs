//! Files read into the memory of a GPU, beside copies to it from pinned memory.

use super::batches::{connected, with_folder, write_large};
use super::context::{Context, Sample};
use super::task::{Outcome, check_stamps, interrupted};
use anyhow::{Result, ensure};
use futures_util::stream::{self, StreamExt};
use std::time::Instant;
use weft_client::{OpenFlags, copied_bytes};
use weft_gpu::{Memory, Slice};
use weft_net::Buffer;

/// Bytes of the GPU's memory that are filled again and again.
const MEMORY: usize = 64 << 20;
/// Bytes of one copy, and how many are under way.
const PIECE: usize = 4 << 20;
const PIECES: usize = 8;

/// Copies from pinned memory: as fast as the bus.
pub fn copy(context: &Context) -> Result<Vec<Sample>> {
    let memory = Memory::alloc(0, MEMORY)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    let pieces: Vec<bytes::Bytes> = (0..PIECES)
        .map(|at| {
            let mut piece = Buffer::take(PIECE);
            piece.fill(at as u8);
            piece.into()
        })
        .collect();
    let copies = (context.size / PIECE as u64) as usize;
    let copied = context.measure("gpu_copy", || {
        let start = Instant::now();
        let copy = |at: usize| {
            let to = memory.slice(at % (MEMORY / PIECE) * PIECE, PIECE);
            let piece = pieces[at % PIECES].clone();
            async move { to?.put(piece).await }
        };
        runtime.block_on(async {
            let mut copies = std::pin::pin!(stream::iter((0..copies).map(copy)).buffered(PIECES));
            while let Some(copied) = copies.next().await {
                copied?;
            }
            Ok::<_, weft_proto::Error>(())
        })?;
        let bytes = (copies * PIECE) as u64;
        Ok(Outcome { bytes, seconds: start.elapsed().as_secs_f64(), ..Outcome::default() })
    })?;
    Ok(vec![copied])
}

/// One large file, read into the GPU's memory 64 MiB at a time, and written from there.
pub fn files(context: &Context) -> Result<Vec<Sample>> {
    with_folder(context, "gpu", |context, dir| {
        let (path, copy) = (format!("{dir}/file"), format!("{dir}/copy"));
        let memory = Memory::alloc(0, MEMORY)?;
        connected(context, |user| write_large(user, &path, context.size))?;
        connected(context, |user| {
            let (file, connection) = (user.open(&path, OpenFlags::default())?, user.connection());
            let flags = OpenFlags { write: true, ..Default::default() };
            let copy = user.create(&copy, 0o600, flags)?;
            let (from, to) = (file.open_file(), copy.open_file());
            let all = |way: &dyn Fn(u64, Slice<'_>) -> weft_proto::Result<usize>| {
                let (start, before) = (Instant::now(), copied_bytes());
                for off in (0..context.size).step_by(MEMORY) {
                    ensure!(!interrupted(), "interrupted");
                    let len = MEMORY.min((context.size - off) as usize);
                    let done = way(off, memory.slice(0, len)?)?;
                    ensure!(done == len, "{done} bytes of {len} at {off}");
                }
                let seconds = start.elapsed().as_secs_f64();
                let (bytes, copied) = (context.size, Some(copied_bytes() - before));
                Ok(Outcome { bytes, seconds, copied, ..Outcome::default() })
            };
            let read = context.measure("gpu_read", || {
                all(&|off, to| connection.run(weft_gpu::read(&from, off, to)))
            })?;
            // What the GPU has now, as it came.
            let last = context.size.saturating_sub(1) / MEMORY as u64 * MEMORY as u64;
            let len = (context.size - last) as usize;
            let found = connection.run(memory.slice(0, len)?.get())?;
            check_stamps(&found, last)?;
            let written = context.measure("gpu_write", || {
                let done = all(&|off, at| connection.run(weft_gpu::write(&to, off, at, false)))?;
                copy.sync()?;
                Ok(done)
            })?;
            file.close()?;
            copy.close()?;
            Ok(vec![read, written])
        })
    })
}
