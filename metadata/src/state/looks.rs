//! What the state says of itself, of what is to be deleted, of what has happened, of what sessions
//! may have done, and of one of many files that are opened.

use super::StateMachine;
use super::groups::Found;
use super::requests;
use crate::check::{self, Mend};
use crate::ops;
use crate::schema::{self, Number};
use crate::tables::{events, qos};
use weft_proto::{Error, ErrorKind, InodeId, Result, SegmentId, SessionId, TargetId, v1};

impl StateMachine {
    /// What an open answers, of one of many, with at most so much inline content.
    pub fn short_open_reply(&self, ino: InodeId, inline: u64) -> Result<v1::OpenReply> {
        self.read_by(self.store.view(|s| ops::short_open_reply(s, ino, inline)))
    }

    /// What a create answers of a file that is there.
    pub fn create_reply(&self, ino: InodeId) -> Result<v1::OpenReply> {
        self.read_by(self.store.view(|s| ops::create_reply(s, ino)))
    }

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
            // place: a check tells of that. Nor does one that does not read keep the others.
            let listed = self.store.view(|s| {
                s.scan(&from, &to, &mut |key, value| {
                    let id = schema::segment_of(key)?;
                    match self.read_record::<v1::SegmentInfo>(key, value) {
                        Found::Record(info) if schema::is_named(&info, id) => items.push(info),
                        _ => {}
                    }
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

    /// The number of the target of this identity, if it was forgotten.
    pub fn forgotten(&self, uuid: &[u8]) -> Result<Option<u64>> {
        let found = self.store.newest(|s| s.load::<Number>(&schema::forgotten(uuid)));
        Ok(self.read_by(found)?.map(|number| number.value))
    }

    /// Whether a target of this number was forgotten.
    pub fn is_forgotten(&self, id: TargetId) -> Result<bool> {
        let mut found = false;
        let listed = self.store.view(|s| {
            s.records(schema::all(schema::Tag::Forgotten), |_, Number { value }| {
                found = value == u64::from(id.0);
                Ok(!found)
            })
        });
        self.read_by(listed)?;
        Ok(found)
    }

    /// What tenants may have.
    pub fn qos(&self) -> Result<v1::QosPolicy> {
        self.read_by(self.store.view(qos::policy))
    }

    /// Whether every server of the group has known batches once.
    pub fn knows_batches(&self) -> Result<bool> {
        self.read_by(self.store.newest(|s| ops::knows_batches(s)))
    }

    /// What every server of the group has known once.
    pub fn known_level(&self) -> Result<u32> {
        self.read_by(self.store.newest(|s| ops::known_level(s)))
    }

    /// Whether an inode is a directory, and the directory that it was last named in, as far as that
    /// is known; 0: it is not.
    pub fn placed(&self, ino: InodeId) -> Result<Option<(bool, InodeId)>> {
        let inode = self.read_by(self.store.newest(|s| s.inode(ino)))?;
        Ok(inode.map(|inode| (inode.is_dir(), InodeId(inode.parent))))
    }

    /// Whether a file has, or may have, names in other directories than its record says.
    pub fn has_names_elsewhere(&self, ino: InodeId) -> Result<bool> {
        let inode = self.read_by(self.store.newest(|s| s.inode(ino)))?;
        Ok(inode.is_some_and(|i| !i.is_dir() && (i.parent == 0 || i.attr.nlink > 1)))
    }

    /// The range of numbers that are set aside that an inode's lies in: its first and last, whose
    /// it is, and who was proved to have opened that session.
    pub fn range_of(&self, ino: InodeId) -> Result<Option<(u64, u64, SessionId, String)>> {
        let found = self.set_aside(ino)?;
        Ok(found.map(|(session, range)| {
            let last = range.first + range.count.saturating_sub(1);
            (range.first, last, session, range.owner)
        }))
    }

    /// Whether a request was carried out already, and what it answered is kept.
    pub fn is_done(&self, request: &v1::MetaRequest) -> Result<bool> {
        self.read_by(self.store.view(|s| requests::is_done(s, request)))
    }

    /// Who was proved to have opened a session. Error: `SessionExpired`, it has ended.
    pub fn owner_of(&self, id: SessionId) -> Result<String> {
        let session = self.read_by(self.store.newest(|s| s.session(id)))?;
        let gone = || Error::new(ErrorKind::SessionExpired, format!("session {id} has ended"));
        session.map(|session| session.owner).ok_or_else(gone)
    }

    /// The session that an inode is of which is not there, if its number is set aside for one: that
    /// may have made it.
    pub fn unheard_of(&self, ino: InodeId) -> Result<Option<SessionId>> {
        match self.attr(ino)? {
            Some(_) => Ok(None),
            None => Ok(self.set_aside(ino)?.map(|(session, _)| session)),
        }
    }

    fn set_aside(&self, ino: InodeId) -> Result<Option<(SessionId, schema::Numbers)>> {
        self.read_by(self.set_aside.find(&self.store, ino.0))
    }
}
