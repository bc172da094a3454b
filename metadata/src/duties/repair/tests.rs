//! Tests of repair.

use super::*;

#[test]
fn a_move_that_makes_something_is_not_tried_less_often() {
    let mut repair = Repair::default();
    let mut rests = |made: &[bool]| {
        let pauses = made.iter().map(|made| repair.rest((1, 2), *made).as_secs());
        pauses.collect::<Vec<_>>()
    };
    assert_eq!(rests(&[false; 7]), [2, 4, 8, 16, 32, 60, 60]);
    // After it, as after the first.
    assert_eq!(rests(&[true, true, false, false, true, false]), [2, 2, 4, 8, 2, 4]);
}

#[test]
fn a_seat_whose_change_was_refused_is_passed_over_for_a_while() {
    let (mut repair, now) = (Repair::default(), Instant::now());
    let map = v1::ClusterMap::default();
    let passed = |repair: &mut Repair, after| repair.avoid(now + after, &map, 1000).passed;
    let r#move = Some(v1::SeatMove { seat: 2, to: 9, ..Default::default() });
    let change = Change { pg: 1, r#move, step: Step::Finish.into() };
    assert_eq!(repair.pass_over(now, &change), Some((1, 2)));
    assert_eq!(repair.pass_over(now, &Change { r#move: None, ..change }), None);
    assert_eq!(passed(&mut repair, Duration::ZERO), HashSet::from([(1, 2)]));
    assert!(passed(&mut repair, PASSED_INTERVAL).is_empty());
}
