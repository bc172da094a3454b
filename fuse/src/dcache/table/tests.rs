//! Tests of the table of what the kernel was given.

use super::super::recent::LATE_TIMEOUT;
use super::*;

const DIR: u64 = 1;

fn name(of: &str) -> Bytes {
    Bytes::copy_from_slice(of.as_bytes())
}

fn names(table: &mut Table, dir: u64) -> Vec<Bytes> {
    let mut names = table.take_names(dir).unwrap_or_default();
    names.sort();
    names
}

#[test]
fn an_inode_is_known_from_its_first_answer_until_all_are_forgotten() {
    let mut table = Table::default();
    assert!(!table.tell(7) && table.tell(7));
    table.give(DIR, name("a"), 7);
    table.give(7, name("below"), 8);
    table.give_attr(7);
    table.forgotten(7, 1);
    assert!(table.tell(7), "one answer is left");
    table.forgotten(7, 2);
    assert!(!table.tell(7) && !table.take_attr(7));
    assert!(table.take_names(DIR).is_none() && table.take_names(7).is_none());
    // More than there were, and what was never told.
    table.forgotten(7, 9);
    table.forgotten(99, 1);
    assert!(!table.tell(7));
}

#[test]
fn a_name_that_led_to_two_stays_whichever_goes() {
    let mut table = Table::default();
    for ino in [7, 8] {
        table.tell(ino);
        table.give(DIR, name("a"), ino);
    }
    table.forgotten(7, 1);
    table.give(DIR, name("b"), 8);
    table.forgotten(8, 1);
    assert_eq!(names(&mut table, DIR), [name("a")]);
}

#[test]
fn names_that_lead_nowhere_are_bounded_and_counted() {
    let mut table = Table::default();
    for i in 0..MAX_NEGATIVE {
        assert!(table.give(DIR, name(&i.to_string()), NONE));
    }
    assert!(!table.give(2, name("more"), NONE));
    // One is made, one directory goes, and all do.
    table.tell(7);
    assert!(table.give(DIR, name("0"), 7) && table.give(2, name("more"), NONE));
    assert_eq!(names(&mut table, DIR).len(), MAX_NEGATIVE);
    assert_eq!(table.negative, 1);
    table.take_all_names();
    assert_eq!(table.negative, 0);
}

/// Programs that write files anew, and remove them in the end, would leave all their names here.
#[test]
fn names_that_were_given_to_others_are_taken_back_when_they_are_many() {
    let mut table = Table::default();
    let mut vague = 0;
    for i in 0..=MAX_ANY as u64 + 1 {
        assert_eq!(table.any, vague);
        assert!(table.too_vague().is_empty() == (vague <= MAX_ANY));
        let file = name(&i.to_string());
        for ino in [10 + 2 * i, 11 + 2 * i, 11 + 2 * i] {
            table.tell(ino);
            table.give(DIR, file.clone(), ino);
        }
        for of in [10, 11] {
            table.forgotten(of + 2 * i, 2);
        }
        vague += 1;
    }
    table.give(2, name("a"), 7);
    table.give(3, name("a"), ANY);
    let mut dirs = table.too_vague();
    dirs.sort_unstable();
    assert_eq!(dirs, [DIR, 3]);
    // One leads nowhere, all of a directory go, and all do.
    table.give(DIR, name("0"), NONE);
    assert_eq!(table.any, vague);
    drop(table.take_names(DIR));
    assert!(table.too_vague().is_empty() && table.any == 1);
    assert_eq!(Table::adopt(table.hand_over()).any, 1);
    table.take_all_names();
    assert_eq!(table.any, 0);
}

#[test]
fn an_inode_that_is_moved_often_has_its_names_taken_back() {
    let mut table = Table::default();
    table.tell(7);
    for i in 0..=MAX_NAMES {
        assert!(table.too_many(7).is_empty());
        table.give(i as u64 % 2, name(&i.to_string()), 7);
    }
    assert_eq!(table.too_many(7), HashSet::from([0, 1]));
    [0, 1].into_iter().for_each(|dir| drop(table.take_names(dir)));
    table.give(DIR, name("a"), 7);
    assert!(table.too_many(7).is_empty());
}

#[test]
fn what_is_handed_over_is_all_of_it() {
    let mut table = Table::default();
    for ino in [7, 7, 8] {
        table.tell(ino);
    }
    table.give(DIR, name("a"), 7);
    table.give(8, name("none"), NONE);
    table.give_attr(8);
    let mut next = Table::adopt(table.hand_over());
    assert_eq!(next.leads_to(DIR, &name("a")), Some(7));
    assert_eq!((next.negative, next.take_attr(8)), (1, true));
    next.forgotten(7, 2);
    assert!(next.take_names(DIR).is_none() && !next.tell(7) && next.tell(8));
    assert!(!Table::unknown().give(DIR, name("a"), 7), "it does not know when it goes");
    // What does not fit together is no more than it is.
    let odd = v1::KernelCache { inos: vec![1, 2], answers: vec![3], ..Default::default() };
    assert!(!Table::adopt(odd).tell(2));
}

#[tokio::test(start_paused = true)]
async fn a_thread_is_late_until_it_asks_or_for_a_second() {
    let mut table = Table::default();
    for (thread, dir) in [(1, DIR), (2, DIR), (3, 9)] {
        table.is_late(thread, dir);
    }
    let late = table.late_in(DIR);
    assert_eq!((late.len(), table.late_in(9).len()), (2, 1));
    table.is_through(1);
    assert_eq!(late.iter().filter(|late| table.is_still(late)).count(), 1);
    table.is_through(2);
    tokio::time::advance(LATE_TIMEOUT / 2).await;
    table.is_late(2, DIR);
    assert!(!late.iter().any(|late| table.is_still(late)), "that is another answer");
    tokio::time::advance(LATE_TIMEOUT / 2).await;
    assert!(table.late_in(9).is_empty() && !table.late_in(DIR).is_empty());
    // Attributes have no time to live beside an access control list.
    table.tell_acl(7);
    assert!(!table.give_attr(7) && table.give_attr(8));
    tokio::time::advance(LATE_TIMEOUT).await;
    assert!(table.give_attr(7));
}

#[test]
fn a_name_that_is_given_again_and_again_takes_no_more_room() {
    let mut table = Table::default();
    table.tell(7);
    for i in 0..10_000 {
        table.give(DIR, name("a"), 7);
        table.give(DIR, name(&format!("moved{}", i % 3)), 7);
    }
    assert!(table.inodes[&7].names.len() <= 8, "{}", table.inodes[&7].names.len());
}
