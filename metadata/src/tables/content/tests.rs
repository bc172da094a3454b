//! Tests of `content`.

use super::*;
use crate::store::Memory;
use proptest::prelude::*;
use weft_proto::SessionId;

const INO: InodeId = InodeId(9);
const SIZE: usize = 48;

#[derive(Clone, Debug)]
enum Step {
    /// Data of a new segment.
    Insert {
        off: u64,
        len: u64,
    },
    Clear {
        from: u64,
        to: u64,
    },
    Truncate {
        size: u64,
    },
    Trim {
        limit: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..SIZE as u64;
    prop_oneof![
        4 => (at.clone(), 1u64..6).prop_map(|(off, len)| Step::Insert { off, len }),
        2 => (at.clone(), at.clone()).prop_map(|(from, to)| Step::Clear { from, to }),
        1 => at.prop_map(|size| Step::Truncate { size }),
        1 => (1usize..4).prop_map(|limit| Step::Trim { limit }),
    ]
}

fn load(memory: &Memory) -> Inode {
    let state = memory.snapshot();
    let state: &dyn Read = &*state;
    state.inode(INO).unwrap().unwrap()
}

/// The segment and the offset in it that each byte shows.
fn shown(memory: &Memory) -> Vec<Option<(u64, u64)>> {
    let mut bytes = vec![None; SIZE + 8];
    walk(&*memory.snapshot(), &load(memory), 0, true, |e| {
        let Some(Source::Segment(part)) = &e.source else { panic!("{e:?}") };
        let seq = part.id.unwrap().seq;
        (0..e.len).for_each(|i| bytes[(e.file_off + i) as usize] = Some((seq, part.off + i)));
        Ok(true)
    })
    .unwrap();
    bytes
}

fn run(memory: &Memory, seq: u64, step: &Step, model: &mut [Option<(u64, u64)>]) {
    let base = memory.snapshot();
    let mut tx = Txn::new(&*base);
    let mut edit = Edit::new(load(memory));
    match *step {
        Step::Insert { off, len } => {
            let id = Some(SegmentId { session: SessionId(1), seq }.into());
            let source = Some(Source::Segment(v1::SegmentPart { id, off: 0 }));
            edit.insert(&mut tx, v1::Extent { file_off: off, len, source }).unwrap();
            edit.finish(&mut tx, &[v1::SegmentInfo { id, ..Default::default() }]).unwrap();
            (0..len).for_each(|i| model[(off + i) as usize] = Some((seq, i)));
        }
        Step::Clear { from, to } => {
            let to = to.min(edit.file.attr.size);
            edit.clear(&mut tx, from, to, 2).unwrap();
            edit.finish(&mut tx, &[]).unwrap();
            (from..to).for_each(|i| model[i as usize] = None);
        }
        Step::Truncate { size } => {
            let old = std::mem::replace(&mut edit.file.attr.size, size);
            edit.clear(&mut tx, size, old, 2).unwrap();
            edit.finish(&mut tx, &[]).unwrap();
            (size..old).for_each(|i| model[i as usize] = None);
        }
        Step::Trim { limit } => {
            assert!(trim(&mut tx, edit.file, limit).unwrap() <= limit);
        }
    }
    memory.write(tx.into_changes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever is cut out is not shown, whatever else is, is; and in the end nothing is left.
    #[test]
    fn what_is_cut_out_is_not_shown(steps in prop::collection::vec(step(), 1..40)) {
        let memory = Memory::default();
        let base = memory.snapshot();
        let mut tx = Txn::new(&*base);
        let attr = v1::Attr { ino: INO.0, ..Default::default() };
        tx.put_inode(&Inode { attr, ..Default::default() }).unwrap();
        memory.write(tx.into_changes());
        let mut model = vec![None; SIZE + 8];
        for (seq, step) in (1..).zip(&steps) {
            run(&memory, seq, step, &mut model);
            prop_assert_eq!(&shown(&memory), &model, "after {:?}", step);
            let state = memory.snapshot();
            let listed = Read::get(&*state, &schema::trim(INO)).unwrap().is_some();
            prop_assert_eq!(listed, !load(&memory).cut.is_empty());
        }
        while !load(&memory).cut.is_empty() {
            run(&memory, 0, &Step::Trim { limit: 1 }, &mut model);
        }
        prop_assert_eq!(&shown(&memory), &model);
        let bytes = model.iter().flatten().count() as u64;
        prop_assert_eq!(load(&memory).allocated, bytes);
        let mut live = 0;
        let state = memory.snapshot();
        let state: &dyn Read = &*state;
        state.records(schema::all(Tag::Segment), |_, s: Segment| {
            live += s.live_bytes;
            Ok(true)
        }).unwrap();
        prop_assert_eq!(live, bytes);
    }
}
