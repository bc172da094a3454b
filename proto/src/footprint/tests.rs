//! Tests of `footprint`.

use super::*;
use crate::v1::*;

#[test]
fn what_reads_changes_nothing() {
    for op in Op::every().iter().filter(|op| op.kind() != Kind::Change) {
        let Footprint { names, changes, makes, grows, .. } = op.footprint();
        assert_eq!((names, changes, makes), (vec![], vec![], Makes::Nothing), "{op:?}");
        assert!(!grows, "{op:?}");
    }
}

#[test]
fn what_makes_room_is_never_refused() {
    let hole = FallocateOp { hole: true, ..Default::default() };
    for op in [
        Op::Unlink(Default::default()),
        Op::RmDir(Default::default()),
        Op::Rename(Default::default()),
        Op::SetAttr(Default::default()),
        Op::RemoveXattr(Default::default()),
        Op::CommitExtents(Default::default()),
        Op::Fallocate(hole),
        Op::Batch(Default::default()),
    ] {
        assert!(!op.footprint().grows, "{op:?}");
    }
    let extents = vec![Extent::default()];
    let data = CommitExtentsOp { extents, ..Default::default() };
    assert!(Op::CommitExtents(data).footprint().grows);
}

#[test]
fn an_operation_goes_to_the_shard_of_what_it_is_about() {
    let (one, other) = (InodeId::new(7, 2), InodeId::new(9, 3));
    let moved = RenameOp { parent: one.0, new_parent: other.0, ..Default::default() };
    assert_eq!(Op::Rename(moved).footprint().shard(), 7);
    let copied = CopyRangeOp { from: one.0, to: other.0, ..Default::default() };
    let copied = Op::CopyRange(copied).footprint();
    assert_eq!(copied.shard(), 9);
    assert_eq!(copied.concerns().collect::<Vec<_>>(), [other, one]);
    assert_eq!(Op::StatFs(Default::default()).footprint().shard(), 0);
}
#[test]
fn a_batch_changes_what_it_names_and_did_not_make() {
    let step = |op, ino| Step { op: Some(op), ino, ..Default::default() };
    let make = MakeOp { ino: 5, parent: 1, name: "new".into(), ..Default::default() };
    let unlink = UnlinkOp { parent: 2, name: "old".into() };
    let set_attr = |ino| SetAttrOp { ino, ..Default::default() };
    let moved = RenameOp { parent: 1, new_parent: 2, ..Default::default() };
    let steps = vec![
        step(Do::Make(make), 0),
        step(Do::SetAttr(set_attr(5)), 0),
        step(Do::Unlink(unlink), 7),
        step(Do::SetAttr(set_attr(7)), 0),
        step(Do::SetXattr(SetXattrOp { ino: 8, ..Default::default() }), 0),
        Step { replaced: 9, ..step(Do::Rename(moved), 5) },
    ];
    let footprint = Op::Batch(BatchOp { steps, ..Default::default() }).footprint();
    assert_eq!(footprint.changes, [7, 8, 9].map(InodeId));
    let dirs: Vec<_> = footprint.names.iter().map(|(dir, _)| dir.0).collect();
    assert_eq!(dirs, [1, 2, 1, 2]);
}
