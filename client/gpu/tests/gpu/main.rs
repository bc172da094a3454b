//! Content of files in the memory of a GPU that is simulated, on a small cluster in this process.

#[path = "../../../tests/fixture/mod.rs"]
mod fixture;

mod batches;
mod copies;
mod direct;
mod failures;

use fixture::{Cluster, pattern, small_layout};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};
use weft_client::{Caller, Credentials, Filesystem, OpenFile, OpenFlags};
use weft_cuda_sim::Cuda;
use weft_gpu::Memory;
use weft_net::{Transport, tcp};

/// How the driver fails is the same for all tests of a process.
static ONE: Mutex<()> = Mutex::const_new(());

/// A cluster, a user of it, and the driver for this test alone.
struct Setup {
    cuda: &'static Cuda,
    fs: Filesystem,
    user: Caller,
    cluster: Cluster,
    _alone: MutexGuard<'static, ()>,
}

impl Setup {
    async fn new() -> Self {
        Self::on(tcp()).await
    }

    /// The same on another network.
    async fn on(network: Arc<dyn Transport>) -> Self {
        let alone = ONE.lock().await;
        let cuda = Cuda::simulated();
        cuda.fail(0, 0, 0);
        cuda.pause(Duration::from_micros(300));
        cuda.exports(true);
        let cluster = Cluster::start_on(network, 6, small_layout("4+2")).await;
        let fs = cluster.client().await;
        let user = fs.as_user(Credentials::new(0, 0));
        Self { cuda, fs, user, cluster, _alone: alone }
    }

    /// A file with this content, open to read and write.
    async fn file(&self, name: &str, content: &[u8]) -> OpenFile {
        let flags = OpenFlags { write: true, both: true, ..Default::default() };
        let file = self.user.create(name.as_bytes(), 0o644, flags).await.unwrap();
        let mut done = 0;
        while done < content.len() {
            done += file.write(done as u64, &content[done..]).await.unwrap();
        }
        file
    }

    /// Memory of the first GPU.
    fn memory(&self, len: usize) -> (u64, Memory) {
        self.cuda.enter(0);
        let start = self.cuda.alloc(len);
        // SAFETY: it is freed after the memory is dropped.
        (start, unsafe { Memory::new(start, len) }.unwrap())
    }

    async fn end(self) {
        self.cluster.assert_no_violations();
        self.fs.shutdown().await.unwrap();
    }
}
