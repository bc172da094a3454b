//! Kernel for aarch64: NEON table lookups.

use super::pass::{Lanes, Pass, run};
use crate::field::NIBBLES;
use std::arch::aarch64::*;

/// # Safety
/// The pointers of `pass` are valid for its length.
#[target_feature(enable = "neon")]
pub unsafe fn neon(pass: &Pass) -> usize {
    // SAFETY: as promised by the caller.
    unsafe { run::<Table16, 4>(pass) }
}

#[derive(Clone, Copy)]
struct Table16(uint8x16_t);

// SAFETY of all methods: called only from `neon`, with pointers valid for 16 bytes.
impl Lanes for Table16 {
    const BYTES: usize = 16;
    /// Products of low and of high nibbles.
    type Factor = (uint8x16_t, uint8x16_t);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        unsafe { Self(vdupq_n_u8(0)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: see above.
        unsafe { Self(vld1q_u8(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { Self(veorq_u8(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> Self::Factor {
        let table = NIBBLES[usize::from(coefficient)].as_ptr();
        // SAFETY: the table has 32 bytes; see above.
        unsafe { (vld1q_u8(table), vld1q_u8(table.add(16))) }
    }

    #[inline(always)]
    unsafe fn times(self, (low, high): Self::Factor) -> Self {
        // SAFETY: see above.
        unsafe {
            let low = vqtbl1q_u8(low, vandq_u8(self.0, vdupq_n_u8(0x0f)));
            Self(veorq_u8(low, vqtbl1q_u8(high, vshrq_n_u8::<4>(self.0))))
        }
    }
}
