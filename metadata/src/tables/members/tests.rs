//! Changes of the group, beside what Raft makes of them.

use super::*;
use proptest::prelude::*;
use raft::storage::MemStorage;

fn cluster(voters: u64) -> Cluster {
    let member = |id| v1::NodeInfo { id, address: format!("h:{id}"), ..Default::default() };
    Cluster { epoch: 1, members: (1..=voters).map(member).collect(), ..Default::default() }
}

fn in_order(mut conf: ConfState) -> ConfState {
    conf.voters.sort_unstable();
    conf.voters_outgoing.sort_unstable();
    conf.learners.sort_unstable();
    conf
}

fn any_change() -> impl Strategy<Value = (u8, u64, u64)> {
    (0..9u8, 0..7u64, 0..7u64)
}

proptest! {
    /// Whatever is asked for, in whatever order: what is carried out gives the configuration that
    /// Raft makes of the same changes, a voter is left, and who has left does not come back.
    #[test]
    fn raft_has_what_the_state_says(asked in prop::collection::vec(any_change(), 1..60)) {
        let mut cluster = cluster(3);
        let first = Membership::of(cluster.clone()).unwrap().conf_state();
        let storage = MemStorage::new_with_conf_state(first);
        let config = raft::Config { id: 1, ..raft::Config::new(1) };
        let log = slog::Logger::root(slog::Discard, slog::o!());
        let mut raw = raft::RawNode::new(&config, storage, &log).unwrap();
        for (what, a, b) in asked {
            let before = cluster.clone();
            let address = format!("n:{a}");
            let entry = |learn, promote, remove| v1::ChangeMembersEntry { learn, promote, remove };
            let (outcome, entry) = match what {
                0 => (set(&mut cluster, &Change::Add(Add { id: a, address, replaces: b })), None),
                1 => (set(&mut cluster, &Change::Remove(a)), None),
                2 => (set(&mut cluster, &Change::Move(Move { id: a, address })), None),
                _ => {
                    let entry = match what {
                        3 | 4 => entry(a, 0, 0),
                        5 => entry(0, a, 0),
                        6 => entry(0, 0, b),
                        7 => entry(0, a, b),
                        _ => entry(0, 0, 0),
                    };
                    (change(&mut cluster, &entry), Some(entry))
                }
            };
            if outcome.is_err() {
                cluster = before;
                continue;
            }
            let members = Membership::of(cluster.clone()).unwrap();
            if let Some(entry) = entry {
                let conf = raw.apply_conf_change(&conf_change(&entry)).unwrap();
                prop_assert_eq!(in_order(conf), in_order(members.conf_state()));
            }
            prop_assert!(!members.conf_state().voters.is_empty());
            prop_assert_eq!(&members.founders, &[1, 2, 3]);
            prop_assert!(members.removed.iter().all(|&id| members.get(id).is_none()));
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let add =
        |id, address: &str, replaces| Change::Add(Add { id, address: address.into(), replaces });
    let mut group = cluster(3);
    for (change, kind) in [
        (add(0, "h:9", 0), ErrorKind::Invalid),
        (add(4, "nowhere", 0), ErrorKind::Invalid),
        (add(4, "h:2", 0), ErrorKind::Exists),
        (add(2, "h:9", 0), ErrorKind::Exists),
        (add(4, "h:9", 7), ErrorKind::NotFound),
        (Change::Remove(7), ErrorKind::NotFound),
        (Change::Move(Move { id: 2, address: "h:1".into() }), ErrorKind::Exists),
    ] {
        match set(&mut group, &change) {
            Err(Fault::Refused(e)) => assert_eq!(e.kind, kind, "{change:?}: {e}"),
            other => panic!("{change:?}: {other:?}"),
        }
    }
    set(&mut group, &add(4, "h:4", 1)).unwrap();
    let noted = group.clone();
    set(&mut group, &add(4, "h:4", 1)).unwrap();
    assert_eq!(group, noted, "told twice");
    assert!(set(&mut group, &add(5, "h:5", 1)).is_err(), "it is being replaced already");
    for id in [1, 2] {
        set(&mut group, &Change::Remove(id)).unwrap();
    }
    assert!(set(&mut group, &Change::Remove(3)).is_err(), "the last one stays");
}
