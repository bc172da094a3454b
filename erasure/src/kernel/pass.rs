//! The inner loop over vector registers of any instruction set.

use crate::matrix::Coefficients;

/// One call: every source and destination is valid for `len` bytes.
pub struct Pass<'a> {
    pub coefficients: &'a Coefficients,
    pub sources: &'a [*const u8],
    pub out: &'a [*mut u8],
    pub len: usize,
}

/// A vector register of one instruction set. All methods need that set.
pub trait Lanes: Copy {
    const BYTES: usize;
    /// A coefficient in the form that `times` takes.
    type Factor: Copy;
    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn plus(self, other: Self) -> Self;
    unsafe fn factor(coefficient: u8) -> Self::Factor;
    unsafe fn times(self, factor: Self::Factor) -> Self;
}

/// Runs whole steps of a pass and answers the bytes done. To be inlined in a function that
/// enables the instruction set of `V`.
///
/// # Safety
/// The pointers of `pass` are valid for `len` bytes; the processor has the instruction set.
#[inline(always)]
pub unsafe fn run<V: Lanes, const STEP: usize>(pass: &Pass) -> usize {
    let xor_first = pass.coefficients[0][..pass.sources.len()].iter().all(|&c| c == 1);
    // SAFETY: as promised by the caller.
    unsafe {
        match (pass.out.len(), xor_first) {
            (1, true) => rows::<V, STEP, 1, 1>(pass),
            (1, false) => rows::<V, STEP, 1, 0>(pass),
            (2, true) => rows::<V, STEP, 2, 1>(pass),
            (2, false) => rows::<V, STEP, 2, 0>(pass),
            (3, true) => rows::<V, STEP, 3, 1>(pass),
            (3, false) => rows::<V, STEP, 3, 0>(pass),
            (4, true) => rows::<V, STEP, 4, 1>(pass),
            (4, false) => rows::<V, STEP, 4, 0>(pass),
            _ => 0,
        }
    }
}

/// `R` destinations, of which the first `XOR` have only ones as coefficients; `STEP` vectors at a
/// time.
///
/// # Safety
/// As for [`run`]; `pass` has `R` destinations.
#[inline(always)]
unsafe fn rows<V: Lanes, const STEP: usize, const R: usize, const XOR: usize>(
    pass: &Pass,
) -> usize {
    let step = STEP * V::BYTES;
    let done = pass.len - pass.len % step;
    // SAFETY: `at + step <= done <= len` bounds every load and store.
    unsafe {
        for at in (0..done).step_by(step) {
            let mut sums = [[V::zero(); STEP]; R];
            for (j, source) in pass.sources.iter().enumerate() {
                let mut values = [V::zero(); STEP];
                for (i, value) in values.iter_mut().enumerate() {
                    *value = V::load(source.add(at + i * V::BYTES));
                }
                for (r, sum) in sums.iter_mut().enumerate() {
                    if r < XOR {
                        for (sum, value) in sum.iter_mut().zip(values) {
                            *sum = sum.plus(value);
                        }
                    } else {
                        let factor = V::factor(pass.coefficients[r][j]);
                        for (sum, value) in sum.iter_mut().zip(values) {
                            *sum = sum.plus(value.times(factor));
                        }
                    }
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                for (i, sum) in sum.into_iter().enumerate() {
                    sum.store(pass.out[r].add(at + i * V::BYTES));
                }
            }
        }
    }
    done
}
