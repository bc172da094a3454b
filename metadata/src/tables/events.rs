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
/// Longest texts, in bytes.
pub(crate) const MAX_KIND: usize = 64;
pub(crate) const MAX_TEXT: usize = 1024;

/// Keeps events of an entry of this time.
pub(crate) fn keep(tx: &mut Txn<'_>, events: &[v1::Event], time_ns: i64) -> StoreResult<()> {
    if events.is_empty() {
        return Ok(());
    }
    let mut last = tx.state().number(LAST)?.unwrap_or(0);
    for event in events {
        last += 1;
        let (kind, text) = (cut(&event.kind, MAX_KIND), cut(&event.text, MAX_TEXT));
        let warning = event.warning;
        let kept = v1::Event { number: last, time_ns, warning, kind, text };
        tx.put(schema::event(last), &kept);
        if let Some(old) = last.checked_sub(KEPT) {
            tx.delete(schema::event(old));
        }
    }
    tx.put_number(LAST, last);
    Ok(())
}

/// The beginning of a text, at most so many bytes.
pub(crate) fn cut(text: &str, limit: usize) -> String {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
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
