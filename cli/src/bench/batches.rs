//! What a loader of samples does through the client library: many small reads in one call.

use super::context::{Context, Sample, own_name};
use super::task::{Outcome, check_stamps, goes_on, interrupted, noise, stamp};
use anyhow::{Context as _, Result, anyhow, ensure};
use std::time::{Duration, Instant};
use weft_client::blocking::{ConnectOptions, Connection, User};
use weft_client::{OpenFlags, ReadItem, copied_bytes};

/// Reads in one call.
const BATCH: usize = 256;
/// Threads that call, as many as the cases that this is compared with have processes.
const CALLERS: usize = 4;
/// Bytes of a random read, and of a stamp.
const PIECE: usize = 4 << 10;
/// Bytes of a sample.
const SAMPLE: usize = 100 << 10;
/// Bytes of one write of a large file.
const REQUEST: usize = 1 << 20;
/// Folders that samples lie in, one for each process of the cases that this is compared with.
const FOLDERS: u64 = CALLERS as u64;

/// Random pieces of one large file, cold.
pub fn random(context: &Context) -> Result<Vec<Sample>> {
    with_folder(context, "random", |context, dir| {
        let path = format!("{dir}/file");
        let pieces = context.size / PIECE as u64;
        connected(context, |user| write_large(user, &path, context.size))?;
        context.forget(std::iter::empty())?;
        let piece = |number: u64| {
            let off = number % pieces * PIECE as u64;
            ReadItem { path: path.clone().into(), off, len: Some(PIECE) }
        };
        let numbers = noise(context.operations as usize * 8, context.seed());
        let numbers = numbers.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let items: Vec<_> = numbers.map(piece).collect();
        let check = |item: &ReadItem, data: &[u8]| {
            ensure!(data.len() == PIECE, "a read answered {} bytes", data.len());
            check_stamps(data, item.off)
        };
        let read = |user: &User| read_all(context, "native_random_read_4k_x4", user, &items, check);
        Ok(vec![connected(context, read)?])
    })
}

/// All of many small files in random order, cold.
pub fn samples(context: &Context) -> Result<Vec<Sample>> {
    with_folder(context, "samples", |context, dir| {
        let content = noise(SAMPLE, SAMPLE as u64);
        let mut paths = Vec::new();
        connected(context, |user| {
            for folder in 0..FOLDERS {
                user.mkdir(format!("{dir}/{folder}"), 0o700)?;
                for file in 0..context.files {
                    ensure!(!interrupted(), "interrupted");
                    let path = format!("{dir}/{folder}/{file}");
                    let flags = OpenFlags { write: true, ..Default::default() };
                    let file = user.create(&path, 0o600, flags)?;
                    ensure!(file.write(0, &content)? == SAMPLE, "a write was cut short");
                    file.close()?;
                    paths.push(path);
                }
            }
            Ok(user.sync()?)
        })?;
        super::workload::shuffle(&mut paths, context.seed());
        context.forget(std::iter::empty())?;
        let items: Vec<_> = paths.into_iter().map(ReadItem::whole).collect();
        let check = |item: &ReadItem, data: &[u8]| {
            let path = String::from_utf8_lossy(&item.path);
            ensure!(data == content, "{path} does not hold what was written");
            Ok(())
        };
        let read = |user: &User| read_all(context, "native_samples_4", user, &items, check);
        Ok(vec![connected(context, read)?])
    })
}

