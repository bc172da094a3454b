//! A drive in memory, which loses what was not flushed when the power is cut, and errs when it is
//! read.

use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_net::AlignedBuf;
use weft_proto::Uuid;
use weft_storaged::engine::{Device, Done, Superblock};

/// Bytes of a target: small, so that its journal wraps and its index is found too old now and then.
const SIZE: u64 = 4 << 20;
const JOURNAL: u64 = 64;
const BLOCK: usize = 4096;
/// Blocks that rot at once, of all there are.
const ROTTEN: usize = 100;

/// A drive in memory.
pub struct Disk {
    state: Mutex<State>,
    /// Which daemon may use it: those that were killed may not.
    generation: AtomicU64,
}

struct State {
    image: Vec<u8>,
    superblock: Superblock,
    /// What unflushed writes covered, in their order.
    unflushed: Vec<(usize, Vec<u8>)>,
    /// One read in so many fails; 0: none.
    bad_reads: u32,
    random: SmallRng,
}

/// The disk as one daemon has it.
pub struct Drive {
    disk: Arc<Disk>,
    generation: u64,
}

impl Disk {
    pub fn blank(random: &mut SmallRng) -> Self {
        let state = Mutex::new(State::blank(random));
        Self { state, generation: AtomicU64::new(0) }
    }

    /// Nobody has it any more, and of what was not flushed nothing is left.
    pub fn cut_power(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        let state = &mut *lock(&self.state);
        while let Some((off, before)) = state.unflushed.pop() {
            state.image[off..off + before.len()].copy_from_slice(&before);
        }
    }

    /// One read in `every` fails from now on; 0: all succeed.
    pub fn fail_reads(&self, every: u32) {
        lock(&self.state).bad_reads = every;
    }

    /// Some blocks with data are other bytes from now on.
    pub fn rot(&self) {
        let state = &mut *lock(&self.state);
        let first = state.superblock.data_block as usize;
        for _ in 0..ROTTEN {
            let block = state.random.random_range(first..SIZE as usize / BLOCK - 1);
            let at = block * BLOCK + state.random.random_range(0..BLOCK);
            // Blocks that were never written are left as they are.
            if state.image[block * BLOCK..][..BLOCK].iter().any(|byte| *byte != 0) {
                state.image[at] ^= 1 << state.random.random_range(0..8);
            }
        }
    }

    /// Nobody has it any more, and it is blank.
    pub fn replace(&self, random: &mut SmallRng) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        *lock(&self.state) = State::blank(random);
    }
}

impl State {
    fn blank(random: &mut SmallRng) -> Self {
        let superblock = Superblock {
            uuid: Uuid(random.random()),
            salt: random.random(),
            journal_blocks: JOURNAL,
            data_block: 1 + JOURNAL,
            ..Superblock::new(SIZE)
        };
        let mut image = vec![0; SIZE as usize];
        let encoded = superblock.encode();
        image[..4096].copy_from_slice(encoded.as_ref());
        image[SIZE as usize - 4096..].copy_from_slice(encoded.as_ref());
        let random = SmallRng::seed_from_u64(random.random());
        Self { image, superblock, unflushed: Vec::new(), bad_reads: 0, random }
    }

    fn write(&mut self, off: u64, pieces: &[Bytes]) {
        let mut at = off as usize;
        for piece in pieces {
            let covered = &mut self.image[at..at + piece.len()];
            self.unflushed.push((at, covered.to_vec()));
            covered.copy_from_slice(piece);
            at += piece.len();
        }
    }
}

impl Drive {
    /// The disk for another daemon, with its superblock as the engine has written it last.
    pub fn attach(disk: &Arc<Disk>) -> (Self, Superblock) {
        let generation = disk.generation.load(Ordering::SeqCst);
        let superblock = {
            let state = lock(&disk.state);
            Superblock::decode(&state.image[..4096]).unwrap_or_else(|_| state.superblock.clone())
        };
        (Self { disk: disk.clone(), generation }, superblock)
    }

    /// The drive, unless the daemon that asks is gone.
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = lock(&self.disk.state);
        match self.disk.generation.load(Ordering::SeqCst) == self.generation {
            true => Ok(state),
            false => Err(io::Error::other("the power is off")),
        }
    }

    fn read_now(&self, off: u64, len: usize) -> io::Result<AlignedBuf> {
        let mut state = self.state()?;
        if state.bad_reads > 0 {
            let bad_reads = state.bad_reads;
            if state.random.random_range(0..bad_reads) == 0 {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
        }
        let mut buffer = AlignedBuf::take(len);
        buffer.as_mut_slice().copy_from_slice(&state.image[off as usize..off as usize + len]);
        Ok(buffer)
    }
}

impl Device for Drive {
    fn size(&self) -> u64 {
        SIZE
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn read(&self, off: u64, len: usize) -> Done<AlignedBuf> {
        ready(self.read_now(off, len))
    }

    fn write(&self, off: u64, pieces: Vec<Bytes>) -> Done<()> {
        ready(self.state().map(|mut state| state.write(off, &pieces)))
    }

    fn commit(&self, off: u64, piece: Bytes) -> Done<()> {
        ready(self.state().map(|mut state| {
            state.write(off, &[piece]);
            state.unflushed.clear();
        }))
    }

    fn flush(&self) -> Done<()> {
        ready(self.state().map(|mut state| state.unflushed.clear()))
    }
}

fn ready<T>(result: io::Result<T>) -> Done<T> {
    let (sender, done) = Done::channel();
    // Nobody may wait for it.
    let _ = sender.send(result);
    done
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
