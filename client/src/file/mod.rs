//! An open file: one state per inode, shared by all its handles.
//!
//! Invariants: what this client wrote is seen by its own reads and attributes at once; commits of
//! the inode are made one after the other, under `order`; every failure to make written data
//! durable is remembered and told once to each handle (I8).

pub(crate) mod above;
pub(crate) mod ahead;
mod allocate;
mod commit;
mod copy;
pub(crate) mod dirty;
mod extents;
mod past;
mod read;
mod seek;
pub(crate) mod write;

pub(crate) use commit::set_attr;
pub(crate) use copy::copy_range;

use crate::leases::{Mode, Right};
use crate::mount::Mount;
use crate::types::Attr;
use above::Above;
use dirty::Dirty;
use extents::Extents;
use parking_lot::Mutex;
use past::Past;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::mode::mode_after;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Layout, Result, SessionId, v1};

/// A file that is open on this mount.
pub(crate) struct File {
    pub ino: InodeId,
    mount: Arc<Mount>,
    state: Mutex<State>,
    /// Held by whoever commits or resizes.
    order: tokio::sync::Mutex<()>,
    pub above: Above,
    /// Until then no lease to write is asked for: it was refused.
    refused_until: Mutex<Option<Instant>>,
}

/// A lease that is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Read,
    /// To write, if nobody else uses the file.
    Write,
    /// To write: others give up theirs.
    Alone,
}

/// After a lease to write was refused, it is not asked for again for this long.
const REFUSED: Duration = Duration::from_millis(100);

struct State {
    /// The newest that a server told.
    attr: Attr,
    layout: Layout,
    extents: Extents,
    dirty: Dirty,
    /// What is not committed yet of the attributes.
    waiting: Waiting,
    buffered_under: Under,
    /// While the leases may be over: the version of the content that they were of. Else none: the largest number.
    lapsed_at: u64,
    past: Past,
    /// Failures so far, and the last.
    failures: u64,
    failure: Option<Error>,
}

/// Under what the oldest write that is not committed was made. All that waits at a time was made under the
/// same right.
#[derive(Clone, Copy, Default)]
struct Under {
    session: SessionId,
    /// `None`: it may not stay in the buffer.
    right: Option<Right>,
    /// Of the content that it was made on.
    version: u64,
}

/// Attributes that go with the next commit: those that writes change, and others that were changed while
/// written data waited.
#[derive(Clone, Copy, Default)]
struct Waiting {
    /// Of the newest write, unless it was set after.
    mtime_ns: Option<i64>,
    /// When the newest change was made.
    changed_ns: Option<i64>,
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    atime_ns: Option<i64>,
}

impl Waiting {
    fn written(&mut self, now: i64) {
        self.mtime_ns = Some(now);
        self.changed_ns = Some(now);
    }

    /// Whether there is more than what writes change.
    fn is_more(&self) -> bool {
        [self.mode, self.uid, self.gid].iter().any(Option::is_some) || self.atime_ns.is_some()
    }

    /// `attr` as the commit will make it.
    fn view(&self, attr: &mut Attr) {
        let chowned = self.uid.is_some() || self.gid.is_some();
        attr.mode = mode_after(attr.mode, false, self.mode, chowned);
        attr.uid = self.uid.unwrap_or(attr.uid);
        attr.gid = self.gid.unwrap_or(attr.gid);
        attr.atime_ns = self.atime_ns.unwrap_or(attr.atime_ns);
        attr.mtime_ns = self.mtime_ns.unwrap_or(attr.mtime_ns);
        attr.ctime_ns = attr.ctime_ns.max(self.changed_ns.unwrap_or(0));
    }

    fn op(&self, ino: InodeId) -> Option<v1::SetAttrOp> {
        let Self { mode, uid, gid, atime_ns, .. } = *self;
        let op = v1::SetAttrOp { ino: ino.0, mode, uid, gid, atime_ns, ..Default::default() };
        self.is_more().then_some(op)
    }
}

