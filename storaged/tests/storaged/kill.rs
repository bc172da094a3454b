//! Killed processes: this test program starts itself as a child that puts until it is killed.

use crate::support::{data, id, make, open_with, options};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tempfile::tempdir;
use tokio::sync::Semaphore;
use weft_proto::ChunkId;

const SIZE: u64 = 128 << 20;
/// Set in the child: the folder of its target, and its round.
const CHILD: &str = "WEFT_TEST_CRASH_CHILD";

fn blocks(chunk: ChunkId) -> usize {
    1 + (chunk.segment.seq as usize * 7) % 40
}

/// Puts chunks, several at once, deletes every third again, and says after each what is durable
/// now. Never ends by itself. Does nothing outside the child.
#[test]
fn child() {
    let Ok(args) = std::env::var(CHILD) else { return };
    let (round, dir) = args.split_once(' ').unwrap();
    let session: u64 = round.parse().unwrap();
    let engine = open_with(&options(Path::new(dir), SIZE)).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let slots = Arc::new(Semaphore::new(8));
        for seq in 0.. {
            let slot = slots.clone().acquire_owned().await.unwrap();
            let engine = engine.clone();
            tokio::spawn(async move {
                let chunk = id(session, seq, 0);
                let (bytes, sums) = data(chunk, blocks(chunk), session);
                engine.put(chunk, bytes, sums).await.unwrap();
                say("put", seq);
                if seq % 3 == 0 {
                    say("deleting", seq);
                    engine.delete(vec![chunk]).await.unwrap();
                    say("deleted", seq);
                }
                drop(slot);
            });
        }
    });
}

fn say(what: &str, seq: u64) {
    let line = format!("ack {what} {seq}\n");
    // One write call for each line: a line that arrived is whole.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

#[test]
fn acknowledged_chunks_survive_kill_nine() {
    let dir = tempdir().unwrap();
    make(&options(dir.path(), SIZE));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut expected: Vec<(ChunkId, bool)> = Vec::new();
    for round in 1..=4u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::child", "--nocapture"])
            .env(CHILD, format!("{round} {}", dir.path().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut acks = Vec::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        while acks.len() < 150 + 70 * round as usize {
            let line = lines.next().expect("the child goes on until it is killed").unwrap();
            assert!(!line.contains("panicked"), "{line}");
            acks.push(line);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What was in the pipe was acknowledged, too.
        acks.extend(lines.map_while(|line| line.ok()));

        let engine = open_with(&options(dir.path(), SIZE)).unwrap();
        let mut put = Vec::new();
        let mut gone = Vec::new();
        for (what, seq) in acks.iter().filter_map(|l| l.strip_prefix("ack ")?.split_once(' ')) {
            let Ok(seq) = seq.parse() else { continue };
            let chunk = id(round, seq, 0);
            match what {
                "put" => put.push(chunk),
                "deleting" => put.retain(|&c| c != chunk),
                "deleted" => gone.push(chunk),
                _ => {}
            }
        }
        assert!(put.len() > 50 && gone.len() > 20, "{} puts, {} deletes", put.len(), gone.len());
        expected
            .extend(put.into_iter().map(|c| (c, true)).chain(gone.into_iter().map(|c| (c, false))));
        runtime.block_on(async {
            for &(chunk, there) in &expected {
                let found = engine.get(chunk, 0, blocks(chunk) as u64 * 4096).await;
                if !there {
                    assert!(found.is_err(), "chunk {chunk} was deleted and is back");
                    continue;
                }
                let range = found.unwrap();
                let (bytes, sums) = data(chunk, blocks(chunk), chunk.segment.session.0);
                assert!(range.data.concat() == bytes[..] && range.checksums == sums);
            }
            // Make room, and leave the last words of the replay to the next round.
            let full = engine.stat().used_bytes > SIZE / 2;
            if full {
                engine
                    .delete(expected.iter().filter(|e| e.1).map(|e| e.0).collect())
                    .await
                    .unwrap();
                expected.iter_mut().for_each(|e| e.1 = false);
            }
        });
    }
}
