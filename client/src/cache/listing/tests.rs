//! Listings: what is answered from them, and what is asked for ahead.

use super::*;

fn page(cookies: std::ops::Range<u64>, end: bool) -> v1::ReadDirReply {
    let entry = |cookie: u64| v1::DirEntry {
        name: cookie.to_string().into(),
        ino: cookie + 100,
        kind: v1::FileKind::Regular.into(),
        cookie,
        attr: None,
    };
    let entries = cookies.map(entry).collect();
    v1::ReadDirReply { entries, end, parent: 1, next_cookie: 5000 }
}

fn cookies(page: DirPage) -> (Vec<u64>, bool) {
    (page.entries.iter().map(|entry| entry.cookie).collect(), page.end)
}

#[test]
fn pages_are_answered_as_far_as_they_are_known() {
    let listing = Listing::begin(&page(3..8, false)).unwrap();
    assert_eq!(cookies(listing.page(0, 3).unwrap()), (vec![3, 4, 5], false));
    assert_eq!(cookies(listing.page(5, 10).unwrap()), (vec![6, 7], false));
    assert_eq!(listing.page(7, 10), None);
    let listing = listing.extend(7, &page(9..11, true)).unwrap();
    assert!(listing.is_whole());
    assert_eq!(cookies(listing.page(7, 2).unwrap()), (vec![9, 10], true));
    assert_eq!(cookies(listing.page(7, 1).unwrap()), (vec![9], false));
    // A cookie whose name is gone.
    assert_eq!(cookies(listing.page(8, 9).unwrap()), (vec![9, 10], true));
    assert_eq!(cookies(listing.page(10, 9).unwrap()), (vec![], true));
    assert_eq!(listing.page(0, 1).unwrap().next_cookie, 5000);
    let listing = listing.extend(10, &page(20..30, true)).unwrap();
    assert_eq!(cookies(listing.page(10, 1).unwrap()), (vec![], true), "there was an end");
}

#[test]
fn a_page_from_elsewhere_or_too_many_names_make_it_unknown() {
    let begun = || Listing::begin(&page(3..8, false)).unwrap();
    assert!(begun().extend(8, &page(9..12, true)).is_none());
    // What is known already, to whoever asked.
    for (cookie, again) in [(0, page(3..8, false)), (6, page(7..9, true))] {
        let listing = begun().extend(cookie, &again).unwrap();
        assert_eq!(cookies(listing.page(0, 9).unwrap()), (vec![3, 4, 5, 6, 7], false));
    }
    assert!(begun().extend(7, &page(8..8 + MAX_NAMES as u64, true)).is_none());
    let unknown = v1::DirEntry { kind: 99, ..Default::default() };
    let strange = v1::ReadDirReply { entries: vec![unknown], ..page(8..8, true) };
    assert!(begun().extend(7, &strange).is_none());
}

#[test]
fn what_is_taken_away_leaves_the_rest_where_it_is() {
    let mut listing = Listing::begin(&page(3..8, false)).unwrap();
    for name in [b"3".as_slice(), b"4", b"6", b"6", b"none"] {
        listing.remove(name);
    }
    assert_eq!(cookies(listing.page(0, 3).unwrap()), (vec![5, 7], false));
    assert_eq!(cookies(listing.page(5, 1).unwrap()), (vec![7], false));
    let mut listing = listing.extend(7, &page(8..10, true)).unwrap();
    listing.remove(b"9");
    assert_eq!(cookies(listing.page(5, 2).unwrap()), (vec![7, 8], true));
    listing.remove(b"8");
    assert_eq!(cookies(listing.page(7, 2).unwrap()), (vec![], true));
    assert_eq!(cookies(listing.page(5, 1).unwrap()), (vec![7], true));
}

/// Answered with no name, who reads would take it for the end.
#[test]
fn what_has_only_names_that_are_gone_is_no_page() {
    let mut listing = Listing::begin(&page(3..6, false)).unwrap();
    (3..6).for_each(|name| listing.remove(name.to_string().as_bytes()));
    assert_eq!((listing.page(0, 9), listing.page(4, 9)), (None, None));
    let listing = listing.extend(5, &page(6..8, true)).unwrap();
    assert_eq!(cookies(listing.page(0, 9).unwrap()), (vec![6, 7], true));
}

