//! Tests of `rocks`.

use super::*;

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
