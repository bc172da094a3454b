//! What survives the end of the process, and checkpoints from one replica to another.

use crate::rig::{ROOT, Rig};
use proptest::prelude::*;
use std::path::Path;
use v1::meta_request::Op;
use weft_metadata::state::StateMachine;
use weft_proto::{ErrorKind, v1};

fn open(dir: &Path) -> StateMachine {
    StateMachine::open_with_cache(dir, 1 << 20).expect("open")
}

/// A log of some creates, renames and removals, some of them refused.
fn log(entries: usize) -> Vec<(u64, v1::LogEntry)> {
    let mut rig = Rig::in_memory();
    for i in 0..entries {
        let name = |i: usize| format!("n{}", i % 7).into();
        let op = match i % 4 {
            0 | 1 => Op::Create(v1::CreateOp { parent: ROOT, name: name(i), ..Default::default() }),
            2 => Op::Rename(v1::RenameOp {
                parent: ROOT,
                name: name(i + 3),
                new_parent: ROOT,
                new_name: name(i),
                flags: 0,
            }),
            _ => Op::Unlink(v1::UnlinkOp { parent: ROOT, name: name(i) }),
        };
        let request = rig.next_request(op);
        let _ = rig.request(request);
    }
    rig.log
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// A replica that stops after any entry goes on from there.
    #[test]
    fn a_reopened_state_goes_on_where_it_was(stops in prop::collection::vec(1usize..30, 1..5)) {
        let log = log(60);
        let whole = StateMachine::open_in_memory();
        whole.apply(&log).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut rest = log.as_slice();
        for stop in stops {
            let machine = open(dir.path());
            let (batch, tail) = rest.split_at(stop.min(rest.len()));
            machine.apply(batch).unwrap();
            rest = tail;
        }
        let machine = open(dir.path());
        prop_assert_eq!(machine.applied() as usize, log.len() - rest.len());
        machine.apply(rest).unwrap();
        prop_assert!(machine.dump().unwrap() == whole.dump().unwrap());
        prop_assert_eq!(machine.sync().unwrap(), log.len() as u64);
    }
}

/// The process dies between two writes: the store that is left is of a whole number of batches.
#[test]
fn a_copy_of_the_files_under_way_is_a_prefix() {
    let log = log(200);
    let dir = tempfile::tempdir().unwrap();
    let machine = open(&dir.path().join("live"));
    for batch in log.chunks(9) {
        machine.apply(batch).unwrap();
    }
    // Cut the write-ahead log somewhere: what a power cut may leave.
    let db = dir.path().join("live/db-0");
    for cut in [1u64, 100, 1000, 5000, 20_000] {
        let copy = dir.path().join(format!("copy-{cut}"));
        std::fs::create_dir_all(copy.join("db-0")).unwrap();
        std::fs::write(copy.join("current"), "db-0").unwrap();
        for entry in std::fs::read_dir(&db).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() == "LOCK" {
                continue;
            }
            let to = copy.join("db-0").join(entry.file_name());
            std::fs::copy(entry.path(), &to).unwrap();
            if to.extension().is_some_and(|e| e == "log") {
                let file = std::fs::OpenOptions::new().write(true).open(&to).unwrap();
                let len = file.metadata().unwrap().len();
                file.set_len(len.saturating_sub(cut)).unwrap();
            }
        }
        let torn = open(&copy);
        let applied = torn.applied() as usize;
        assert!(
            applied < log.len() && applied.is_multiple_of(9),
            "{applied} applied after a cut of {cut}"
        );
        torn.apply(&log[applied..]).unwrap();
        assert!(torn.dump().unwrap() == machine.dump().unwrap());
    }
}

#[test]
fn entries_are_applied_once_and_in_order() {
    let machine = StateMachine::open_in_memory();
    let entry = v1::LogEntry::default();
    machine.apply(&[(3, entry.clone()), (7, entry.clone())]).unwrap();
    assert_eq!(machine.applied(), 7);
    assert_eq!(machine.apply(&[(7, entry.clone())]).unwrap_err().kind, ErrorKind::Internal);
    assert_eq!(
        machine.apply(&[(9, entry.clone()), (8, entry)]).unwrap_err().kind,
        ErrorKind::Internal
    );
    assert_eq!(machine.applied(), 7);
    machine.set_applied(9).unwrap();
    machine.set_applied(8).unwrap();
    assert_eq!(machine.applied(), 9);
}

