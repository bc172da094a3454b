//! Appends by all clients to shared and private files.
//!
//! A record is one line of fixed length, written by one `write` to a descriptor opened with
//! O_APPEND; a call is a few records and an fsync. A client never repeats a record.

use super::worker::{Log, Outcome, Worker};
use crate::history::{Answer, Call, FileNo, Record};
use anyhow::{Context, Result};
use rand::Rng;
use std::collections::hash_map::Entry;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const SHARED: u32 = 2;
const RECORD_LEN: usize = 100;

fn private(client: u32) -> FileNo {
    FileNo(100 + client)
}

fn place(dir: &Path, file: FileNo) -> PathBuf {
    dir.join(format!("log{}", file.0))
}

/// Appends to one file. Errors are answered by opening it again.
pub fn step(worker: &mut Worker<'_>) {
    let which = worker.rng.random_range(0..=SHARED);
    let file = if which < SHARED { FileNo(which) } else { private(worker.client) };
    if worker.rng.random_ratio(1, 10) {
        let _ = read(worker, file, false);
        return;
    }
    let (client, count) = (worker.client, worker.rng.random_range(1..=5));
    let seq = worker.log.seq;
    let records: Vec<Record> = (1..=count).map(|i| Record { client, seq: seq + i }).collect();
    worker.log.seq += count;
    let _ = worker.call(Call::Append { file, records: records.clone() }, |worker| {
        let at = place(&worker.dir(), file);
        let done = append(&mut worker.log, file, &at, &records);
        if done.is_err() {
            worker.log.open.remove(&file);
        }
        done.map(|()| Outcome::Ok(Answer::Done))
    });
}

fn append(log: &mut Log, file: FileNo, at: &Path, records: &[Record]) -> io::Result<()> {
    let file = match log.open.entry(file) {
        Entry::Occupied(open) => open.into_mut(),
        Entry::Vacant(new) => new.insert(File::options().append(true).create(true).open(at)?),
    };
    for record in records {
        let line = line(*record);
        // One write a record: a short one would tear it.
        let n = file.write(&line)?;
        if n != line.len() {
            return Err(io::Error::other(format!("short write of {n} bytes")));
        }
    }
    file.sync_all()
}

fn line(record: Record) -> Vec<u8> {
    let mut line = format!("{} {} ", record.client, record.seq).into_bytes();
    line.resize(RECORD_LEN - 1, b'.');
    line.push(b'\n');
    line
}

/// Takes a file apart in records; anything else in it is a torn one, which nobody has appended.
fn parse(content: &[u8]) -> Vec<Record> {
    let record = |(at, chunk): (u64, &[u8])| {
        let text = String::from_utf8_lossy(chunk);
        let mut words = text.split(' ');
        let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
        let record = number().zip(number()).map(|(c, seq)| Record { client: c as u32, seq });
        record.filter(|record| line(*record) == chunk).unwrap_or(Record::torn(at))
    };
    (0..).zip(content.chunks(RECORD_LEN)).map(record).collect()
}

fn read(worker: &mut Worker<'_>, file: FileNo, last: bool) -> io::Result<()> {
    let client = worker.client;
    worker.call(Call::Read { client, file, last }, |worker| {
        let content = match fs::read(place(&worker.dir(), file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            content => content?,
        };
        Ok(Outcome::Ok(Answer::Records(parse(&content))))
    })
}

/// Reads every file.
pub fn last(worker: &mut Worker<'_>) -> Result<()> {
    let files = (0..SHARED).map(FileNo).chain((0..worker.clients).map(private));
    for file in files {
        read(worker, file, true).with_context(|| format!("log{} cannot be read", file.0))?;
    }
    Ok(())
}
