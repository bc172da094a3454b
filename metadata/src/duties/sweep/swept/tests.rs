//! Tests of `swept`.

use super::*;
use weft_proto::SegmentId;

const ONE: TargetId = TargetId(1);
const TWO: TargetId = TargetId(2);

fn up(all: &[(TargetId, u64)]) -> BTreeMap<TargetId, Up> {
    let up = |&(id, opened)| (id, Up { address: String::new(), opened });
    all.iter().map(up).collect()
}

fn chunk(seq: u64) -> ChunkId {
    ChunkId { segment: SegmentId { session: SessionId(1), seq }, shard: 0 }
}

/// Who is due, when nothing is missing anywhere.
fn due(swept: &mut Swept, now: Instant, all: &[(TargetId, u64)]) -> Vec<TargetId> {
    swept.whole_due(now, &up(all), &BTreeSet::new(), |_| false)
}

/// A whole look.
fn look(swept: &mut Swept, now: Instant, target: TargetId, opened: u64, all_found: bool) {
    let pass = swept.go_on(now, target, opened, false);
    swept.looked(now, target, Pass { all_found, ..pass }, false);
}

#[test]
fn what_a_target_lacks_and_did_not_fit_is_looked_for_again_when_there_is_room() {
    let (mut swept, now, none) = (Swept::default(), Instant::now(), BTreeSet::new());
    let later = now + SUSPECT_INTERVAL;
    assert_eq!(due(&mut swept, now, &[(ONE, 3)]), [ONE], "never looked at");
    look(&mut swept, now, ONE, 3, false);
    assert!(!swept.known.contains_key(&ONE));
    let of = |opened| up(&[(ONE, opened)]);
    assert!(swept.whole_due(now, &of(3), &none, |_| true).is_empty(), "a moment ago");
    assert!(swept.whole_due(later, &of(3), &none, |_| false).is_empty(), "it would not fit");
    assert_eq!(swept.whole_due(later, &of(3), &none, |_| true), [ONE]);
    look(&mut swept, later, ONE, 3, true);
    let much_later = later + SUSPECT_INTERVAL;
    assert!(swept.whole_due(much_later, &of(3), &none, |_| true).is_empty(), "all is known");
    assert_eq!(swept.whole_due(much_later, &of(4), &none, |_| false), [ONE], "opened anew");
}

#[test]
fn a_look_that_fails_goes_on_where_it_was() {
    let (mut swept, now) = (Swept::default(), Instant::now());
    let mut pass = swept.go_on(now, ONE, 3, false);
    (pass.is_fenced, pass.after, pass.all_found) = (true, Some(chunk(7)), false);
    swept.came_to(ONE, pass);
    let until = now + Duration::from_secs(2);
    swept.failed(ONE, until);
    assert!(due(&mut swept, now, &[(ONE, 3)]).is_empty(), "it rests");
    assert_eq!(due(&mut swept, until, &[(ONE, 3)]), [ONE]);
    let pass = swept.go_on(until, ONE, 3, false);
    assert!(pass.is_fenced && !pass.all_found);
    assert_eq!(pass.after, Some(chunk(7)));
    // It is not suspected away, and comes to its end.
    assert!(!swept.suspect(until, ONE), "later");
    swept.looked(until, ONE, pass, false);
    assert_eq!(swept.looked_at(ONE), Some(3));
    let later = until + SUSPECT_INTERVAL;
    assert!(due(&mut swept, later, &[(ONE, 3)]).is_empty());
    assert!(swept.suspect(later, ONE));
    assert_eq!(due(&mut swept, later, &[(ONE, 3)]), [ONE]);
}

#[test]
fn a_look_begins_anew_where_the_target_may_hold_something_else() {
    let now = Instant::now();
    let begun = || {
        let mut swept = Swept::default();
        let pass = swept.go_on(now, ONE, 3, false);
        swept.came_to(ONE, Pass { is_fenced: true, after: Some(chunk(7)), ..pass });
        swept
    };
    let is_new = |pass: Pass| !pass.is_fenced && pass.after.is_none();
    let mut swept = begun();
    assert_eq!(due(&mut swept, now, &[(ONE, 3)]), [ONE]);
    assert!(!is_new(swept.go_on(now, ONE, 3, false)));
    // It was opened anew.
    due(&mut swept, now, &[(ONE, 4)]);
    assert!(is_new(swept.go_on(now, ONE, 4, false)));
    // It was away.
    let mut swept = begun();
    due(&mut swept, now, &[]);
    assert!(is_new(swept.go_on(now, ONE, 3, false)));
    // It was given up.
    let mut swept = begun();
    assert!(is_new(swept.go_on(now, ONE, 3, true)));
    let pass = swept.go_on(now, ONE, 3, true);
    swept.came_to(ONE, Pass { is_fenced: true, ..pass });
    assert!(!is_new(swept.go_on(now, ONE, 3, true)), "and returns");
}