#[test]
fn a_checkpoint_replaces_the_state_of_another() {
    let log = log(100);
    let (early, late) = log.split_at(60);
    let dir = tempfile::tempdir().unwrap();
    for on_disk in [true, false] {
        let base = dir.path().join(format!("{on_disk}"));
        std::fs::create_dir(&base).unwrap();
        let machine = |name: &str| match on_disk {
            true => open(&base.join(name)),
            false => StateMachine::open_in_memory(),
        };
        let (from, to) = (machine("from"), machine("to"));
        from.apply(early).unwrap();
        to.apply(&log[..10]).unwrap();
        let copy = base.join("copy");
        assert_eq!(from.checkpoint(&copy).unwrap().0, early.len() as u64);
        from.apply(late).unwrap();
        to.replace(&copy).unwrap();
        assert!(!copy.exists());
        assert_eq!(to.applied(), early.len() as u64);
        to.apply(late).unwrap();
        assert!(to.dump().unwrap() == from.dump().unwrap());
        if on_disk {
            drop(to);
            let to = machine("to");
            assert!(to.dump().unwrap() == from.dump().unwrap());
            let kept = std::fs::read_dir(base.join("to")).unwrap().count();
            assert_eq!(kept, 2, "the replaced store is gone");
        }
    }
}

#[test]
fn a_bad_checkpoint_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let machine = open(&dir.path().join("state"));
    machine.apply(&log(20)).unwrap();
    let before = machine.dump().unwrap();
    let bad = dir.path().join("bad");
    std::fs::create_dir(&bad).unwrap();
    std::fs::write(bad.join("CURRENT"), "MANIFEST-000001\n").unwrap();
    assert!(machine.replace(&bad).is_err());
    assert!(machine.replace(&dir.path().join("absent")).is_err());
    assert!(machine.dump().unwrap() == before);
    drop(machine);
    assert!(open(&dir.path().join("state")).dump().unwrap() == before);
    std::fs::write(dir.path().join("state/current"), "../elsewhere").unwrap();
    let refused = StateMachine::open(&dir.path().join("state")).err().unwrap();
    assert_eq!(refused.kind, ErrorKind::Corrupt);
}

#[test]
fn a_lost_store_is_not_replaced_by_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    open(&state).apply(&log(20)).unwrap();
    std::fs::remove_dir_all(state.join("db-0")).unwrap();
    assert_eq!(StateMachine::open(&state).err().unwrap().kind, ErrorKind::Io);
    // A first start that was cut short leaves a database that nothing names.
    std::fs::remove_file(state.join("current")).unwrap();
    std::fs::create_dir_all(state.join("db-0")).unwrap();
    std::fs::write(state.join("db-0/MANIFEST-000001"), "half").unwrap();
    assert_eq!(open(&state).applied(), 0);
}

/// Readers go on, each on one moment, while the writer writes and even while the state is replaced.
#[test]
fn readers_never_wait_or_see_half_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(400);
    let machine = open(&dir.path().join("state"));
    machine.apply(&log[..20]).unwrap();
    let copy = dir.path().join("copy");
    machine.checkpoint(&copy).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut checks = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) || checks == 0 {
                let op = Some(Op::Check(v1::CheckOp {}));
                let request = v1::MetaRequest { op, ..Default::default() };
                let reply = machine.read(&request).unwrap().result.unwrap();
                let v1::meta_reply::Result::Check(report) = reply else { panic!() };
                assert_eq!(report.problems, Vec::<String>::new());
                checks += 1;
            }
        });
        for batch in log[20..].chunks(3) {
            machine.apply(batch).unwrap();
        }
        machine.replace(&copy).unwrap();
        machine.apply(&log[20..]).unwrap();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert_eq!(machine.applied(), log.len() as u64);
}
