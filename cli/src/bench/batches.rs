//! What a loader of samples does through the client library: many small reads in one call.

use super::context::{Context, Sample};
use super::task::{Outcome, check_stamps, noise, stamp};
use anyhow::{Context as _, Result, ensure};
use std::time::Instant;
use weft_client::blocking::{ConnectOptions, Connection, User};
use weft_client::{OpenFlags, ReadItem, copied_bytes};

/// Reads in one call.
const BATCH: usize = 256;
/// Bytes of a random read, and of a stamp.
const PIECE: usize = 4 << 10;
/// Bytes of a sample.
const SAMPLE: usize = 100 << 10;
/// Bytes of one write of a large file.
const REQUEST: usize = 1 << 20;
/// Folders that samples lie in, and files of each process of the cases that this is compared with.
const FOLDERS: u64 = 4;

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
        let read = |user: &User| read_all(context, "native_random_read_4k", user, &items, check);
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
        let read = |user: &User| read_all(context, "native_samples", user, &items, check);
        Ok(vec![connected(context, read)?])
    })
}

/// Reads batch after batch into the same memory, as a loader does.
fn read_all(
    context: &Context,
    name: &'static str,
    user: &User,
    items: &[ReadItem],
    check: impl Fn(&ReadItem, &[u8]) -> Result<()>,
) -> Result<Sample> {
    let mut memory = vec![vec![0; SAMPLE]; BATCH];
    context.measure(name, || {
        let (start, mut bytes, mut operations) = (Instant::now(), 0, 0);
        let before = copied_bytes();
        for batch in items.chunks(BATCH) {
            if start.elapsed() > context.limit || super::task::interrupted() {
                break;
            }
            let mut lens = vec![Ok(0); batch.len()];
            user.read_many(batch.to_vec(), |at, read| {
                lens[at] = read.map(|data| data.copy_to(&mut memory[at]));
            })?;
            for ((item, len), memory) in batch.iter().zip(lens).zip(&memory) {
                let len = len?;
                check(item, &memory[..len])?;
                bytes += len as u64;
                operations += 1;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let copied = Some(copied_bytes() - before);
        Ok(Outcome { bytes, operations, seconds, copied, ..Outcome::default() })
    })
}

fn write_large(user: &User, path: &str, bytes: u64) -> Result<()> {
    let flags = OpenFlags { write: true, ..Default::default() };
    let file = user.create(path, 0o600, flags)?;
    let mut buffer = noise(REQUEST, bytes);
    for offset in (0..bytes / REQUEST as u64 * REQUEST as u64).step_by(REQUEST) {
        stamp(&mut buffer, offset);
        ensure!(file.write(offset, &buffer)? == REQUEST, "a write was cut short");
    }
    file.sync()?;
    Ok(file.close()?)
}

/// Does something with a connection of its own, which has nothing cached.
fn connected<T>(context: &Context, act: impl FnOnce(&User) -> Result<T>) -> Result<T> {
    let mut options = ConnectOptions::new(&context.cluster.addresses.join(","))?;
    options.client.client_name = "weft bench".into();
    let connection = Connection::connect(options).context("cannot connect")?;
    let done = act(&connection.as_this_process());
    let closed = connection.disconnect().context("cannot close the session");
    done.and_then(|done| closed.map(|()| done))
}

/// Makes a folder in the root directory, and removes it with all that is in it.
fn with_folder(
    context: &Context,
    name: &str,
    act: impl FnOnce(&Context, &str) -> Result<Vec<Sample>>,
) -> Result<Vec<Sample>> {
    let dir = format!("/.weft-bench-{}.{name}", std::process::id());
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
