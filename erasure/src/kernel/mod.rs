//! The inner loop, destinations = coefficients * sources, for each instruction set, and the choice
//! among them at run time.
//!
//! Each pass reads every source byte once and writes every destination byte once, a few vectors at
//! a time, so that a stripe streams through the cache whatever its size. Buffers aligned to 64
//! bytes are up to twice as fast. What whole vectors do not cover is left to the scalar loop,
//! which is also what all others are tested against.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod pass;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::matrix::Coefficients;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::matrix::{COLS, ROWS};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use pass::Pass;
use std::ops::Range;

/// An implementation of the inner loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    Scalar,
    /// x86-64, 16-entry table lookups in 32-byte vectors.
    Avx2,
    /// x86-64, affine transforms in 32-byte vectors.
    GfniAvx2,
    /// x86-64, affine transforms in 64-byte vectors.
    GfniAvx512,
    /// aarch64, 16-entry table lookups in 16-byte vectors.
    Neon,
}

impl Kernel {
    const ALL: [Self; 5] = [Self::GfniAvx512, Self::GfniAvx2, Self::Avx2, Self::Neon, Self::Scalar];

    /// Those that this processor runs, fastest first; `Scalar` is always the last.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kernel| kernel.runs_here())
    }

    /// The fastest that this processor runs.
    pub fn best() -> Self {
        Self::available().next().unwrap_or(Self::Scalar)
    }

    #[cfg(target_arch = "x86_64")]
    fn runs_here(self) -> bool {
        // The standard library caches the processor's answer.
        match self {
            Self::Scalar => true,
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::GfniAvx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni"),
            Self::GfniAvx512 => {
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("gfni")
            }
            Self::Neon => false,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn runs_here(self) -> bool {
        // NEON is part of every aarch64.
        self == Self::Scalar || (self == Self::Neon && cfg!(target_arch = "aarch64"))
    }

    /// `out[r][range] = sum over c of coefficients[r][c] * sources[c][range]`.
    ///
    /// Panics if a source or destination does not reach `range.end`, if there are more of them
    /// than the coefficients have columns or rows, or if the kernel does not run here.
    pub(crate) fn apply(
        self,
        coefficients: &Coefficients,
        sources: &[&[u8]],
        out: &mut [&mut [u8]],
        range: Range<usize>,
    ) {
        let done = self.vectors(coefficients, sources, out, range.clone());
        scalar::apply(coefficients, sources, out, range.start + done..range.end);
    }

    /// Does as many whole vectors as fit; answers how many bytes that were.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn vectors(
        self,
        coefficients: &Coefficients,
        sources: &[&[u8]],
        out: &mut [&mut [u8]],
        range: Range<usize>,
    ) -> usize {
        if self == Self::Scalar {
            return 0;
        }
        assert!(self.runs_here(), "{self:?} does not run on this processor");
        assert!(range.start <= range.end);
        assert!(sources.len() <= COLS && sources.iter().all(|s| s.len() >= range.end));
        assert!(out.len() <= ROWS && out.iter().all(|d| d.len() >= range.end));
        let mut from = [std::ptr::null(); COLS];
        for (pointer, source) in from.iter_mut().zip(sources) {
            *pointer = source[range.start..].as_ptr();
        }
        let mut to = [std::ptr::null_mut(); ROWS];
        for (pointer, destination) in to.iter_mut().zip(out.iter_mut()) {
            *pointer = destination[range.start..].as_mut_ptr();
        }
        let pass = Pass {
            coefficients,
            sources: &from[..sources.len()],
            out: &to[..out.len()],
            len: range.end - range.start,
        };
        // SAFETY: every pointer is valid for `len` bytes as asserted above, destinations are
        // exclusive borrows, and `runs_here` has confirmed the instruction set.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => x86::avx2(&pass),
                #[cfg(target_arch = "x86_64")]
                Self::GfniAvx2 => x86::gfni_avx2(&pass),
                #[cfg(target_arch = "x86_64")]
                Self::GfniAvx512 => x86::gfni_avx512(&pass),
                #[cfg(target_arch = "aarch64")]
                Self::Neon => aarch64::neon(&pass),
                _ => 0,
            }
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn vectors(self, _: &Coefficients, _: &[&[u8]], _: &mut [&mut [u8]], _: Range<usize>) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{COLS, ROWS};
    use proptest::prelude::*;

    fn coefficients() -> impl Strategy<Value = Coefficients> {
        let rows = prop::array::uniform4(prop::array::uniform20(any::<u8>()));
        (rows, any::<bool>()).prop_map(|(mut rows, xor)| {
            if xor {
                rows[0] = [1; COLS];
            }
            rows
        })
    }

    proptest! {
        #[test]
        fn every_kernel_gives_the_scalar_bytes(
            coefficients in coefficients(), cols in 0usize..=COLS, rows in 0usize..=ROWS,
            seed in any::<u64>(), skip in 0usize..70, len in 0usize..3000) {
            let mut state = seed | 1;
            let sources: Vec<Vec<u8>> = (0..cols).map(|_| (0..skip + len).map(|_| {
                state ^= state << 13; state ^= state >> 7; state ^= state << 17;
                state as u8
            }).collect()).collect();
            let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let run = |kernel: Kernel| {
                let mut out = vec![vec![0xa5u8; skip + len + 9]; rows];
                let mut slices: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
                kernel.apply(&coefficients, &sources, &mut slices, skip..skip + len);
                out
            };
            let want = run(Kernel::Scalar);
            for row in &want {
                prop_assert!(row[..skip].iter().chain(&row[skip + len..]).all(|&b| b == 0xa5));
            }
            for kernel in Kernel::available() {
                prop_assert_eq!(&run(kernel), &want, "{:?}", kernel);
            }
        }
    }

    #[test]
    fn kernels_of_other_processors_are_named() {
        for kernel in Kernel::ALL.iter().filter(|kernel| !kernel.runs_here()) {
            crate::not_tested::not_tested(&format!("erasure by {kernel:?}: this processor cannot"));
        }
    }

    #[test]
    fn the_best_kernel_is_one_that_runs() {
        assert!(Kernel::available().any(|k| k == Kernel::best()));
        assert_eq!(Kernel::available().last(), Some(Kernel::Scalar));
    }
}
