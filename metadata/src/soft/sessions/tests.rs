//! Tests of `sessions`.

use super::*;
use crate::soft::leases::{Mode, Use};

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const INO: InodeId = InodeId(100);
const TTL: Duration = Duration::from_secs(10);

fn table() -> (Sessions, Instant) {
    let mut table = Sessions::default();
    let now = Instant::now();
    table.start(now, 1, vec![(A, Client::default()), (B, Client::default())]);
    (table, now)
}

fn opens(opens: &[(InodeId, u64)]) -> Option<Declaration> {
    Some(Declaration { opens: opens.to_vec(), ..Default::default() })
}

#[test]
fn others_wait_for_who_has_not_declared() {
    let (mut t, now) = table();
    assert!(!t.others_declared(A));
    t.renew(now, B, opens(&[])).unwrap();
    assert!(t.others_declared(A) && !t.others_declared(B));
    t.ended(A);
    assert!(t.others_declared(B));
}

/// It may go on to say that it lives, or do things, for as long as it likes.
#[test]
fn who_does_not_declare_holds_the_others_up_for_a_bounded_time() {
    let answer = 3 * TTL;
    let piece = |number, piece, more| {
        Some(Declaration { piece: (number, piece), more, ..Default::default() })
    };
    for declares in [false, true] {
        let limit = if declares { answer * SLOW } else { answer };
        let (mut t, now) = table();
        t.renew(now, B, opens(&[])).unwrap();
        let (mut dead, mut at) = (Vec::new(), now);
        while dead.is_empty() {
            at += Duration::from_secs(1);
            assert!(at <= now + limit + TTL + Duration::from_secs(2), "it goes on for ever");
            assert!(!t.others_declared(B));
            t.renew(at, B, None).unwrap();
            // Nor may pieces come for ever.
            let second = at.duration_since(now).as_secs() as u32;
            let renewed = t.renew(at, A, declares.then(|| piece(1, second - 1, true)).flatten());
            assert_eq!(renewed.is_ok(), at <= now + limit + Duration::from_secs(1), "{renewed:?}");
            t.touch(at, A);
            dead = t.begin_expiry(at, TTL, answer);
        }
        assert_eq!(dead, [A]);
        t.ended(A);
        assert!(t.others_declared(B));
    }
}

/// What it does shows that it is there, and not that it will declare.
#[test]
fn who_has_not_declared_lives_by_its_renewals() {
    let (mut t, now) = table();
    let later = now + TTL + Duration::from_millis(1);
    t.renew(now, B, opens(&[])).unwrap();
    for s in [A, B] {
        t.touch(now + TTL, s);
    }
    assert_eq!(t.begin_expiry(later, TTL, 3 * TTL), [A]);
}

#[test]
fn a_session_holds_and_has_open_a_bounded_number_of_inodes() {
    let (mut t, now) = table();
    let inos = |n: usize| (0..n as u64).map(InodeId);
    let open =
        |n| Some(Declaration { opens: inos(n).map(|i| (i, 1)).collect(), ..Default::default() });
    let invalid = |told: Result<bool>| told.unwrap_err().kind == ErrorKind::Invalid;
    let most = MAX_OPENS;
    for declaration in [
        open(most + 1).unwrap(),
        Declaration { write_leases: inos(most + 1).collect(), ..Default::default() },
        Declaration { maps: inos(most + 1).collect(), ..Default::default() },
        Declaration { ranges: inos(most + 1).map(|_| (INO, 0..1)).collect(), ..Default::default() },
    ] {
        assert!(invalid(t.renew(now, A, Some(declaration))));
    }
    assert!(!t.renew(now, A, open(most)).unwrap());
    t.open(A, InodeId(0), 2).unwrap();
    assert_eq!(t.open(A, InodeId(most as u64), 1).unwrap_err().kind, ErrorKind::Invalid);
    assert!(!t.renew(now, A, open(1)).unwrap(), "it says again what it has said");
    let more = Declaration { opens: vec![(InodeId(most as u64), 1)], ..Default::default() };
    assert!(invalid(t.renew(now, A, Some(more))), "however little at a time");
    t.close(A, InodeId(0), 2).unwrap();
    t.open(A, InodeId(most as u64), 1).unwrap();
    // The same of files that may be mapped, by whatever way.
    assert!(inos(most).all(|ino| t.leases.keeps_map(A, ino)));
    assert!(!t.leases.keeps_map(A, InodeId(most as u64)));
    t.end_purge(&[InodeId(0)]);
    assert!(t.leases.keeps_map(A, InodeId(most as u64)));
}