/// Several callers read batch after batch, each into the same memory, as workers of a loader do.
fn read_all(
    context: &Context,
    name: &'static str,
    user: &User,
    items: &[ReadItem],
    check: impl Fn(&ReadItem, &[u8]) -> Result<()> + Sync,
) -> Result<Sample> {
    let mut memory = vec![vec![vec![0; SAMPLE]; BATCH]; CALLERS];
    context.measure(name, || {
        let (start, before) = (Instant::now(), copied_bytes());
        let limit = context.limit;
        let read = |items: &[ReadItem], memory: &mut [Vec<u8>]| {
            read_batches(limit, user, items, memory, &check)
        };
        let each = items.chunks(items.len().div_ceil(CALLERS).max(1)).zip(&mut memory);
        let done: Vec<Result<Outcome>> = std::thread::scope(|scope| {
            let callers: Vec<_> =
                each.map(|(items, memory)| scope.spawn(move || read(items, memory))).collect();
            let panicked = |_| Err(anyhow!("a caller panicked"));
            callers.into_iter().map(|caller| caller.join().unwrap_or_else(panicked)).collect()
        });
        let mut all = Outcome::default();
        for done in done {
            let done = done?;
            all.bytes += done.bytes;
            all.operations += done.operations;
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(Outcome { seconds, copied: Some(copied_bytes() - before), ..all })
    })
}

fn read_batches(
    limit: Duration,
    user: &User,
    items: &[ReadItem],
    memory: &mut [Vec<u8>],
    check: impl Fn(&ReadItem, &[u8]) -> Result<()>,
) -> Result<Outcome> {
    let (start, mut done) = (Instant::now(), Outcome::default());
    for batch in items.chunks(BATCH) {
        if !goes_on(start, limit) {
            break;
        }
        let mut lens = vec![Ok(0); batch.len()];
        user.read_many(batch.to_vec(), |at, read| {
            lens[at] = read.map(|data| data.copy_to(&mut memory[at]));
        })?;
        for ((item, len), memory) in batch.iter().zip(lens).zip(&*memory) {
            let len = len?;
            check(item, &memory[..len])?;
            done.bytes += len as u64;
            done.operations += 1;
        }
    }
    Ok(done)
}

pub(super) fn write_large(user: &User, path: &str, bytes: u64) -> Result<()> {
    let flags = OpenFlags { write: true, ..Default::default() };
    let file = user.create(path, 0o600, flags)?;
    let mut buffer = noise(REQUEST, bytes);
    for offset in (0..bytes / REQUEST as u64 * REQUEST as u64).step_by(REQUEST) {
        ensure!(!interrupted(), "interrupted");
        stamp(&mut buffer, offset);
        ensure!(file.write(offset, &buffer)? == REQUEST, "a write was cut short");
    }
    file.sync()?;
    Ok(file.close()?)
}

/// Does something with a connection of its own, which has nothing cached.
pub(super) fn connected<T>(context: &Context, act: impl FnOnce(&User) -> Result<T>) -> Result<T> {
    let mut options = ConnectOptions::new(&context.cluster.addresses.join(","))?;
    options.client.client_name = "weft bench".into();
    let connection = Connection::connect(options).context("cannot connect")?;
    let done = act(&connection.as_this_process());
    let closed = connection.disconnect().context("cannot close the session");
    done.and_then(|done| closed.map(|()| done))
}

/// Makes a folder in the root directory, and removes it with all that is in it.
pub(super) fn with_folder(
    context: &Context,
    name: &str,
    act: impl FnOnce(&Context, &str) -> Result<Vec<Sample>>,
) -> Result<Vec<Sample>> {
    let dir = format!("/{}.{name}", own_name());
    connected(context, |user| Ok(user.mkdir(&dir, 0o700).map(drop)?))
        .context("cannot make a folder in the root directory")?;
    let samples = act(context, &dir);
    let removed = connected(context, |user| remove(user, &dir));
    let samples = samples?;
    removed.with_context(|| format!("{dir} is left behind"))?;
    Ok(samples)
}

fn remove(user: &User, dir: &str) -> Result<()> {
    loop {
        let page = user.read_dir(dir, 0, 1000, false)?;
        for entry in &page.entries {
            let path = format!("{dir}/{}", String::from_utf8_lossy(&entry.name));
            match entry.kind {
                weft_client::FileKind::Directory => remove(user, &path)?,
                _ => user.unlink(&path)?,
            }
        }
        if page.end || page.entries.is_empty() {
            return Ok(user.rmdir(dir)?);
        }
    }
}
