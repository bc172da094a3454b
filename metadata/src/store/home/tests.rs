//! Tests of `home`.

use super::super::read::Changes;
use super::*;
use bytes::Bytes;
use weft_proto::ErrorKind;

#[test]
fn nothing_is_removed_of_a_store_that_another_uses() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("state");
    let used = Home::open(&store, 1 << 20).unwrap();
    // It is being installed.
    let next = store.join("db-1");
    fs::create_dir(&next).unwrap();
    assert!(Home::open(&store, 1 << 20).is_err());
    assert!(next.exists());
    // Nor of one that is being made.
    fs::remove_file(store.join(CURRENT)).unwrap();
    assert!(Home::open(&store, 1 << 20).is_err());
    assert!(next.exists() && store.join("db-0/CURRENT").exists());
    point_to(&store, "db-0").unwrap();
    drop(used);
    Home::open(&store, 1 << 20).unwrap();
    assert!(!next.exists(), "a crash left it");
}

/// Which database counts is not guessed, and none is removed for that.
#[test]
fn a_store_that_has_lost_what_says_which_counts_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str| dir.path().join(name);
    let open = |name: &str| Home::open(&of(name), 1 << 20);
    let changes = || Changes::from([(b"key".to_vec(), Some(Bytes::from_static(b"value")))]);
    // The first.
    open("first").unwrap().current().write(changes()).unwrap();
    // One that was installed.
    let home = open("installed").unwrap();
    home.current().write(changes()).unwrap();
    home.current().checkpoint(&of("installed/part"), [b"key"]).unwrap();
    home.replace(&of("installed/part"), &|_| Ok(())).unwrap();
    drop(home);
    for (name, database) in [("first", "db-0"), ("installed", "db-1")] {
        fs::remove_file(of(name).join(CURRENT)).unwrap();
        for _ in 0..2 {
            let refused = open(name).err().expect("a store of nothing").0;
            assert_eq!(refused.kind, ErrorKind::Corrupt, "{refused:?}");
        }
        // As its admin is told to.
        fs::write(of(name).join(CURRENT), database).unwrap();
        assert!(Read::get(&*open(name).unwrap().current(), b"key").unwrap().is_some());
    }
    // A first start that ended before that was written.
    drop(open("begun").unwrap());
    fs::remove_file(of("begun").join(CURRENT)).unwrap();
    open("begun").unwrap();
}
