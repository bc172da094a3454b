//! Judges a history: what is wrong, a sentence each; nothing when it is right.

mod append;
mod calls;
mod counter;
mod register;

use crate::history::Event;

pub fn check(events: &[Event]) -> Vec<String> {
    let mut problems = append::check(events);
    problems.extend(register::check(events));
    problems.extend(counter::check(events));
    problems
}
