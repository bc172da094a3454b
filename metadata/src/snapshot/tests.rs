//! Tests of snapshot.

use super::files::plain;
use super::*;
use crate::store::unheard;

#[test]
fn names_from_a_peer_stay_inside() {
    for bad in ["", "..", ".x", "a/b", "../x", "a\0b", "/etc/passwd", &"x".repeat(300)] {
        assert!(plain(bad).is_err(), "{bad:?}");
    }
    for good in ["CURRENT", "MANIFEST-000005", "000007.sst", "snapshot-12"] {
        plain(good).unwrap();
    }
    let file = |name: &str, len| v1::snapshot_manifest::File { name: name.into(), len, crc32: 0 };
    let manifest =
        |files| v1::SnapshotManifest { snapshot: "s".into(), address: "a:1".into(), files };
    assert!(check(&manifest(vec![file("a", 1), file("b", 2)])).is_ok());
    assert!(check(&manifest(vec![file("a", u64::MAX), file("b", 2)])).is_err());
    assert!(check(&manifest(vec![file("../a", 1)])).is_err());
}

/// Who has it whole is to lead then; not so where it is not here any more.
#[tokio::test]
async fn a_piece_that_does_not_read_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env { threads: false, ..Env::real() };
    let me = Member { id: weft_proto::NodeId(1), address: "a:1".into() };
    let state = Arc::new(StateMachine::open_in_memory());
    state.set_applied(7).unwrap();
    let (_stopper, stop) = watch::channel(false);
    let snapshots = Arc::new(Snapshots::open(dir.path(), me, env, state, stop).unwrap());
    let manifest = snapshots.make().await.unwrap().manifest;
    let (snapshot, name) = (manifest.snapshot.clone(), manifest.files[0].name.clone());
    let path = dir.path().join(SNAPSHOTS).join(&snapshot).join(&name);
    let request = v1::SnapshotPieceRequest { snapshot, file: name, len: 1, ..Default::default() };
    snapshots.piece(request.clone()).await.unwrap();
    assert!(snapshots.take_unreadable().is_none());
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    snapshots.piece(request.clone()).await.unwrap_err();
    assert!(snapshots.take_unreadable().is_some() && snapshots.take_unreadable().is_none());
    fs::remove_file(&path).unwrap();
    snapshots.piece(request).await.unwrap_err();
    assert!(snapshots.take_unreadable().is_none());
}

/// A file that opens, and of which the first byte is EIO.
const EIO: &str = "/proc/self/mem";

/// Also what is not read to look whether the copy is whole: there is none, or it is a filter.
#[tokio::test]
async fn what_fails_to_be_copied_or_measured_is_damage_if_it_does_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env { threads: false, ..Env::real() };
    let me = Member { id: weft_proto::NodeId(1), address: "a:1".into() };
    let home = dir.path().join("state");
    let state = Arc::new(StateMachine::open(&home).unwrap());
    let (_stopper, stop) = watch::channel(false);
    let snapshots = Arc::new(Snapshots::open(dir.path(), me, env, state, stop).unwrap());
    drop(snapshots.make().await.unwrap());
    assert!(snapshots.take_unreadable().is_none());
    let files = fs::read_dir(home.join("db-0")).unwrap().map(|file| file.unwrap().path());
    let is_manifest = |path: &PathBuf| path.to_string_lossy().contains("/MANIFEST-");
    let manifests: Vec<_> = files.filter(is_manifest).collect();
    assert!(!manifests.is_empty());
    for manifest in manifests {
        fs::remove_file(&manifest).unwrap();
        std::os::unix::fs::symlink(EIO, &manifest).unwrap();
    }
    drop(snapshots.make().await.err().expect("it is not copied"));
    assert!(snapshots.take_unreadable().is_some());

    let copy = dir.path().join("copy");
    assert!(!measure_all(&copy, &mut unheard).unwrap_err().is_damage, "there is nothing");
    fs::create_dir(&copy).unwrap();
    std::os::unix::fs::symlink(EIO, copy.join("OPTIONS-000007")).unwrap();
    assert!(measure_all(&copy, &mut unheard).unwrap_err().is_damage);
}

/// What one reads says nothing of another; what an older version reads may be of any.
#[tokio::test]
async fn it_is_known_who_reads() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env { threads: false, ..Env::real() };
    let me = Member { id: weft_proto::NodeId(1), address: "a:1".into() };
    let state = Arc::new(StateMachine::open_in_memory());
    let (_stopper, stop) = watch::channel(false);
    let snapshots = Arc::new(Snapshots::open(dir.path(), me, env, state, stop).unwrap());
    let manifest = snapshots.make().await.unwrap().manifest;
    let read = async |server| {
        let (snapshot, file) = (manifest.snapshot.clone(), manifest.files[0].name.clone());
        let request = v1::SnapshotPieceRequest { snapshot, file, off: 0, len: 1, server };
        snapshots.piece(request).await.unwrap();
    };
    let have_read = || [2, 3].map(|server| snapshots.last_read(server).is_some());
    assert_eq!(have_read(), [false, false]);
    read(3).await;
    assert_eq!(have_read(), [false, true]);
    for stranger in 100..300 {
        read(stranger).await;
    }
    assert!(snapshots.made.lock().as_ref().unwrap().readers.len() <= MAX_READERS);
    drop(snapshots.make().await.unwrap());
    assert_eq!(have_read(), [false, false]);
    read(0).await;
    assert_eq!(have_read(), [true, true]);
}
