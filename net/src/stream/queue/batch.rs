//! Frames that are written together.

use super::waiting::Waiting;
use crate::frame::millis_left;
use crate::transport::User;
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::IoSlice;
use tokio::time::Instant;

/// Pieces up to this length are copied: cheaper than a reference and an entry of the vector.
const GATHER: usize = 1024;
/// A gathered run that grew beyond this is given back after use.
const KEEP: usize = 256 << 10;

/// Headers, heads and payloads in the order in which they leave.
#[derive(Default)]
pub(super) struct Batch {
    /// Headers and small pieces.
    gathered: Vec<u8>,
    /// Written so far of `gathered`.
    at: usize,
    /// Large pieces, each with its place: the offset in `gathered` before which it comes.
    pieces: VecDeque<(usize, Bytes)>,
    /// Frames with a cost, and the sum of their costs.
    costly: usize,
    cost: usize,
}

impl Batch {
    /// Adds a frame, which says how much time its caller has left now.
    pub fn add(&mut self, frame: Waiting, now: Instant) {
        let Waiting { mut header, head, payload, until, cost } = frame;
        if let Some(until) = until {
            header.deadline_ms = millis_left(until, now);
        }
        self.gathered.extend_from_slice(&header.encode());
        self.push(head);
        payload.into_iter().for_each(|piece| self.push(piece));
        self.costly += usize::from(cost.is_some());
        self.cost += cost.unwrap_or(0);
    }

    /// Tells that its frames have left, or never will.
    pub fn leave(&mut self, user: &dyn User) {
        let (frames, cost) = (std::mem::take(&mut self.costly), std::mem::take(&mut self.cost));
        if frames > 0 {
            user.left(frames, cost);
        }
    }

    fn push(&mut self, piece: Bytes) {
        if piece.len() <= GATHER {
            self.gathered.extend_from_slice(&piece);
        } else {
            self.pieces.push_back((self.gathered.len(), piece));
        }
    }

    pub fn clear(&mut self) {
        self.gathered.clear();
        self.gathered.shrink_to(KEEP);
        self.pieces.clear();
        (self.at, self.costly, self.cost) = (0, 0, 0);
    }

    /// The gathered bytes up to the next large piece.
    fn run(&self) -> &[u8] {
        let end = self.pieces.front().map_or(self.gathered.len(), |(place, _)| *place);
        &self.gathered[self.at..end]
    }
}

impl Buf for Batch {
    fn remaining(&self) -> usize {
        self.gathered.len() - self.at + self.pieces.iter().map(|(_, p)| p.len()).sum::<usize>()
    }

    fn has_remaining(&self) -> bool {
        self.at < self.gathered.len() || !self.pieces.is_empty()
    }

    fn chunk(&self) -> &[u8] {
        match (self.run(), self.pieces.front()) {
            ([], Some((_, piece))) => piece,
            (run, _) => run,
        }
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        let (mut n, mut at) = (0, self.at);
        let ends = self.pieces.iter().map(|(place, piece)| (*place, &piece[..]));
        for (place, piece) in ends.chain([(self.gathered.len(), &[][..])]) {
            for slice in [&self.gathered[at..place], piece] {
                if n == dst.len() {
                    return n;
                }
                if !slice.is_empty() {
                    dst[n] = IoSlice::new(slice);
                    n += 1;
                }
            }
            at = place;
        }
        n
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let run = self.run().len();
            if run > 0 {
                let n = run.min(count);
                self.at += n;
                count -= n;
                continue;
            }
            let Some((_, piece)) = self.pieces.front_mut() else {
                panic!("advanced {count} bytes beyond the end of a batch")
            };
            let n = piece.len().min(count);
            piece.advance(n);
            count -= n;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}
