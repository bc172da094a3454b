//! Backups that a leader makes.

use super::*;
use crate::backup::Copy;
use crate::store::unheard;

/// It keeps what the store merges meanwhile. A disk that has no room before is a reason to make
/// one.
#[tokio::test(start_paused = true)]
async fn a_backup_is_given_up_before_it_takes_the_last_room() {
    let rig = Rig::leading().await;
    let node = rig.driver.node.clone();
    let files = || std::fs::read_dir(rig.dir.path().join("snapshots")).unwrap().count();
    node.note_room(2, 1);
    let fills_up = &mut |_: u64| -> Result<()> {
        node.note_room(0, 1);
        Ok(())
    };
    let error = Copy::make(&node, fills_up).err().expect("there is no room for it");
    assert_eq!((error.kind, files()), (ErrorKind::NoSpace, 0));
    assert_eq!(node.damaged(), None);
    let copy = Copy::make(&node, &mut unheard).unwrap();
    assert_eq!(files(), 1);
    drop(copy);
    assert_eq!(files(), 0);
}

/// Its caller has gone, or its server stops.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_backup_that_is_broken_off_and_nothing_is_damaged() {
    let rig = Rig::leading().await;
    let node = rig.driver.node.clone();
    // While all of it is read, and while its files are measured.
    for after in [0, 1] {
        let mut left = after;
        let enough = &mut |_: u64| -> Result<()> {
            left -= 1;
            if left < 0 { Err(crate::node::stopping()) } else { Ok(()) }
        };
        let error = Copy::make(&node, enough).err().expect("it was broken off");
        assert!(error.message.contains("stopping"), "{error}");
        assert!(!rig.dir.path().join("snapshots/backup").exists());
        assert_eq!(node.damaged(), None);
    }
    rig.stop.send_replace(true);
    let snapshots = rig.driver.wiring.snapshots.clone();
    let error = snapshots.make().await.err().expect("the server stops");
    assert!(error.message.contains("stopping") && snapshots.take_unreadable().is_none());
    assert_eq!(std::fs::read_dir(rig.dir.path().join("snapshots")).unwrap().count(), 0);
}