#[test]
fn targets_take_turns_and_those_that_are_waited_for_come_first() {
    let (mut swept, now) = (Swept::default(), Instant::now());
    let all = [(ONE, 1), (TWO, 1), (TargetId(3), 1)];
    let at = |n| now + Duration::from_secs(n);
    assert_eq!(due(&mut swept, now, &all), [ONE, TWO, TargetId(3)]);
    let pass = swept.go_on(at(1), ONE, 1, false);
    swept.came_to(ONE, pass);
    assert_eq!(due(&mut swept, at(2), &all), [TWO, TargetId(3), ONE]);
    let returning = BTreeSet::from([ONE]);
    let due = swept.whole_due(at(2), &up(&all), &returning, |_| false);
    assert_eq!(due, [ONE, TWO, TargetId(3)]);
}

#[test]
fn sessions_that_end_are_remembered_until_they_were_looked_for() {
    let (mut swept, now) = (Swept::default(), Instant::now());
    let sessions = |of: std::ops::Range<u64>| of.map(SessionId).collect::<Vec<_>>();
    swept.ended(&sessions(1..3));
    assert!(swept.ended_due().is_empty(), "a look that begins later finds what they left");
    // Also while a look is under way: it may have passed what they left.
    let pass = swept.go_on(now, ONE, 3, false);
    swept.came_to(ONE, pass);
    swept.ended(&sessions(3..6));
    swept.looked(now, ONE, pass, false);
    assert_eq!(swept.ended_due(), [ONE]);
    assert_eq!(swept.some_ended(ONE, 2), (sessions(3..5), None));
    // One that has left much, and then something fails.
    swept.came_to_ended(ONE, SessionId(3), Some(chunk(9)));
    swept.failed(ONE, now + SUSPECT_INTERVAL);
    assert!(swept.ended_due().is_empty());
    due(&mut swept, now + SUSPECT_INTERVAL, &[(ONE, 3)]);
    assert_eq!(swept.ended_due(), [ONE]);
    assert_eq!(swept.some_ended(ONE, 9), (sessions(3..6), Some(chunk(9))));
    swept.came_to_ended(ONE, SessionId(3), None);
    assert_eq!(swept.some_ended(ONE, 9), (sessions(4..6), None));
    // So many are not remembered: it is looked at as a whole once more.
    assert!(due(&mut swept, now + SUSPECT_INTERVAL, &[(ONE, 3)]).is_empty());
    swept.ended(&sessions(6..7 + MAX_ENDED as u64));
    assert!(swept.ended_due().is_empty());
    assert_eq!(due(&mut swept, now + SUSPECT_INTERVAL, &[(ONE, 3)]), [ONE]);
}

/// Who asks a moment later may not hear of it any more.
#[test]
fn what_was_passed_over_while_nothing_might_be_deleted_is_looked_at_after_it() {
    let (mut swept, now) = (Swept::default(), Instant::now());
    look(&mut swept, now, ONE, 3, true);
    swept.hold_is_over();
    assert!(due(&mut swept, now, &[(ONE, 3)]).is_empty(), "nothing was passed over");
    swept.ended(&[SessionId(7)]);
    swept.held_ended(ONE, SessionId(7));
    assert!(due(&mut swept, now, &[(ONE, 3)]).is_empty() && swept.ended_due().is_empty());
    swept.hold_is_over();
    assert_eq!(due(&mut swept, now, &[(ONE, 3)]), [ONE]);
    assert!(!swept.known.contains_key(&ONE), "also for what it lacks");
    let pass = swept.go_on(now, ONE, 3, false);
    swept.looked(now, ONE, Pass { all_found: false, ..pass }, true);
    assert!(due(&mut swept, now + SUSPECT_INTERVAL / 2, &[(ONE, 3)]).is_empty());
    swept.hold_is_over();
    assert_eq!(due(&mut swept, now, &[(ONE, 3)]), [ONE], "also behind a look at all of it");
    look(&mut swept, now, ONE, 3, true);
    swept.hold_is_over();
    assert!(due(&mut swept, now, &[(ONE, 3)]).is_empty(), "once");
}
