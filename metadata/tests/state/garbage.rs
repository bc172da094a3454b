//! Whatever comes in the log or as a read is answered, never a panic, and leaves a sound state.

use crate::rig::{ROOT, Rig, ino};
use proptest::prelude::*;
use prost::Message;
use v1::log_entry::Body;
use v1::meta_request::Op;
use weft_proto::v1;

/// A sound entry, bent: some of its bytes are changed.
fn bent() -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop_oneof![Just(0u8), Just(1), Just(0xff), Just(0x7f), any::<u8>()];
    (0usize..8, prop::collection::vec((any::<prop::sample::Index>(), bytes), 0..6)).prop_map(
        |(which, changes)| {
            let mut encoded = sample(which).encode_to_vec();
            for (at, byte) in changes {
                let at = at.index(encoded.len());
                encoded[at] = byte;
            }
            encoded
        },
    )
}

fn sample(which: usize) -> v1::LogEntry {
    let name = bytes::Bytes::from_static(b"a");
    let id = Some(v1::SegmentKey { session: 1, seq: 1 });
    let op = match which {
        0 => Op::Create(v1::CreateOp { parent: ROOT, name, ..Default::default() }),
        1 => Op::SetAttr(v1::SetAttrOp { ino: ino(2), size: Some(1 << 20), ..Default::default() }),
        2 => Op::Rename(v1::RenameOp {
            parent: ROOT,
            name: name.clone(),
            new_parent: ROOT,
            new_name: name,
            flags: 2,
        }),
        3 | 4 => Op::CommitExtents(v1::CommitExtentsOp {
            ino: ino(2),
            extents: vec![v1::Extent {
                file_off: 5,
                len: 9,
                source: Some(v1::extent::Source::Segment(v1::SegmentPart { id, off: 3 })),
            }],
            segments: vec![v1::SegmentInfo {
                id,
                profile: Some(v1::ProfileInfo { k: 2, m: 1 }),
                unit: 4096,
                length: 100,
                pg: 1,
                seats: vec![0, 1, 2].into(),
            }],
            append: which == 4,
            ..Default::default()
        }),
        5 => Op::SetXattr(v1::SetXattrOp { ino: ino(2), name, ..Default::default() }),
        6 => Op::Link(v1::LinkOp { ino: ino(2), parent: ROOT, name }),
        _ => {
            let pgs = vec![v1::PgInfo {
                id: 1,
                targets: vec![1, 2, 3, 4],
                retired: true,
                ..Default::default()
            }];
            let set = v1::SetPgsEntry {
                pool: 1,
                pgs,
                based_on_epoch: 6,
                dropped: vec![1],
                ..Default::default()
            };
            return v1::LogEntry {
                time_ns: 5,
                body: Some(Body::SetPgs(set)),
                ..Default::default()
            };
        }
    };
    let request =
        v1::MetaRequest { session: 1, number: 2 + which as u64, acked_below: 1, op: Some(op) };
    v1::LogEntry { time_ns: 5, body: Some(Body::Client(request)), ..Default::default() }
}

fn garbage() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..80), 4 => bent()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn garbage_in_the_log_is_answered(entries in prop::collection::vec(garbage(), 1..12)) {
        let mut rig = Rig::in_memory();
        let op = v1::CreateOp { parent: ROOT, name: "a".into(), ..Default::default() };
        let request = rig.next_request(Op::Create(op));
        rig.request(request).unwrap();
        for bytes in entries {
            let Ok(entry) = v1::LogEntry::decode(&bytes[..]) else { continue };
            let index = rig.machine.applied() + 1;
            prop_assert_eq!(rig.machine.apply(&[(index, entry)]).unwrap().len(), 1);
        }
        rig.check();
    }

    #[test]
    fn garbage_reads_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..60),
                                  ino in prop_oneof![Just(1u64), Just(2), Just(u64::MAX),
                                      any::<u64>()],
                                  off in any::<u64>(), len in any::<u64>()) {
        let mut rig = Rig::in_memory();
        let op = v1::CreateOp { parent: ROOT, name: "a".into(), ..Default::default() };
        let request = rig.next_request(Op::Create(op));
        rig.request(request).unwrap();
        if let Ok(request) = v1::MetaRequest::decode(&bytes[..]) {
            let _ = rig.machine.read(&request);
        }
        let name = bytes::Bytes::from(bytes);
        let after = Some(v1::SegmentKey { session: off, seq: len });
        for op in [
            Op::Lookup(v1::LookupOp { parent: ino, name: name.clone() }),
            Op::GetAttr(v1::GetAttrOp { ino }),
            Op::ReadDir(v1::ReadDirOp { ino, cookie: off, limit: len as u32, attrs: true }),
            Op::ReadLink(v1::ReadLinkOp { ino }),
            Op::GetXattr(v1::GetXattrOp { ino, name }),
            Op::ListXattr(v1::ListXattrOp { ino }),
            Op::GetExtents(v1::GetExtentsOp { ino, off, len }),
            Op::GetLayout(v1::GetLayoutOp { ino }),
            Op::ListSegments(v1::ListSegmentsOp { after, limit: len as u32 }),
        ] {
            let _ = rig.read(op);
        }
        // Which would end the server.
        prop_assert_eq!(rig.machine.failure(), None);
    }
}
