//! Calls, put together of the events that begin and end them.

use crate::history::{Answer, Call, Event, Kind};
use std::collections::HashMap;

/// A call with its outcome.
pub(super) struct Ended<'a> {
    pub call: &'a Call,
    pub began: u64,
    /// `None`: it is not known whether it took effect.
    pub answered: Option<(u64, Option<&'a Answer>)>,
}

/// The calls of a history, in the order in which they began. An answer of `None` says that it had
/// no effect.
pub(super) fn calls(events: &[Event]) -> Vec<Ended<'_>> {
    let mut open = HashMap::new();
    let mut calls = Vec::new();
    for event in events {
        let answered = match &event.kind {
            Kind::Invoke => {
                open.insert(event.process, calls.len());
                calls.push(Ended { call: &event.call, began: event.time_ns, answered: None });
                continue;
            }
            Kind::Ok(answer) => Some((event.time_ns, Some(answer))),
            Kind::Fail => Some((event.time_ns, None)),
            Kind::Info(_) => None,
        };
        if let Some(at) = open.remove(&event.process) {
            calls[at].answered = answered;
        }
    }
    calls
}
