//! Arithmetic of GF(2^8) with polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), from tables that the
//! compiler computes.

const POLYNOMIAL: u16 = 0x11d;

/// `PRODUCT[a][b]` is a * b.
pub static PRODUCT: [[u8; 256]; 256] = {
    let mut table = [[0; 256]; 256];
    let mut a = 0;
    while a < 256 {
        let mut b = 0;
        while b < 256 {
            table[a][b] = multiply(a as u8, b as u8);
            b += 1;
        }
        a += 1;
    }
    table
};

/// `INVERSE[a]` is 1 / a; entry 0 means nothing.
pub static INVERSE: [u8; 256] = {
    // a^254 = a^-1, as a^255 = 1.
    let mut table = [0; 256];
    let mut a = 1;
    while a < 256 {
        table[a] = power(a as u8, 254);
        a += 1;
    }
    table
};

/// `AFFINE[c]` is multiplication by c as the 8x8 bit matrix that GFNI's affine transform takes.
pub static AFFINE: [u64; 256] = {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        table[c] = bit_matrix(c as u8);
        c += 1;
    }
    table
};

/// `NIBBLES[c]` holds c * n for n in 0..16, then c * 16n: a product is two 16-entry lookups.
pub static NIBBLES: [[u8; 32]; 256] = {
    let mut table = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut n = 0;
        while n < 16 {
            table[c][n] = multiply(c as u8, n as u8);
            table[c][16 + n] = multiply(c as u8, (n << 4) as u8);
            n += 1;
        }
        c += 1;
    }
    table
};

/// a * b.
pub fn product(a: u8, b: u8) -> u8 {
    PRODUCT[usize::from(a)][usize::from(b)]
}

/// a * b by shift and add: what the tables are made from.
const fn multiply(a: u8, b: u8) -> u8 {
    let (mut sum, mut term, mut bits) = (0u16, a as u16, b);
    while bits != 0 {
        if bits & 1 != 0 {
            sum ^= term;
        }
        term <<= 1;
        if term & 0x100 != 0 {
            term ^= POLYNOMIAL;
        }
        bits >>= 1;
    }
    sum as u8
}

/// a^n.
pub const fn power(a: u8, n: u32) -> u8 {
    let (mut result, mut i) = (1, 0);
    while i < n {
        result = multiply(result, a);
        i += 1;
    }
    result
}

/// Output bit i is the parity of (byte 7-i of the matrix) AND input, so bit j of that byte says
/// whether input bit j, whose product is c * 2^j, reaches output bit i.
const fn bit_matrix(c: u8) -> u64 {
    let (mut matrix, mut j) = (0u64, 0);
    while j < 8 {
        let column = multiply(c, 1 << j);
        let mut i = 0;
        while i < 8 {
            if column >> i & 1 != 0 {
                matrix |= 1 << ((7 - i) * 8 + j);
            }
            i += 1;
        }
        j += 1;
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nonzero_element_has_an_inverse_and_two_generates_the_field() {
        for a in 1..=255u8 {
            assert_eq!(product(a, INVERSE[usize::from(a)]), 1);
        }
        assert!((1..255).all(|n| power(2, n) != 1));
        assert_eq!(power(2, 255), 1);
    }

    #[test]
    fn products_distribute_over_sums() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(product(a, b), product(b, a));
                assert_eq!(product(a, b ^ 0x53), product(a, b) ^ product(a, 0x53));
            }
        }
    }

    #[test]
    fn nibble_and_bit_tables_agree_with_products() {
        for c in 0..256 {
            for x in 0..256 {
                let want = PRODUCT[c][x];
                assert_eq!(NIBBLES[c][x & 15] ^ NIBBLES[c][16 + (x >> 4)], want);
                let affine = (0..8).fold(0u8, |y, i| {
                    let row = (AFFINE[c] >> ((7 - i) * 8)) as u8;
                    y | ((row & x as u8).count_ones() as u8 & 1) << i
                });
                assert_eq!(affine, want);
            }
        }
    }
}
