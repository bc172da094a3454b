//! Memory that cannot be pinned, as where locked memory is limited: all works, and it is told.

#[path = "../../tests/fixture/mod.rs"]
mod fixture;

use fixture::{Cluster, pattern, small_layout};
use weft_client::{Credentials, OpenFlags};
use weft_cuda_sim::Cuda;
use weft_gpu::{Memory, Way, read, write};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_pinned_is_copied_all_the_same() {
    let cuda = Cuda::simulated();
    cuda.fail(0, OUT_OF_MEMORY, 0);
    cuda.enter(1);
    let content = pattern(9_000_000, 1);
    let start = cuda.alloc(content.len());
    // SAFETY: it is freed after the memory is dropped.
    let memory = unsafe { Memory::new(start, content.len()) }.unwrap();
    cuda.put(start, &content);

    let cluster = Cluster::start(6, small_layout("4+2")).await;
    let fs = cluster.client().await;
    let user = fs.as_user(Credentials::new(0, 0));
    let flags = OpenFlags { write: true, both: true, ..Default::default() };
    let file = user.create(b"file", 0o644, flags).await.unwrap();
    assert_eq!(write(&file, 0, memory.all(), false).await.unwrap(), content.len());
    cuda.put(start, &vec![0; content.len()]);
    assert_eq!(read(&file, 0, memory.all()).await.unwrap(), content.len());
    assert!(cuda.get(start, content.len()) == content);
    assert_eq!(memory.way(), Way::Pageable);
    assert_eq!(cuda.copies()[0], 0, "copies from pinned memory");
    drop((memory, file));
    cuda.free(start);
    fs.shutdown().await.unwrap();
}