/// It begins anew each time that a piece of it is not answered.
#[test]
fn who_declares_again_and_again_holds_no_more() {
    let (mut t, now) = table();
    let ranges = |n: u64| (0..n).map(|i| (INO, i * 10..i * 10 + 5)).collect::<Vec<_>>();
    let piece = |ranges| Declaration { ranges, piece: (1, 0), more: true, ..Default::default() };
    let most = MAX_OPENS as u64;
    for _ in 0..3 {
        assert!(t.renew(now, A, Some(piece(ranges(most / 2)))).unwrap(), "more is to come");
    }
    let others = ranges(most + 1).split_off(most as usize / 2);
    assert_eq!(t.renew(now, A, Some(piece(others))).unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn nothing_is_purged_before_all_have_declared() {
    let (mut t, now) = table();
    assert!(t.renew(now, A, None).unwrap());
    assert!(!t.renew(now, A, opens(&[])).unwrap());
    assert!(t.begin_purge(&[INO]).is_empty());
    t.renew(now, B, opens(&[(INO, 4)])).unwrap();
    assert!(t.begin_purge(&[INO]).is_empty());
    t.close(B, INO, 3).unwrap();
    assert!(t.begin_purge(&[INO]).is_empty(), "an older close ends no newer open");
    t.close(B, INO, 4).unwrap();
    assert_eq!(t.begin_purge(&[INO]), [INO]);
    assert_eq!(t.open(A, INO, 9).unwrap_err().kind, ErrorKind::Stale);
    assert!(t.begin_purge(&[INO]).is_empty(), "it is being purged already");
    t.end_purge(&[INO]);
    t.open(A, INO, 10).unwrap();
}

#[test]
fn the_right_to_map_goes_with_the_inode() {
    let (mut t, now) = table();
    t.renew(now, A, opens(&[])).unwrap();
    t.renew(now, B, opens(&[])).unwrap();
    assert_eq!(t.leases.map(now, A, INO, &mut 0), Some(true));
    assert_eq!(t.leases.map(now, B, INO, &mut 0), None, "who has it is asked");
    assert_eq!(t.begin_purge(&[INO]), [INO]);
    t.end_purge(&[INO]);
    assert_eq!(t.leases.map(now, B, INO, &mut 0), Some(true), "nothing is kept of what is gone");
}

#[test]
fn a_declaration_in_pieces_counts_when_it_is_whole() {
    let (mut t, now) = table();
    let piece = |number, piece, more, ino| {
        let (opens, write_leases) = (vec![(InodeId(ino), 1)], vec![InodeId(ino + 10)]);
        let maps = Vec::new();
        Some(Declaration {
            opens,
            write_leases,
            maps,
            piece: (number, piece),
            more,
            ranges: vec![],
        })
    };
    // The first was told to another leader.
    assert!(t.renew(now, A, piece(1, 1, true, 5)).unwrap());
    assert!(t.renew(now, A, piece(1, 2, false, 6)).unwrap());
    assert_eq!(t.not_open(&[InodeId(5), InodeId(6)]).len(), 2);
    // Once more from the start, and each piece twice: the answer was lost.
    for (at, more) in [(0, true), (1, true), (2, false)] {
        assert!(!t.others_declared(B));
        assert_eq!(t.renew(now, A, piece(2, at, more, u64::from(at))).unwrap(), more);
        assert_eq!(t.renew(now, A, piece(2, at, more, u64::from(at))).unwrap(), more);
    }
    assert!(t.others_declared(B));
    assert_eq!(t.not_open(&[InodeId(0), InodeId(1), InodeId(2)]), []);
    assert!((10..13).all(|ino| t.leases.writes(A, InodeId(ino))));
    // It is in time for a new one.
    assert!(!t.renew(now, A, piece(3, 0, true, 7)).unwrap());
    assert!(!t.leases.writes(A, InodeId(17)), "that may be another's by now");
}

#[test]
fn a_close_is_not_undone_by_a_late_declaration() {
    let (mut t, now) = table();
    t.renew(now, B, opens(&[])).unwrap();
    t.close(A, INO, 5).unwrap();
    t.renew(now, A, opens(&[(INO, 5)])).unwrap();
    assert_eq!(t.begin_purge(&[INO]), [INO]);
}

#[test]
fn a_close_is_not_undone_by_an_open_that_it_overtook() {
    let (mut t, now) = table();
    for s in [A, B] {
        t.renew(now, s, opens(&[])).unwrap();
    }
    t.close(A, INO, 5).unwrap();
    t.open(A, INO, 5).unwrap();
    assert_eq!(t.not_open(&[INO]), [INO]);
    t.open(A, INO, 6).unwrap();
    t.open(B, INO, 5).unwrap();
    t.close(A, INO, 6).unwrap();
    assert!(t.not_open(&[INO]).is_empty(), "the other session has it open");
}

#[test]
fn only_the_last_closes_are_remembered() {
    let mut closed = Closed::default();
    (0..=CLOSES as u64).for_each(|n| closed.note(InodeId(n), n));
    assert!(!closed.overtook(InodeId(0), 0) && closed.overtook(InodeId(1), 1));
    assert_eq!((closed.newest.len(), closed.order.len()), (CLOSES, CLOSES));
}

#[test]
fn opens_end_with_their_session() {
    let (mut t, now) = table();
    for s in [A, B] {
        t.renew(now, s, opens(&[(INO, 1)])).unwrap();
    }
    t.ended(A);
    assert!(t.begin_purge(&[INO]).is_empty());
    t.ended(B);
    assert_eq!(t.begin_purge(&[INO]), [INO]);
    assert_eq!(t.renew(now, A, None).unwrap_err().kind, ErrorKind::SessionExpired);
}

#[test]
fn the_silent_expire_and_cannot_come_back() {
    let (mut t, now) = table();
    let later = now + TTL + Duration::from_millis(1);
    t.renew(now + Duration::from_secs(5), B, None).unwrap();
    assert_eq!(t.begin_expiry(later, TTL, 3 * TTL), [A]);
    assert!(t.begin_expiry(later, TTL, 3 * TTL).is_empty());
    assert_eq!(t.renew(later, A, None).unwrap_err().kind, ErrorKind::Unavailable);
    t.spare(2, A);
    assert!(t.renew(later, A, None).is_err(), "that was in another term");
    t.spare(1, A);
    t.renew(later, A, None).unwrap();
}

/// It may believe in its leases for as long as it was last told.
#[test]
fn the_deaf_are_silenced_first() {
    let (mut t, now) = table();
    for s in [A, B] {
        t.renew(now, s, opens(&[])).unwrap();
    }
    t.leases.grant(now, A, INO, Mode::Write, false).unwrap();
    t.leases.recall(now, B, INO, Use::Change);
    let answer = 2 * TTL;
    let ms = Duration::from_millis;
    let last = now + answer;
    for s in [A, B] {
        t.renew(last, s, None).unwrap();
    }
    assert!(t.begin_expiry(last, TTL, answer).is_empty());
    assert!(t.begin_expiry(last + ms(1), TTL, answer).is_empty(), "it may hold its lease");
    assert_eq!(t.renew(last + ms(1), A, None).unwrap_err().kind, ErrorKind::Unavailable);
    t.touch(last + ms(1), A);
    t.renew(last + ms(1), B, None).unwrap();
    assert!(t.begin_expiry(last + TTL, TTL, answer).is_empty());
    assert!(!t.leases.recall(last + TTL, B, INO, Use::Change), "nobody else gets it before");
    assert_eq!(t.begin_expiry(last + TTL + ms(1), TTL, answer), [A]);
    assert_eq!(t.begin_expiry(last + TTL + ms(2), TTL, answer), [B], "it has fallen silent");
}

#[test]
fn nobody_is_silent_while_nobody_listens() {
    let (mut t, now) = table();
    let later = now + 5 * TTL;
    t.stalled(later, 5 * TTL);
    assert!(t.begin_expiry(later, TTL, TTL).is_empty());
    t.renew(later + TTL, B, None).unwrap();
    assert_eq!(t.begin_expiry(later + TTL + Duration::from_millis(1), TTL, TTL), [A]);
    // No later for who was heard between.
    t.stalled(later + TTL, 5 * TTL);
    assert_eq!(t.begin_expiry(later + 2 * TTL + Duration::from_millis(1), TTL, TTL), [B]);
}

#[test]
fn a_session_is_awaited_until_it_has_given_back_what_was_recalled() {
    let (now, ino) = (Instant::now(), InodeId(9));
    let mut table = Sessions::default();
    let sessions = [1, 2].map(|id| (SessionId(id), Client::default()));
    table.start(now, 1, sessions.to_vec());
    let awaited = |table: &Sessions| table.awaited(SessionId(1)).unwrap();
    let grant = table.leases.grant(now, SessionId(1), ino, Mode::Write, true).unwrap();
    assert!(!awaited(&table));
    assert!(!table.leases.recall(now, SessionId(2), ino, Use::Read));
    assert!(awaited(&table));
    assert!(!table.awaited(SessionId(2)).unwrap() && table.awaited(SessionId(3)).is_none());
    table.leases.returned(SessionId(1), ino, grant.seq + 1, false);
    assert!(!awaited(&table));
}
