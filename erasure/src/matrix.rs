//! The generator, and the coefficients that rebuild lost shards from present ones.

use crate::field::{INVERSE, power, product};
use weft_proto::layout::{MAX_K, MAX_M};

pub const COLS: usize = MAX_K as usize;
pub const ROWS: usize = MAX_M as usize;

/// `GENERATOR[i][j]` is the coefficient of data shard j in parity shard i: 2^(i*j).
pub static GENERATOR: [[u8; COLS]; ROWS] = {
    let mut generator = [[0; COLS]; ROWS];
    let mut i = 0;
    while i < ROWS {
        let mut j = 0;
        while j < COLS {
            generator[i][j] = power(2, (i * j) as u32);
            j += 1;
        }
        i += 1;
    }
    generator
};

/// What a kernel multiplies by: destination r is the sum over c of `rows[r][c] * source[c]`.
pub type Coefficients = [[u8; COLS]; ROWS];

/// Inverts the leading `n` x `n` corner of a small matrix; `None` if it is singular.
pub fn invert(mut a: [[u8; ROWS]; ROWS], n: usize) -> Option<[[u8; ROWS]; ROWS]> {
    let mut inverse = [[0; ROWS]; ROWS];
    for (i, row) in inverse.iter_mut().enumerate().take(n) {
        row[i] = 1;
    }
    for pivot in 0..n {
        let at = (pivot..n).find(|&r| a[r][pivot] != 0)?;
        a.swap(pivot, at);
        inverse.swap(pivot, at);
        let scale = INVERSE[usize::from(a[pivot][pivot])];
        for c in 0..n {
            a[pivot][c] = product(a[pivot][c], scale);
            inverse[pivot][c] = product(inverse[pivot][c], scale);
        }
        for r in (0..n).filter(|&r| r != pivot) {
            let factor = a[r][pivot];
            for c in 0..n {
                a[r][c] ^= product(factor, a[pivot][c]);
                inverse[r][c] ^= product(factor, inverse[pivot][c]);
            }
        }
    }
    Some(inverse)
}

/// Which shards a reconstruction reads, and how it weighs them.
pub struct Decoder {
    k: usize,
    /// The k shards that are read: data shards, then as many parity shards as data was lost.
    sources: [u8; COLS],
    /// Lost data shards; the first `losses` count.
    lost: [u8; ROWS],
    losses: usize,
    /// Inverse of the generator's corner (chosen parity x lost data).
    inverse: [[u8; ROWS]; ROWS],
}

impl Decoder {
    /// Chooses k of the present shards, data first, then parity with XOR before the others, as
    /// they cost least. `None` when fewer than k are present.
    pub fn choose(k: u8, width: u8, present: impl Fn(u8) -> bool) -> Option<Self> {
        let mut sources = [0; COLS];
        let chosen = (0..width).filter(|&shard| present(shard)).take(usize::from(k));
        let count = sources.iter_mut().zip(chosen).map(|(to, shard)| *to = shard).count();
        if count < usize::from(k) {
            return None;
        }
        let mut lost = [0; ROWS];
        let losses = sources[..count].iter().filter(|&&shard| shard >= k).count();
        for (to, shard) in lost.iter_mut().zip((0..k).filter(|&shard| !present(shard))) {
            *to = shard;
        }
        let mut corner = [[0; ROWS]; ROWS];
        for (row, &shard) in corner.iter_mut().zip(&sources[count - losses..count]) {
            for (entry, &j) in row.iter_mut().zip(&lost[..losses]) {
                *entry = GENERATOR[usize::from(shard - k)][usize::from(j)];
            }
        }
        let inverse = invert(corner, losses)?;
        Some(Self { k: count, sources, lost, losses, inverse })
    }

    /// The shards to read, in the order of the coefficients.
    pub fn sources(&self) -> &[u8] {
        &self.sources[..self.k]
    }

    /// Coefficients that give a lost shard from the sources.
    pub fn row(&self, shard: u8) -> [u8; COLS] {
        let shard = usize::from(shard);
        if let Some(i) = self.lost().position(|j| j == shard) {
            return self.lost_row(i);
        }
        // A parity is its generator row with every lost data shard replaced by that shard's row.
        let generator = &GENERATOR[shard - self.k];
        let mut row = self.kept(generator);
        for (i, j) in self.lost().enumerate() {
            for (entry, part) in row.iter_mut().zip(self.lost_row(i)) {
                *entry ^= product(generator[j], part);
            }
        }
        row
    }

    /// lost = inverse * (parity - generator * kept), written as one row over all sources.
    fn lost_row(&self, i: usize) -> [u8; COLS] {
        let mut row = [0; COLS];
        let first = self.k - self.losses;
        for (p, &factor) in self.inverse[i].iter().enumerate().take(self.losses) {
            let parity = usize::from(self.sources[first + p]) - self.k;
            for (entry, part) in row.iter_mut().zip(self.kept(&GENERATOR[parity])) {
                *entry ^= product(factor, part);
            }
            row[first + p] = factor;
        }
        row
    }

    /// The part of a generator row that falls on data shards among the sources.
    fn kept(&self, generator: &[u8; COLS]) -> [u8; COLS] {
        let mut row = [0; COLS];
        for (entry, &j) in row.iter_mut().zip(&self.sources[..self.k - self.losses]) {
            *entry = generator[usize::from(j)];
        }
        row
    }

    fn lost(&self) -> impl Iterator<Item = usize> + '_ {
        self.lost[..self.losses].iter().map(|&j| usize::from(j))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Subsets of `0..n` with `size` members.
    fn subsets(n: usize, size: usize) -> Vec<Vec<usize>> {
        (0u32..1 << n)
            .filter(|s| s.count_ones() as usize == size)
            .map(|s| (0..n).filter(|i| s >> i & 1 != 0).collect())
            .collect()
    }

    /// Any k of the k+m rows of (identity over generator) are independent if and only if every
    /// square submatrix of the generator is invertible. The generator for fewer shards is a
    /// prefix of this one, so this covers every k <= 20 and m <= 4.
    #[test]
    fn every_square_submatrix_is_invertible() {
        for size in 1..=ROWS {
            for cols in subsets(COLS, size) {
                for rows in subsets(ROWS, size) {
                    let mut a = [[0; ROWS]; ROWS];
                    for (i, &r) in rows.iter().enumerate() {
                        for (j, &c) in cols.iter().enumerate() {
                            a[i][j] = GENERATOR[r][c];
                        }
                    }
                    let inverse = invert(a, size).unwrap_or_else(|| panic!("{rows:?} {cols:?}"));
                    for (i, row) in a.iter().enumerate().take(size) {
                        for j in 0..size {
                            let terms = row.iter().zip(&inverse).map(|(&x, y)| product(x, y[j]));
                            assert_eq!(terms.fold(0, |s, t| s ^ t), u8::from(i == j));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn singular_matrices_are_refused() {
        assert!(invert([[3, 3, 0, 0], [3, 3, 0, 0], [0; 4], [0; 4]], 2).is_none());
        assert!(invert([[0; 4]; 4], 1).is_none());
    }

    #[test]
    fn first_parity_is_xor() {
        assert_eq!(GENERATOR[0], [1; COLS]);
    }
}
