//! The engine on real files: against a model, full, damaged, concurrent.

mod formats;

use crate::support::{data, encrypted, id, make, open, open_made, open_with, options};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::tempdir;
use tokio::runtime::Runtime;
use weft_proto::{ChunkId, ErrorKind, SessionId, TargetId, Uuid};
use weft_storaged::engine::{Content, Engine, Range, Superblock, TargetOptions, inspect};

const SIZE: u64 = Superblock::MIN_SIZE;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// What a target should hold: blocks and version of each chunk.
type Model = BTreeMap<ChunkId, (usize, u64)>;

async fn check_all(engine: &Engine, model: &Model) {
    let page = engine.list(None, None, 10_000).await.unwrap();
    let expect: Vec<_> =
        model.iter().map(|(&id, &(blocks, _))| (id, blocks as u64 * 4096)).collect();
    assert_eq!(page.items, expect);
    assert!(!page.more);
    assert_eq!(engine.stat().chunks, model.len() as u64);
    for (&id, &(blocks, version)) in model {
        check(engine, id, blocks, version, 0, blocks).await;
    }
    check_many(engine, model).await;
}

/// Many ranges at once answer what each would; with one that cannot be read, nothing but that.
async fn check_many(engine: &Engine, model: &Model) {
    let good = model.iter().flat_map(|(&id, &(blocks, _))| {
        let len = blocks as u64 * 4096;
        [(id, len - 4096, 4096), (id, 0, len)]
    });
    let good: Vec<_> = good.collect();
    let answers = engine.get_many(&good).await.unwrap();
    assert_eq!(answers.len(), good.len());
    for (&(id, off, len), many) in good.iter().zip(answers) {
        let one = engine.get(id, off, len).await.unwrap();
        let plain = |range: Range| (range.checksums, range.data.concat());
        assert!(plain(many) == plain(one), "chunk {id} {off}+{len}");
    }
    let beyond = good.last().map(|&(id, off, len)| (id, off + len, 4096));
    for bad in [(id(9, 9, 9), 0, 4096)].into_iter().chain(beyond) {
        let mut ranges = good.clone();
        let at = ranges.len() / 2;
        ranges.insert(at, bad);
        let (failed, error) = engine.get_many(&ranges).await.unwrap_err();
        let alone = engine.get(bad.0, bad.1, bad.2).await.unwrap_err();
        assert_eq!((failed, error.kind), (at, alone.kind));
    }
}

async fn check(engine: &Engine, id: ChunkId, blocks: usize, version: u64, from: usize, to: usize) {
    let (bytes, sums) = data(id, blocks, version);
    let range = engine.get(id, from as u64 * 4096, (to - from) as u64 * 4096).await.unwrap();
    assert_eq!(range.checksums, sums[from..to]);
    assert!(range.data.concat() == bytes[from * 4096..to * 4096], "chunk {id} has other bytes");
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        seq: u64,
        blocks: usize,
        version: u64,
    },
    Get {
        seq: u64,
        from: prop::sample::Index,
        to: prop::sample::Index,
    },
    Delete {
        seqs: Vec<u64>,
    },
    List {
        after: u64,
        session: bool,
        limit: usize,
    },
    /// `clean`: closed before; else only dropped.
    Reopen {
        clean: bool,
    },
    /// Closes, removes the index and opens.
    LoseIndex,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let seq = 0u64..24;
    let step = prop_oneof![
        8 => (seq.clone(), 1usize..200, 0u64..2).prop_map(|(seq, blocks,
            version)| Step::Put { seq, blocks, version }),
        4 => (seq.clone(), any::<prop::sample::Index>(),
            any::<prop::sample::Index>()).prop_map(|(seq, from, to)| Step::Get { seq, from, to }),
        4 => prop::collection::vec(seq.clone(), 1..6).prop_map(|seqs| Step::Delete { seqs }),
        1 => (seq, any::<bool>(), 1usize..8).prop_map(|(after, session,
            limit)| Step::List { after, session, limit }),
        1 => any::<bool>().prop_map(|clean| Step::Reopen { clean }),
        1 => Just(Step::LoseIndex),
    ];
    prop::collection::vec(step, 1..40)
}

/// Chunks of two sessions.
fn chunk(seq: u64) -> ChunkId {
    id(1 + seq % 2, seq, (seq % 3) as u8)
}

