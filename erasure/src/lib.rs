//! Erasure coding and checksums: pure functions over byte slices, no I/O, no allocation on the
//! coding path.
//!
//! The code is systematic Reed-Solomon over GF(2^8) (polynomial 0x11d) with one fixed generator:
//! parity `i` is the sum of `2^(i*j) * data[j]`. So parity 0 is plain XOR, parities 0 and 1 are
//! RAID-6's P and Q, the bytes equal those of ISA-L's `gf_gen_rs_matrix`, and a generator of fewer
//! data shards is a prefix of a larger one: a missing shard and a shard of zeros encode alike.
//!
//! Invariants: any k of the k+m shards give the others back, for every k <= [`MAX_K`] and
//! m <= [`MAX_M`] (proved by a test over all square submatrices); every kernel gives the bytes of
//! the scalar one. The generator is disk format: never change it.
//!
//! [`MAX_K`]: weft_proto::layout::MAX_K
//! [`MAX_M`]: weft_proto::layout::MAX_M

mod checksum;
mod codec;
mod field;
mod kernel;
mod matrix;
#[cfg(test)]
#[path = "../../tests/src/not_tested.rs"]
mod not_tested;
mod segment;

pub use checksum::{block_checksums, checksum_blocks, verify_blocks};
pub use codec::Codec;
pub use kernel::Kernel;
pub use segment::encode_segment;
