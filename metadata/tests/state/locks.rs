//! Locks against a model that knows for every byte who holds it for what.

use crate::rig::{ROOT, Rig};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use v1::lock::Kind;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::{ErrorKind, SessionId, v1};

const LAST: u64 = i64::MAX as u64;
/// Bytes that the model keeps apart; the last stands for all up to [`LAST`].
const BYTES: u64 = 12;

#[derive(Clone, Debug)]
enum Step {
    Set {
        client: usize,
        owner: u64,
        file: usize,
        flock: bool,
        kind: Kind,
        from: u64,
        to: u64,
    },
    /// The same request comes again.
    Retry,
    /// A client dies, and comes back as another session.
    End {
        client: usize,
        expires: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(Kind::None), Just(Kind::Read), Just(Kind::Write)];
    let set = (0..2usize, 1..3u64, 0..2usize, prop::bool::weighted(0.2), kind, 0..BYTES, 0..BYTES);
    prop_oneof![
        20 => set.prop_map(|(client, owner, file, flock, kind, a, b)| {
            let (from, to) = if flock { (0, BYTES - 1) } else { (a.min(b), a.max(b)) };
            Step::Set { client, owner, file, flock, kind, from, to }
        }),
        2 => Just(Step::Retry),
        1 => (0..2usize, any::<bool>()).prop_map(|(client, expires)| Step::End { client, expires }),
    ]
}

/// By file, sort and byte: owners, and whether to write.
type Model = BTreeMap<(u64, bool, u64), BTreeMap<(u64, u64), bool>>;

fn last(byte: u64) -> u64 {
    if byte == BYTES - 1 { LAST } else { byte }
}

fn create(rig: &mut Rig, name: &'static str) -> u64 {
    let op = Op::Create(v1::CreateOp { parent: ROOT, name: name.into(), ..Default::default() });
    let request = rig.next_request(op);
    match rig.request(request) {
        Ok(Reply::Open(open)) => open.attr.expect("attributes").ino,
        other => panic!("create answered {other:?}"),
    }
}

fn play(steps: Vec<Step>) {
    let mut rig = Rig::in_memory();
    let files = [create(&mut rig, "a"), create(&mut rig, "b")];
    let mut nonce = 1;
    let mut open = |rig: &mut Rig| {
        nonce += 1;
        rig.open_session(nonce)
    };
    let mut clients = [open(&mut rig), open(&mut rig)];
    let mut model = Model::new();
    let (mut number, mut again) = (0, None);
    for step in steps {
        match step {
            Step::Set { client, owner, file, flock, kind, from, to } => {
                let (session, ino) = (clients[client], files[file]);
                let lock = v1::Lock {
                    ino,
                    flock,
                    owner,
                    kind: kind.into(),
                    start: from,
                    end: last(to),
                    pid: 5,
                    session: 0,
                };
                let stands = |holders: &BTreeMap<(u64, u64), bool>| {
                    holders.iter().any(|(who, write)| {
                        *who != (session, owner) && (*write || kind == Kind::Write)
                    })
                };
                let bytes = (from..=to).map(|byte| (ino, flock, byte));
                let blocked = kind != Kind::None
                    && bytes.clone().any(|byte| model.get(&byte).is_some_and(stands));
                let found = rig.machine.lock_conflict(SessionId(session), &lock).expect("a lock");
                assert_eq!(found.is_some(), blocked, "{lock:?}");
                if let Some(found) = found {
                    let at = (ino, flock, found.start.min(BYTES - 1));
                    let write = found.kind() == Kind::Write;
                    assert_eq!(model[&at].get(&(found.session, found.owner)), Some(&write));
                }
                number += 1;
                let op =
                    Some(Op::SetLock(v1::SetLockOp { lock: Some(lock), ..Default::default() }));
                let request = v1::MetaRequest { session, number, acked_below: 0, op };
                let answer = rig.request(request.clone()).map(drop);
                assert_eq!(answer, if blocked { Err(ErrorKind::WouldBlock) } else { Ok(()) });
                again = Some((request, answer));
                if !blocked {
                    for byte in bytes {
                        let holders = model.entry(byte).or_default();
                        match kind {
                            Kind::None => drop(holders.remove(&(session, owner))),
                            _ => drop(holders.insert((session, owner), kind == Kind::Write)),
                        }
                    }
                }
            }
            Step::Retry => {
                if let Some((request, answer)) = &again {
                    assert_eq!(&rig.request(request.clone()).map(drop), answer);
                }
            }
            Step::End { client, expires } => {
                let session = clients[client];
                number += 1;
                let close = Some(Op::CloseSession(v1::CloseSessionOp {}));
                let ended = match expires {
                    true => rig.entry(Body::ExpireSession(v1::ExpireSessionEntry { session })),
                    false => {
                        rig.request(v1::MetaRequest { session, number, acked_below: 0, op: close })
                    }
                };
                ended.expect("an end");
                model.values_mut().for_each(|holders| holders.retain(|who, _| who.0 != session));
                if let Some((request, answer)) = again.as_mut().filter(|a| a.0.session == session) {
                    // It can change nothing any more (I5).
                    assert_eq!(rig.request(request.clone()), Err(ErrorKind::SessionExpired));
                    *answer = Err(ErrorKind::SessionExpired);
                }
                clients[client] = open(&mut rig);
            }
        }
        compare(&rig, &files, &model);
    }
    rig.check();
}

