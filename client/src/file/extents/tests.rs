//! What is known of extents.

use super::*;

fn inline(off: u64, text: &'static str) -> v1::Extent {
    let source = Some(v1::extent::Source::Inline(Bytes::from_static(text.as_bytes())));
    v1::Extent { file_off: off, len: text.len() as u64, source }
}

fn reply(version: u64, extents: Vec<v1::Extent>, truncated: bool) -> v1::ExtentsReply {
    let attr = Some(v1::Attr { data_version: version, ..Default::default() });
    v1::ExtentsReply { extents, segments: Vec::new(), truncated, attr }
}

#[test]
fn versions_do_not_mix() {
    let mut extents = Extents::default();
    assert_eq!(extents.learn(0, 100, reply(3, vec![inline(2, "ab")], true)), Ok(4));
    assert_eq!(extents.look(0..10).unwrap_err(), 4..10);
    assert_eq!(extents.learn(4, 96, reply(3, vec![inline(6, "c")], false)), Ok(100));
    assert_eq!(extents.look(0..10).unwrap().len(), 5);
    // An older answer changes nothing; a newer one replaces all.
    assert_eq!(extents.learn(0, 100, reply(2, Vec::new(), false)), Ok(100));
    assert_eq!(extents.look(0..10).unwrap().len(), 5);
    assert_eq!(extents.learn(50, 50, reply(4, Vec::new(), false)), Ok(100));
    assert_eq!(extents.look(0..60).unwrap_err(), 0..50);
}

#[test]
fn inline_bytes_are_known_wherever_they_come_from_and_go() {
    let piece = |range: Range<u64>, text: &'static str| Piece {
        range,
        source: PieceSource::Inline(text.into()),
    };
    let known = |extents: &Extents| -> Vec<(u64, Bytes)> {
        extents.inline().map(|(range, bytes)| (range.start, bytes)).collect()
    };
    let mut extents = Extents::default();
    extents.learn(0, u64::MAX, reply(3, vec![inline(0, "abcdef")], false)).unwrap();
    extents.commit(4, &[piece(2..4, "XY"), piece(10..12, "zz")]);
    let parts = [(0, "ab"), (2, "XY"), (4, "ef"), (10, "zz")].map(|(at, b)| (at, b.into()));
    assert_eq!(known(&extents), parts);
    assert_eq!((extents.inline_within(1..11), extents.inline_within(6..10)), (6, 0));
    extents.punch(5, 3..5);
    assert_eq!(
        known(&extents),
        [(0, "ab"), (2, "X"), (5, "f"), (10, "zz")].map(|(at, b)| (at, b.into()))
    );
    extents.resize(6, 11);
    extents.lose(7, 0..3);
    assert_eq!(known(&extents), [(5, "f"), (10, "z")].map(|(at, b)| (at, b.into())));
    extents.move_to(9);
    assert_eq!(known(&extents), []);
}

#[test]
fn own_commits_keep_the_rest_and_foreign_ones_do_not() {
    let piece =
        |range, text: &'static str| Piece { range, source: PieceSource::Inline(text.into()) };
    let mut extents = Extents::default();
    extents.learn(0, u64::MAX, reply(3, vec![inline(0, "abcdef")], false)).unwrap();
    extents.commit(4, &[piece(1..3, "XY")]);
    assert_eq!(extents.look(0..6).unwrap().len(), 3);
    extents.resize(5, 2);
    assert_eq!(extents.look(0..6).unwrap().len(), 3);
    extents.commit(7, &[piece(1..3, "XY")]);
    assert_eq!(extents.look(0..6).unwrap_err(), 0..1);
    assert!(extents.look(1..3).is_ok());
}

/// Answers overtake each other: another may have changed the file since, and that be known.
#[test]
fn own_changes_that_were_overtaken_change_nothing() {
    let source = PieceSource::Inline("ab".into());
    let piece = [Piece { range: 0..2, source }];
    let changes: [&dyn Fn(&mut Extents); 4] = [
        &|extents| extents.commit(6, &piece),
        &|extents| extents.resize(6, 1),
        &|extents| extents.punch(6, 0..2),
        &|extents| extents.lose(6, 0..2),
    ];
    for change in changes {
        let mut extents = Extents::default();
        extents.learn(0, u64::MAX, reply(7, vec![inline(0, "xyz")], false)).unwrap();
        change(&mut extents);
        let known = extents.look(0..3).unwrap();
        assert!(matches!(&known[..], [(_, Some(Source::Inline(bytes)))] if bytes == "xyz"));
        assert_eq!(extents.version(), 7);
    }
}

#[test]
fn runs_of_data_and_holes_are_told_apart() {
    let mut extents = Extents::default();
    assert_eq!(extents.run(0..9), Err(0..9));
    extents.learn(0, 20, reply(3, vec![inline(2, "ab"), inline(8, "c")], false)).unwrap();
    assert_eq!(extents.run(0..30), Ok((2, false)));
    assert_eq!(extents.run(2..30), Ok((4, true)));
    assert_eq!(extents.run(2..3), Ok((3, true)));
    assert_eq!(extents.run(9..30), Ok((20, false)));
    assert_eq!(extents.run(20..30), Err(20..30));
    extents.punch(4, 1..9);
    assert_eq!(extents.run(1..30), Ok((9, false)));
    extents.lose(5, 3..6);
    assert_eq!(extents.run(3..30), Err(3..6));
    assert_eq!(extents.run(6..30), Ok((9, false)));
    // Somebody else changed it too.
    extents.punch(7, 0..30);
    assert_eq!(extents.run(0..30), Err(0..30));
}

#[test]
fn nonsense_is_refused() {
    let mut extents = Extents::default();
    let mut wrong = inline(0, "abc");
    wrong.len = 4;
    assert!(extents.learn(0, 9, reply(1, vec![wrong], false)).is_err());
    assert!(extents.learn(0, 9, reply(1, Vec::new(), true)).is_err());
    let part = v1::SegmentPart { id: None, off: 0 };
    let lost = v1::Extent { file_off: 0, len: 1, source: Some(v1::extent::Source::Segment(part)) };
    assert!(extents.learn(0, 9, reply(1, vec![lost], false)).is_err());
}
