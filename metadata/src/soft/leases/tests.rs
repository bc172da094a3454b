//! The table of leases alone: grants, recalls, places in line.

use super::*;

pub(super) const A: SessionId = SessionId(1);
pub(super) const B: SessionId = SessionId(2);
pub(super) const C: SessionId = SessionId(3);
pub(super) const INO: InodeId = InodeId(100);

pub(super) fn table() -> (Leases, Instant) {
    let mut leases = Leases::default();
    [A, B, C].into_iter().for_each(|s| leases.joined(s));
    (leases, Instant::now())
}

pub(super) fn recalls(leases: &Leases, of: SessionId) -> Vec<(u64, bool)> {
    leases.mail(of, 0).unwrap().0.iter().map(|r| (r.seq, r.keep_read)).collect()
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    let (mut l, now) = table();
    assert!(l.grant(now, A, INO, Mode::Read, false).is_some());
    assert!(l.grant(now, B, INO, Mode::Read, false).is_some());
    assert!(l.grant(now, A, INO, Mode::Write, false).is_none());
    let (seq, _) = (l.inodes[&INO].holders[1].seq, ());
    l.returned(B, INO, seq, false);
    assert!(l.grant(now, A, INO, Mode::Write, false).unwrap().write);
    assert!(l.grant(now, B, INO, Mode::Read, true).is_none());
    // Whoever holds it to write and reads holds it to write.
    assert!(l.grant(now, A, INO, Mode::Read, false).unwrap().write);
}

#[test]
fn a_change_waits_for_every_other_holder() {
    let (mut l, now) = table();
    for s in [A, B, C] {
        l.grant(now, s, INO, Mode::Read, false).unwrap();
    }
    l.claim(A, &[INO]);
    assert!(!l.recall(now, A, INO, Use::Change));
    assert!(recalls(&l, A).is_empty());
    let (b, c) = (recalls(&l, B)[0].0, recalls(&l, C)[0].0);
    assert!(!l.recall(now, A, INO, Use::Change));
    assert_eq!(recalls(&l, B).len(), 1, "once is enough");
    l.returned(B, INO, b, false);
    assert!(!l.recall(now, A, INO, Use::Change));
    assert!(l.grant(now, B, INO, Mode::Read, true).is_none(), "it is claimed");
    l.returned(C, INO, c, false);
    assert!(l.recall(now, A, INO, Use::Change));
    l.unclaim(A, &[INO]);
    assert!(l.grant(now, B, INO, Mode::Read, false).is_none(), "it is contended");
    assert!(l.grant(now, B, INO, Mode::Read, true).is_some());
    assert!(l.grant(now + COOL, C, INO, Mode::Read, false).is_some());
}

#[test]
fn a_reader_takes_only_the_right_to_write() {
    let (mut l, now) = table();
    l.grant(now, A, INO, Mode::Write, false).unwrap();
    assert!(!l.recall(now, B, INO, Use::Read));
    let (seq, keep_read) = recalls(&l, A)[0];
    assert!(keep_read);
    // A change meanwhile needs more.
    assert!(!l.recall(now, C, INO, Use::Change));
    let (stronger, keep_read) = recalls(&l, A)[1];
    assert!(!keep_read);
    l.returned(A, INO, seq, true);
    assert!(l.recall(now, B, INO, Use::Read));
    assert!(!l.recall(now, C, INO, Use::Change));
    l.returned(A, INO, stronger, false);
    assert!(l.recall(now, C, INO, Use::Change));
}

#[test]
fn after_a_reader_there_are_readers_and_for_a_while_no_writer() {
    let (mut l, now) = table();
    l.grant(now, A, INO, Mode::Write, false).unwrap();
    assert!(!l.recall(now, B, INO, Use::Read));
    let (seq, _) = recalls(&l, A)[0];
    l.returned(A, INO, seq, true);
    let seq = l.grant(now, B, INO, Mode::Read, false).unwrap().seq;
    l.returned(B, INO, seq, false);
    assert!(l.grant(now, A, INO, Mode::Write, false).is_none());
    assert!(l.grant(now + COOL, A, INO, Mode::Write, false).is_some());
}

#[test]
fn who_makes_an_inode_holds_it_unless_another_does() {
    let (mut l, now) = table();
    assert!(l.enter_made(A, INO).is_some_and(|grant| grant.write) && l.writes(A, INO));
    assert!(l.enter_made(A, INO).is_some(), "it may ask twice");
    assert!(l.enter_made(B, INO).is_none() && !l.writes(B, INO));
    assert!(!l.recall(now, B, INO, Use::Read));
    assert!(l.writes(A, INO), "until it has given it back");
    l.returned(A, INO, u64::MAX, true);
    assert!(!l.writes(A, INO));
}

