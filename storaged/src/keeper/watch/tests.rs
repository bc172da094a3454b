//! Tests of `watch`.

use super::*;
use crate::engine::{Device, Done, Superblock, TargetOptions, Unread};
use crate::location::Location;
use crate::nvmeof::Roots;
use bytes::Bytes;
use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weft_net::AlignedBuf;

const REMOTE: &str =
    "nvme-tcp://127.0.0.1:4420/nqn.2025-01.test:box?uuid=12345678-9abc-def0-1234-56789abcdef0";

/// A drive that refuses some flushes.
struct Drive {
    bytes: Mutex<Vec<u8>>,
    refuses: AtomicUsize,
}

fn ready<T: Send + 'static>(result: io::Result<T>) -> Done<T> {
    let (send, done) = Done::channel();
    let _ = send.send(result);
    done
}

impl Device for Drive {
    fn size(&self) -> u64 {
        self.bytes.lock().len() as u64
    }

    fn read(&self, off: u64, len: usize) -> Done<AlignedBuf> {
        let mut buffer = AlignedBuf::take(len);
        buffer.as_mut_slice().copy_from_slice(&self.bytes.lock()[off as usize..][..len]);
        ready(Ok(buffer))
    }

    fn write(&self, off: u64, pieces: Vec<Bytes>) -> Done<()> {
        let all = pieces.concat();
        self.bytes.lock()[off as usize..][..all.len()].copy_from_slice(&all);
        ready(Ok(()))
    }

    fn commit(&self, off: u64, piece: Bytes) -> Done<()> {
        self.write(off, vec![piece])
    }

    fn flush(&self) -> Done<()> {
        let left = self
            .refuses
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        ready(if left.is_ok() { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) })
    }
}

/// A path that is live, as the kernel shows it.
fn live(root: &Path) {
    for (path, text) in [
        ("subsysnqn", "nqn.2025-01.test:box"),
        ("transport", "tcp"),
        ("address", "traddr=127.0.0.1,trsvcid=4420"),
        ("state", "live"),
    ] {
        let path = root.join("sys/class/nvme/nvme7").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

/// Its box was failing over when it was opened, and reads already.
#[tokio::test(start_paused = true)]
async fn a_drive_that_can_flush_again_is_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    live(dir.path());
    let superblock = Superblock::new(Superblock::MIN_SIZE);
    let bytes = Mutex::new(vec![0; superblock.size as usize]);
    let drive = Arc::new(Drive { bytes, refuses: AtomicUsize::new(3) });
    let device = drive.clone() as Arc<dyn Device>;
    let index = dir.path().join("index");
    let open = || {
        let unread = &mut Unread::default();
        Engine::on_device(device, superblock, Path::new("drive"), &index, unread).unwrap()
    };
    let engine = std::thread::scope(|scope| scope.spawn(open).join().unwrap());
    assert!(engine.failure().is_some());
    let remote: Remote = REMOTE.parse().unwrap();
    let keeper = Keeper {
        location: Location::Fabric(remote.clone()),
        options: TargetOptions::new("drive", None),
        fabric: nvmeof::Options::default(),
        roots: Roots::under(dir.path()),
        transport: weft_net::tcp(),
        metadata: Vec::new(),
        open: Arc::default(),
        targets: Arc::default(),
    };
    let begun = Instant::now();
    let why = tokio::time::timeout(Duration::from_secs(3600), keeper.watch(&remote, &engine)).await;
    assert!(why.unwrap().contains("durable"));
    assert_eq!(drive.refuses.load(Ordering::SeqCst), 0);
    assert!(begun.elapsed() >= FLUSH * 7, "it was asked again and again");
}