#[test]
fn names_that_are_gone_do_not_stay_for_ever() {
    let mut listing = Listing::begin(&page(3..1003, false)).unwrap();
    for name in 3..1003 {
        listing.remove(name.to_string().as_bytes());
        let kept = listing.names.len();
        let live = 1002 - name as usize;
        assert!(kept <= 2 * live + MIN_GONE + 1, "{kept} kept of {live}");
        let next: Vec<_> = (name + 1..1003).take(2).collect();
        let told = listing.page(0, 2).map(|page| cookies(page).0).unwrap_or_default();
        assert_eq!(told, next);
        assert_eq!(listing.ahead(b"none"), None);
    }
    let listing = listing.extend(1002, &page(1003..1005, true)).unwrap();
    assert_eq!(cookies(listing.page(0, 9).unwrap()), (vec![1003, 1004], true));
}

#[test]
fn leases_to_write_are_asked_for_ahead_once() {
    let mut listing = Listing::begin(&page(3..5003, true)).unwrap();
    let inos = |from: u64, to: u64| (from + 100..to + 100).map(InodeId).collect::<Vec<_>>();
    assert_eq!(listing.write_ahead(b"3"), inos(3, 67));
    for name in 3..67 {
        let name = name.to_string().into_bytes();
        assert_eq!(listing.write_ahead(&name), []);
        listing.remove(&name);
    }
    listing.remove(b"69");
    let without = [inos(67, 69), inos(70, 324)].concat();
    assert_eq!(listing.write_ahead(b"67"), without);
    assert_eq!(listing.write_ahead(b"324"), inos(324, 580));
    assert_eq!(listing.write_ahead(b"4990"), inos(4990, 5003));
    assert_eq!(listing.write_ahead(b"4980"), inos(4980, 5003), "it comes before those");
    assert_eq!(listing.write_ahead(b"none"), []);
    assert_eq!(Listing::begin(&page(3..3, true)).unwrap().write_ahead(b"3"), []);
}

#[test]
fn more_and_more_is_asked_ahead() {
    let mut listing = Listing::begin(&page(3..1003, true)).unwrap();
    assert_eq!(listing.ahead(b"3"), None);
    assert_eq!(listing.ahead(b"4"), Some((3, 16)));
    assert_eq!(listing.ahead(b"20"), Some((19, 32)));
    assert_eq!(listing.ahead(b"3"), Some((0, 64)));
    for name in [b"4".as_slice(), b"19", b"66"] {
        assert_eq!(listing.ahead(name), None, "it was asked for");
    }
    assert_eq!(listing.ahead(b"67"), Some((66, 128)));
    assert_eq!(listing.ahead(b"195"), Some((194, 256)));
    assert_eq!(listing.ahead(b"900"), Some((899, 256)));
    assert_eq!(listing.ahead(b"1002"), None, "it was asked for");
    assert_eq!(listing.ahead(b"none"), None);
    let mut empty = Listing::begin(&page(3..3, true)).unwrap();
    assert_eq!(empty.ahead(b"3"), None);
}

/// Who looks names up and lists nothing.
fn sought(names: u64, end: bool) -> Listing {
    let mut listing = Listing::begin(&page(3..3 + names, end)).unwrap();
    listing.note_sought();
    listing
}

#[test]
fn who_looks_up_two_names_gets_all_of_a_small_directory() {
    let mut names = Sought::default();
    assert_eq!(names.page(None), None, "one name");
    assert_eq!(names.page(None), Some((0, FIRST_PAGE)));
    assert!((0..1000).all(|_| names.page(None).is_none()), "names that are made drop a listing");
    // The second is looked up right now, with those after it; the others in any order.
    let mut listing = sought(200, true);
    assert_eq!(listing.ahead(b"150"), Some((149, 16)));
    assert_eq!(listing.ahead(b"20"), Some((19, 32)));
    assert_eq!((names.page(Some(&listing)), listing.ahead(b"none")), (None, None));
}

