//! Parity of a whole segment.

use crate::codec::extended;
use crate::kernel::Kernel;
use crate::matrix::{COLS, GENERATOR, ROWS};
use weft_proto::{Error, ErrorKind, Geometry, Result};

/// Computes the parity chunks of a segment from its bytes, which lie as `geometry` says: units of
/// the data shards in turn, the last stripe possibly short. `parity[i]` is the chunk of shard
/// k + i, of `geometry.shard_len(k + i)` bytes; it is written whole, trailing zeros included.
pub fn encode_segment(geometry: &Geometry, segment: &[u8], parity: &mut [&mut [u8]]) -> Result<()> {
    check(geometry, segment, parity)?;
    let (k, unit) = (usize::from(geometry.profile.k()), geometry.unit as usize);
    let (m, kernel) = (parity.len(), Kernel::best());
    let mut written = 0;
    for stripe in segment.chunks(k * unit) {
        let mut data = [&[][..]; COLS];
        for (shard, piece) in data.iter_mut().zip(stripe.chunks(unit)) {
            *shard = piece;
        }
        let end = written + data[0].len();
        let mut out: [&mut [u8]; ROWS] = Default::default();
        for (to, chunk) in out.iter_mut().zip(parity.iter_mut()) {
            *to = &mut chunk[written..end];
        }
        extended(kernel, &GENERATOR, &data[..k], &mut out[..m]);
        written = end;
    }
    for chunk in parity {
        chunk[written..].fill(0);
    }
    Ok(())
}

fn check(geometry: &Geometry, segment: &[u8], parity: &[&mut [u8]]) -> Result<()> {
    let bad = |what: String| Err(Error::new(ErrorKind::Invalid, what));
    let profile = geometry.profile;
    let (k, m) = (profile.k(), profile.m());
    if k == 0 || usize::from(k) > COLS || usize::from(m) > ROWS || geometry.unit == 0 {
        return bad(format!(
            "segment of {profile} in units of {} cannot be encoded",
            geometry.unit
        ));
    }
    if segment.len() as u64 != geometry.length || parity.len() != usize::from(m) {
        return bad(format!(
            "a {profile} segment of {} bytes was given {} bytes and {} parity chunks",
            geometry.length,
            segment.len(),
            parity.len()
        ));
    }
    let want = geometry.shard_len(k);
    match parity.iter().find(|chunk| chunk.len() as u64 != want) {
        Some(chunk) => bad(format!("a parity chunk of {} bytes should have {want}", chunk.len())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Codec;
    use proptest::prelude::*;
    use weft_proto::Profile;

    /// The chunks of the data shards, as `Geometry::locate` places them, without block rounding.
    fn data_chunks(geometry: &Geometry, segment: &[u8]) -> Vec<Vec<u8>> {
        let mut chunks = vec![Vec::new(); usize::from(geometry.profile.k())];
        for run in geometry.locate(0, geometry.length) {
            let chunk = &mut chunks[usize::from(run.shard)];
            assert_eq!(chunk.len() as u64, run.chunk_off);
            let at = run.segment_off as usize;
            chunk.extend_from_slice(&segment[at..at + run.len as usize]);
        }
        chunks
    }

    proptest! {
        #[test]
        fn parity_chunks_are_those_of_the_data_chunks(
            k in 1u8..=9, m in 0u8..=4, units in 1u32..4, length in 0u64..200_000) {
            let geometry = Geometry { profile: Profile::ec(k, m).unwrap(), unit: units * 4096,
                length };
            let segment: Vec<u8> = (0..length).map(|i| (i * 2_654_435_761)
                .to_be_bytes()[4]).collect();
            let chunk_len = geometry.shard_len(k) as usize;
            let chunks = data_chunks(&geometry, &segment);
            let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
            let (mut want, mut got) = (vec![vec![1; chunk_len]; m.into()],
                vec![vec![2; chunk_len]; m.into()]);
            let mut out: Vec<&mut [u8]> = want.iter_mut().map(Vec::as_mut_slice).collect();
            Codec::get(geometry.profile).encode(&chunks, &mut out).unwrap();
            let mut out: Vec<&mut [u8]> = got.iter_mut().map(Vec::as_mut_slice).collect();
            encode_segment(&geometry, &segment, &mut out).unwrap();
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn wrong_sizes_are_refused() {
        let geometry = Geometry { profile: Profile::ec(4, 2).unwrap(), unit: 4096, length: 10_000 };
        let (mut p, mut q, mut short) = ([0; 4096], [0; 4096], [0; 4095]);
        assert!(encode_segment(&geometry, &[0; 9_999], &mut [&mut p, &mut q]).is_err());
        assert!(encode_segment(&geometry, &[0; 10_000], &mut [&mut p]).is_err());
        assert!(encode_segment(&geometry, &[0; 10_000], &mut [&mut p, &mut short]).is_err());
        assert!(encode_segment(&geometry, &[0; 10_000], &mut [&mut p, &mut q]).is_ok());
    }
}
