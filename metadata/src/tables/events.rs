//! What has happened in the cluster, for admins: the newest events, numbered from 1.
//!
//! An event is kept by the entry that brings it about, and only if that was not refused.

use crate::schema;
use crate::store::{Read, StoreResult, Txn};
use weft_proto::v1;

/// Events that are kept.
pub(crate) const KEPT: u64 = 10_000;
/// The number of the last one, by this name.
const LAST: &str = "last_event";

/// Keeps events of an entry of this time.
pub(crate) fn keep(tx: &mut Txn<'_>, events: &[v1::Event], time_ns: i64) -> StoreResult<()> {
    if events.is_empty() {
        return Ok(());
    }
    let mut last = tx.state().number(LAST)?.unwrap_or(0);
    for event in events {
        last += 1;
        tx.put(schema::event(last), &v1::Event { number: last, time_ns, ..event.clone() });
        if let Some(old) = last.checked_sub(KEPT) {
            tx.delete(schema::event(old));
        }
    }
    tx.put_number(LAST, last);
    Ok(())
}

/// Events after this number, at most `limit`; with `newest`, of these only so many, the newest.
/// Answers whether there are more.
pub(crate) fn list(
    state: &dyn Read,
    after: u64,
    limit: usize,
    newest: u64,
) -> StoreResult<(Vec<v1::Event>, bool)> {
    let last = state.number(LAST)?.unwrap_or(0);
    let first = match newest {
        0 => after.saturating_add(1),
        newest => after.max(last.saturating_sub(newest)).saturating_add(1),
    };
    let (_, to) = schema::all(schema::Tag::Event);
    let (mut events, mut more) = (Vec::new(), false);
    state.records((schema::event(first), to), |_, event: v1::Event| {
        more = events.len() >= limit;
        if !more {
            events.push(event);
        }
        Ok(!more)
    })?;
    Ok((events, more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    #[test]
    fn the_newest_are_kept_and_listed_in_pages() {
        let memory = Memory::default();
        let base = memory.snapshot();
        let mut tx = Txn::new(&*base);
        for entry in 0..(KEPT + 6) / 2 {
            let event = |n| v1::Event { text: format!("{entry} {n}"), ..Default::default() };
            keep(&mut tx, &[event(0), event(1)], entry as i64).unwrap();
        }
        let list = |after, limit, newest| {
            let (events, more) = list(tx.state(), after, limit, newest).unwrap();
            let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
            (numbers, more)
        };
        let last = KEPT + 6;
        // The first six are gone.
        assert_eq!(list(0, 2, 0), (vec![7, 8], true));
        assert_eq!(list(8, 1, 0), (vec![9], true));
        assert_eq!(list(0, 20_000, 0).0.len() as u64, KEPT);
        assert_eq!(list(0, 10, 3), (vec![last - 2, last - 1, last], false));
        assert_eq!(list(last - 1, 10, 3), (vec![last], false));
        assert_eq!(list(last, 10, 0), (vec![], false));
        let (events, _) = super::list(tx.state(), last - 1, 1, 0).unwrap();
        assert_eq!((events[0].time_ns, &events[0].text[..]), (5002, "5002 1"));
    }
}
