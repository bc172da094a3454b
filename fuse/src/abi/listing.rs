//! Listings of directories: records of names, filled up to the length that the kernel asked for.

use super::bytes::Record;
use super::{Answer, Reply};

/// A listing under construction.
pub struct Listing {
    bytes: Vec<u8>,
    limit: usize,
}

impl Listing {
    /// At most `limit` bytes.
    pub fn new(limit: u32) -> Self {
        let limit = limit.min(super::MAX_REQUEST) as usize;
        Self { bytes: Vec::with_capacity(limit), limit }
    }

    /// Adds a name. `cookie` is where to go on after it; `mode` tells the type. Answers whether it
    /// fitted: if not, nothing was added and the kernel asks for it again.
    pub fn add(&mut self, ino: u64, cookie: u64, mode: u32, name: &[u8]) -> bool {
        let mut record = Record::new();
        // `DT_*` are the bits of the mode that tell the type.
        record.u64(ino).u64(cookie).u32(name.len() as u32).u32((mode >> 12) & 0xf);
        let len = record.as_slice().len() + name.len();
        let padded = len.next_multiple_of(8);
        if self.bytes.len() + padded > self.limit {
            return false;
        }
        self.bytes.extend_from_slice(record.as_slice());
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(&[0; 8][..padded - len]);
        true
    }

    pub fn finish(self) -> Answer {
        Ok(Reply::Data(vec![self.bytes.into()]))
    }
}
