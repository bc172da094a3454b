//! Locks, and the way from sessions to theirs.

use super::Check;
use super::plan::Stage;
use crate::schema::{self, HEAD, Tag};
use crate::store::StoreResult;
use crate::tables::locks;
use v1::lock::Kind;
use weft_proto::locks::Ranges;
use weft_proto::{InodeId, v1};

impl Check<'_> {
    /// Locks belong to sessions that live, or of which they are left to be deleted, which lead to
    /// them, and stand against no other.
    pub(super) fn locks(&mut self) -> StoreResult<()> {
        let state = self.state;
        let mut last = None;
        state.records(schema::all_in(self.shard, Tag::Lock), |key, held: Ranges| {
            let (ino, (flock, session, owner)) = (schema::ino_of(key)?, schema::holder_of(key)?);
            let told = format!("locks of owner {owner:x} of session {session} on inode {ino}");
            let way = schema::lock_of(session, key);
            let ended = schema::ended(session);
            if state.get(&schema::inode(ino))?.is_none() {
                let what = format!("Lock record of inode {ino}, which does not exist");
                self.mend(Stage::Others, what, |draft| {
                    draft.keep(schema::inode(ino))?;
                    draft.delete(way.clone())?;
                    draft.delete(key.to_vec())
                })?;
            } else if state.session(session)?.is_none() && state.get(&ended)?.is_none() {
                let what = format!("{told}: there is no such session");
                self.mend(Stage::Others, what, |draft| {
                    draft.keep(schema::session(session))?;
                    draft.keep(ended)?;
                    draft.delete(way.clone())?;
                    draft.delete(key.to_vec())
                })?;
            } else if held.ranges.is_empty() {
                self.mend(Stage::Others, format!("{told}: are none"), |draft| {
                    draft.delete(way.clone())?;
                    draft.delete(key.to_vec())
                })?;
            } else if state.get(&way)?.is_none() {
                let what = format!("{told}: the session does not lead to them");
                self.mend(Stage::Others, what, |draft| {
                    draft.keep(schema::session(session))?;
                    draft.keep(key.to_vec())?;
                    draft.put(way.clone(), &v1::Empty {})
                })?;
            }
            if last.replace((ino, flock)) != Some((ino, flock)) {
                self.overlaps(ino, flock)?;
            }
            Ok(true)
        })?;
        let (from, to) = schema::all(Tag::LockOf);
        state.scan(&from, &to, &mut |key, _| {
            let lock = schema::lock_in(key)?;
            if state.get(lock)?.is_none() {
                let session = schema::number_at(key, HEAD)?;
                self.mend(
                    Stage::Others,
                    format!("session {session}: leads to no lock"),
                    |draft| {
                        draft.keep(lock.to_vec())?;
                        draft.delete(key.to_vec())
                    },
                )?;
            }
            Ok(true)
        })
    }

    /// No lock on the inode may stand against another owner's.
    fn overlaps(&mut self, ino: InodeId, flock: bool) -> StoreResult<()> {
        let mut all = locks::of_inode(self.state, ino, flock)?;
        all.sort_by_key(|lock| lock.start);
        // The last byte that is locked so far, by whom, and the same for writing.
        let (mut any, mut write): (Option<&v1::Lock>, Option<&v1::Lock>) = (None, None);
        for lock in &all {
            let before = if lock.kind() == Kind::Write { any } else { write };
            let meets = |b: &&v1::Lock| {
                b.end >= lock.start && (b.session, b.owner) != (lock.session, lock.owner)
            };
            if before.is_some_and(|b| meets(&b)) {
                self.problem(format!("inode {ino}: locks of two owners at byte {}", lock.start));
            }
            if any.is_none_or(|a| a.end <= lock.end) {
                any = Some(lock);
            }
            if lock.kind() == Kind::Write && write.is_none_or(|w| w.end <= lock.end) {
                write = Some(lock);
            }
        }
        Ok(())
    }
}
