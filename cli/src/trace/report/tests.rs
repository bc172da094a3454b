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

/// A file whose layout was changed while it was written.
#[test]
fn what_lacks_shards_is_told_before_what_never_had_any_to_spare() {
    let row = |missing: usize, width, parity: usize| SegmentRow {
        id: String::new(),
        file_off: 0,
        file_bytes: 1,
        bytes: 1,
        profile: String::new(),
        unit: 1,
        group: 0,
        missing,
        may_lose: parity as i64 - missing as i64,
        redundancy: words(missing, width, parity),
        shards: Vec::new(),
    };
    assert_eq!(of_all(&[]), "no content on targets");
    assert!(of_all(&[row(0, 1, 0), row(0, 6, 2)]).contains("without redundancy"));
    let said = of_all(&[row(0, 1, 0), row(2, 6, 2), row(1, 6, 2)]);
    assert!(said.starts_with("2 of 3 segments lack shards; 1 of them"), "{said}");
    assert!(said.ends_with(&words(2, 6, 2)), "{said}");
}
