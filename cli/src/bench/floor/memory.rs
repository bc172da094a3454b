//! Copying memory, and encoding it.

use super::isal::Isal;
use crate::bench::context::{Context, Sample};
use crate::bench::task::{Outcome, noise};
use anyhow::{Context as _, Result, ensure};
use std::hint::black_box;
use std::time::{Duration, Instant};
use weft_proto::layout::{Geometry, Profile};

/// More than caches hold.
const COPY: usize = 256 << 20;
/// The unit and the segment that files are laid out in by default.
const UNIT: usize = 128 << 10;
const SEGMENT: usize = 16 << 20;
const K: usize = 4;
const M: usize = 2;
/// Each figure takes this long.
const TIME: Duration = Duration::from_millis(300);

/// One thread copies a large buffer.
pub fn copy(context: &Context) -> Result<Vec<Sample>> {
    let from = noise(COPY, 1);
    let mut to = vec![1; COPY];
    let sample = context.measure("memcpy", || {
        Ok(repeat(COPY, || black_box(&mut to[..]).copy_from_slice(black_box(&from))))
    })?;
    Ok(vec![sample])
}

/// One thread computes the 4+2 parity of a segment.
pub fn encode(context: &Context) -> Result<Vec<Sample>> {
    let geometry = Geometry {
        profile: Profile::ec(K as u8, M as u8)?,
        unit: UNIT as u32,
        length: SEGMENT as u64,
    };
    let segment = noise(SEGMENT, 2);
    let mut parity = vec![vec![1; SEGMENT / K]; M];
    let sample = context.measure("encode", || {
        let mut failed = Ok(());
        let outcome = repeat(SEGMENT, || {
            let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            failed = weft_erasure::encode_segment(&geometry, black_box(&segment), &mut out);
        });
        failed?;
        Ok(outcome)
    })?;
    Ok(vec![sample])
}

/// The same with ISA-L, whose parity must be the same.
pub fn encode_isal(context: &Context) -> Result<Vec<Sample>> {
    let isal =
        Isal::load().context("libisal.so.2 cannot be loaded (Debian: apt install libisal2)")?;
    let segment = noise(SEGMENT, 2);
    let mut parity = vec![vec![1; SEGMENT / K]; M];
    let code = isal.code(K, M);
    let encode_segment = |segment: &[u8], parity: &mut [Vec<u8>]| {
        for (i, stripe) in segment.chunks_exact(K * UNIT).enumerate() {
            let data: Vec<&[u8]> = stripe.chunks_exact(UNIT).collect();
            let mut out: Vec<&mut [u8]> =
                parity.iter_mut().map(|p| &mut p[i * UNIT..(i + 1) * UNIT]).collect();
            code.encode(&data, &mut out);
        }
    };
    let sample = context.measure("encode_isal", || {
        Ok(repeat(SEGMENT, || encode_segment(black_box(&segment), &mut parity)))
    })?;
    let xor =
        (0..UNIT).all(|i| (0..K).fold(0, |sum, j| sum ^ segment[j * UNIT + i]) == parity[0][i]);
    ensure!(xor, "ISA-L's first parity is not the XOR of the data");
    Ok(vec![sample])
}

/// Repeats until the time is over.
fn repeat(bytes: usize, mut act: impl FnMut()) -> Outcome {
    let (start, mut total) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        act();
        total += bytes as u64;
    }
    Outcome { bytes: total, seconds: start.elapsed().as_secs_f64(), ..Outcome::default() }
}
