//! Proposals on their way through the log, and what they change in the leader's soft state.

use crate::raftlog::Position;
use crate::soft::sessions::{Client, Sessions};
use crate::tables::members::conf_change;
use prost::Message;
use raft::eraftpb::{ConfChangeV2, Entry, EntryType};
use std::collections::VecDeque;
use tokio::sync::oneshot;
use tokio::time::Instant;
use v1::log_entry::Body;
use weft_proto::{InodeId, Result, SessionId, v1};

/// What an applied entry changes in soft state, in the order of the log.
#[derive(Debug)]
pub enum Effect {
    Nothing,
    /// The inode in the reply is open from now on.
    Opens {
        session: SessionId,
        open_seq: u64,
    },
    /// The session in the reply lives from now on.
    SessionOpens {
        client: Client,
    },
    SessionEnds(SessionId),
    /// Locks on the inode are others, or somebody's turn to set one is over.
    Locks {
        session: SessionId,
        ino: InodeId,
        ticket: u64,
        unlocks: bool,
    },
}

impl Effect {
    /// Of a client's request.
    pub fn of(request: &v1::MetaRequest) -> Self {
        use v1::meta_request::Op;
        let session = SessionId(request.session);
        match &request.op {
            Some(Op::Create(create)) => Self::Opens { session, open_seq: create.open_seq },
            Some(Op::TmpFile(made)) => Self::Opens { session, open_seq: made.open_seq },
            Some(Op::OpenSession(open)) => Self::SessionOpens {
                client: Client { name: open.client.clone(), owner: open.owner.clone() },
            },
            Some(Op::CloseSession(_)) => Self::SessionEnds(session),
            Some(Op::SetLock(v1::SetLockOp { lock: Some(lock), ticket, .. })) => Self::Locks {
                session,
                ino: InodeId(lock.ino),
                ticket: *ticket,
                unlocks: lock.kind() == v1::lock::Kind::None,
            },
            _ => Self::Nothing,
        }
    }

    /// Takes effect, given what the entry answered.
    pub fn apply(self, sessions: &mut Sessions, reply: &v1::StoredReply) {
        if let Self::Locks { session, ino, ticket, unlocks } = self {
            if reply.error == 0 && !unlocks {
                sessions.lock_counts.was_set(session);
            }
            return sessions.locks.was_set(session, ino, ticket, reply.error == 0);
        }
        if reply.error != 0 {
            return;
        }
        use v1::meta_reply::Result as R;
        let result = reply.reply.as_ref().and_then(|r| r.result.as_ref());
        match (self, result) {
            (Self::Opens { session, open_seq }, Some(R::Open(open))) => {
                if let Some(attr) = &open.attr {
                    // A session that died meanwhile has nothing open.
                    let _ = sessions.open(session, InodeId(attr.ino), open_seq);
                }
            }
            (Self::SessionOpens { client }, Some(R::OpenSession(opened))) => {
                sessions.opened(Instant::now(), SessionId(opened.session), client);
            }
            (Self::SessionEnds(session), _) => sessions.ended(session),
            _ => {}
        }
    }
}

/// Who is told where the entry lies in the log, and what applying it answered.
pub type Asker = oneshot::Sender<Result<(Position, v1::StoredReply)>>;

/// An entry that waits to be proposed. Its time is added when it is.
pub struct Proposal {
    pub data: Vec<u8>,
    /// What it changes of the group, for Raft.
    pub members: Option<ConfChangeV2>,
    pub effect: Effect,
    pub reply: Asker,
}

impl Proposal {
    pub fn new(body: Body, events: Vec<v1::Event>, effect: Effect, reply: Asker) -> Self {
        let members = match &body {
            Body::ChangeMembers(entry) => Some(conf_change(entry)),
            _ => None,
        };
        let data = v1::LogEntry { body: Some(body), events, ..Default::default() }.encode_to_vec();
        Self { data, members, effect, reply }
    }

    /// Sets the entry's time, and whether it is complete: fields 1 and 40 of [`v1::LogEntry`],
    /// appended, as protobuf allows.
    pub fn stamp(&mut self, time_ns: i64, complete: bool) {
        self.data.push(1 << 3);
        prost::encoding::encode_varint(time_ns as u64, &mut self.data);
        if complete {
            prost::encoding::encode_varint(40 << 3, &mut self.data);
            self.data.push(1);
        }
    }

    /// The entry that is put into the log.
    pub fn entry(&mut self) -> Entry {
        let mut entry = Entry { data: std::mem::take(&mut self.data), ..Default::default() };
        if let Some(mut change) = self.members.take() {
            change.context = entry.data;
            entry.data = raft_prost::Message::encode_to_vec(&change);
            entry.set_entry_type(EntryType::EntryConfChangeV2);
        }
        entry
    }
}

/// A proposal in the log, not yet applied.
struct InLog {
    index: u64,
    term: u64,
    effect: Effect,
    reply: Asker,
}

/// Proposals in the log, in its order.
#[derive(Default)]
pub struct Pending {
    queue: VecDeque<InLog>,
}

impl Pending {
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn push(&mut self, index: u64, term: u64, effect: Effect, reply: Asker) {
        self.queue.push_back(InLog { index, term, effect, reply });
    }

    /// The entry at `index` was applied: answers its proposal, if it is one of these.
    pub fn complete(
        &mut self,
        index: u64,
        term: u64,
        reply: v1::StoredReply,
        sessions: &mut Sessions,
    ) {
        while self.queue.front().is_some_and(|p| p.index < index) {
            self.queue.pop_front();
        }
        if self.queue.front().is_some_and(|p| p.index == index)
            && let Some(done) = self.queue.pop_front()
            && done.term == term
        {
            done.effect.apply(sessions, &reply);
            // The asker may have gone; the reply is stored for its retry.
            let _ = done.reply.send(Ok((Position { index, term }, reply)));
        }
    }

    /// This server no longer leads: what becomes of the proposals is not known here.
    pub fn fail(&mut self, error: impl Fn() -> weft_proto::Error) {
        for lost in self.queue.drain(..) {
            let _ = lost.reply.send(Err(error()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_the_entrys_time() {
        let body = v1::log_entry::Body::ExpireSession(v1::ExpireSessionEntry { session: 9 });
        for time in [1, -5, i64::MAX] {
            let (reply, _) = oneshot::channel();
            let mut proposal = Proposal::new(body.clone(), Vec::new(), Effect::Nothing, reply);
            proposal.stamp(time, true);
            let entry = v1::LogEntry::decode(&proposal.data[..]).unwrap();
            assert_eq!((entry.time_ns, entry.body.as_ref()), (time, Some(&body)));
            assert!(entry.complete);
        }
    }

    #[test]
    fn an_entry_of_another_term_answers_no_proposal() {
        let mut pending = Pending::default();
        let mut sessions = Sessions::default();
        let (reply, mut answer) = oneshot::channel();
        pending.push(5, 2, Effect::Nothing, reply);
        pending.complete(5, 3, v1::StoredReply::default(), &mut sessions);
        assert!(matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        let (reply, mut answer) = oneshot::channel();
        pending.push(6, 3, Effect::Nothing, reply);
        pending.complete(6, 3, v1::StoredReply::default(), &mut sessions);
        assert!(answer.try_recv().unwrap().is_ok());
        assert_eq!(pending.len(), 0);
    }
}
