//! Drivers and files that fail.

use crate::fixture::storage::Fault;
use crate::{Setup, pattern};
use std::time::Duration;
use weft_gpu::{read, write};
use weft_proto::ErrorKind;

/// `CUDA_ERROR_LAUNCH_FAILED`.
const FAILED: i32 = 719;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
const CAPTURED: i32 = 900;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_fails_is_an_error_and_the_next_works() {
    let setup = Setup::new().await;
    let content = pattern(9_000_000, 1);
    let file = setup.file("file", &content).await;
    let (start, memory) = setup.memory(content.len());
    for _ in 0..3 {
        setup.cuda.fail(FAILED, 0, 0);
        let failed =
            [read(&file, 0, memory.all()).await, write(&file, 0, memory.all(), false).await];
        for failed in failed {
            let error = failed.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Io);
            assert!(error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED"), "{error}");
        }
        setup.cuda.fail(0, 0, 0);
        assert_eq!(read(&file, 0, memory.all()).await.unwrap(), content.len());
        assert!(setup.cuda.get(start, content.len()) == content, "what failed wrote to the file");
    }
    drop((memory, file));
    setup.cuda.free(start);
    setup.end().await;
}

/// As while a stream is captured elsewhere: what is told is none of the copy's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_fails_is_not_the_end_of_a_copy() {
    let setup = Setup::new().await;
    let content = pattern(9_000_000, 3);
    let file = setup.file("file", &content).await;
    setup.cuda.pause(Duration::from_millis(5));
    setup.cuda.fail(0, 0, CAPTURED);
    for _ in 0..3 {
        let (start, memory) = setup.memory(content.len());
        assert_eq!(read(&file, 0, memory.all()).await.unwrap(), content.len());
        assert!(setup.cuda.get(start, content.len()) == content);
        drop(memory);
        setup.cuda.free(start);
    }
    drop(file);
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_read_has_failed_nothing_more_is_written() {
    let setup = Setup::new().await;
    let content = pattern(24 << 20, 4);
    let file = setup.file("file", &content).await;
    file.sync().await.unwrap();
    for target in [0, 2, 4] {
        setup.cluster.targets[target].set(Fault::Corrupt);
    }
    setup.cuda.pause(Duration::from_millis(200));
    let (start, memory) = setup.memory(content.len());
    let mut begun = false;
    for _ in 0..5 {
        // The first pieces are here, and can be read as long as they are not committed.
        let mut done = 0;
        while done < 6 << 20 {
            done += file.write(done as u64, &content[done..6 << 20]).await.unwrap();
        }
        let before = setup.cuda.copies();
        assert_eq!(read(&file, 0, memory.all()).await.unwrap_err().kind, ErrorKind::Io);
        let after = setup.cuda.copies();
        assert_eq!(after[2], 0, "copies that are under way");
        begun = after[0] + after[1] > before[0] + before[1];
        if begun {
            break;
        }
    }
    assert!(begun, "no copy was begun");
    drop((memory, file));
    setup.cuda.free(start);
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_cannot_be_verified_do_not_come_to_a_gpu() {
    let setup = Setup::new().await;
    let content = pattern(500_000, 2);
    let file = setup.file("file", &content).await;
    file.close().await.unwrap();
    setup.fs.sync().await.unwrap();
    let other = setup.cluster.client().await;
    let user = other.as_user(weft_client::Credentials::new(0, 0));
    let file = user.open(b"file", Default::default()).await.unwrap();
    let (start, memory) = setup.memory(content.len());
    setup.cluster.targets[0].set(Fault::Corrupt);
    setup.cluster.targets[3].set(Fault::Corrupt);
    assert_eq!(read(&file, 0, memory.all()).await.unwrap(), content.len());
    assert!(setup.cuda.get(start, content.len()) == content, "made good from the others");
    setup.cluster.targets[5].set(Fault::Corrupt);
    setup.cuda.put(start, &vec![0xEE; content.len()]);
    assert_eq!(read(&file, 0, memory.all()).await.unwrap_err().kind, ErrorKind::Io);
    let found = setup.cuda.get(start, content.len());
    let good = |(found, good): (&u8, &u8)| *found == 0xEE || found == good;
    assert!(found.iter().zip(&content).all(good), "wrong bytes came to the GPU");
    drop((memory, file));
    setup.cuda.free(start);
    other.shutdown().await.unwrap();
    setup.end().await;
}
