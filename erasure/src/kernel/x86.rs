//! Kernels for x86-64: GFNI with 64- and 32-byte vectors, and AVX2 table lookups.

use super::pass::{Lanes, Pass, run};
use crate::field::{AFFINE, NIBBLES};
use std::arch::x86_64::*;

/// # Safety
/// The processor has AVX-512F and GFNI; the pointers of `pass` are valid for its length.
#[target_feature(enable = "avx512f,gfni")]
pub unsafe fn gfni_avx512(pass: &Pass) -> usize {
    // SAFETY: as promised by the caller.
    unsafe { run::<Affine64, 4>(pass) }
}

/// # Safety
/// The processor has AVX2 and GFNI; the pointers of `pass` are valid for its length.
#[target_feature(enable = "avx2,gfni")]
pub unsafe fn gfni_avx2(pass: &Pass) -> usize {
    // SAFETY: as promised by the caller.
    unsafe { run::<Affine32, 2>(pass) }
}

/// # Safety
/// The processor has AVX2; the pointers of `pass` are valid for its length.
#[target_feature(enable = "avx2")]
pub unsafe fn avx2(pass: &Pass) -> usize {
    // SAFETY: as promised by the caller.
    unsafe { run::<Shuffle32, 2>(pass) }
}

#[derive(Clone, Copy)]
struct Affine64(__m512i);

// SAFETY of all methods: called only from `gfni_avx512`, with pointers valid for 64 bytes.
impl Lanes for Affine64 {
    const BYTES: usize = 64;
    type Factor = __m512i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm512_setzero_si512()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi64(AFFINE[usize::from(coefficient)] as i64) }
    }

    #[inline(always)]
    unsafe fn times(self, factor: __m512i) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm512_gf2p8affine_epi64_epi8::<0>(self.0, factor)) }
    }
}

#[derive(Clone, Copy)]
struct Affine32(__m256i);

// SAFETY of all methods: called only from `gfni_avx2`, with pointers valid for 32 bytes.
impl Lanes for Affine32 {
    const BYTES: usize = 32;
    type Factor = __m256i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_setzero_si256()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_xor_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_set1_epi64x(AFFINE[usize::from(coefficient)] as i64) }
    }

    #[inline(always)]
    unsafe fn times(self, factor: __m256i) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_gf2p8affine_epi64_epi8::<0>(self.0, factor)) }
    }
}

#[derive(Clone, Copy)]
struct Shuffle32(__m256i);

// SAFETY of all methods: called only from `avx2`, with pointers valid for 32 bytes.
impl Lanes for Shuffle32 {
    const BYTES: usize = 32;
    /// Products of low and of high nibbles, each in both halves.
    type Factor = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_setzero_si256()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_xor_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> Self::Factor {
        let table = NIBBLES[usize::from(coefficient)].as_ptr();
        // SAFETY: the table has 32 bytes; see above.
        unsafe {
            let low = _mm_loadu_si128(table.cast());
            let high = _mm_loadu_si128(table.add(16).cast());
            (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high))
        }
    }

    #[inline(always)]
    unsafe fn times(self, (low, high): Self::Factor) -> Self {
        // SAFETY: see above.
        unsafe {
            let nibble = _mm256_set1_epi8(0x0f);
            let low = _mm256_shuffle_epi8(low, _mm256_and_si256(self.0, nibble));
            let upper = _mm256_and_si256(_mm256_srli_epi64::<4>(self.0), nibble);
            Self(_mm256_xor_si256(low, _mm256_shuffle_epi8(high, upper)))
        }
    }
}
