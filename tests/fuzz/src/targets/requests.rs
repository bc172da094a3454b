//! What the kernel asks of a mount.

use weft_fuse::abi::{decode, decode_parts};

/// Bytes of a request's header.
const HEADER: usize = 40;

/// In one piece, as it is read from the device, and in three, as io_uring gives it.
pub fn read(bytes: &[u8]) -> bool {
    let mut whole = bytes.to_vec();
    if let Some(length) = whole.first_chunk_mut() {
        *length = (bytes.len() as u32).to_ne_bytes();
    }
    let good = match decode(&whole) {
        Ok(request) => {
            let told = format!("{request:?}");
            assert!(told.len() < 100 + 20 * bytes.len() * 4, "more than it was given: {told}");
            true
        }
        Err(_) => false,
    };
    if let Some((header, rest)) = whole.split_first_chunk::<HEADER>() {
        let (record, tail) = rest.split_at(rest.len().min(usize::from(header[39])));
        let _ = decode_parts(header, record, tail);
    }
    good
}

/// A request of each kind: two names behind a record of zeros.
pub fn seeds() -> Vec<Vec<u8>> {
    let request = |opcode: u32| {
        let mut bytes = vec![0; HEADER];
        bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
        bytes.resize(HEADER + weft_fuse::abi::operation_len(opcode), 0);
        bytes.extend(b"name\0other\0");
        bytes
    };
    (1..=53).map(request).collect()
}
