//! What is posted to the card, as far as it and the other side have room.

use super::connection::{Connection, OWED, QUIET, SENDS, SLOTS};
use super::state::{Keep, Posted, State};
use super::wire::{FRAGMENT, Kind, PREFIX, Prefix};
use crate::aligned::AlignedBuf;
use std::io;
use tokio::time::Instant;

impl Connection {
    /// Posts whatever the card and the other side have room for.
    pub(super) fn post(&self, state: &mut State) -> io::Result<()> {
        if state.over.is_some() {
            return Ok(());
        }
        while state.queued < SLOTS && state.reading < self.qp.reads() {
            let Some(read) = state.reads.pop_front() else { break };
            let id = state.number();
            self.qp.read(id, read.into, read.from)?;
            state.queued += 1;
            state.reading += 1;
            state.being_read.insert(id, read.fetch);
        }
        if state.credits > 0 && state.queued < SLOTS && !state.frames.is_empty() {
            self.post_frames(state, Instant::now())?;
        }
        if state.closed && state.frames.is_empty() && !state.last_posted {
            let room = state.credits > 0 && state.queued < SLOTS;
            if room {
                state.credits -= 1;
                self.post_bytes(state, Kind::Last, AlignedBuf::take(PREFIX), (0, 0))?;
                state.last_posted = true;
            }
        }
        // The card may be behind with what the other side has taken already.
        if state.owed >= OWED && state.queued < SENDS && !state.last_posted {
            self.post_bytes(state, Kind::Credits, AlignedBuf::take(PREFIX), (0, 0))?;
        }
        Ok(())
    }

    fn post_frames(&self, state: &mut State, now: Instant) -> io::Result<()> {
        while state.credits > 0 && state.queued < SLOTS && state.next_frame(now).is_some() {
            if !self.post_writes(state)? {
                break;
            }
            self.post_message(state, now)?;
        }
        Ok(())
    }

    /// Posts the writes of the frame that is next. False: not all of them yet.
    fn post_writes(&self, state: &mut State) -> io::Result<bool> {
        while let Some((bytes, to)) = state.frames.front_mut().and_then(|f| f.writes.pop_front()) {
            // The message that follows needs a place, too.
            if state.queued + 1 >= SLOTS {
                state.frames.front_mut().expect("it is there").writes.push_front((bytes, to));
                return Ok(false);
            }
            let (from, registered) = self.domain.local(bytes.as_ptr().cast_mut(), bytes.len())?;
            let id = state.number();
            state.quiet += 1;
            let told = state.quiet >= QUIET || state.queued + 2 >= SLOTS;
            self.qp.write(id, from, to, told)?;
            state.queued += 1;
            let keep = Keep {
                _bytes: vec![bytes],
                _registered: registered.into_iter().collect(),
                ..Keep::default()
            };
            state.posted.push_back(Posted { id, frames: 0, cost: 0, _keep: keep });
            if told {
                state.quiet = 0;
            }
        }
        Ok(true)
    }

    /// Posts one message with as much of the next frames as it holds.
    fn post_message(&self, state: &mut State, now: Instant) -> io::Result<()> {
        let mut message = AlignedBuf::take(FRAGMENT);
        let (mut len, mut left) = (PREFIX, (0, 0));
        while len < FRAGMENT {
            let Some(frame) = state.next_frame(now) else { break };
            if !frame.writes.is_empty() {
                // They have to be posted first.
                break;
            }
            let rest = frame.rest(now);
            let some = rest.len().min(FRAGMENT - len);
            message.as_mut_slice()[len..len + some].copy_from_slice(&rest[..some]);
            len += some;
            frame.at += some;
            if frame.at < frame.bytes.len() {
                break;
            }
            if let Some(cost) = frame.cost {
                left = (left.0 + 1, left.1 + cost);
            }
            let id = frame.header.id;
            state.frames.pop_front();
            if let Some(exposed) = state.exposed.get_mut(&id) {
                exposed.asked = true;
            }
        }
        message.set_len(len);
        state.credits -= 1;
        let posted = self.post_bytes(state, Kind::Frames, message, left);
        if posted.is_err() {
            // They do not leave any more.
            state.left = (state.left.0 + left.0, state.left.1 + left.1);
        }
        posted
    }

    fn post_bytes(
        &self,
        state: &mut State,
        kind: Kind,
        mut message: AlignedBuf,
        (frames, cost): (usize, usize),
    ) -> io::Result<()> {
        let credits = std::mem::take(&mut state.owed) as u16;
        message.as_mut_slice()[..PREFIX].copy_from_slice(&Prefix { kind, credits }.encode());
        let len = message.as_ref().len();
        let (local, registered) = self.domain.local(message.as_mut_ptr(), len)?;
        let id = state.number();
        self.qp.send(id, local)?;
        state.queued += 1;
        state.quiet = 0;
        let registered = registered.into_iter().collect();
        let keep = Keep { _buffer: Some(message), _registered: registered, ..Keep::default() };
        state.posted.push_back(Posted { id, frames, cost, _keep: keep });
        Ok(())
    }
}
