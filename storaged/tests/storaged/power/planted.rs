//! Mistakes that an engine could make, planted between a sound engine and the drive: the simulator
//! must find each.

use super::drive::ready;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use weft_net::AlignedBuf;
use weft_storaged::engine::{Device, Done};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// Acknowledges before the flush: there is none.
    NoFlush,
    /// Acknowledges when the index record is durable and the data is only written.
    RecordOnly,
    /// The index record is durable before the data is written. That does no harm: what was not
    /// acknowledged is looked at when a target is opened.
    RecordFirst,
    /// Each block has the checksum of its neighbour.
    WrongChecksum,
}

/// A drive behind which an engine makes a mistake.
pub struct Planted {
    pub drive: Arc<dyn Device>,
    pub mistake: Mistake,
    /// Data that waits for the next record.
    pub held: Mutex<Vec<(u64, Bytes)>>,
}

impl Planted {
    pub fn new(drive: Arc<dyn Device>, mistake: Mistake) -> Arc<Self> {
        Arc::new(Self { drive, mistake, held: Mutex::default() })
    }

    fn record_first(&self, off: u64, record: Bytes) -> Done<()> {
        let (done, outcome) = Done::channel();
        let held = std::mem::take(&mut *self.held.lock());
        let (drive, flushes) = (self.drive.clone(), self.mistake == Mistake::RecordFirst);
        std::thread::spawn(move || {
            let mut result = drive.commit(off, record).block();
            for (off, data) in held {
                result = result.and(drive.write(off, vec![data]).block());
            }
            if flushes {
                result = result.and(drive.flush().block());
            }
            drop(done.send(result));
        });
        outcome
    }
}

impl Device for Planted {
    fn size(&self) -> u64 {
        self.drive.size()
    }

    fn read(&self, off: u64, len: usize) -> Done<AlignedBuf> {
        self.drive.read(off, len)
    }

    fn discard_rate(&self) -> u64 {
        self.drive.discard_rate()
    }

    fn discard(&self, off: u64, len: u64) -> std::io::Result<()> {
        self.drive.discard(off, len)
    }

    fn write(&self, off: u64, pieces: Vec<Bytes>) -> Done<()> {
        match self.mistake {
            Mistake::NoFlush => self.drive.write(off, pieces),
            Mistake::RecordOnly | Mistake::RecordFirst => {
                self.held.lock().push((off, pieces.concat().into()));
                ready(Ok(()))
            }
            Mistake::WrongChecksum => {
                self.drive.write(off, vec![shift_checksums(pieces.concat()).into()])
            }
        }
    }

    fn commit(&self, off: u64, piece: Bytes) -> Done<()> {
        match self.mistake {
            Mistake::NoFlush => self.drive.write(off, vec![piece]),
            Mistake::RecordOnly | Mistake::RecordFirst => self.record_first(off, piece),
            Mistake::WrongChecksum => self.drive.commit(off, piece),
        }
    }

    fn flush(&self) -> Done<()> {
        match self.mistake {
            Mistake::NoFlush => ready(Ok(())),
            _ => self.drive.flush(),
        }
    }
}

/// A chunk whose header (see `engine/header.rs`) has its checksums one block off.
fn shift_checksums(mut bytes: Vec<u8>) -> Vec<u8> {
    const CRC: std::ops::Range<usize> = 16..20;
    const LENGTH: usize = 24 + 17 + 8;
    if !bytes.starts_with(b"WEFTCHK\n") {
        return bytes;
    }
    let length = u64::from_le_bytes(bytes[LENGTH..LENGTH + 8].try_into().expect("eight bytes"));
    let extents = usize::from(bytes[LENGTH + 8]);
    let sums = LENGTH + 9 + extents * 12;
    let end = sums + length as usize / 4096 * 4;
    bytes[sums..end].rotate_left(4);
    bytes[CRC].fill(0);
    let crc = crc32fast::hash(&bytes[..4096]);
    bytes[CRC].copy_from_slice(&crc.to_le_bytes());
    bytes
}
