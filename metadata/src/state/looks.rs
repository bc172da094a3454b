//! What the state says of itself, of what is to be deleted, and of what has happened.

use super::StateMachine;
use crate::check::{self, Mend};
use crate::schema;
use crate::tables::events;
use weft_proto::{Result, SegmentId, v1};

impl StateMachine {
    /// Segments that no extent points at, after `after`, in order: their chunks can be deleted.
    pub fn garbage(&self, after: Option<SegmentId>, limit: usize) -> Result<Vec<v1::SegmentInfo>> {
        let (mut from, to) = schema::all(schema::Tag::Garbage);
        if let Some(after) = after {
            from = schema::garbage(after);
            from.push(0);
        }
        let mut items = Vec::new();
        if limit > 0 {
            // The chunks of another, which may be wanted, are not to go for a record in the wrong
            // place: a check tells of that.
            let listed = self.store.view(|s| {
                s.records((from, to), |key, info: v1::SegmentInfo| {
                    let id = schema::segment_of(key)?;
                    items.extend(schema::is_named(&info, id).then_some(info));
                    Ok(items.len() < limit)
                })
            });
            self.read_by(listed)?;
        }
        Ok(items)
    }

    /// What the namespace has against itself, and what mends the first stage of that.
    pub(crate) fn check(&self) -> Result<(v1::CheckReply, Vec<Mend>)> {
        self.read_by(self.store.view(check::look))
    }

    /// What has happened in the cluster: [`events::list`].
    pub fn events(&self, after: u64, limit: usize, newest: u64) -> Result<(Vec<v1::Event>, bool)> {
        self.read_by(self.store.view(|s| events::list(s, after, limit, newest)))
    }
}
