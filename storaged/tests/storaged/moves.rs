//! A target that two daemons have in their configuration. The lock of a drive holds within one host
//! only: what the other daemon does is done here as soon as this one has let go of the drive.

use crate::daemon::{CLUSTER, get, put, run, until};
use crate::metadata::{Metadata, Served};
use crate::support::{data, id, make, open_with};
use std::path::Path;
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{Instant, timeout};
use weft_proto::{ErrorKind, TargetId};
use weft_storaged::engine::{Engine, TargetOptions};
use weft_storaged::{Config, Target};

const SIZE: u64 = 32 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// As another host has it, with an index of its own.
fn options(dir: &Path) -> TargetOptions {
    let index = Some(dir.join("elsewhere"));
    TargetOptions { index, ..TargetOptions::new(dir.join("a"), Some(SIZE)) }
}

/// Opens the target as another host would, as soon as nobody else has it.
async fn elsewhere(dir: &Path) -> Engine {
    let options = options(dir);
    let since = Instant::now();
    loop {
        match open_with(&options) {
            Ok(engine) => return engine,
            Err(e) if e.kind == ErrorKind::Busy && since.elapsed() < PATIENCE => {}
            Err(e) => panic!("{e}"),
        }
    }
}

async fn store(engine: &Engine, seq: u64) {
    let chunk = id(1, seq, 0);
    let (bytes, sums) = data(chunk, 3, 0);
    engine.put(chunk, bytes, sums).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_daemon_serves_is_let_go_and_opened_anew() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let mut config = Config::new("s1", "127.0.0.1:0", vec![metadata.serve().await]);
    config.targets = vec![Target::new(dir.path().join("a"), Some(SIZE))];
    make(&config.targets[0].options());
    // Else an index that may be mounted late is waited for.
    std::fs::create_dir(dir.path().join("a.index")).unwrap();
    let other = elsewhere(dir.path()).await;
    other.join(CLUSTER, TargetId(1)).await.unwrap();
    store(&other, 5).await;
    other.retire().await.unwrap();

    // It waits from its start on for what the other serves.
    let served = &metadata.1.served;
    let serves = |who: Option<&str>| served.send_modify(|s| s.by = who.map(str::to_owned));
    let come_to = async |so_far: &dyn Fn(&Served) -> bool| {
        let mut seen = served.subscribe();
        timeout(PATIENCE, seen.wait_for(|served| so_far(served))).await.unwrap().unwrap();
    };
    serves(Some("s2"));
    let daemon = run(config).await;
    let peer = daemon.peer();
    come_to(&|served| served.refused > 0).await;
    until(&peer, |answer| answer.as_ref().is_err_and(|e| e.kind == ErrorKind::Unavailable)).await;
    // The other starts anew: it has it back before anything of it is read here.
    let refused = served.borrow().refused;
    serves(None);
    come_to(&|served| served.accepted > 0).await;
    serves(Some("s2"));
    come_to(&|served| served.refused > refused).await;
    let other = open_with(&options(dir.path())).expect("nobody has opened it");
    store(&other, 6).await;
    assert_eq!(other.delete(vec![id(1, 5, 0)]).await.unwrap(), 1);
    other.retire().await.unwrap();
    serves(None);
    // What was deleted there is not here, and nothing is in the place of what was stored.
    until(&peer, |answer| answer.as_ref().is_err_and(|e| e.kind == ErrorKind::NotFound)).await;
    for seq in 10..20 {
        put(&peer, 1, seq, 3).await.unwrap();
    }
    assert!(get(&peer, 1, 6, 0, 3 * 4096).await.unwrap().1 == data(id(1, 6, 0), 3, 0).0);

    // It has served it for a while, was away, and comes back.
    serves(Some("s2"));
    until(&peer, |answer| answer.as_ref().is_err_and(|e| e.kind == ErrorKind::Unavailable)).await;
    let other = elsewhere(dir.path()).await;
    store(&other, 5).await;
    assert_eq!(other.delete(vec![id(1, 6, 0)]).await.unwrap(), 1);
    other.retire().await.unwrap();
    serves(None);
    until(&peer, Result::is_ok).await;
    assert_eq!(get(&peer, 1, 6, 0, 4096).await.unwrap_err().kind, ErrorKind::NotFound);
    for seq in 10..20 {
        assert!(get(&peer, 1, seq, 0, 3 * 4096).await.unwrap().1 == data(id(1, seq, 0), 3, 0).0);
    }
    daemon.stop().await.unwrap();
}
