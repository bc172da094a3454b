//! What all clients saw.

use super::clocks::{elapsed, now};
use super::folders::{Table, differ};
use super::linear::{Call, MAX_CALLS, Op};
use super::names::CLIENTS;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use weft_proto::v1::set_target_request::Action;

pub const REGISTERS: usize = 16;
/// Registers from here on are modes of files, then contents, then those too large for the metadata.
pub const MODES: usize = 4;
/// Those from here on are of files that clients keep open, and may be kept there for a while.
pub const OPEN_MODES: usize = 6;
pub const CONTENTS: usize = 8;
pub const LARGE: usize = 12;
/// Bytes of a large one.
pub const LARGE_LEN: usize = 24_000;

/// Reads that show nothing unexpected are left out from then on, then all; and no more is written.
const MOST_WITH_READS: usize = 64;
const MOST_WITH_WRITES: usize = MAX_CALLS - 28;
const MOST: usize = MAX_CALLS - 10;

/// What an admin is to do.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// About the target that a daemon serves; with a weight in thousandths.
    Target { daemon: usize, action: Action, weight: u32 },
    /// Any other server.
    TransferLeader,
    /// A new server takes the place of another.
    Replace { old: u64, new: u64 },
}

/// What all clients saw.
#[derive(Default)]
pub struct History {
    pub registers: [Vec<Call>; REGISTERS],
    pub made: BTreeSet<String>,
    /// What was appended to the log, and whether that was acknowledged.
    pub appended: BTreeMap<u64, bool>,
    pub folders: Table,
    pub broken: Vec<String>,
    pub answered: u64,
    pub unknown: u64,
    pub clients: [Lives; CLIENTS.len()],
    pub spotlight: Option<Spotlight>,
    /// What the admin has still to do; the first is under way.
    pub orders: VecDeque<Order>,
}

impl History {
    /// Whether all clients have made all their calls.
    pub fn is_over(&self) -> bool {
        self.clients.iter().all(|client| client.is_done)
    }
}

/// What outlives the process of a client, which may be killed and started again.
#[derive(Clone, Default)]
pub struct Lives {
    /// So many have begun.
    pub count: u64,
    /// Calls that were begun.
    pub calls: u64,
    pub is_done: bool,
    pub unsynced: Unsynced,
    /// The same of what goes with the process, or with a session that is over while it is told:
    /// what was not told yet is told in the next session.
    pub untold: Unsynced,
}

impl Lives {
    /// Where calls about a register are noted that prove nothing if what was written is lost.
    pub fn unsure(&self, register: usize) -> &Unsynced {
        if register < OPEN_MODES { &self.untold } else { &self.unsynced }
    }
}

/// What a session that is over has sent takes effect within this, or never.
const LATE: u64 = 60_000_000_000;

/// A write of which nobody has heard how it ended. Whoever dies meanwhile never will.
pub struct Begun {
    history: Option<Shared>,
    unsure: Unsynced,
    register: usize,
    value: u64,
    start: u64,
}

impl Begun {
    /// `unsure`: where reads of it are that prove nothing if it was never done.
    pub fn now(history: &Shared, unsure: &Unsynced, register: usize, value: u64) -> Self {
        let (history, unsure) = (Some(history.clone()), unsure.clone());
        Self { history, unsure, register, value, start: now() }
    }

    /// It has ended, or was given up, which its caller notes. Answers when it began.
    pub fn over(mut self) -> u64 {
        self.history = None;
        self.start
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // Outside of the simulation nothing is judged any more.
        let Some((history, now)) = self.history.take().zip(elapsed()) else { return };
        history.borrow_mut().unknown += 1;
        let lost = Some(now + LATE);
        let call = Call { lost, ..Call::new(Op::Write(self.value), self.start, u64::MAX) };
        let at = note(&history, self.register, call);
        self.unsure.borrow_mut().extend(at.map(|at| (self.register, at)));
    }
}

/// The process of a client has died: of what it had not told, or synced, nobody knows whether it
/// will be.
pub fn died(history: &Shared, of: &Lives) {
    for list in [&of.unsynced, &of.untold] {
        for (register, at) in forgive(history, list, None) {
            let call = &mut history.borrow_mut().registers[register][at];
            call.lost = call.lost.or(Some(now() + LATE));
        }
    }
}

