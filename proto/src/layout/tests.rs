//! Tests of `layout`.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn every_byte_lies_in_one_place(k in 1u8..=8, m in 0u8..=4, units in 1u32..5,
                                    length in 1u64..200_000, off in 0u64..200_000,
                                        len in 0u64..200_000) {
        let g = Geometry { profile: Profile::ec(k, m).unwrap(), unit: units * BLOCK, length };
        let mut at = off;
        for run in g.locate(off, len) {
            prop_assert_eq!(run.segment_off, at);
            prop_assert!(run.len > 0 && run.shard < k);
            prop_assert!(run.chunk_off + run.len <= g.shard_len(run.shard));
            let unit = u64::from(g.unit);
            prop_assert!(run.chunk_off / unit == (run.chunk_off + run.len - 1) / unit);
            at += run.len;
        }
        prop_assert_eq!(at.max(off), off.max((off + len).min(length)));
        let data: u64 = (0..k).map(|j| g.shard_len(j)).sum();
        prop_assert!(data >= length && data < length + u64::from(k) * u64::from(BLOCK));
        for j in 0..g.profile.width() {
            prop_assert!(g.shard_len(j) <= g.shard_len(k));
            prop_assert!(g.shard_len(j) <= g.stripes() * u64::from(g.unit));
        }
    }

    #[test]
    fn fit_keeps_m_and_respects_targets(k in 1u8..=20, m in 0u8..=4, length in 1u64..10_000_000,
        live in 0usize..30) {
        let p = Profile::ec(k, m).unwrap();
        match p.fit(length, 4096, live) {
            None => prop_assert!(live <= usize::from(m)),
            Some(f) => {
                prop_assert_eq!(f.m(), m);
                prop_assert!(usize::from(f.width()) <= live.max(usize::from(m) + 1));
                prop_assert!(u64::from(f.k()) <= length.div_ceil(4096));
            }
        }
    }
}

#[test]
fn sizes_are_told_as_they_are_typed() {
    let layout = Layout::for_profile("4+2".parse().unwrap());
    let said = Layout { segment_len: 3 << 19, unit: 1 << 20, ..layout }.validate().unwrap_err();
    assert!(said.to_string().contains("1536KiB") && said.to_string().contains("4MiB"), "{said}");
}

#[test]
fn profiles_parse_as_they_print() {
    for s in ["4+2", "8+3", "20+4", "replica=3", "2+0"] {
        assert_eq!(s.parse::<Profile>().unwrap().to_string(), s);
    }
    assert_eq!("1+2".parse::<Profile>().unwrap(), Profile::Replica { copies: 3 });
    for s in ["", "4", "0+2", "21+1", "4+5", "replica=0", "replica=x", "4+2+1"] {
        assert!(s.parse::<Profile>().is_err(), "{s}");
    }
    Layout::for_profile("4+2".parse().unwrap()).validate().unwrap();
    Layout::for_profile("20+4".parse().unwrap()).validate().unwrap();
}
