//! Room for a store on a drive that is nearly full.

use super::*;
use std::fs;
use tempfile::TempDir;

const CLUSTER: Uuid = Uuid([7; 16]);

/// Others on the drive do not find it full each time that this is tried.
#[test]
fn what_does_not_fit_is_refused_before_any_of_it_is_taken() {
    let dir = TempDir::new().unwrap();
    let free = free_bytes(&File::open(dir.path()).unwrap()).unwrap();
    // Twice: others may give back some meanwhile.
    let open = || Store::open(dir.path(), CLUSTER, 2 * free + REGION).map(drop);
    open().expect_err("it does not fit");
    let file = || fs::metadata(dir.path().join(format!("{CLUSTER}.hot"))).unwrap();
    // Room that is taken and given back changes the file.
    let changed = |file: fs::Metadata| (file.ctime(), file.ctime_nsec());
    let before = changed(file());
    let error = open().expect_err("it does not fit");
    assert_eq!((error.kind, file().len(), file().blocks()), (ErrorKind::NoSpace, 0, 0));
    assert_eq!(changed(file()), before, "room was taken for a while");
    assert!(error.message.contains("--hot-size"), "{error}");
}

#[test]
fn what_is_taken_already_fits_however_little_is_left() {
    let fits = |wanted, free| fits(Path::new("a"), wanted, free).is_ok();
    assert!(fits(0, 0) && fits(5, RESERVE + 5));
    assert!(!fits(1, 0) && !fits(6, RESERVE + 5) && !fits(u64::MAX, u64::MAX - 1));
}