/// What its programs have stored may not be written back when it has declared.
#[test]
fn who_declares_that_it_maps_a_file_is_asked_before_another_writes_it() {
    let (mut l, now) = table();
    l.declared_map(A, INO);
    assert!(!l.recall(now, B, INO, Use::Change));
    let (recalls, _) = l.mail(A, 0).unwrap();
    assert!(l.mail(A, u64::MAX).unwrap().0.is_empty(), "it has seen all there could be");
    assert_eq!(recalls.iter().map(|r| (r.ino, r.keep_read)).collect::<Vec<_>>(), [(INO.0, false)]);
    l.returned(A, INO, recalls[0].seq, false);
    assert!(l.recall(now, B, INO, Use::Change));
    // Who writes it alone has all there is to write back.
    let (mut l, now) = table();
    l.declared(B, &[INO]);
    l.declared_map(A, INO);
    assert!(l.recall(now, B, INO, Use::Change));
}

#[test]
fn one_session_maps_a_file_to_write_until_it_needs_that_no_more() {
    let (mut l, now) = table();
    assert!(l.grant(now, A, INO, Mode::Write, false).is_some_and(|grant| grant.maps));
    let mut asked = 0;
    // It says that it does when it gives the lease back.
    assert!(!l.recall(now, B, INO, Use::Read));
    l.keeps_map(A, INO);
    l.returned(A, INO, recalls(&l, A)[0].0, true);
    assert_eq!(l.map(now, B, INO, &mut asked), None);
    assert_eq!(recalls(&l, A), [(asked, true)], "it is asked");
    assert_eq!(l.map(now, B, INO, &mut asked), None);
    assert_eq!(recalls(&l, A).len(), 1, "once is enough");
    l.map_answered(A, INO, asked, true);
    assert_eq!(l.map(now, B, INO, &mut asked), Some(false));
    // Who gets the lease to write now does not get that right with it.
    l.returned(A, INO, u64::MAX, false);
    assert!(l.grant(now, B, INO, Mode::Write, true).is_some_and(|grant| !grant.maps));
    l.returned(B, INO, u64::MAX, false);

    // An answer does not take away what was given after the question.
    let mut asked = 0;
    assert_eq!(l.map(now, B, INO, &mut asked), None);
    assert_eq!(l.map(now, A, INO, &mut 0), Some(true));
    l.map_answered(A, INO, asked, false);
    assert_eq!(l.map(now, B, INO, &mut asked), None);
    l.map_answered(A, INO, asked, false);
    assert_eq!(l.map(now, B, INO, &mut asked), Some(true));
    assert!(l.grant(now, B, INO, Mode::Write, true).is_some_and(|grant| grant.maps));

    // It goes with the session.
    let mut asked = 0;
    assert_eq!(l.map(now, A, INO, &mut asked), None);
    l.ended(B);
    assert_eq!(l.map(now, A, INO, &mut asked), Some(true));
}

#[test]
fn who_locks_keeps_others_from_the_right_to_write() {
    let (mut l, now) = table();
    l.begin_lock(A, INO);
    assert!(l.grant(now, B, INO, Mode::Write, false).is_none());
    assert!(l.grant(now, C, INO, Mode::Read, false).is_some());
    l.locked(A, INO);
    let (seq, _) = (l.inodes[&INO].holders[0].seq, ());
    l.returned(C, INO, seq, false);
    assert!(l.inodes.is_empty());
    l.begin_lock(A, INO);
    assert!(l.grant(now, A, INO, Mode::Write, false).is_some());
}

/// Each gives its lease back when it is asked to, and comes back for another before the next does.
#[test]
fn readers_who_come_back_in_turns_do_not_keep_a_writer_waiting() {
    let (mut l, now) = table();
    let readers: Vec<_> = (10..20).map(SessionId).collect();
    for &reader in &readers {
        l.joined(reader);
        l.grant(now, reader, INO, Mode::Read, true).unwrap();
    }
    let place = l.wait(A, INO, Mode::Write);
    assert!(l.serve(now, A, INO, Mode::Write).is_none());
    for &reader in &readers {
        // It asks again before it has answered: nobody could go on if it waited.
        assert!(l.serve(now, reader, INO, Mode::Read).unwrap().is_none());
        let (seq, _) = recalls(&l, reader)[0];
        assert!(l.serve(now, A, INO, Mode::Write).is_none());
        l.returned(reader, INO, seq, false);
        assert!(l.serve(now, reader, INO, Mode::Read).is_none(), "the writer came earlier");
        assert!(l.grant(now + COOL, reader, INO, Mode::Read, false).is_none());
    }
    assert!(l.serve(now, A, INO, Mode::Write).unwrap().unwrap().write);
    l.wait_no_more(INO, place);
    // Now they are served.
    assert!(l.serve(now, readers[0], INO, Mode::Read).is_none());
    l.returned(A, INO, recalls(&l, A)[0].0, true);
    for &reader in &readers {
        assert!(l.serve(now, reader, INO, Mode::Read).unwrap().is_some());
    }
}

