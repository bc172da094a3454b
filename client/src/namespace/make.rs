//! Makes files under a lease to write their directory, without asking.

use super::pending::{Content, Made, Published, Stage};
use super::publisher::Publisher;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;
use tracing::debug;
use v1::make_files_op::File;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, SessionId, v1};

/// Files that wait; who makes more waits for the group.
const MAX_PENDING: usize = 1024;
/// Numbers to ask for, and how few are left when more are asked for.
const RESERVED_NUMBERS: u32 = 4096;
pub(super) const MIN_NUMBERS: u64 = 1024;

impl Publisher {
    /// Makes a file here, if a lease allows that: `file` but for its number. `open` is called with
    /// that before anybody else can see the file. Answers what an open would.
    pub fn make(
        self: &Arc<Self>,
        mut file: File,
        open: impl FnOnce(InodeId),
    ) -> Option<v1::OpenReply> {
        let mut table = self.table.lock();
        let left: u64 = table.numbers.iter().map(|range| range.end - range.start).sum();
        if left < MIN_NUMBERS
            && !table.reserving
            && self.group.leases.may_buffer(InodeId(file.parent))
        {
            table.reserving = true;
            tokio::spawn(self.clone().reserve(table.ended));
        }
        let ino = table.next().filter(|_| table.files.len() < MAX_PENDING)?;
        file.ino = ino.0;
        // Counted before the lease is looked at: whoever takes that away looks here next.
        self.count.store(table.files.len() + 1, Ordering::Release);
        let Some(reply) = self.group.leases.make(&mut file) else {
            self.counted(&table);
            return None;
        };
        table.take();
        open(ino);
        let (session, at) = (self.group.sessions.current().id, Instant::now());
        table.files.insert(ino, Made { file, session, at, stage: Stage::Here, left: false });
        self.counted(&table);
        Some(reply)
    }

    async fn reserve(self: Arc<Self>, ended: u64) {
        let op = Op::ReserveInodes(v1::ReserveInodesOp { count: RESERVED_NUMBERS });
        let answer = self.group.change(op, self.group.deadline()).await;
        let mut table = self.table.lock();
        table.reserving = false;
        match answer {
            Ok(Reply::ReserveInodes(v1::ReserveInodesReply { first })) if table.ended == ended => {
                table.numbers.push_back(first..first.saturating_add(RESERVED_NUMBERS.into()));
            }
            Ok(_) => {}
            Err(error) => debug!(%error, "no numbers for new files; the group makes them"),
        }
    }

    /// Commits the first content of a file, which was written in this session, with the file
    /// itself; `None` if the group knows of the file or is being told.
    pub async fn make_with(
        self: &Arc<Self>,
        op: v1::CommitExtentsOp,
        session: SessionId,
    ) -> Option<Published> {
        let ino = InodeId(op.ino);
        let content = Some(Content(op, session));
        let answer = self.table.lock().want(ino, content)?;
        Some(self.told(ino, answer).await)
    }
}
