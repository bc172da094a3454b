//! Registers: a value in a file, written and read in different ways. What is not there is 0; what
//! is torn is [`TORN`], which nobody has written.

use super::worker::{Outcome, Worker, sync_dir};
use crate::history::{Answer, Call, Key};
use anyhow::{Context, Result};
use nix::libc;
use rand::Rng;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use weft_tests as tests;

const TORN: u64 = u64::MAX;
/// Bytes of a page, which the kernel reads and writes whole.
const PAGE: usize = 4096;
/// Bytes of what is replaced: some stripes.
const WHOLE: usize = 300_000;
const NAME: &str = "user.value";

/// How a value is written and read.
struct Way {
    set: fn(&mut Worker<'_>, &Path, u64) -> io::Result<()>,
    get: fn(&mut Worker<'_>, &Path) -> io::Result<u64>,
}

const IN_PLACE: Way = Way { set: set_in_place, get: get_in_place };
const MAPPED: Way = Way { set: set_mapped, get: get_mapped };
const REPLACED: Way = Way { set: set_replaced, get: get_replaced };
const SIZE: Way = Way { set: set_size, get: get_size };
const XATTR: Way = Way { set: set_in_xattr, get: get_xattr };

pub fn in_place(worker: &mut Worker<'_>) {
    step(worker, &IN_PLACE);
}

pub fn mapped(worker: &mut Worker<'_>) {
    step(worker, &MAPPED);
}

pub fn replaced(worker: &mut Worker<'_>) {
    step(worker, &REPLACED);
}

pub fn size(worker: &mut Worker<'_>) {
    step(worker, &SIZE);
}

pub fn xattr(worker: &mut Worker<'_>) {
    step(worker, &XATTR);
}

fn step(worker: &mut Worker<'_>, way: &Way) {
    let key = worker.key();
    let at = place(worker, key);
    if worker.rng.random_ratio(1, 3) {
        let value = worker.value();
        worker.change(key, Call::Write { key, value }, |worker| {
            (way.set)(worker, &at, value)?;
            Ok(Outcome::Ok(Answer::Done))
        });
    } else if !worker.unsure.contains(&key) {
        let _ = get(worker, way, key);
    }
}

fn get(worker: &mut Worker<'_>, way: &Way, key: Key) -> io::Result<()> {
    let at = place(worker, key);
    worker.call(Call::Get { key }, |worker| {
        let got = match (way.get)(worker, &at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            got => got?,
        };
        Ok(Outcome::Ok(Answer::Value(got)))
    })
}

pub fn last(worker: &mut Worker<'_>) -> Result<()> {
    let way = match worker.workload.name {
        "in-place" => &IN_PLACE,
        "mapped" => &MAPPED,
        "replaced" => &REPLACED,
        "size" => &SIZE,
        _ => &XATTR,
    };
    for key in worker.keys() {
        get(worker, way, key).with_context(|| format!("{key} cannot be read"))?;
    }
    Ok(())
}

fn place(worker: &Worker<'_>, key: Key) -> PathBuf {
    worker.dir().join(key.number.to_string())
}

fn open(at: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(at)
}

fn filled(value: u64, len: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(len / 8)
}

/// The value of which so many bytes are full; 0 in an empty file.
fn value_in(content: &[u8], len: usize) -> u64 {
    match content.first_chunk().map(|first| u64::from_le_bytes(*first)) {
        Some(value) if content == filled(value, len) => value,
        None if content.is_empty() => 0,
        _ => TORN,
    }
}

fn set_in_place(_: &mut Worker<'_>, at: &Path, value: u64) -> io::Result<()> {
    let file = open(at)?;
    file.write_all_at(&filled(value, PAGE), 0)?;
    file.sync_data()
}

fn get_in_place(_: &mut Worker<'_>, at: &Path) -> io::Result<u64> {
    let mut page = [0; PAGE];
    let len = File::open(at)?.read_at(&mut page, 0)?;
    Ok(value_in(&page[..len], PAGE))
}

fn set_replaced(worker: &mut Worker<'_>, at: &Path, value: u64) -> io::Result<()> {
    let new = at.with_extension(format!("new{}", worker.client));
    let mut file = File::create(&new)?;
    file.write_all(&filled(value, WHOLE))?;
    file.sync_all()?;
    fs::rename(&new, at)?;
    sync_dir(&worker.dir())
}

fn get_replaced(_: &mut Worker<'_>, at: &Path) -> io::Result<u64> {
    let content = fs::read(at)?;
    Ok(if content.is_empty() { TORN } else { value_in(&content, WHOLE) })
}

fn set_size(_: &mut Worker<'_>, at: &Path, value: u64) -> io::Result<()> {
    let file = open(at)?;
    file.set_len(value)?;
    file.sync_all()
}

fn get_size(_: &mut Worker<'_>, at: &Path) -> io::Result<u64> {
    Ok(fs::metadata(at)?.len())
}

fn set_in_xattr(_: &mut Worker<'_>, at: &Path, value: u64) -> io::Result<()> {
    let file = open(at)?;
    tests::set_xattr(at, NAME, &value.to_le_bytes()).map_err(plain)?;
    file.sync_all()
}

fn get_xattr(_: &mut Worker<'_>, at: &Path) -> io::Result<u64> {
    match tests::xattr(at, NAME).map_err(plain) {
        Ok(value) => Ok(value.try_into().map_or(TORN, u64::from_le_bytes)),
        Err(error) if error.raw_os_error() == Some(libc::ENODATA) => Ok(0),
        Err(error) => Err(error),
    }
}

fn plain(error: anyhow::Error) -> io::Error {
    error.downcast().unwrap_or_else(io::Error::other)
}

fn set_mapped(worker: &mut Worker<'_>, at: &Path, value: u64) -> io::Result<()> {
    worker.pager.set(at, value)
}

/// By a mapping, or by a read.
fn get_mapped(worker: &mut Worker<'_>, at: &Path) -> io::Result<u64> {
    if worker.rng.random_ratio(1, 2) {
        return worker.pager.get(at);
    }
    let mut value = [0; 8];
    let len = File::open(at)?.read_at(&mut value, 0)?;
    Ok(value_in(&value[..len], value.len()))
}
