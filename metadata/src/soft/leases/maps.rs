//! Who may map which file to write.
//!
//! One session at a time has that right to a file, whether it holds a lease or not. It is asked for
//! it, and says whether it needs it.

use super::{Leases, MAX_MAPS, Mapper, Mode, Sent};
use tokio::time::Instant;
use weft_proto::{InodeId, SessionId, v1};

impl Leases {
    /// A session declared to a new leader that it may map an inode to write. It had a lease to read
    /// then, which is not declared; what programs have stored in pages of it may not be written
    /// back yet. So it holds one.
    pub fn declared_map(&mut self, by: SessionId, ino: InodeId) {
        let holds = self.keeps_map(by, ino);
        let holders = self.inodes.get(&ino).map_or(&[][..], |lease| &lease.holders);
        if holds && holders.iter().all(|h| h.session == by || h.mode == Mode::Read) {
            self.insert(by, ino, Mode::Read);
        }
    }

    /// A session has an inode open so that it may be mapped to write. Not if another has that
    /// right: then the session is mistaken; nor if it has the right to more files than any.
    pub fn keeps_map(&mut self, by: SessionId, ino: InodeId) -> bool {
        let since = self.number();
        let Some(party) = self.parties.get_mut(&by) else { return false };
        match self.mappers.get(&ino).map(|mapper| mapper.session == by) {
            Some(false) => return false,
            None if party.maps >= MAX_MAPS => return false,
            None => party.maps += 1,
            Some(true) => {}
        }
        self.mappers.insert(ino, Mapper { session: by, since, needs: 0 });
        true
    }

    /// Gives `by` the right to map an inode to write, or asks the session that has it whether it
    /// needs it. Answers whether it was given; `None` while that has not said. `asked` is the
    /// number of the question.
    ///
    /// Nobody else may hold a lease to write it all, with which comes that right: it is recalled.
    /// Ranges of it allow no such thing, and stay.
    pub fn map(
        &mut self,
        now: Instant,
        by: SessionId,
        ino: InodeId,
        asked: &mut u64,
    ) -> Option<bool> {
        match self.mappers.get(&ino) {
            Some(mapper) if mapper.session != by => {
                let (holder, since, needs) = (mapper.session, mapper.since, mapper.needs);
                if *asked <= since {
                    *asked = self.number();
                    let (ino, seq) = (ino.0, *asked);
                    let recall =
                        v1::recalls_reply::Recall { ino, seq, keep_read: true, of_map: true };
                    if let Some(party) = self.parties.get_mut(&holder) {
                        party.recalls.insert(seq, Sent { recall, since: now });
                        party.news.send_replace(seq);
                    }
                }
                (needs >= *asked).then_some(false)
            }
            _ => {
                let is_free = self.recall_from(now, by, ino, true, |h| h.mode == Mode::Write);
                is_free.then(|| self.keeps_map(by, ino))
            }
        }
    }

    /// A session was asked whether it needs the right to map an inode. What it was given after the
    /// question it keeps.
    pub fn map_answered(&mut self, by: SessionId, ino: InodeId, asked: u64, needs: bool) {
        if let Some(party) = self.parties.get_mut(&by) {
            party.recalls.remove(&asked);
        }
        if let Some(mapper) = self.mappers.get_mut(&ino).filter(|mapper| mapper.session == by) {
            if needs || asked <= mapper.since {
                mapper.needs = mapper.needs.max(asked);
            } else {
                self.forget_map(ino);
            }
        }
        self.note_change();
    }

    /// Nobody has this inode open, and nobody will: who had the right to map it needs it no more.
    /// Nobody may ever ask for it again.
    pub fn forget_map(&mut self, ino: InodeId) {
        let mapper = self.mappers.remove(&ino);
        if let Some(party) = mapper.and_then(|mapper| self.parties.get_mut(&mapper.session)) {
            party.maps -= 1;
        }
    }
}