#[test]
fn who_waits_is_served_in_order_of_arrival() {
    let (mut l, now) = table();
    let (d, e) = (SessionId(4), SessionId(5));
    [d, e].into_iter().for_each(|s| l.joined(s));
    l.grant(now, A, INO, Mode::Write, true).unwrap();
    let line = [(B, Mode::Write), (C, Mode::Read), (d, Mode::Read), (e, Mode::Write)];
    let places = line.map(|(session, mode)| l.wait(session, INO, mode));
    for (late, mode) in &line[1..] {
        assert!(l.serve(now, *late, INO, *mode).is_none());
    }
    assert!(recalls(&l, A).is_empty(), "it is the turn of none of them");
    assert!(l.serve(now, B, INO, Mode::Write).is_none());
    let give_back = |l: &mut Leases, of| l.returned(of, INO, recalls(l, of)[0].0, false);
    give_back(&mut l, A);
    // Not to who comes back, nor to who did not wait.
    for late in [A, e] {
        assert!(l.grant(now, late, INO, Mode::Write, true).is_none());
    }
    assert!(l.serve(now, B, INO, Mode::Write).unwrap().unwrap().write);
    l.wait_no_more(INO, places[0]);
    // Readers together.
    assert!(l.serve(now, d, INO, Mode::Read).is_none());
    give_back(&mut l, B);
    assert!(l.serve(now, e, INO, Mode::Write).is_none());
    assert!(l.serve(now, d, INO, Mode::Read).unwrap().is_some());
    assert!(l.serve(now, C, INO, Mode::Read).unwrap().is_some());
    [1, 2].into_iter().for_each(|reader| l.wait_no_more(INO, places[reader]));
    assert!(l.serve(now, A, INO, Mode::Read).is_none(), "a writer waits");
    // It has gone before it was its turn.
    l.wait_no_more(INO, places[3]);
    assert!(l.serve(now, A, INO, Mode::Read).unwrap().is_some());
}

#[test]
fn a_line_leaves_nothing_behind() {
    let (mut l, now) = table();
    let places = [A, B].map(|s| l.wait(s, INO, Mode::Write));
    let changes = l.changes();
    l.wait_no_more(INO, places[0]);
    assert!(changes.has_changed().unwrap(), "the next is told");
    assert!(l.serve(now, B, INO, Mode::Write).unwrap().is_some());
    l.returned(B, INO, u64::MAX, false);
    assert_eq!(l.inodes.len(), 1);
    l.wait_no_more(INO, places[1]);
    assert!(l.inodes.is_empty());
    // Another leader's.
    l.wait_no_more(INO, places[1]);
}

/// Or it would wait for who waits for it.
#[test]
fn who_waits_is_told_that_it_has_to_give_back() {
    let (mut l, now) = table();
    l.grant(now, A, INO, Mode::Read, true).unwrap();
    l.grant(now, B, INO, Mode::Read, true).unwrap();
    l.wait(A, INO, Mode::Write);
    assert!(l.serve(now, A, INO, Mode::Write).is_none());
    let changes = l.changes();
    l.claim(C, &[INO]);
    assert!(!l.recall(now, C, INO, Use::Change));
    assert!(changes.has_changed().unwrap());
    assert!(l.serve(now, A, INO, Mode::Write).unwrap().is_none());
}

/// It is sent again when its answer was lost, or as the new leader asks twice for it.
#[test]
fn a_declaration_that_is_repeated_leaves_a_recall_to_be_answered() {
    let (mut l, now) = table();
    l.declared_map(A, INO);
    l.claim(B, &[INO]);
    assert!(!l.recall(now, B, INO, Use::Change));
    let (seq, _) = recalls(&l, A)[0];
    l.declared_map(A, INO);
    l.declared(A, &[INO]);
    l.returned(A, INO, seq, false);
    assert!(l.recall(now, B, INO, Use::Change), "the answer was not taken");
    assert!(recalls(&l, A).is_empty());
}

#[test]
fn an_old_return_takes_nothing_new() {
    let (mut l, now) = table();
    let old = l.grant(now, A, INO, Mode::Read, false).unwrap().seq;
    l.grant(now, A, INO, Mode::Read, false).unwrap();
    l.returned(A, INO, old, false);
    assert!(!l.recall(now, B, INO, Use::Change), "the newer grant holds");
}

