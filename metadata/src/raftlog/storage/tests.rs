//! Tests of `storage`.

use super::super::Append;
use super::*;
use weft_proto::ErrorKind;

fn entry(index: u64, term: u64) -> Entry {
    Entry { index, term, data: vec![index as u8; 100], ..Default::default() }
}

fn range(log: &LogStorage, low: u64, high: u64) -> Vec<(u64, u64)> {
    log.entries(low, high, None, GetEntriesContext::empty(false))
        .unwrap()
        .iter()
        .map(|e| (e.index, e.term))
        .collect()
}

/// A new log of a group of three.
fn made(dir: &Path) -> LogStorage {
    LogStorage::make(dir, vec![1, 2, 3], &HardState::default()).unwrap();
    LogStorage::open(dir, 0).unwrap()
}

/// Appends in memory and on disk, as the event loop does.
fn append(log: &mut LogStorage, entries: Vec<Entry>) {
    let old_last = log.append(&entries);
    let change = Append { entries, old_last, sync: true, ..Default::default() };
    log.db().write(&[change]).unwrap();
}

#[test]
fn a_log_survives_reopening_conflicts_and_truncation() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = made(dir.path());
    assert!(!log.has_history());
    append(&mut log, (1..=10).map(|i| entry(i, 1)).collect());
    // A new leader overwrites 6.. with fewer entries: 8..=10 must be gone for good.
    append(&mut log, vec![entry(6, 2), entry(7, 2)]);
    let expected = [(4, 1), (5, 1), (6, 2), (7, 2)];
    assert_eq!(range(&log, 4, 8), expected);
    drop(log);
    let mut log = LogStorage::open(dir.path(), 5).unwrap();
    assert_eq!(log.last, 7);
    assert_eq!(range(&log, 4, 8), expected);
    assert_eq!(log.initial_state().unwrap().hard_state.commit, 5);
    // Part from disk, part from memory.
    append(&mut log, vec![entry(8, 2)]);
    assert_eq!(range(&log, 6, 9), [(6, 2), (7, 2), (8, 2)]);
    assert_eq!(log.entries(6, 9, 1, GetEntriesContext::empty(false)).unwrap().len(), 1);
    let at = log.truncate(6).unwrap();
    log.db().write(&[Append { truncate: Some(at), ..Default::default() }]).unwrap();
    assert!(matches!(
        log.entries(6, 7, None, GetEntriesContext::empty(false)),
        Err(raft::Error::Store(StorageError::Compacted))
    ));
    assert_eq!((log.term(6).unwrap(), log.term(7).unwrap()), (2, 2));
    drop(log);
    let log = LogStorage::open(dir.path(), 6).unwrap();
    assert_eq!((log.first_index().unwrap(), log.last), (7, 8));
    assert_eq!(log.conf_state().voters, [1, 2, 3], "the group is fixed when the log is made");
    drop(log);
    let lost = LogStorage::open(dir.path(), 0).err().expect("the state is lost");
    assert!(lost.message.contains("begins after 6"), "{lost}");
}

#[test]
fn an_interrupted_installation_is_finished_or_undone() {
    for replaced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut log = made(dir.path());
        append(&mut log, (1..=3).map(|i| entry(i, 1)).collect());
        log.db().begin_install(Position { index: 50, term: 4 }).unwrap();
        drop(log);
        let applied = if replaced { 50 } else { 3 };
        let log = LogStorage::open(dir.path(), applied).unwrap();
        if replaced {
            assert_eq!((log.truncated(), log.last), (Position { index: 50, term: 4 }, 50));
        } else {
            assert_eq!((log.truncated().index, log.last), (0, 3));
        }
    }
}

#[test]
fn a_log_shorter_than_the_state_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(made(dir.path()));
    assert!(LogStorage::open(dir.path(), 9).is_err());
}