/// The parts of an open's answer that must be there.
pub(crate) fn attr_and_layout(reply: &v1::OpenReply) -> Result<(Attr, Layout)> {
    let bad = |what| Error::new(ErrorKind::Protocol, what);
    let attr = reply.attr.ok_or_else(|| bad("open without attributes"))?.try_into()?;
    let layout = reply.layout.ok_or_else(|| bad("open without a layout"))?.try_into()?;
    Ok((attr, layout))
}

impl State {
    /// Attributes with what is not committed yet.
    fn view(&self) -> Attr {
        let mut attr = self.attr;
        if self.is_dirty() {
            attr.size = attr.size.max(self.dirty.end());
            attr.blocks += self.dirty.live().div_ceil(512);
            self.waiting.view(&mut attr);
        }
        attr
    }

    fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.waiting.is_more()
    }

    fn size(&self) -> u64 {
        self.attr.size.max(self.dirty.end())
    }

    /// Something is about to be kept here under this right.
    fn keeps_under(&mut self, session: SessionId, right: Option<Right>) {
        if !self.is_dirty() {
            self.buffered_under = Under { session, right, version: self.attr.data_version };
        }
    }

    /// The same of what was stored under a lease that may be over, and joins whatever waits: all of it is committed
    /// only onto the content that the lease was of.
    fn keeps_in_doubt(&mut self, session: SessionId, right: Right) {
        self.keeps_under(session, Some(right));
        let under = &mut self.buffered_under;
        under.version = under.version.min(self.lapsed_at);
        if under.right != Some(right) {
            under.right = Some(Right::GONE);
        }
    }

    /// What waited went with a commit, or was given up with it; what is still dirty was written since, or
    /// is on its way.
    fn went_along(&mut self) {
        let Waiting { mtime_ns, changed_ns, .. } = self.waiting;
        self.waiting = match self.dirty.is_empty() {
            true => Waiting::default(),
            false => Waiting { mtime_ns, changed_ns, ..Waiting::default() },
        };
    }

    /// Takes attributes that a server told, unless those of a newer content are known: answers may
    /// overtake each other.
    fn adopt(&mut self, attr: Attr) {
        if attr.data_version >= self.attr.data_version {
            self.attr = attr;
        }
        if attr.data_version > self.extents.version() {
            self.extents.move_to(attr.data_version);
        }
    }

    /// [`Self::adopt`] only of a newer content.
    fn adopt_newer(&mut self, attr: Attr) {
        if attr.data_version > self.attr.data_version {
            self.adopt(attr);
        }
    }

    /// Takes over a change of the content that this mount made under `order`; `change` does the same to
    /// what is known of the extents.
    fn changed(&mut self, mount: &Mount, attr: Attr, change: impl FnOnce(&mut Extents)) {
        let before = self.extents.version();
        change(&mut self.extents);
        mount.note_commit(attr.ino, before, attr.data_version);
        // If others made some in between, what waits was not written on them.
        follow(&mut self.buffered_under.version, attr.data_version);
        follow(&mut self.lapsed_at, attr.data_version);
        self.adopt(attr);
    }

    fn fail(&mut self, error: Error) {
        self.failures += 1;
        self.failure = Some(error);
    }

    /// The last failure if there was one after the first `seen`, which moves on.
    fn failure_since(&self, seen: &mut u64) -> Result<()> {
        if *seen == self.failures {
            return Ok(());
        }
        *seen = self.failures;
        self.failure.clone().map_or(Ok(()), Err)
    }
}

/// A version becomes that after a change of this mount's own, which counts one, if it was that before.
fn follow(version: &mut u64, after: u64) {
    if after.checked_sub(1) == Some(*version) {
        *version = after;
    }
}

