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
