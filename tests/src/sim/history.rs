//! What all clients saw.

use super::linear::{Call, MAX_CALLS};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub const REGISTERS: usize = 16;
/// Registers from here on are modes of files, then contents, then those too large for the metadata.
pub const MODES: usize = 4;
pub const CONTENTS: usize = 8;
pub const LARGE: usize = 12;
/// Bytes of a large one.
pub const LARGE_LEN: usize = 24_000;
/// What is still wrong after so many looks, which are seconds apart, stays so.
pub const LOOKS: usize = 60;

/// What all clients saw.
#[derive(Default)]
pub struct History {
    pub registers: [Vec<Call>; REGISTERS],
    pub made: BTreeSet<String>,
    /// What was appended to the log, and whether that was acknowledged.
    pub appended: BTreeMap<u64, bool>,
    pub broken: Vec<String>,
    pub answered: u64,
    pub unknown: u64,
    pub finished: usize,
}

pub type Shared = Rc<RefCell<History>>;

/// What a content register holds.
pub fn content(register: usize, value: u64) -> Vec<u8> {
    let len = if register < LARGE { 8 } else { LARGE_LEN };
    value.to_be_bytes().into_iter().cycle().take(len).collect()
}

pub fn value_of(register: usize, found: &[u8]) -> Result<u64, String> {
    let Some(first) = found.first_chunk() else {
        return match found.len() {
            0 => Ok(0),
            len => Err(format!("register {register} has {len} bytes")),
        };
    };
    let value = u64::from_be_bytes(*first);
    match found == content(register, value) {
        true => Ok(value),
        false => Err(format!("register {register} has {} bytes, not all of {value}", found.len())),
    }
}

pub fn now() -> u64 {
    turmoil::sim_elapsed().expect("inside the simulation").as_nanos() as u64
}

/// Answers where in the register's history the call is.
pub fn note(history: &Shared, register: usize, call: Call) -> usize {
    let calls = &mut history.borrow_mut().registers[register];
    assert!(calls.len() < MAX_CALLS, "more calls on one register than the checker takes");
    calls.push(call);
    calls.len() - 1
}
