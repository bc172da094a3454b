//! How long answers may get.

use super::*;

/// Very many extents of inode 4, as large as records get.
fn write_extents(machine: &StateMachine) {
    let mut changes = Changes::new();
    for n in 0..10_000 {
        let id = SegmentId { session: SessionId(u64::MAX), seq: u64::MAX - n };
        let info = v1::SegmentInfo {
            id: Some(id.into()),
            profile: Some(v1::ProfileInfo { k: 200, m: 200 }),
            unit: u32::MAX,
            length: u64::MAX >> 1,
            pg: u32::MAX,
            seats: vec![255; 24].into(),
        };
        let part = v1::SegmentPart { id: Some(id.into()), off: u64::MAX >> 1 };
        let source = Some(v1::extent::Source::Segment(part));
        let extent = v1::Extent { file_off: (1 << 43) + n, len: 1, source };
        let record = schema::Segment { info, live_bytes: u64::MAX, confined: true };
        let end = extent.file_off + 1;
        changes.insert(schema::extent(InodeId(4), end), Some(extent.encode_to_vec().into()));
        changes.insert(schema::segment(id), Some(record.encode_to_vec().into()));
    }
    let mut file = machine.store.newest(|s| s.inode(InodeId(4))).unwrap().unwrap();
    file.set_allocated(1 << 40);
    changes.insert(schema::inode(InodeId(4)), Some(file.encode_to_vec().into()));
    let inline = Some(v1::extent::Source::Inline(vec![1; 64 << 10].into()));
    let extent = v1::Extent { file_off: 0, len: 64 << 10, source: inline };
    changes.insert(schema::extent(InodeId(4), 64 << 10), Some(extent.encode_to_vec().into()));
    machine.store.write(changes).unwrap();
}

/// As long as they can be; and no answer is told to be much longer than it can be.
#[test]
fn no_answer_is_longer_than_was_told_before() {
    let machine = StateMachine::open_in_memory();
    machine.apply(&log()).unwrap();
    let mut at = 100;
    let mut run = |op| {
        at += 1;
        assert_eq!(machine.apply(&[request(at, op)]).unwrap()[0].error, 0);
    };
    let name = |n: u32, len: usize| bytes::Bytes::from(format!("{n:0len$}"));
    for n in 0..5000 {
        run(Op::MkNod(v1::MkNodOp {
            parent: 1,
            name: name(n, 255),
            kind: v1::FileKind::Fifo.into(),
            uid: u32::MAX,
            gid: u32::MAX,
            ..Default::default()
        }));
    }
    let target = vec![b'x'; 4095].into();
    run(Op::SymLink(v1::SymLinkOp { parent: 1, name: "s".into(), target, ..Default::default() }));
    let link = machine.child(InodeId::ROOT, b"s").unwrap().unwrap().0;
    let xattr = |ino, name, value: Vec<u8>| {
        Op::SetXattr(v1::SetXattrOp { ino, name, value: value.into(), ..Default::default() })
    };
    run(xattr(2, "user.long".into(), vec![1; 64 << 10]));
    (0..12_000).for_each(|n| run(xattr(3, format!("{n:03x}").into(), Vec::new())));
    write_extents(&machine);
    let list = |cookie, limit, attrs| Op::ReadDir(v1::ReadDirOp { ino: 1, cookie, limit, attrs });
    let extents = |off, len| Op::GetExtents(v1::GetExtentsOp { ino: 4, off, len });
    let segments = |limit| Op::ListSegments(v1::ListSegmentsOp { after: None, limit });
    for op in [
        list(0, 0, false),
        list(0, 2000, true),
        list(0, 1, true),
        extents(0, u64::MAX),
        extents(1 << 43, 300),
        segments(0),
        segments(7),
        Op::GetXattr(v1::GetXattrOp { ino: 2, name: "user.long".into() }),
        Op::ListXattr(v1::ListXattrOp { ino: 3 }),
        Op::ReadLink(v1::ReadLinkOp { ino: link }),
        Op::GetAttr(v1::GetAttrOp { ino: 4 }),
        Op::Open(v1::OpenOp { ino: 4, ..Default::default() }),
    ] {
        let told = ops::longest(&op);
        let answer = match &op {
            Op::Open(open) => {
                let reply = machine.open_reply(InodeId(open.ino)).unwrap();
                reply.encoded_len()
            }
            _ => {
                let asked = v1::MetaRequest { op: Some(op.clone()), ..Default::default() };
                machine.read(&asked).unwrap().encoded_len()
            }
        };
        assert!(answer <= told, "{op:?}: {answer} bytes, {told} told");
        assert!(answer >= told / 4 || told < 100 << 10, "{op:?}: {answer} bytes, {told} told");
    }
}
