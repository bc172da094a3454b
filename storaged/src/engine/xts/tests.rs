//! Vectors 10 to 14 of IEEE 1619, whose data units have 512 bytes: with one key and number a longer
//! unit begins with the same bytes. The rest of each block by another implementation (OpenSSL).

use super::*;
use proptest::prelude::*;

const KEYS: [u8; 64] = [
    0x27, 0x18, 0x28, 0x18, 0x28, 0x45, 0x90, 0x45, 0x23, 0x53, 0x60, 0x28, 0x74, 0x71, 0x35, 0x26,
    0x62, 0x49, 0x77, 0x57, 0x24, 0x70, 0x93, 0x69, 0x99, 0x59, 0x57, 0x49, 0x66, 0x96, 0x76, 0x27,
    0x31, 0x41, 0x59, 0x26, 0x53, 0x58, 0x97, 0x93, 0x23, 0x84, 0x62, 0x64, 0x33, 0x83, 0x27, 0x95,
    0x02, 0x88, 0x41, 0x97, 0x16, 0x93, 0x99, 0x37, 0x51, 0x05, 0x82, 0x09, 0x74, 0x94, 0x45, 0x92,
];

/// Number of the data unit; its first and last 16 of 512 bytes; the last 16 of 4096, and the
/// CRC-32 of all.
const VECTORS: [(u64, u128, u128, u128, u32); 5] = [
    (
        0xff,
        0x1c3b_3a10_2f77_0386_e483_6c99_e370_cf9b,
        0xc4f3_6ffd_a9fc_ea70_b9c6_e693_e148_c151,
        0x8e47_d105_a13e_45d6_be6e_ea1d_496d_bfd5,
        0x9cb1_3fd7,
    ),
    (
        0xffff,
        0x77a3_1251_618a_15e6_b92d_1d66_dffe_7b50,
        0xa4f9_e27b_42af_8100_cb9d_59ce_f964_5803,
        0x05d1_de87_c5a1_89fc_fefc_60b7_6e63_59b2,
        0x424b_2b97,
    ),
    (
        0xff_ffff,
        0xe387_aaa5_8ba4_83af_a7e8_eb46_9778_317e,
        0x2263_a1ee_f52d_d688_8c30_9f5a_7d71_2826,
        0xc363_9872_2355_d832_dca4_2bbd_582a_8d8c,
        0xbf91_9d09,
    ),
    (
        0xffff_ffff,
        0xbf53_d2da_de78_e822_a4d9_49a9_bc67_66b0,
        0x4c82_f335_abb1_52c4_a934_1137_3aaa_8220,
        0xa8f6_7c2d_3582_ee0a_3aa6_e541_64c4_6b10,
        0xcc2c_a085,
    ),
    (
        0xff_ffff_ffff,
        0x6449_7e5a_831e_4a93_2c09_be3e_5393_376d,
        0xd609_d273_ad5b_0d59_631c_531f_6a0a_57b9,
        0xcf4e_bfcb_7017_4944_e5da_2ddc_5e18_35d9,
        0x6b5d_08a1,
    ),
];

#[test]
fn blocks_are_encrypted_as_the_standard_says() {
    let xts = Xts::new(&KEYS);
    let plain: Block = std::array::from_fn(|n| n as u8);
    for (number, first, last, end, crc) in VECTORS {
        let mut block = [0; 4096];
        xts.encrypt(number, &plain, &mut block);
        assert_eq!(block[..16], first.to_be_bytes(), "{number:x}");
        assert_eq!(block[496..512], last.to_be_bytes(), "{number:x}");
        assert_eq!(block[4080..], end.to_be_bytes(), "{number:x}");
        assert_eq!(crc32fast::hash(&block), crc, "{number:x}");
        xts.decrypt(number, &mut block);
        assert!(block == plain, "{number:x}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn what_was_encrypted_comes_back(key: [[u8; 32]; 2], number: u64, seed: [u8; 32]) {
        let xts = Xts::new(&key.concat().try_into().unwrap());
        let plain: Block = std::array::from_fn(|n| seed[n % 32] ^ (n / 32) as u8);
        let mut block = [0; 4096];
        xts.encrypt(number, &plain, &mut block);
        prop_assert!(block != plain);
        let here = block;
        xts.decrypt(number, &mut block);
        prop_assert!(block == plain);
        // Elsewhere it says nothing.
        block = here;
        xts.decrypt(number ^ 1, &mut block);
        let mut pairs = block.as_chunks::<16>().0.iter().zip(plain.as_chunks::<16>().0);
        prop_assert!(pairs.all(|(a, b)| a != b));
    }
}