/// Whatever was not synced may have been lost, or take effect at any later time; and so what was
/// read of it there proves nothing. Answers which calls those are.
pub fn forgive(
    history: &Shared,
    unsynced: &Unsynced,
    register: Option<usize>,
) -> Vec<(usize, usize)> {
    let mut history = history.borrow_mut();
    let concerned = |(of, _): &mut (usize, usize)| register.is_none_or(|r| r == *of);
    let gone: Vec<_> = unsynced.borrow_mut().extract_if(.., concerned).collect();
    // Or it was forgiven before, and is still shown to who wrote it.
    let written = |of: usize, value| {
        let mut calls = history.registers[of].iter().enumerate();
        calls.any(|(at, call)| {
            call.op == Op::Write(value) && (call.lost.is_some() || gone.contains(&(of, at)))
        })
    };
    let forgiven = |&&(of, at): &&(usize, usize)| match history.registers[of][at].op {
        Op::Write(_) => true,
        Op::Read(value) => written(of, value),
    };
    let forgiven: Vec<_> = gone.iter().filter(forgiven).copied().collect();
    for &(of, at) in &forgiven {
        let call = &mut history.registers[of][at];
        // Of what was given up nobody knows when it was buffered.
        call.lost = call.lost.or((call.end != u64::MAX).then_some(call.end));
        call.end = u64::MAX;
    }
    forgiven
}

/// The register that all clients turn to for a while, or one of them does alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spotlight {
    pub register: usize,
    pub alone: Option<usize>,
}

pub type Shared = Rc<RefCell<History>>;

/// Calls of one client that prove nothing if its session is declared dead, by register and place in
/// its history: writes that were acknowledged and not synced, and reads meanwhile. What is lost
/// was seen by nobody else.
pub type Unsynced = Rc<RefCell<Vec<(usize, usize)>>>;

/// What a content register holds.
pub fn content(register: usize, value: u64) -> Vec<u8> {
    let len = if register < LARGE { 8 } else { LARGE_LEN };
    let mut bytes: Vec<_> = value.to_be_bytes().into_iter().cycle().take(len).collect();
    // No two blocks are the same.
    let blocks = bytes[8..].chunks_mut(4096).enumerate();
    blocks.for_each(|(number, block)| block[0] ^= number as u8);
    bytes
}

pub fn value_of(register: usize, found: &[u8]) -> Result<u64, String> {
    let Some(first) = found.first_chunk() else {
        return match found.len() {
            0 => Ok(0),
            len => Err(format!("register {register} has {len} bytes")),
        };
    };
    let value = u64::from_be_bytes(*first);
    match differ(found, &content(register, value)) {
        None => Ok(value),
        Some(what) => Err(format!("register {register}, of {value}, {what}")),
    }
}

/// Whether there is room for another write in the register's history, whatever is under way.
pub fn has_room(history: &Shared, register: usize) -> bool {
    history.borrow().registers[register].len() < MOST_WITH_WRITES
}

/// Whether what was read, from `start` on, is older than what was known before. Calls that are
/// still under way may explain it: that is for the checker to say.
pub fn is_older(calls: &[Call], value: u64, start: u64) -> bool {
    let written = calls.iter().find(|call| call.op == Op::Write(value));
    // What got no answer may have been there from the first on.
    let written = written.map_or(0, |call| match call.end {
        u64::MAX => call.lost.unwrap_or(call.start),
        end => end,
    });
    let is_newer = |call: &Call| {
        let (Op::Write(other) | Op::Read(other)) = call.op;
        other != value && call.end < start && call.start > written
    };
    calls.iter().any(is_newer)
}

/// Answers where in the register's history the call is, if there is room for it.
pub fn note(history: &Shared, register: usize, call: Call) -> Option<usize> {
    let calls = &mut history.borrow_mut().registers[register];
    if let Op::Read(value) = call.op {
        let most = if is_older(calls, value, call.start) { MOST } else { MOST_WITH_READS };
        if calls.len() >= most {
            return None;
        }
    }
    assert!(calls.len() < MAX_CALLS, "more calls on one register than the checker takes");
    calls.push(call);
    Some(calls.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_older_than_what_was_known_is_told_apart() {
        let call = |op, start, end, lost| Call { lost, ..Call::new(op, start, end) };
        let calls = [
            call(Op::Write(1), 0, 10, None),
            call(Op::Write(2), 20, 30, None),
            // Lost after it was answered, and never answered.
            call(Op::Write(3), 40, u64::MAX, Some(50)),
            call(Op::Write(4), 40, u64::MAX, None),
            call(Op::Read(2), 60, 70, None),
        ];
        for old in [0, 1, 3, 4] {
            assert!(is_older(&calls, old, 80), "{old} after 2 was read");
        }
        assert!(!is_older(&calls, 2, 80), "the newest");
        assert!(!is_older(&calls, 1, 25), "2 is still being written");
        assert!(!is_older(&calls[..4], 3, 80), "nothing newer is known");
    }
}