impl File {
    pub fn new(mount: Arc<Mount>, attr: Attr, layout: Layout) -> Self {
        let state = State {
            attr,
            layout,
            extents: Extents::default(),
            dirty: Dirty::default(),
            waiting: Waiting::default(),
            buffered_under: Under::default(),
            lapsed_at: u64::MAX,
            past: Past::default(),
            failures: 0,
            failure: None,
        };
        Self {
            ino: attr.ino,
            mount,
            state: Mutex::new(state),
            order: tokio::sync::Mutex::default(),
            above: Above::default(),
            refused_until: Mutex::default(),
        }
    }

    /// Returns when what is known here of the committed content is what it is now: at once under a
    /// lease, else after the leader was asked.
    async fn refresh(self: &Arc<Self>) -> Result<()> {
        self.settle_doubt().await?;
        let leases = &self.mount.meta.leases;
        match leases.mode(self.ino) {
            // Only this mount has changed it since, and knows how; but the answer that the lease came with may be
            // on its way to this file still.
            Some(Mode::Write) => {
                if let Some(attr) = leases.attr(self.ino) {
                    self.state.lock().adopt_newer(attr);
                }
                return Ok(());
            }
            // It may have come with an answer that this file was not told, that of a lookup by name; then
            // so did the attributes.
            Some(Mode::Read) => {
                if let Some(attr) = leases.attr(self.ino) {
                    self.told(attr);
                    return Ok(());
                }
            }
            None => {}
        }
        leases.settled(self.ino).await;
        self.settle().await;
        self.ask_for_lease(Wanted::Read).await
    }

    /// Without a lease nothing may stay buffered, where only this mount would see it: what is left of
    /// a lease that was lost is committed, or dropped and told to its writers, before anything else
    /// is seen.
    pub async fn settle(self: &Arc<Self>) {
        if self.mount.meta.leases.mode(self.ino).is_none() && self.is_dirty() {
            let _ = self.flush().await;
        }
    }

    /// What was kept under a right that is gone is committed, or dropped and told to its writers, before anything
    /// is seen: it is not shown, and was stored before.
    async fn settle_doubt(self: &Arc<Self>) -> Result<()> {
        while self.is_in_doubt() {
            // What was dropped is no matter of who reads.
            if let Err(error) = self.flush().await
                && self.is_in_doubt()
            {
                return Err(error);
            }
        }
        Ok(())
    }

    pub fn is_in_doubt(&self) -> bool {
        let state = self.state.lock();
        let kept = |right| self.mount.meta.leases.keeps(self.ino, right);
        state.is_dirty() && state.buffered_under.right.is_some_and(|right| !kept(right))
    }

    /// Whether something waits that was kept in doubt in this session, and under no right that it keeps.
    pub fn is_in_doubt_since(&self, session: SessionId) -> bool {
        let state = self.state.lock();
        let Under { session: since, right, .. } = state.buffered_under;
        state.is_dirty() && right == Some(Right::GONE) && since == session
    }

    /// The time of all leases is over.
    pub fn lapsed(&self) {
        let mut state = self.state.lock();
        state.lapsed_at = state.attr.data_version;
    }

    /// They turn out to have lasted.
    pub fn revived(&self) {
        self.state.lock().lapsed_at = u64::MAX;
    }

    /// Asks for the right to buffer writes, unless it was refused a moment ago.
    async fn prepare_to_write(self: &Arc<Self>) -> Result<()> {
        let leases = &self.mount.meta.leases;
        let refused = self.refused_until.lock().is_some_and(|until| Instant::now() < until);
        // Without any lease, the pages that the caller caches of the write would never be recalled.
        if leases.may_buffer(self.ino) || (refused && leases.mode(self.ino).is_some()) {
            return Ok(());
        }
        leases.settled(self.ino).await;
        self.settle().await;
        self.ask_for_lease(if refused { Wanted::Read } else { Wanted::Write }).await?;
        if !refused && !leases.may_buffer(self.ino) {
            *self.refused_until.lock() = Some(Instant::now() + REFUSED);
        }
        Ok(())
    }

