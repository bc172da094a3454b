//! Tests of report.

use super::*;

#[test]
fn the_words_say_what_may_be_lost() {
    assert_eq!(words(0, 6, 2), "whole: any 2 of 6 shards may be lost");
    assert_eq!(words(1, 6, 2), "1 of 6 shards missing: reads work, 1 more may be lost");
    assert_eq!(words(2, 6, 2), "2 of 6 shards missing: reads work, one more loss does not");
    let lost = words(3, 6, 2);
    assert_eq!(lost, "3 of 6 shards missing: cannot be read until 1 of them are back");
    assert!(words(0, 4, 0).contains("without redundancy"));
}