/// What is locked is what the model says, and no more.
fn compare(rig: &Rig, files: &[u64], model: &Model) {
    for (&ino, flock) in files.iter().flat_map(|ino| [(ino, false), (ino, true)]) {
        let mut seen = BTreeSet::new();
        for lock in rig.machine.locks_of(weft_proto::InodeId(ino), flock).expect("locks") {
            for byte in lock.start..=lock.end.min(BYTES - 1) {
                assert!(seen.insert((byte, lock.session, lock.owner, lock.kind() == Kind::Write)));
            }
        }
        let of_file = model.iter().filter(|((i, f, _), _)| (*i, *f) == (ino, flock));
        let want: BTreeSet<_> = of_file
            .flat_map(|((_, _, byte), holders)| {
                holders.iter().map(|((session, owner), write)| (*byte, *session, *owner, *write))
            })
            .collect();
        assert_eq!(seen, want, "inode {ino}, flock: {flock}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
    #[test]
    fn locks_are_those_of_the_model(steps in prop::collection::vec(step(), 1..60)) {
        play(steps);
    }
}

#[test]
fn only_what_exists_is_locked_and_ranges_are_bounded() {
    let mut rig = Rig::in_memory();
    let ino = create(&mut rig, "file");
    let mut set = |ino, kind: Kind, start, end| {
        let lock = v1::Lock { ino, owner: 1, kind: kind.into(), start, end, ..Default::default() };
        let request =
            rig.next_request(Op::SetLock(v1::SetLockOp { lock: Some(lock), ..Default::default() }));
        rig.request(request).map(drop)
    };
    assert_eq!(set(999, Kind::Read, 0, LAST), Err(ErrorKind::Stale));
    assert_eq!(set(999, Kind::None, 0, LAST), Ok(()));
    assert_eq!(set(ino, Kind::Write, 0, LAST), Ok(()));
    // Holes in it, until there are too many parts.
    let refused = (1..).find(|i| set(ino, Kind::None, 2 * i, 2 * i).is_err());
    assert_eq!(refused, Some(4096));
    assert_eq!(set(ino, Kind::None, 2, 2 * 4095), Ok(()));
    assert_eq!(set(ino, Kind::None, 0, LAST), Ok(()));
}

/// What a session held is free at once and it can do nothing any more (I5), however much it leaves:
/// that goes with entries that delete a bounded number of records each.
#[test]
fn a_session_with_many_locks_ends_in_steps() {
    const LOCKS: u64 = 5000;
    const NAMES: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX";
    for expires in [false, true] {
        let mut rig = Rig::in_memory();
        let (session, next) = (rig.session, rig.open_session(2));
        let files: Vec<u64> = (0..50).map(|n| create(&mut rig, &NAMES[n..=n])).collect();
        let lock = |n: u64, kind: Kind| {
            let (ino, owner) = (files[n as usize % files.len()], n / 50);
            let lock = v1::Lock { ino, owner, kind: kind.into(), end: LAST, ..Default::default() };
            Op::SetLock(v1::SetLockOp { lock: Some(lock), ..Default::default() })
        };
        let request =
            |session, number, op| v1::MetaRequest { session, number, acked_below: 0, op: Some(op) };
        for n in 0..LOCKS {
            rig.request(request(session, 1000 + n, lock(n, Kind::Read))).unwrap();
        }
        let expire = || Body::ExpireSession(v1::ExpireSessionEntry { session });
        let tags = [0x1a, 0x3a, 0x31];
        let left = |rig: &Rig| {
            let records = rig.machine.dump().unwrap();
            records.iter().filter(|(key, _)| tags.contains(&key[2])).count()
        };
        let before = left(&rig);
        assert!(before as u64 > 3 * LOCKS);
        match expires {
            true => rig.entry(expire()).unwrap(),
            false => {
                rig.request(request(session, 9999, Op::CloseSession(Default::default()))).unwrap()
            }
        };
        let mut rest = left(&rig);
        assert!(rest > 0 && before - rest < 5000, "{before} records, {rest} after one entry");
        let late = rig.request(request(session, 10_000, lock(0, Kind::None)));
        assert_eq!(late, Err(ErrorKind::SessionExpired));
        let again = rig.request(request(session, 9999, Op::CloseSession(Default::default())));
        assert_eq!(again, Err(ErrorKind::SessionExpired));
        // Another locks for itself what is in the way of nobody, though its records are there.
        let ino = weft_proto::InodeId(files[49]);
        assert_eq!(rig.machine.locks_of(ino, false).unwrap(), []);
        assert!(!rig.machine.others_hold_locks(SessionId(next), ino).unwrap());
        rig.request(request(next, 1, lock(49, Kind::Write))).unwrap();
        assert_eq!(rig.machine.locks_of(ino, false).unwrap().len(), 1);
        rig.check();
        while let Some(ended) = rig.machine.ended_session(SessionId(0)).unwrap() {
            assert_eq!(ended, SessionId(session));
            rig.entry(expire()).unwrap();
            let now = left(&rig);
            assert!(now < rest && rest - now < 5000, "{rest} records, {now} after the next entry");
            rest = now;
        }
        assert_eq!(rest, 3, "a lock, what leads to it, and a reply");
        rig.check();
    }
}