#[test]
fn the_length_is_known_through_conflicts_and_truncation() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = made(dir.path());
    let large = |i, term| Entry { data: vec![0; 100_000], ..entry(i, term) };
    log.append(&(1..=10).map(|i| large(i, 1)).collect::<Vec<_>>());
    let one = 100_064;
    assert_eq!((log.lengths().up_to(10), log.lengths().up_to(4)), (10 * one, 4 * one));
    assert_eq!(log.lengths().before_last(3 * one), 7);
    assert_eq!(log.lengths().before_last(3 * one + 1), 6);
    assert_eq!(log.lengths().before_last(11 * one), 0);
    log.append(&[large(6, 2), large(7, 2)]);
    assert_eq!(log.lengths().before_last(one), 6);
    log.truncate(5).unwrap();
    assert!((2 * one..8 * one).contains(&log.lengths().up_to(7)));
    log.append(&(8..=9).map(|i| large(i, 2)).collect::<Vec<_>>());
    log.truncate(8).unwrap();
    assert_eq!((log.lengths().up_to(9), log.lengths().up_to(8)), (one, 0));
    // Small entries are noted together.
    log.append(&(10..=5000).map(|i| entry(i, 2)).collect::<Vec<_>>());
    assert!(log.lengths().marks.len() < 20);
    log.reset(Position { index: 6000, term: 3 }, ConfState::default());
    assert_eq!(log.lengths().up_to(6000), 0);
    log.append(&[large(6001, 3)]);
    assert_eq!(log.lengths().up_to(6001), one);
}

#[test]
fn a_missing_log_is_not_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    assert!(LogStorage::open(&log, 0).is_err());
    std::fs::create_dir_all(&log).unwrap();
    assert!(LogStorage::open(&log, 0).is_err());
    let promised = HardState { term: 7, vote: 2, commit: 0 };
    LogStorage::make(&log, vec![1, 2, 3], &promised).unwrap();
    let found = LogStorage::open(&log, 0).unwrap();
    assert_eq!(found.initial_state().unwrap().hard_state, promised);
    assert!(found.has_history());
    found.db().condemn().unwrap();
    drop(found);
    assert!(LogStorage::open(&log, 0).is_err());
}

/// Whoever needs it is sent a snapshot, and the process goes on.
#[test]
fn what_does_not_read_is_as_if_it_were_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = made(dir.path());
    append(&mut log, (1..=9).map(|i| entry(i, 1)).collect());
    drop(log);
    // Nothing is in memory.
    let log = LogStorage::open(dir.path(), 9).unwrap();
    log.db().damage(4);
    let forgotten = |e| matches!(e, raft::Error::Store(StorageError::Compacted));
    assert!(forgotten(log.entries(2, 9, None, GetEntriesContext::empty(false)).unwrap_err()));
    assert_eq!(log.take_unreadable().map(|unread| unread.index), Some(4));
    assert!(log.take_unreadable().is_none());
    assert!(forgotten(log.term(4).unwrap_err()));
    assert!(log.take_unreadable().is_some());
    assert_eq!(range(&log, 5, 10).len(), 5);
    assert!(log.take_unreadable().is_none());
}

/// The library would end the process over it, at each start again.
#[test]
fn a_log_is_not_opened_if_what_is_to_be_applied_does_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = made(dir.path());
    append(&mut log, (1..=9).map(|i| entry(i, 1)).collect());
    log.db().damage(6);
    drop(log);
    let error = LogStorage::open(dir.path(), 3).err().expect("it does not read");
    assert!(error.message.contains("log entry 6") && error.message.contains("move the whole data"));
    let error = LogStorage::open(dir.path(), 6).err().expect("who votes says of which term it is");
    assert!(error.message.contains("log entry 6"), "{error}");
    let log = LogStorage::open(dir.path(), 7).unwrap();
    log.db().damage(9);
    drop(log);
    let error = LogStorage::open(dir.path(), 9).err().expect("its end does not read");
    assert!(error.message.contains("move the whole data"), "{error}");
}

/// A follower would be told that what comes next is what it lacks.
#[test]
fn a_log_with_a_gap_is_not_read_across_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = made(dir.path());
    append(&mut log, (1..=3).map(|i| entry(i, 1)).collect());
    let db = log.db();
    db.write(&[Append { entries: vec![entry(5, 1)], ..Default::default() }]).unwrap();
    assert_eq!(db.entries(1, 4, u64::MAX).unwrap().len(), 3);
    for (low, high) in [(2, 6), (4, 6), (6, 8)] {
        assert_eq!(db.entries(low, high, u64::MAX).unwrap_err().why.kind, ErrorKind::Corrupt);
    }
    assert!(db.entries(6, 6, u64::MAX).unwrap().is_empty());
    assert_eq!(db.term(4).unwrap_err().why.kind, ErrorKind::Corrupt);
}
