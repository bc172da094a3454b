//! Servers that write into the memory of a GPU by themselves: over cards in memory, which map what
//! the driver exports, as real ones do.

use crate::fixture::storage::Fault;
use crate::fixture::until;
use crate::{Setup, pattern};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;
use weft_client::{Credentials, Filesystem, OpenFile, Options};
use weft_cuda_sim::Cuda;
use weft_gpu::{Memory, Way, read, write};
use weft_net::Fabric;
use weft_proto::ErrorKind;

/// Whole segments of the layout.
const LEN: usize = 72 * (128 << 10);

/// Where servers and clients are.
const HOST: &str = "127.0.0.1";

async fn setup(fabric: &Arc<Fabric>) -> Setup {
    Setup::on(fabric.host(HOST)).await
}

/// Memory that cards may write to.
fn direct(setup: &Setup, len: usize) -> (u64, Memory) {
    let (start, mut memory) = setup.memory(len);
    memory.make_direct().unwrap();
    (start, memory)
}

/// A file whose content is committed.
async fn committed(setup: &Setup, name: &str, content: &[u8]) -> OpenFile {
    let file = setup.file(name, content).await;
    file.sync().await.unwrap();
    file
}

/// Whether this is what freed memory holds.
fn is_poison(bytes: &File, len: usize) -> bool {
    let mut found = vec![0; len];
    bytes.read_exact_at(&mut found, 0).unwrap();
    found.iter().all(|byte| *byte == Cuda::POISON)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_write_into_the_gpu_and_no_copy_is_made() {
    let fabric = Fabric::new();
    let setup = setup(&fabric).await;
    let content = pattern(LEN, 1);
    let file = committed(&setup, "file", &content).await;
    let (start, memory) = direct(&setup, LEN);
    assert_eq!(memory.way(), Way::Pinned, "nothing has come yet");
    let (copies, flushes) = (setup.cuda.copies_in(), setup.cuda.flushes());
    assert_eq!(read(&file, 0, memory.all()).await.unwrap(), LEN);
    assert!(setup.cuda.get(start, LEN) == content);
    assert_eq!((memory.way(), memory.why_not_direct()), (Way::Direct, None));
    assert_eq!(setup.cuda.copies_in(), copies, "copies to the GPU");
    assert!(setup.cuda.flushes() > flushes, "what cards wrote was not waited for");
    assert!(fabric.devices() > 0);

    // From it, through this host: the checksums are made there.
    let new = pattern(LEN, 2);
    setup.cuda.put(start, &new);
    assert_eq!(write(&file, 0, memory.all(), false).await.unwrap(), LEN);
    // What is not committed comes from here; what is, over the cards.
    for _ in 0..2 {
        setup.cuda.put(start, &vec![0xEE; LEN]);
        assert_eq!(read(&file, 0, memory.all()).await.unwrap(), LEN);
        assert!(setup.cuda.get(start, LEN) == new);
        file.sync().await.unwrap();
    }
    drop((memory, file));
    assert_eq!(fabric.devices(), 0, "cards that know memory which is given back");
    setup.cuda.free(start);
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_range_of_any_content_is_right_and_nothing_around_it_is_written() {
    let fabric = Fabric::new();
    let setup = setup(&fabric).await;
    // With a hole, and an end within a block.
    let (len, hole) = (3_000_123, 500_000..900_001);
    let mut content = pattern(len, 3);
    content[hole.clone()].fill(0);
    let file = setup.file("file", &content[..hole.start]).await;
    let mut done = hole.end;
    while done < len {
        done += file.write(done as u64, &content[done..]).await.unwrap();
    }
    file.sync().await.unwrap();
    let (start, memory) = direct(&setup, 4 << 20);
    let mut random = StdRng::seed_from_u64(4);
    for round in 0..60 {
        let off = random.random_range(0..len + 1000);
        let at = random.random_range(0..memory.len());
        let wanted = [100, 4096, 70_000, 2_000_000][round % 4];
        let wanted = random.random_range(1..=wanted).min(memory.len() - at);
        let there = wanted.min(len.saturating_sub(off));
        setup.cuda.put(start, &vec![0xEE; memory.len()]);
        let into = memory.slice(at, wanted).unwrap();
        assert_eq!(read(&file, off as u64, into).await.unwrap(), there);
        let found = setup.cuda.get(start, memory.len());
        assert!(
            found[at..at + there] == content[off.min(len)..][..there],
            "{off}+{wanted} at {at}"
        );
        let mut around = found[..at].iter().chain(&found[at + there..]);
        assert!(around.all(|byte| *byte == 0xEE), "{off}+{wanted} at {at}: more was written");
    }
    assert_eq!(memory.way(), Way::Direct);
    drop((memory, file));
    setup.cuda.free(start);
    setup.end().await;
}

/// Reads through the host, and says why.
async fn copied(setup: Setup, exports: bool, expected: &str) {
    let content = pattern(LEN, 5);
    let file = committed(&setup, "file", &content).await;
    setup.cuda.exports(exports);
    let (start, mut memory) = setup.memory(LEN);
    let made = memory.make_direct();
    assert_eq!(read(&file, 0, memory.all()).await.unwrap(), LEN);
    assert!(setup.cuda.get(start, LEN) == content);
    assert_eq!(memory.way(), Way::Pinned);
    let kind = made.as_ref().map_err(|error| error.kind);
    assert_eq!(kind, if exports { Ok(&()) } else { Err(ErrorKind::NotSupported) });
    let why = made.map_or_else(|error| error.message, |()| memory.why_not_direct().unwrap());
    assert!(why.contains(expected), "{why}");
    drop((memory, file));
    setup.cuda.free(start);
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_come_directly_comes_through_the_host_and_says_why() {
    let refused = "not supported (os error 95)";
    copied(setup(&Fabric::without_devices()).await, true, refused).await;
    copied(setup(&Fabric::new()).await, false, "CUDA_ERROR_NOT_SUPPORTED").await;
    copied(Setup::new().await, true, "nothing was read over RDMA").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lands_and_is_not_right_is_made_good_or_an_error() {
    let fabric = Fabric::new();
    let setup = setup(&fabric).await;
    let content = pattern(LEN, 7);
    let file = committed(&setup, "file", &content).await;
    let (start, memory) = direct(&setup, LEN);
    for target in [0, 3] {
        setup.cluster.targets[target].set(Fault::Corrupt);
    }
    assert_eq!(read(&file, 0, memory.all()).await.unwrap(), LEN);
    assert!(setup.cuda.get(start, LEN) == content, "made good from the others");
    let reports = setup.cluster.targets.iter().map(|target| &target.reports);
    let reports = || reports.clone().map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
    until(|| reports() > 0).await;
    setup.cluster.targets[5].set(Fault::Corrupt);
    assert_eq!(read(&file, 0, memory.all()).await.unwrap_err().kind, ErrorKind::Io);
    for target in &setup.cluster.targets {
        target.set(Fault::None);
    }
    setup.cuda.put(start, &vec![0xEE; LEN]);
    assert_eq!(read(&file, 0, memory.all()).await.unwrap(), LEN);
    assert!(setup.cuda.get(start, LEN) == content);
    assert_eq!(memory.way(), Way::Direct);
    drop((memory, file));
    setup.cuda.free(start);
    setup.end().await;
}

/// Gives a read up for which servers may write. They do when what this answers says so.
async fn give_up_read(setup: &Setup, file: &OpenFile, memory: &Memory) -> watch::Sender<bool> {
    let (open, gate) = watch::channel(false);
    for target in &setup.cluster.targets {
        *target.gate.lock() = Some(gate.clone());
    }
    let held = || setup.cluster.targets.iter().any(|t| t.held.load(Ordering::Relaxed) > 0);
    tokio::select! {
        _ = read(file, 0, memory.all()) => panic!("nobody has answered it"),
        () = until(held) => {}
    }
    open
}

/// Of those that were given up nothing is written any more, whenever the servers come to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_late_finds_no_memory_that_was_given_back() {
    let fabric = Fabric::new();
    let setup = setup(&fabric).await;
    let content = pattern(256 << 10, 8);
    let file = committed(&setup, "file", &content).await;
    let (start, memory) = direct(&setup, content.len());
    let bytes = setup.cuda.export(start, content.len());
    let open = give_up_read(&setup, &file, &memory).await;
    assert!(fabric.devices() > 0);
    drop(memory);
    assert_eq!(fabric.devices(), 0);
    setup.cuda.free(start);
    let strays = fabric.strays();
    open.send_replace(true);
    until(|| fabric.strays() > strays).await;
    assert!(is_poison(&bytes, content.len()), "memory was written to that was given back");

    // All goes on.
    let (start, memory) = direct(&setup, content.len());
    assert_eq!(read(&file, 0, memory.all()).await.unwrap(), content.len());
    assert!(setup.cuda.get(start, content.len()) == content);
    drop((memory, file));
    setup.cuda.free(start);
    setup.end().await;
}

/// Cards and copies know no order among each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_after_a_read_was_given_up_is_not_written_over() {
    let fabric = Fabric::new();
    let setup = setup(&fabric).await;
    let (content, new) = (pattern(256 << 10, 11), pattern(256 << 10, 12));
    let file = committed(&setup, "file", &content).await;
    let (start, memory) = direct(&setup, content.len());
    let open = give_up_read(&setup, &file, &memory).await;
    memory.all().put(new.clone()).await.unwrap();
    let strays = fabric.strays();
    open.send_replace(true);
    until(|| fabric.strays() > strays).await;
    assert!(setup.cuda.get(start, new.len()) == new, "written over");
    drop((memory, file));
    setup.cuda.free(start);
    setup.end().await;
}

/// A slow server is done without, and what it sends later, wrong as it is, comes to nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_late_does_not_write_over_what_was_made_without_it() {
    let fabric = Fabric::new();
    let setup = setup(&fabric).await;
    let content = pattern(256 << 10, 9);
    let file = committed(&setup, "file", &content).await;
    assert!(file.read(0, content.len()).await.unwrap().into_bytes() == content);
    file.close().await.unwrap();
    // One that has what is read.
    let mut targets = setup.cluster.targets.iter();
    let late = targets.find(|target| target.gets.load(Ordering::Relaxed) > 0).unwrap();
    let options = Options { hedge_floor: Duration::from_millis(10), ..setup.cluster.options() };
    let other = Filesystem::connect(options).await.unwrap();
    let user = other.as_user(Credentials::new(0, 0));
    let file = user.open(b"file", Default::default()).await.unwrap();
    let (open, gate) = watch::channel(false);
    *late.gate.lock() = Some(gate);
    late.set(Fault::Corrupt);
    let (start, memory) = direct(&setup, content.len());
    assert_eq!(read(&file, 0, memory.all()).await.unwrap(), content.len());
    assert!(setup.cuda.get(start, content.len()) == content);
    assert!(late.held.load(Ordering::Relaxed) > 0, "it was not asked");
    let strays = fabric.strays();
    open.send_replace(true);
    until(|| fabric.strays() > strays).await;
    assert!(setup.cuda.get(start, content.len()) == content, "written over");
    drop((memory, file));
    setup.cuda.free(start);
    other.shutdown().await.unwrap();
    setup.end().await;
}

/// The driver ends the process if memory is freed that a card knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_dropped_anywhere_write_to_no_memory_that_was_freed() {
    let fabric = Fabric::new();
    let setup = setup(&fabric).await;
    let content = pattern(2 << 20, 10);
    let file = committed(&setup, "file", &content).await;
    let (mut met, mut freed) = (0, Vec::new());
    for round in 0..30_u32 {
        let (start, memory) = direct(&setup, content.len());
        freed.push(setup.cuda.export(start, content.len()));
        {
            let mut reads = Box::pin(read(&file, 0, memory.all()));
            let mut polls = 0;
            let over = std::future::poll_fn(|cx| {
                polls += 1;
                match reads.as_mut().poll(cx) {
                    Poll::Ready(done) => Poll::Ready(Some(done)),
                    Poll::Pending if fabric.devices() > 0 && polls > round => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            });
            met += u32::from(over.await.is_none());
        }
        drop(memory);
        assert_eq!(fabric.devices(), 0);
        setup.cuda.free(start);
    }
    assert!(met > 0, "no call was dropped in the middle");
    // Whatever was under way is over when others were served.
    assert_eq!(file.read(0, content.len()).await.unwrap().into_bytes(), content);
    assert!(freed.iter().all(|bytes| is_poison(bytes, content.len())));

    // As with memory that is freed by itself.
    let mut memory = Memory::alloc(0, content.len()).unwrap();
    memory.make_direct().unwrap();
    assert_eq!(read(&file, 0, memory.all()).await.unwrap(), content.len());
    assert_eq!(memory.all().get().await.unwrap(), content);
    assert_eq!(memory.way(), Way::Direct);
    drop((memory, file));
    assert_eq!(fabric.devices(), 0);
    setup.end().await;
}
