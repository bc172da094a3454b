//! Drives that come late, or answer late or never: they hold up nobody but themselves.

use crate::daemon::{CLUSTER, get, put, run};
use crate::metadata::Metadata;
use crate::power::{Drive, Faults, Recorder, start, superblock};
use crate::support::{data, id, key, make};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::tempdir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use weft_net::AlignedBuf;
use weft_proto::{Result, TargetId, v1};
use weft_storaged::engine::{Device, Done, Engine};
use weft_storaged::{Config, Daemon, Target};

const SIZE: u64 = 32 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// When the daemon was started udev had not made its name, or its filesystem or that of its key or
/// of its index was not mounted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_shows_up_late_is_served() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let path = |name: &str| dir.path().join(name);
    let mut config = Config::new("s1", "127.0.0.1:0", vec![metadata.serve().await]);
    config.targets = ["indexed", "there", "late", "locked"]
        .map(|name| Target::new(path(name), Some(SIZE)))
        .into();
    config.targets[3].encryption = Some(key(&path("key"), 1));
    config.targets.iter().for_each(|target| make(&target.options()));
    let alone = Config { targets: config.targets[..1].into(), ..config.clone() };
    let daemon = run(alone).await;
    metadata.wait_for_beat(|beat| beat.targets.len() == 1).await;
    put(&daemon.peer(), 1, 1, 3).await.unwrap();
    daemon.stop().await.unwrap();
    metadata.1.beats.send_modify(Vec::clear);
    let identity = || std::fs::read(path("indexed.index").join("IDENTITY")).unwrap();
    let index = identity();
    let late = ["late", "key", "indexed.index"];
    for name in late {
        std::fs::rename(path(name), path("away").with_extension(name)).unwrap();
    }
    let daemon = run(config).await;
    metadata.wait_for_beat(|beat| beat.targets.len() == 1).await;
    for name in late {
        assert!(!path(name).exists(), "nothing was made in its place");
        std::fs::rename(path("away").with_extension(name), path(name)).unwrap();
    }
    metadata.wait_for_beat(|beat| beat.targets.len() == 4).await;
    get(&daemon.peer(), 1, 1, 0, 4096).await.unwrap();
    assert_eq!(identity(), index, "it was made anew");
    daemon.stop().await.unwrap();
}

/// An engine on a drive in memory.
fn engine(
    index: &Path,
    around: impl FnOnce(Arc<Drive>) -> Arc<dyn Device>,
) -> (Engine, Arc<Recorder>) {
    let superblock = superblock();
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let drive = around(drive);
    // Opening blocks.
    let open = || start(drive, &superblock, index).unwrap();
    (std::thread::scope(|scope| scope.spawn(open).join().unwrap()), recorder)
}

/// Has a daemon serve them.
async fn serve(
    metadata: String,
    engines: Vec<(Engine, String)>,
) -> (watch::Sender<bool>, JoinHandle<Result<()>>) {
    let mut config = Config::new("s1", "127.0.0.1:0", vec![metadata]);
    config.targets = vec![Target::new("in memory", None)];
    config.scrub_period = 0;
    let daemon = Daemon::bind(config, weft_net::tcp()).await.unwrap();
    let (stop, stopped) = watch::channel(false);
    (stop, tokio::spawn(daemon.run_open(engines, |service| service, stopped)))
}

/// The superblock of a target that is to join is the first that is written to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_drive_that_hangs_silences_no_other() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let (new, hangs) = engine(&dir.path().join("new"), |drive| drive);
    let (old, _) = engine(&dir.path().join("old"), |drive| drive);
    old.join(CLUSTER, TargetId(2)).await.unwrap();
    hangs.fail(Faults { hangs: true, ..Faults::default() });
    let engines = vec![(new, "new".into()), (old, "old".into())];
    let (stop, task) = serve(metadata.serve().await, engines).await;
    let tells_of = |ids: &[u32], beat: &v1::HeartbeatRequest| {
        beat.targets.iter().map(|stat| stat.target).eq(ids.iter().copied())
    };
    let mut beats = metadata.1.beats.subscribe();
    let some = beats.wait_for(|all| all.iter().filter(|beat| tells_of(&[2], beat)).count() > 3);
    timeout(PATIENCE, some).await.expect("it is silent").unwrap();
    assert!(hangs.hanging() > 0);
    hangs.fail(Faults::default());
    metadata.wait_for_beat(|beat| tells_of(&[1, 2], beat)).await;
    stop.send_replace(true);
    task.await.unwrap().unwrap();
}

/// A drive that counts as one that hangs once all of them were asked whether they do.
struct Together {
    drive: Arc<Drive>,
    number: usize,
    all: usize,
    asked: Arc<Mutex<BTreeSet<usize>>>,
}

impl Device for Together {
    fn size(&self) -> u64 {
        self.drive.size()
    }

    fn read(&self, off: u64, len: usize) -> Done<AlignedBuf> {
        self.drive.read(off, len)
    }

    fn write(&self, off: u64, pieces: Vec<Bytes>) -> Done<()> {
        self.drive.write(off, pieces)
    }

    fn commit(&self, off: u64, piece: Bytes) -> Done<()> {
        self.drive.commit(off, piece)
    }

    fn flush(&self) -> Done<()> {
        self.drive.flush()
    }

    fn stalled(&self) -> Duration {
        let mut asked = self.asked.lock();
        asked.insert(self.number);
        if asked.len() == self.all { Duration::from_secs(3600) } else { Duration::ZERO }
    }
}

/// Each would be waited for in vain, and those behind it not served for as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drives_that_hang_are_closed_at_once() {
    let dir = tempdir().unwrap();
    let asked: Arc<Mutex<BTreeSet<usize>>> = Arc::default();
    let drives: Vec<_> = (0..3)
        .map(|number| {
            let asked = asked.clone();
            let together = |drive| Arc::new(Together { drive, number, all: 3, asked }) as Arc<_>;
            engine(&dir.path().join(number.to_string()), together)
        })
        .collect();
    for (engine, recorder) in &drives {
        recorder.fail(Faults { hangs: true, ..Faults::default() });
        let (engine, chunk) = (engine.clone(), id(0, 1, 0));
        let (bytes, sums) = data(chunk, 1, 0);
        tokio::spawn(async move { engine.put(chunk, bytes, sums).await });
    }
    let hang = async {
        while drives.iter().any(|(_, recorder)| recorder.hanging() == 0) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, hang).await.expect("nothing is committed");
    asked.lock().clear();
    let engines = drives.iter().map(|(engine, _)| (engine.clone(), "drive".into())).collect();
    // Nobody is told of them, so nobody else asks.
    let (stop, task) = serve("127.0.0.1:1".into(), engines).await;
    stop.send_replace(true);
    timeout(PATIENCE, task).await.expect("one is waited for").unwrap().unwrap();
}
