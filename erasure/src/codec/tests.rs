//! Tests of `codec`.

use super::*;
use proptest::prelude::*;

/// Bytes that look random, from a seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn slices(shards: &[Vec<u8>]) -> Vec<&[u8]> {
    shards.iter().map(Vec::as_slice).collect()
}

/// All shards of a stripe whose data shards have the given lengths.
fn stripe(codec: Codec, lengths: &[usize], len: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut shards: Vec<Vec<u8>> =
        lengths.iter().enumerate().map(|(j, &l)| noise(seed + j as u64, l)).collect();
    let mut parity = vec![vec![0xee; len]; usize::from(codec.m)];
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    codec.encode(&slices(&shards), &mut out).unwrap();
    shards.append(&mut parity);
    shards
}

/// Drops `lost` and rebuilds it.
fn rebuild(codec: Codec, shards: &[Vec<u8>], lost: &[u8], len: usize) -> Result<Vec<Vec<u8>>> {
    let mut present: Vec<(u8, &[u8])> =
        (0u8..255).zip(slices(shards)).filter(|(shard, _)| !lost.contains(shard)).collect();
    // The order does not matter.
    present.reverse();
    let mut out = vec![vec![0x11; len]; lost.len()];
    let mut wanted: Vec<(u8, &mut [u8])> =
        lost.iter().copied().zip(out.iter_mut().map(Vec::as_mut_slice)).collect();
    codec.reconstruct(&present, &mut wanted).map(|()| out)
}

fn extend(shard: &[u8], len: usize) -> Vec<u8> {
    let mut shard = shard.to_vec();
    shard.resize(len, 0);
    shard
}

proptest! {
    #[test]
    fn what_is_lost_comes_back(
        k in 1u8..=20, m in 0u8..=4, len in 0usize..5000, seed in any::<u32>(),
        short in prop::collection::vec(0.0f64..1.5, 20),
        lost in prop::collection::vec(any::<prop::sample::Index>(), 0..4)) {
        let shorter = short.iter().take(usize::from(k)).map(|f| (len as f64 * f) as usize);
        let lengths: Vec<usize> = shorter.map(|l| l.min(len)).collect();
        let mut lost: Vec<u8> = lost.iter().map(|i| i.index(usize::from(k + m)) as u8).collect();
        lost.sort_unstable();
        lost.dedup();
        lost.truncate(usize::from(m));
        for kernel in Kernel::available() {
            let codec = Codec::get(Profile::ec(k, m).unwrap()).with_kernel(kernel);
            let shards = stripe(codec, &lengths, len, u64::from(seed));
            let rebuilt = rebuild(codec, &shards, &lost, len).unwrap();
            for (shard, bytes) in lost.iter().zip(rebuilt) {
                prop_assert_eq!(bytes, extend(&shards[usize::from(*shard)], len), "shard \
                    {}", shard);
            }
        }
    }

    #[test]
    fn parity_of_short_shards_is_parity_of_extended_ones(
        k in 1usize..=20, len in 0usize..2000, lengths in prop::collection::vec(0usize..2000, 20)) {
        let codec = Codec::get(Profile::ec(k as u8, 4).unwrap());
        let lengths: Vec<usize> = lengths[..k].iter().map(|&l| l.min(len)).collect();
        let short = stripe(codec, &lengths, len, 5);
        let long: Vec<Vec<u8>> = short[..k].iter().map(|s| extend(s, len)).collect();
        let mut parity = vec![vec![0; len]; 4];
        let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        codec.encode(&slices(&long), &mut out).unwrap();
        prop_assert_eq!(&parity, &short[k..]);
    }

    #[test]
    fn nonsense_is_refused_not_computed(
        k in 1u8..=6, m in 0u8..=4, given in prop::collection::vec((0u8..12, 0usize..40), 0..12),
        wanted in prop::collection::vec((0u8..12, 0usize..40), 0..6)) {
        let codec = Codec::get(Profile::ec(k, m).unwrap());
        let bytes = [7u8; 40];
        let present: Vec<(u8, &[u8])> = given.iter().map(|&(s, l)| (s, &bytes[..l])).collect();
        let mut buffers = vec![[0u8; 40]; wanted.len()];
        let mut out: Vec<(u8, &mut [u8])> =
            wanted.iter().zip(&mut buffers).map(|(&(s, l), b)| (s, &mut b[..l])).collect();
        let done = codec.reconstruct(&present, &mut out);
        let mut seen: Vec<u8> = given.iter().map(|g| g.0).collect();
        seen.sort_unstable();
        seen.dedup();
        let enough = seen.len() >= usize::from(k);
        prop_assert!(done.is_err() || (enough && seen.len() == given.len()));
    }
}

#[test]
fn every_loss_pattern_of_4_2_and_8_3() {
    for (k, m) in [(4u8, 2u8), (8, 3), (1, 2)] {
        let codec = Codec::get(Profile::ec(k, m).unwrap());
        let shards = stripe(codec, &vec![777; usize::from(k)], 777, 3);
        for pattern in 0u32..1 << (k + m) {
            let lost: Vec<u8> = (0..k + m).filter(|s| pattern >> s & 1 != 0).collect();
            let rebuilt = rebuild(codec, &shards, &lost, 777);
            if lost.len() > usize::from(m) {
                assert_eq!(rebuilt.unwrap_err().kind, ErrorKind::Io);
                continue;
            }
            for (shard, bytes) in lost.iter().zip(rebuilt.unwrap()) {
                assert_eq!(bytes, shards[usize::from(*shard)]);
            }
        }
    }
}

#[test]
fn replicas_are_copies_and_first_parity_is_xor() {
    let copies = stripe(Codec::get(Profile::replica(3).unwrap()), &[500], 500, 9);
    assert!(copies.iter().all(|c| *c == copies[0]));
    let shards = stripe(Codec::get(Profile::ec(5, 1).unwrap()), &[100; 5], 100, 9);
    let xor = (0..100).map(|i| shards[..5].iter().fold(0, |x, s| x ^ s[i]));
    assert!(xor.eq(shards[5].iter().copied()));
}

#[test]
fn known_bytes_never_change() {
    // Parity is on disks: coefficients 2^(i*j) by hand, one byte per shard.
    let codec = Codec::get(Profile::ec(4, 4).unwrap());
    let data: [&[u8]; 4] = [&[1], &[1], &[1], &[0x80]];
    let mut parity = [[0u8; 1]; 4];
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
    codec.encode(&data, &mut out).unwrap();
    // 0x80 doubled n times, modulo 0x11d.
    let times = |n: u32| (0..n).fold(0x80u8, |x, _| x << 1 ^ if x & 0x80 != 0 { 0x1d } else { 0 });
    assert_eq!(parity[0][0], 0x81);
    assert_eq!(parity[1][0], 1 ^ 2 ^ 4 ^ times(3));
    assert_eq!(parity[2][0], 1 ^ 4 ^ 16 ^ times(6));
    assert_eq!(parity[3][0], 1 ^ 8 ^ 64 ^ times(9));
}

#[test]
fn an_unchecked_profile_is_refused() {
    let codec = Codec::get(Profile::Ec { k: 200, m: 2 });
    assert_eq!(codec.encode(&[], &mut []).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(codec.reconstruct(&[], &mut []).unwrap_err().kind, ErrorKind::Invalid);
}
