//! Tests of aligned.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn buffers_are_aligned_and_bytes_share_their_memory(len in 0usize..300_000) {
        let mut buffer = AlignedBuf::take(len);
        prop_assert_eq!(buffer.as_ref().as_ptr() as usize % ALIGN, 0);
        prop_assert_eq!(buffer.capacity() % ALIGN, 0);
        prop_assert!(buffer.capacity() >= len);
        buffer.as_mut_slice().fill(7);
        let start = buffer.as_ref().as_ptr();
        let bytes = Bytes::from(buffer);
        prop_assert_eq!(bytes.len(), len);
        prop_assert_eq!(bytes.as_ptr(), start);
        prop_assert!(bytes.iter().all(|&b| b == 7));
    }
}

#[test]
fn buffers_in_use_do_not_overlap_and_come_back() {
    // Over the regions and over what is kept: some come from the heap, and some go back whole.
    let sizes = [4096, 5000, 1 << 20, 3 << 20, 16 << 20].iter().cycle().take(250);
    for round in 0..2u8 {
        let mut all: Vec<AlignedBuf> = sizes.clone().map(|&len| AlignedBuf::take(len)).collect();
        for (i, buffer) in all.iter_mut().enumerate() {
            let len = buffer.capacity();
            buffer.set_len(len);
            // Every page, and not every byte: that is what may overlap.
            buffer.as_mut_slice().iter_mut().step_by(ALIGN).for_each(|b| *b = i as u8 ^ round);
        }
        for (i, buffer) in all.iter().enumerate() {
            let mine = |b: &u8| *b == i as u8 ^ round;
            assert!(buffer.as_ref().iter().step_by(ALIGN).all(mine), "buffer {i} is shared");
        }
        let start = |b: &AlignedBuf| b.as_ref().as_ptr();
        let held = |b: &&AlignedBuf| regions().any(|r| r.holds(start(b)));
        assert_eq!(regions().count(), REGIONS);
        let bytes: usize = all.iter().filter(held).map(AlignedBuf::capacity).sum();
        assert!(bytes > Region::LEN && bytes <= REGIONS * Region::LEN, "{bytes} in regions");
        assert!(!all.iter().all(|b| held(&b)), "there is no room for all in the regions");
    }
}

#[test]
fn a_dropped_buffer_is_used_again() {
    // A size that no other test uses, so that nobody else takes it meanwhile.
    let buffer = AlignedBuf::take(33 << 20);
    let start = buffer.as_ref().as_ptr();
    drop(Bytes::from(buffer));
    assert_eq!(AlignedBuf::take(40 << 20).as_ref().as_ptr(), start);
    assert_eq!(AlignedBuf::take(65 << 20).capacity(), 128 << 20);
}