async fn step(engine: &mut Engine, model: &mut Model, options: &TargetOptions, step: Step) {
    match step {
        Step::Put { seq, blocks, version } => {
            let id = chunk(seq);
            let (bytes, sums) = data(id, blocks, version);
            let result = engine.put(id, bytes, sums).await;
            match model.get(&id) {
                Some(have) if *have == (blocks, version) => result.unwrap(),
                Some(_) => assert_eq!(result.unwrap_err().kind, ErrorKind::Exists),
                None => match result {
                    Ok(()) => assert!(model.insert(id, (blocks, version)).is_none()),
                    Err(e) => {
                        assert_eq!(e.kind, ErrorKind::NoSpace);
                        let stat = engine.stat();
                        let need = (blocks as u64 + 1) * 4096;
                        assert!(stat.used_bytes + need > stat.capacity_bytes / 2, "{stat:?}");
                    }
                },
            }
        }
        Step::Get { seq, from, to } => match model.get(&chunk(seq)) {
            Some(&(blocks, version)) => {
                let (a, b) = (from.index(blocks), to.index(blocks));
                check(engine, chunk(seq), blocks, version, a.min(b), a.max(b) + 1).await;
                let beyond = engine.get(chunk(seq), blocks as u64 * 4096, 4096).await;
                assert_eq!(beyond.unwrap_err().kind, ErrorKind::Invalid);
            }
            None => {
                let missing = engine.get(chunk(seq), 0, 4096).await;
                assert_eq!(missing.unwrap_err().kind, ErrorKind::NotFound);
            }
        },
        Step::Delete { seqs } => {
            let ids: Vec<_> = seqs.into_iter().map(chunk).collect();
            let before = model.len();
            model.retain(|id, _| !ids.contains(id));
            assert_eq!(engine.delete(ids).await.unwrap(), (before - model.len()) as u64);
        }
        Step::List { after, session, limit } => {
            let after = chunk(after);
            let session = session.then_some(SessionId(2));
            let mut expect = model
                .range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded))
                .filter(|(id, _)| session.is_none_or(|s| id.segment.session == s))
                .map(|(&id, &(blocks, _))| (id, blocks as u64 * 4096));
            let page = engine.list(Some(after), session, limit).await.unwrap();
            assert_eq!(page.items, expect.by_ref().take(limit).collect::<Vec<_>>());
            assert_eq!(page.more, expect.next().is_some());
        }
        Step::Reopen { clean } => reopen(engine, options, clean, false).await,
        Step::LoseIndex => {
            // What was deleted may come back with its header, so delete for real what must be gone.
            let before: Vec<_> = model.keys().copied().collect();
            reopen(engine, options, true, true).await;
            let page = engine.list(None, None, 10_000).await.unwrap();
            let extra: Vec<_> =
                page.items.iter().map(|i| i.0).filter(|id| !model.contains_key(id)).collect();
            assert!(before.iter().all(|id| page.items.iter().any(|i| i.0 == *id)));
            assert_eq!(engine.delete(extra.clone()).await.unwrap(), extra.len() as u64);
        }
    }
}

async fn reopen(engine: &mut Engine, options: &TargetOptions, clean: bool, lose: bool) {
    if clean {
        engine.close().await.unwrap();
    }
    // The drive is released when the last engine goes: put another in its place meanwhile.
    let parking = tempdir().unwrap();
    drop(std::mem::replace(engine, open(parking.path(), SIZE)));
    if lose {
        fs::remove_dir_all(options.path.with_extension("index")).unwrap();
    }
    *engine = open_with(options).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn behaves_as_a_map(steps in steps(), is_encrypted: bool) {
        let dir = tempdir().unwrap();
        let kind = if is_encrypted { encrypted } else { options };
        let options = kind(dir.path(), SIZE);
        runtime().block_on(async {
            let mut engine = open_made(&options);
            let mut model = Model::new();
            for s in steps {
                step(&mut engine, &mut model, &options, s).await;
            }
            check_all(&engine, &model).await;
            reopen(&mut engine, &options, false, false).await;
            check_all(&engine, &model).await;
        });
    }
}

fn run(test: impl Future<Output = ()>) {
    runtime().block_on(test);
}

async fn put(engine: &Engine, id: ChunkId, blocks: usize) {
    let (bytes, sums) = data(id, blocks, 0);
    engine.put(id, bytes, sums).await.unwrap();
}

/// The message and kind of the refusal.
fn refusal(options: &TargetOptions) -> (ErrorKind, String) {
    match open_with(options) {
        Ok(_) => panic!("{} was opened", options.path.display()),
        Err(e) => {
            assert!(e.message.contains(options.path.to_str().unwrap()), "{e}");
            (e.kind, e.message)
        }
    }
}

