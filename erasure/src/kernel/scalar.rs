//! The inner loop in plain Rust: the reference, the tail of the others, and the fallback.

use crate::field::PRODUCT;
use crate::matrix::Coefficients;
use std::ops::Range;

/// See [`super::Kernel::apply`].
pub fn apply(
    coefficients: &Coefficients,
    sources: &[&[u8]],
    out: &mut [&mut [u8]],
    range: Range<usize>,
) {
    for (row, destination) in coefficients.iter().zip(out.iter_mut()) {
        let destination = &mut destination[range.clone()];
        destination.fill(0);
        for (&coefficient, source) in row.iter().zip(sources) {
            add(coefficient, &source[range.clone()], destination);
        }
    }
}

fn add(coefficient: u8, source: &[u8], destination: &mut [u8]) {
    let products = &PRODUCT[usize::from(coefficient)];
    if coefficient == 1 {
        destination.iter_mut().zip(source).for_each(|(d, s)| *d ^= s);
    } else {
        destination.iter_mut().zip(source).for_each(|(d, &s)| *d ^= products[usize::from(s)]);
    }
}
