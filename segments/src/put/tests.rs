//! Tests of `put`.

use super::*;
use proptest::prelude::*;
use weft_erasure::{Codec, verify_blocks};
use weft_proto::Profile;

proptest! {
    #[test]
    fn chunks_are_as_long_as_the_geometry_says_and_decode(
        k in 1u8..6, m in 0u8..=3, units in 1u32..3, len in 1usize..60_000,
            lost in any::<prop::sample::Index>()) {
        let geometry = Geometry { profile: Profile::ec(k, m).unwrap(), unit: units * BLOCK,
            length: len as u64 };
        let data = Bytes::from((0..len).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<_>>());
        let encoded = encode(geometry, &data).unwrap();
        let flat: Vec<Vec<u8>> = encoded.chunks.iter().map(|c| c.slices.concat()).collect();
        for (shard, (bytes, chunk)) in (0u8..).zip(flat.iter().zip(&encoded.chunks)) {
            prop_assert_eq!(bytes.len() as u64, geometry.shard_len(shard));
            prop_assert_eq!(verify_blocks(bytes, &chunk.checksums), Ok(()));
        }
        let lost = lost.index(usize::from(k)) as u8;
        if m > 0 && geometry.shard_len(lost) > 0 {
            let present: Vec<(u8, &[u8])> = (0u8..).zip(&flat).filter(|(s, _)| *s != lost)
                .map(|(s, b)| (s, &b[..])).collect();
            let mut out = vec![0; geometry.shard_len(k) as usize];
            Codec::get(geometry.profile).reconstruct(&present, &mut [(lost, &mut out)]).unwrap();
            prop_assert_eq!(&out[..flat[usize::from(lost)].len()], &flat[usize::from(lost)][..]);
        }
    }
}