#[test]
fn of_a_large_directory_no_more_is_asked_for_than_pays() {
    let mut names = Sought { names: 2, ..Sought::default() };
    let mut listing = sought(u64::from(FIRST_PAGE), false);
    let mut pages = 0;
    // Each looks for another, far apart.
    for _ in 0..10_000 {
        if let Some((cookie, count)) = names.page(Some(&listing)) {
            assert_eq!(cookie, listing.names.last().unwrap().cookie);
            let next = page(cookie + 1..cookie + 1 + u64::from(count), false);
            listing = listing.extend(cookie, &next).unwrap();
            pages += 1;
        }
    }
    assert_eq!(pages, 4, "{} names", listing.names.len());
    let large = sought(MAX_ANY_ORDER as u64, false);
    assert_eq!(Sought { names: 15, ..Sought::default() }.page(Some(&large)), None);
}

#[test]
fn one_name_after_the_other_leads_to_the_end_of_a_large_directory() {
    let (mut names, mut known, mut asked) = (Sought::default(), 0, 0);
    let mut listing: Option<Listing> = None;
    for name in 3..10_003_u64 {
        if name < known {
            continue;
        }
        if let Some((cookie, count)) = names.page(listing.as_ref()) {
            let to = (cookie.max(2) + 1 + u64::from(count)).min(10_003);
            let next = page(cookie.max(2) + 1..to, to == 10_003);
            listing = match listing.take() {
                None => Listing::begin(&next),
                Some(listing) => listing.extend(cookie, &next),
            };
            listing.as_mut().unwrap().note_sought();
            asked += 1;
        }
        let ahead = listing.as_mut().and_then(|l| l.ahead(name.to_string().as_bytes()));
        if let Some((cookie, count)) = ahead {
            known = cookie.max(2) + 1 + u64::from(count);
            known = known.min(listing.as_ref().unwrap().names.last().unwrap().cookie + 1);
        }
        asked += 1;
    }
    assert!(listing.unwrap().is_whole());
    assert!(asked < 100, "{asked} requests for 10,000 names");
}

#[test]
fn names_of_a_large_directory_in_any_order_get_none_ahead_unless_it_is_listed() {
    let mut listing = sought(2 * MAX_ANY_ORDER as u64, true);
    for name in [b"3000".as_slice(), b"70", b"8000"] {
        assert_eq!(listing.ahead(name), None);
    }
    listing.note_listed();
    assert_eq!(listing.ahead(b"3000"), Some((2999, 16)));
}

/// Two have looked names up at once, or somebody lists the directory beside.
#[test]
fn a_page_that_two_have_asked_for_is_taken_once() {
    let mut names = Sought::default();
    let listing = sought(u64::from(FIRST_PAGE), false);
    let asked = (0..40).filter_map(|_| names.page(Some(&listing))).count();
    assert_eq!(asked, 1, "it is on its way");
    let (cookie, next) = (listing.last_cookie(), page(259..300, false));
    let listing = listing.extend(cookie, &next).unwrap();
    let listing = listing.extend(cookie, &next).unwrap();
    assert_eq!(listing.names.len(), 297);
    let listing = listing.extend(299, &page(300..301, true)).unwrap();
    assert!(listing.extend(299, &page(300..301, true)).unwrap().is_whole());
}

#[test]
fn what_is_forgotten_is_asked_for_again_but_not_for_ever() {
    let mut names = Sought::default();
    let first_pages = (0..100).filter(|_| {
        names.begin_anew();
        (0..10).filter_map(|_| names.page(None)).count() > 0
    });
    assert_eq!(first_pages.count(), usize::from(MAX_FIRST_PAGES));
}

/// Who takes names away that it knows from elsewhere takes no leases on all others.
#[test]
fn who_lists_nothing_gets_no_leases_to_write() {
    let mut listing = sought(100, true);
    assert_eq!(listing.write_ahead(b"5"), []);
    listing.note_listed();
    assert_eq!(listing.write_ahead(b"5").len(), MIN_WRITE_AHEAD);
}
