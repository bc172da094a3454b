//! A card whose other side a test plays: it sees what was sent, and says what comes.

use super::connection::{Connection, Side};
use super::memory::Domain;
use super::nic::{Completion, Done, Keys, Local, Nic, QueuePair};
use super::wire::{FRAGMENT, Kind, PIECE, PLACES, PREFIX, Payload, Piece, Places, Prefix};
use crate::frame::{HEADER_LEN, Header};
use crate::sync::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

#[derive(Clone)]
pub(super) struct Script(Arc<Mutex<Played>>);

#[derive(Default)]
struct Played {
    /// Lengths of the memory that it knows, by key.
    known: HashMap<u32, usize>,
    keys: u32,
    /// Takes so much memory for messages.
    room: usize,
    receives: VecDeque<(u64, Local)>,
    ended: Vec<Completion>,
    /// What has come of frames, and messages with parts of them that were not told of as taken.
    frames: Vec<u8>,
    owed: u16,
    refuses: bool,
    destroyed: bool,
}

/// A frame, as the other side sees it.
#[derive(Debug)]
pub(super) struct Seen {
    pub header: Header,
    pub payload: Payload,
    pub landings: Vec<Piece>,
}

impl Script {
    /// Takes so much memory for messages.
    pub fn new(room: usize) -> Self {
        Self(Arc::new(Mutex::new(Played { room, ..Played::default() })))
    }

    pub fn connection(&self, side: Side) -> io::Result<Arc<Connection>> {
        let domain = Domain::new(Box::new(self.clone()))?;
        Connection::new(Box::new(self.clone()), domain, side)
    }

    /// From now on it refuses to send and to write.
    pub fn refuse(&self) {
        self.0.lock().refuses = true;
    }

    /// A message comes.
    pub fn say(&self, kind: Kind, credits: u16, rest: &[u8]) {
        let mut played = self.0.lock();
        let (id, into) = played.receives.pop_front().expect("there is memory for it");
        let message = [&Prefix { kind, credits }.encode()[..], rest].concat();
        assert!(message.len() <= into.len.min(FRAGMENT));
        // SAFETY: it was given for this, and is kept until the completion was polled.
        unsafe { into.start.copy_from(message.as_ptr(), message.len()) };
        played.ended.push(Completion { id, done: Done::Received(message.len()) });
    }

    /// Says that so many messages were taken, if there are as many. Answers how many it was.
    pub fn give_credits(&self, most: u16) -> u16 {
        let mut played = self.0.lock();
        let credits = played.owed.min(most);
        played.owed -= credits;
        drop(played);
        if credits > 0 {
            self.say(Kind::Credits, credits, &[]);
        }
        credits
    }

    /// The frames that have come whole since this was last asked.
    pub fn seen(&self) -> Vec<Seen> {
        let mut played = self.0.lock();
        let (mut seen, mut at) = (Vec::new(), 0);
        while let Some(header) = played.frames[at..].first_chunk::<HEADER_LEN>() {
            let header = Header::decode(header).expect("a frame begins here");
            let Some(places) = played.frames[at + HEADER_LEN..].first_chunk::<PLACES>() else {
                break;
            };
            let places = Places::decode(*places).unwrap();
            let pieces = at + HEADER_LEN + PLACES;
            let inline = match places.payload {
                Payload::Follows => header.payload_len as usize,
                Payload::ToBeRead | Payload::Written => 0,
            };
            let end = pieces + places.pieces_len() + header.head_len as usize + inline;
            if played.frames.len() < end {
                break;
            }
            let landings = pieces + usize::from(places.sources) * PIECE;
            let all = &played.frames[landings..pieces + places.pieces_len()];
            let landings = Piece::decode_all(all).unwrap();
            seen.push(Seen { header, payload: places.payload, landings });
            at = end;
        }
        played.frames.drain(..at);
        seen
    }

    /// Lengths of the memory that it knows.
    pub fn known(&self) -> Vec<usize> {
        self.0.lock().known.values().copied().collect()
    }

    pub fn is_destroyed(&self) -> bool {
        self.0.lock().destroyed
    }
}

impl Played {
    fn accepts(&self) -> io::Result<()> {
        assert!(!self.destroyed, "posted to what was destroyed");
        if self.refuses { Err(io::Error::other("the card refuses it")) } else { Ok(()) }
    }
}

impl Nic for Script {
    fn register(&self, _start: *mut u8, len: usize) -> io::Result<Keys> {
        let mut played = self.0.lock();
        played.keys += 1;
        let key = played.keys;
        played.known.insert(key, len);
        Ok(Keys { local: key, remote: key, handle: 0 })
    }

    fn deregister(&self, keys: Keys) {
        let known = self.0.lock().known.remove(&keys.local);
        assert!(known.is_some(), "memory that was forgotten before");
    }
}

// SAFETY: it uses memory only in the calls that post it, and that for messages until it was filled.
unsafe impl QueuePair for Script {
    fn send(&self, id: u64, message: Local) -> io::Result<()> {
        // SAFETY: who posts it keeps it.
        let bytes = unsafe { std::slice::from_raw_parts(message.start, message.len) };
        let mut played = self.0.lock();
        played.accepts()?;
        if Prefix::decode(bytes).unwrap().kind == Kind::Frames {
            assert!(bytes.len() > PREFIX, "a message with nothing in it");
            played.frames.extend_from_slice(&bytes[PREFIX..]);
            played.owed += 1;
        }
        played.ended.push(Completion { id, done: Done::Sent });
        Ok(())
    }

    fn write(&self, id: u64, _: Local, _: Piece, told: bool) -> io::Result<()> {
        let mut played = self.0.lock();
        played.accepts()?;
        if told {
            played.ended.push(Completion { id, done: Done::Written });
        }
        Ok(())
    }

    fn read(&self, id: u64, _: Local, _: Piece) -> io::Result<()> {
        self.0.lock().ended.push(Completion { id, done: Done::Read });
        Ok(())
    }

    fn receive(&self, id: u64, into: Local) -> io::Result<()> {
        let mut played = self.0.lock();
        if played.receives.len() >= played.room {
            return Err(io::Error::other("more memory for messages than it takes"));
        }
        played.receives.push_back((id, into));
        Ok(())
    }

    fn poll(&self, ended: &mut Vec<Completion>) -> io::Result<()> {
        ended.append(&mut self.0.lock().ended);
        Ok(())
    }

    fn arm(&self) -> io::Result<()> {
        Ok(())
    }

    fn poll_event(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn reads(&self) -> usize {
        1
    }

    fn disconnect(&self) {}

    fn destroy(&self) {
        self.0.lock().destroyed = true;
    }
}