fn poke(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

fn peek(path: &Path, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    fs::File::open(path).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

#[test]
fn a_full_target_refuses_then_takes_again_after_a_delete() {
    run(async {
        let dir = tempdir().unwrap();
        let engine = open(dir.path(), SIZE);
        let mut stored = Vec::new();
        for seq in 0.. {
            let (bytes, sums) = data(id(1, seq, 0), 100, 0);
            match engine.put(id(1, seq, 0), bytes, sums).await {
                Ok(()) => stored.push(id(1, seq, 0)),
                Err(e) => {
                    assert_eq!(e.kind, ErrorKind::NoSpace);
                    break;
                }
            }
        }
        let stat = engine.stat();
        assert!(stat.used_bytes <= stat.capacity_bytes, "the reserve is kept");
        assert!(stat.capacity_bytes - stat.used_bytes < 101 * 4096);
        // Every other chunk goes: what is free is in pieces, and a larger chunk takes several.
        let every_other: Vec<_> = stored.iter().copied().step_by(2).collect();
        assert_eq!(engine.delete(every_other.clone()).await.unwrap(), every_other.len() as u64);
        stored.retain(|id| !every_other.contains(id));
        put(&engine, id(2, 1, 0), 450).await;
        check(&engine, id(2, 1, 0), 450, 0, 0, 450).await;
        check(&engine, id(2, 1, 0), 450, 0, 99, 403).await;
        for &id in &stored {
            check(&engine, id, 100, 0, 0, 100).await;
        }
        assert_eq!(engine.stat().chunks, stored.len() as u64 + 1);
        engine.delete(stored).await.unwrap();
        engine.delete(vec![id(2, 1, 0)]).await.unwrap();
        assert_eq!((engine.stat().used_bytes, engine.stat().chunks), (0, 0));
    });
}

/// What a session that has ended sent may arrive at any time: after the fence it is refused and
/// takes no space, so that the list made then has all there is. Others are not touched.
#[test]
fn nothing_of_a_session_that_is_fenced_off_is_stored_any_more() {
    run(async {
        let dir = tempdir().unwrap();
        let engine = open(dir.path(), SIZE);
        let attempt = async |id: ChunkId| {
            let (bytes, sums) = data(id, 2, 0);
            engine.put(id, bytes, sums).await.map_err(|e| e.kind)
        };
        for round in 0..20 {
            // Some are written, some wait for their commit, some come after it.
            let session = 10 + round;
            let puts: Vec<_> = (0..4)
                .map(|shard| {
                    let engine = engine.clone();
                    tokio::spawn(async move {
                        let mut stored = Vec::new();
                        for id in (0..10).map(|seq| id(session, seq, shard)) {
                            let (bytes, sums) = data(id, 2, 0);
                            match engine.put(id, bytes, sums).await {
                                Ok(()) => stored.push(id),
                                Err(e) => assert_eq!(e.kind, ErrorKind::SessionExpired),
                            }
                        }
                        stored
                    })
                })
                .collect();
            while engine.stat().chunks < round * 2 {
                tokio::task::yield_now().await;
            }
            engine.fence(vec![session..=session]).await.unwrap();
            let listed = async || {
                let page = engine.list(None, Some(SessionId(session)), 1000).await.unwrap();
                page.items.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
            };
            let after_fence = listed().await;
            let mut stored = Vec::new();
            for put in puts {
                stored.extend(put.await.unwrap());
            }
            stored.sort_unstable();
            assert_eq!(stored, after_fence, "round {round}");
            assert_eq!(stored, listed().await, "round {round}");
            engine.delete(stored).await.unwrap();
        }
        let used = engine.stat().used_bytes;
        assert_eq!((used, engine.stat().chunks), (0, 0), "what was refused takes no space");
        assert_eq!(attempt(id(15, 99, 0)).await, Err(ErrorKind::SessionExpired));
        assert_eq!(attempt(id(30, 1, 0)).await, Ok(()));
        // As a new leader does it: all that there were but those who live.
        engine.fence(vec![0..=29, 31..=u64::MAX]).await.unwrap();
        assert_eq!(attempt(id(30, 2, 0)).await, Ok(()));
        assert_eq!(attempt(id(31, 1, 0)).await, Err(ErrorKind::SessionExpired));
        // What is stored is as good as before, and can be put again.
        check(&engine, id(30, 1, 0), 2, 0, 0, 2).await;
        engine.fence(vec![30..=30]).await.unwrap();
        assert_eq!(attempt(id(30, 1, 0)).await, Ok(()));
        check(&engine, id(30, 1, 0), 2, 0, 0, 2).await;
    });
}

/// Free space in short runs: a long chunk is refused, which says what would fit, and that does fit.
#[test]
fn a_chunk_that_no_runs_hold_is_told_how_long_it_may_be() {
    run(async {
        let dir = tempdir().unwrap();
        let engine = open(dir.path(), SIZE);
        let mut stored = Vec::new();
        for seq in 0.. {
            let (bytes, sums) = data(id(1, seq, 0), 3, 0);
            match engine.put(id(1, seq, 0), bytes, sums).await {
                Ok(()) => stored.push(id(1, seq, 0)),
                Err(_) => break,
            }
        }
        engine.delete(stored.into_iter().step_by(2).collect()).await.unwrap();
        let stat = engine.stat();
        assert!(stat.capacity_bytes - stat.used_bytes > SIZE / 3);
        let refused = async |blocks| {
            let (bytes, sums) = data(id(2, 1, 0), blocks, 0);
            let refused = engine.put(id(2, 1, 0), bytes, sums).await.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::NoSpace);
            assert!(refused.message.contains(&format!("a chunk of {}", refused.hint)));
            refused.hint.parse::<usize>().unwrap() / 4096
        };
        let fits = refused(200).await;
        assert!((60..150).contains(&fits), "sixteen runs, most of them of four blocks: {fits}");
        refused(fits + 1).await;
        put(&engine, id(2, 1, 0), fits).await;
        check(&engine, id(2, 1, 0), fits, 0, 0, fits).await;
    });
}

#[test]
fn many_at_once_and_the_same_at_once() {
    run(async {
        let dir = tempdir().unwrap();
        let engine = open(dir.path(), 4 * SIZE);
        let tasks: Vec<_> = (0..64u64)
            .map(|n| {
                let engine = engine.clone();
                tokio::spawn(async move {
                    // Eight tasks share each chunk and agree on its contents; two versions of
                    // another.
                    let shared = id(1, n / 8, 0);
                    put(&engine, shared, 20).await;
                    check(&engine, shared, 20, 0, 3, 20).await;
                    let (bytes, sums) = data(id(2, 0, 0), 5, n % 2);
                    let result = engine.put(id(2, 0, 0), bytes, sums).await;
                    let own = id(3, n, 0);
                    put(&engine, own, 9).await;
                    check(&engine, own, 9, 0, 0, 9).await;
                    let gone = engine.delete(vec![own, id(3, (n + 1) % 64, 1)]).await.unwrap();
                    assert_eq!(gone, 1);
                    (n % 2, result)
                })
            })
            .collect();
        let mut winners = std::collections::BTreeSet::new();
        for task in tasks {
            match task.await.unwrap() {
                (version, Ok(())) => {
                    winners.insert(version);
                }
                (_, Err(e)) => assert_eq!(e.kind, ErrorKind::Exists),
            }
        }
        assert_eq!(winners.len(), 1, "one of two versions won");
        assert_eq!(engine.stat().chunks, 9);
        // Deletes of one chunk at once free its space once.
        let deletes: Vec<_> =
            (0..8)
                .map(|_| {
                    tokio::spawn({
                        let engine = engine.clone();
                        async move {
                            engine.delete((0..8).map(|n| id(1, n, 0)).collect()).await.unwrap()
                        }
                    })
                })
                .collect();
        let mut deleted = 0;
        for delete in deletes {
            deleted += delete.await.unwrap();
        }
        assert_eq!(deleted, 8);
        assert_eq!(engine.stat().used_bytes, 6 * 4096);
    });
}

#[test]
fn reads_during_deletes_and_reuse_never_mix_chunks() {
    run(async {
        let dir = tempdir().unwrap();
        let engine = open(dir.path(), SIZE);
        let seen = Arc::new(AtomicU64::new(0));
        let writer = tokio::spawn({
            let (engine, seen) = (engine.clone(), seen.clone());
            async move {
                // And until something was read, however slow the reader is.
                let goes_on = |round: &u64| *round < 60 || seen.load(Ordering::Relaxed) == 0;
                for round in (0..).take_while(goes_on) {
                    for seq in 0..8 {
                        put(&engine, id(1, round * 8 + seq, 0), 150).await;
                    }
                    engine
                        .delete((0..8).map(|seq| id(1, round * 8 + seq, 0)).collect())
                        .await
                        .unwrap();
                }
            }
        });
        while !writer.is_finished() {
            let page = engine.list(None, None, 100).await.unwrap();
            for (id, _) in page.items {
                match engine.get(id, 0, 150 * 4096).await {
                    Ok(range) => {
                        seen.fetch_add(1, Ordering::Relaxed);
                        assert!(
                            range.data.concat() == data(id, 150, 0).0,
                            "chunk {id} shows others' bytes"
                        );
                    }
                    Err(e) => assert_eq!(e.kind, ErrorKind::NotFound),
                }
            }
        }
        writer.await.unwrap();
    });
}

#[test]
fn a_flipped_bit_is_reported_and_counted() {
    for kind in [options, encrypted] {
        run(a_bit_flips(kind));
    }
}

/// On a target of that kind.
async fn a_bit_flips(kind: fn(&Path, u64) -> TargetOptions) {
    let dir = tempdir().unwrap();
    let options = kind(dir.path(), SIZE);
    let engine = open_made(&options);
    let before = fs::read(&options.path).unwrap();
    put(&engine, id(1, 1, 0), 8).await;
    // The data lies after the header, in the first blocks for chunks.
    let file = fs::read(&options.path).unwrap();
    let blocks = before.chunks(4096).zip(file.chunks(4096));
    let changed: Vec<_> =
        blocks.enumerate().filter(|(_, (old, new))| old != new).map(|(at, _)| at).collect();
    let at = changed[changed.len() - 5] * 4096;
    assert_eq!(engine.verify(id(1, 1, 0), 0, 0).await.unwrap(), None);
    poke(&options.path, at as u64 + 17, &[file[at + 17] ^ 4]);
    assert_eq!(engine.verify(id(1, 1, 0), 0, 0).await.unwrap(), Some(3 * 4096));
    assert_eq!(engine.verify(id(1, 1, 0), 0, 3 * 4096).await.unwrap(), None);
    assert_eq!(engine.stat().checksum_errors, 1);
    let range = engine.get(id(1, 1, 0), 0, 8 * 4096).await.unwrap();
    assert_eq!(
        weft_erasure::verify_blocks(&range.data.concat(), &range.checksums),
        Err(3),
        "the reader notices"
    );
    // It is put in the place of itself, elsewhere; the damaged block is not used again.
    let used = engine.stat().used_bytes;
    let (other, sums) = data(id(1, 2, 0), 8, 0);
    let refused = engine.heal(id(1, 1, 0), other, sums).await.unwrap_err().kind;
    assert_eq!(refused, ErrorKind::Exists, "that is another chunk");
    let absent = id(1, 2, 0);
    let (bytes, sums) = data(absent, 8, 0);
    let refused = engine.heal(absent, bytes, sums).await.unwrap_err().kind;
    assert_eq!(refused, ErrorKind::NotFound);
    let (bytes, sums) = data(id(1, 1, 0), 8, 0);
    assert!(engine.heal(id(1, 1, 0), bytes, sums).await.unwrap());
    assert_eq!(engine.verify(id(1, 1, 0), 0, 0).await.unwrap(), None);
    assert_eq!((engine.stat().used_bytes, engine.stat().chunks), (used + 4096, 1));
    engine.close().await.unwrap();
    drop(engine);
    // Also if the index is made anew by a scan, which meets the damaged one, too.
    for lost in [false, true] {
        if lost {
            fs::remove_dir_all(options.path.with_extension("index")).unwrap();
        }
        let engine = open_with(&options).unwrap();
        check(&engine, id(1, 1, 0), 8, 0, 0, 8).await;
        assert_eq!(engine.stat().chunks, 1);
        engine.close().await.unwrap();
    }
}

/// What is made of the other shards is stored, whoever wrote it.
#[test]
fn a_chunk_is_restored_also_if_its_session_has_ended() {
    run(async {
        let dir = tempdir().unwrap();
        let engine = open(dir.path(), SIZE);
        engine.fence(vec![1..=1]).await.unwrap();
        let (bytes, sums) = data(id(1, 1, 0), 8, 0);
        let refused = engine.put(id(1, 1, 0), bytes.clone(), sums.clone()).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::SessionExpired);
        assert!(!engine.has(id(1, 1, 0)).await.unwrap());
        engine.restore(id(1, 1, 0), bytes, sums).await.unwrap();
        assert!(engine.has(id(1, 1, 0)).await.unwrap());
        check(&engine, id(1, 1, 0), 8, 0, 0, 8).await;
    });
}