    async fn ask_for_lease(&self, wanted: Wanted) -> Result<()> {
        let (write, alone) = (wanted != Wanted::Read, wanted == Wanted::Alone);
        let op = Op::Lease(v1::LeaseOp { ino: self.ino.0, write, alone });
        let Reply::Open(reply) = self.mount.meta.ask(op).await? else {
            let what = "the reply to asking for a lease is of another kind";
            return Err(Error::new(ErrorKind::Protocol, what));
        };
        let (attr, layout) = attr_and_layout(&reply)?;
        self.opened(attr, layout, reply.extents).map(drop)
    }

    /// Takes over what an open answered.
    pub fn opened(
        &self,
        attr: Attr,
        layout: Layout,
        extents: Option<v1::ExtentsReply>,
    ) -> Result<Attr> {
        let mut state = self.state.lock();
        state.layout = layout;
        if let Some(mut reply) = extents {
            let data_version = attr.data_version;
            reply.attr.get_or_insert_with(|| v1::Attr { data_version, ..Default::default() });
            let empty_and_cut = reply.truncated && reply.extents.is_empty();
            if !empty_and_cut {
                state.extents.learn(0, u64::MAX, reply)?;
            }
        }
        state.adopt(attr);
        Ok(state.view())
    }

    /// Size with what is not committed yet, as far as is known here.
    pub fn size(&self) -> u64 {
        self.state.lock().size()
    }

    /// Size of what is committed, as far as is known here.
    fn committed_size(&self) -> u64 {
        self.state.lock().attr.size
    }

    /// Takes over attributes that a server told, and answers how this mount sees them.
    pub fn told(&self, attr: Attr) -> Attr {
        let mut state = self.state.lock();
        state.adopt(attr);
        state.view()
    }

    /// As this mount sees them.
    pub fn attr(&self) -> Attr {
        self.state.lock().view()
    }

    /// The group was told of an access.
    pub fn accessed(&self, at: i64) {
        self.state.lock().attr.accessed(at);
    }

    pub fn set_layout(&self, layout: Layout) {
        self.state.lock().layout = layout;
    }

    /// Failures that a new handle need not be told.
    pub fn failures(&self) -> u64 {
        self.state.lock().failures
    }

    /// The last failure if there was one after the first `seen`, which moves on.
    pub fn failure_since(&self, seen: &mut u64) -> Result<()> {
        self.state.lock().failure_since(seen)
    }

    /// Whether there is something that the metadata group does not know, if only that the file was made.
    pub fn is_dirty(&self) -> bool {
        self.is_new() || self.state.lock().is_dirty()
    }

    /// Whether the metadata group has not heard of the file, or its handles of its failure.
    pub fn is_new(&self) -> bool {
        self.mount.meta.creates.has(self.ino)
    }

    /// Whether a close has nothing to wait for. That an empty file was made, the group is told behind it.
    pub fn is_closed(&self) -> bool {
        !self.state.lock().is_dirty() && self.mount.meta.creates.closed(self.ino)
    }

    /// Whether something waits that was kept under a right to write. Without that right, it would come after
    /// what others did meanwhile.
    pub fn owes(&self) -> bool {
        let state = self.state.lock();
        state.is_dirty() && state.buffered_under.right.is_some()
    }

    /// Whether attributes wait for a commit that a change elsewhere must not overtake.
    pub fn has_waiting(&self) -> bool {
        self.state.lock().waiting.is_more()
    }

    pub fn has_durable(&self) -> bool {
        self.state.lock().dirty.durable() > 0
    }

    pub fn has_flying(&self) -> bool {
        self.state.lock().dirty.is_flying(dirty::BufferNo::MAX)
    }

    /// When the oldest was made or written that is not committed.
    pub fn oldest(&self) -> Option<Instant> {
        let made = self.mount.meta.creates.made_at(self.ino);
        made.or_else(|| self.state.lock().dirty.oldest())
    }
}
