//! What is read and written is what was there, whatever else goes on.

use crate::{Setup, pattern};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;
use weft_gpu::{Stream, Way, read, write};

const LEN: usize = 11_000_000;
const WHILE: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_goes_to_a_gpu_and_back_as_it_is() {
    let setup = Setup::new().await;
    let mut expected = pattern(LEN, 1);
    // A hole, and a part that is only here yet.
    let file = setup.file("file", &expected[..LEN / 2]).await;
    file.sync().await.unwrap();
    expected.resize(LEN / 2, 0);
    expected.resize(LEN, 0);
    let tail = pattern(70_000, 2);
    expected[LEN - tail.len()..].copy_from_slice(&tail);
    file.write((LEN - tail.len()) as u64, &tail).await.unwrap();

    let (start, memory) = setup.memory(LEN + 5000);
    let mut random = StdRng::seed_from_u64(7);
    for round in 0..40 {
        let (at, off) = (random.random_range(0..5000), random.random_range(0..LEN + 1000));
        let len = match round % 4 {
            0 => random.random_range(0..300),
            1 => LEN,
            _ => random.random_range(0..2_000_000),
        };
        let len = len.min(memory.len() - at);
        let there = len.min(LEN.saturating_sub(off));
        setup.cuda.put(start, &vec![0xEE; memory.len()]);
        let into = memory.slice(at, len).unwrap();
        assert_eq!(read(&file, off as u64, into.clone()).await.unwrap(), there);
        let found = setup.cuda.get(start, memory.len());
        assert!(found[at..at + there] == expected[off.min(LEN)..][..there], "{off}+{len} at {at}");
        let around = found[..at].iter().chain(&found[at + there..]);
        assert!(around.copied().all(|byte| byte == 0xEE), "{off}+{len} at {at}: more was written");

        // Back, somewhere else.
        let new = pattern(len, round);
        setup.cuda.put(start + at as u64, &new);
        let to = random.random_range(0..LEN);
        assert_eq!(write(&file, to as u64, into, false).await.unwrap(), len);
        if expected.len() < to + len {
            expected.resize(to + len, 0);
        }
        expected[to..to + len].copy_from_slice(&new);
        expected.truncate(LEN);
        file.truncate(LEN as u64).await.unwrap();
    }
    assert_eq!(memory.way(), Way::Pinned);
    let back = file.read(0, LEN).await.unwrap().into_bytes();
    assert!(back == expected);
    // Without holes all of it comes from where the driver fetches it by itself.
    let whole = setup.file("whole", &expected).await;
    whole.sync().await.unwrap();
    let before = setup.cuda.copies();
    let into = memory.slice(0, LEN).unwrap();
    assert_eq!(read(&whole, 0, into.clone()).await.unwrap(), LEN);
    assert_eq!(write(&whole, 0, into, false).await.unwrap(), LEN);
    let after = setup.cuda.copies();
    assert!(after[0] > before[0] && after[1] == before[1], "{before:?} -> {after:?}");
    drop((memory, whole));
    setup.cuda.free(start);
    drop(file);
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_appended_goes_in_one_piece() {
    let setup = Setup::new().await;
    let flags = weft_client::OpenFlags { write: true, append: true, ..Default::default() };
    let file = setup.user.create(b"log", 0o644, flags).await.unwrap();
    let (start, memory) = setup.memory(9_000_000);
    let content = pattern(memory.len(), 3);
    setup.cuda.put(start, &content);
    for _ in 0..2 {
        let written = write(&file, 0, memory.all(), true).await;
        assert_eq!(written.unwrap(), memory.len());
    }
    file.close().await.unwrap();
    let file = setup.user.open(b"log", Default::default()).await.unwrap();
    let found = file.read(0, 3 * memory.len()).await.unwrap().into_bytes();
    assert!(found == [&content[..], &content].concat());
    drop((memory, file));
    setup.cuda.free(start);
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_comes_after_what_its_stream_was_asked_for() {
    let setup = Setup::new().await;
    let content = pattern(3_000_000, 4);
    let file = setup.file("file", &content).await;
    let (start, memory) = setup.memory(content.len());

    let cuda = setup.cuda;
    // The default stream of this thread, too, though other threads wait for it.
    for stream in [cuda.stream(), 0, 2] {
        // SAFETY: the simulated driver's streams are never destroyed.
        let after = unsafe { Stream::new(stream) };
        let busy = |bytes: Vec<u8>| {
            let (go, gone) = mpsc::channel::<()>();
            cuda.ask(stream, move || {
                let _ = gone.recv();
                cuda.put(start, &bytes);
            });
            go
        };
        // What the stream still does to the memory is overwritten by the read.
        let go = busy(vec![0xAA; content.len()]);
        let mut reads = Box::pin(read(&file, 0, memory.all().after(after).unwrap()));
        // Long enough for all of it, if nothing waited.
        assert!(timeout(WHILE, &mut reads).await.is_err(), "it did not wait for the stream");
        go.send(()).unwrap();
        assert_eq!(reads.await.unwrap(), content.len());
        assert!(cuda.get(start, content.len()) == content);

        // What the stream still makes is written.
        let new = pattern(content.len(), 5);
        let go = busy(new.clone());
        let mut writes = Box::pin(write(&file, 0, memory.all().after(after).unwrap(), false));
        assert!(timeout(WHILE, &mut writes).await.is_err(), "it did not wait for the stream");
        go.send(()).unwrap();
        assert_eq!(writes.await.unwrap(), content.len());
        assert!(file.read(0, content.len()).await.unwrap().into_bytes() == new);

        // A call that is given up while it waits touches nothing.
        let go = busy(content.clone());
        let reads = Box::pin(read(&file, 0, memory.all().after(after).unwrap()));
        assert!(timeout(Duration::from_millis(1), reads).await.is_err());
        go.send(()).unwrap();
        let all = memory.all().after(after).unwrap();
        assert_eq!(write(&file, 0, all, false).await.unwrap(), content.len());
        assert!(file.read(0, content.len()).await.unwrap().into_bytes() == content);
    }
    drop((memory, file));
    setup.cuda.free(start);
    setup.end().await;
}

/// Frees memory at once when it may be: the driver ends the process if a copy is under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_is_given_back_is_not_written_to_by_calls_that_were_dropped() {
    let setup = Setup::new().await;
    let content = pattern(6_000_000, 6);
    let file = Arc::new(setup.file("file", &content).await);
    file.sync().await.unwrap();
    let mut met = 0;
    for round in 0..60_u32 {
        let (start, memory) = setup.memory(content.len());
        let begun = Arc::new(AtomicBool::new(false));
        let before = setup.cuda.copies();
        {
            let mut reads = Box::pin(read(&file, 0, memory.all()));
            let mut polls = 0;
            std::future::poll_fn(|cx| {
                polls += 1;
                let ready = reads.as_mut().poll(cx).is_ready();
                let copies = setup.cuda.copies()[..2] != before[..2];
                begun.store(copies && !ready, Ordering::Relaxed);
                // Given up when copies have begun, sooner or later.
                match ready || (copies && polls > round % 5) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
        }
        met += u32::from(begun.load(Ordering::Relaxed));
        drop(memory);
        setup.cuda.free(start);
    }
    assert!(met > 0, "{met} of 60 calls were dropped in the middle");
    drop(file);
    setup.end().await;
}