#[test]
fn a_session_ends_with_its_leases_and_the_deaf_are_found() {
    let (mut l, now) = table();
    l.grant(now, A, INO, Mode::Write, false).unwrap();
    l.recall(now, B, INO, Use::Change);
    assert!(l.deaf(now, COOL).is_empty());
    assert_eq!(l.deaf(now + 2 * COOL, COOL), [A]);
    l.stalled(now + 2 * COOL, 2 * COOL);
    assert!(l.deaf(now + 2 * COOL, COOL).is_empty(), "the server was away");
    assert_eq!(l.deaf(now + 4 * COOL, COOL), [A]);
    l.ended(A);
    assert!(l.recall(now, B, INO, Use::Change));
    assert!(l.mail(A, 0).is_none());
    assert!(l.grant(now, A, INO, Mode::Read, true).is_none());
}

/// Whatever was answered, in whatever order, is owed no more.
#[test]
fn answers_leave_no_recall_behind() {
    let (mut l, now) = table();
    // The answer to the weaker of two comes first, or not at all.
    for answer_both in [true, false] {
        l.grant(now, A, INO, Mode::Write, true).unwrap();
        l.recall(now, B, INO, Use::Read);
        l.recall(now + COOL, C, INO, Use::Change);
        let [weaker, stronger] = recalls(&l, A)[..] else { panic!("two recalls") };
        assert_eq!(l.deaf(now + 2 * COOL, COOL), [A], "the first is late");
        if answer_both {
            l.returned(A, INO, weaker.0, true);
            assert_eq!(recalls(&l, A), [stronger]);
            assert!(l.deaf(now + 2 * COOL, COOL).is_empty());
        }
        l.returned(A, INO, stronger.0, false);
        assert!(recalls(&l, A).is_empty() && l.deaf(now + 9 * COOL, COOL).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_recalled_is_forgotten() {
    let (mut l, now) = table();
    for ino in (1..=1000).map(InodeId) {
        let seq = l.grant(now, A, ino, Mode::Read, true).unwrap().seq;
        l.recall(now, B, ino, Use::Change);
        match ino.0 % 2 {
            0 => l.returned(A, ino, seq, false),
            _ => continue,
        }
    }
    l.ended(A);
    assert_eq!(l.inodes.len(), 1000, "they are contended");
    l.grant(now, B, InodeId(7), Mode::Read, true).unwrap();
    tokio::time::advance(COOL).await;
    l.sweep(Instant::now());
    assert_eq!(l.inodes.len(), 1, "one is held again");
    l.ended(B);
    assert_eq!((l.inodes.len(), l.cooling.len()), (0, 0));
}

#[test]
fn names_are_changed_one_at_a_time() {
    let (mut l, _) = table();
    let name = |n: &'static str| (INO, bytes::Bytes::from(n));
    assert!(l.take_names(&[name("a"), name("b")]));
    assert!(!l.take_names(&[name("c"), name("b")]));
    assert!(l.take_names(&[name("c")]), "nothing was taken");
    l.free_names(&[name("a"), name("b")]);
    assert!(l.take_names(&[name("b")]));
}

/// Their client may have lost its connection, and ask anew on another, again and again.
#[test]
fn few_requests_of_a_session_wait_for_recalls() {
    let (mut l, _) = table();
    let readers: Vec<_> = (0..10).map(|_| l.begin_mail(A).unwrap()).collect();
    let wait = |l: &Leases| readers.iter().filter(|r| !l.is_overtaken(A, **r)).count() as u64;
    assert_eq!(wait(&l), MAX_READERS);
    assert!(!l.is_overtaken(A, readers[9]) && l.is_overtaken(A, readers[0]));
    l.begin_mail(B).unwrap();
    assert_eq!(wait(&l), MAX_READERS, "of each");
    // They are told.
    let (_, mut news) = l.mail(A, 0).unwrap();
    l.begin_mail(A).unwrap();
    assert!(news.has_changed().unwrap());
    news.mark_unchanged();
    assert!(!news.has_changed().unwrap());
}

#[test]
fn nothing_makes_a_session_hold_more_than_any_does() {
    let (mut l, now) = table();
    let inos = |n: usize| (0..n as u64).map(InodeId).collect::<Vec<_>>();
    l.declared(A, &inos(MAX_WITH_NEEDED + 1));
    assert_eq!(l.parties[&A].inos.len(), MAX_WITH_NEEDED);
    let more = InodeId(MAX_WITH_NEEDED as u64);
    assert!(l.enter_made(A, more).is_none() && l.serve(now, A, more, Mode::Read).is_none());
    assert!(l.enter_made(A, InodeId(0)).is_some() && l.enter_made(B, more).is_some());
}
