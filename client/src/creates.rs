//! Files that were made on this mount and that the metadata group has not heard of yet.
//!
//! Under a lease to write a directory a file is made here, if its name is known to be free: nobody else
//! makes one there, or looks, without recalling the lease. The group is told with the first commit of the
//! file, so that create, write and close are one commit; or before, when somebody wants to know; or, if it
//! was closed with nothing written to it, behind its caller's back. What is to be told goes together.
//!
//! Invariants: a request about such a file or its directory is sent after the group was told
//! ([`Meta::settle`]), and so is the answer to a recall; nothing is made twice: a file keeps its number,
//! by which the group knows it, also in the session after the one that it was made in; one that cannot be
//! made is told to its handles (I8), or without any to whoever syncs its directory or the filesystem next;
//! whoever makes files waits when many are not told yet.

use crate::meta::{Failed, Meta};
use crate::mount::Mount;
use crate::to_the_end::to_the_end;
use crate::types::Attr;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::join;
use tokio::sync::{Notify, OwnedMutexGuard, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{debug, warn};
use v1::make_files_op::File;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// Files that wait; who makes more waits for the group.
const MOST: usize = 1024;
/// What nobody waits for is gathered for this long: one burst wakes everyone on its way once.
const GATHER: Duration = Duration::from_millis(5);
/// Pause before what did not get through is told again.
const AGAIN: Duration = Duration::from_secs(1);
/// Files in one request, and about how many bytes of content.
const TOGETHER: usize = 256;
const TOGETHER_BYTES: usize = 1 << 20;
/// Numbers to ask for, and how few are left when more are asked for.
const NUMBERS: u32 = 4096;
const FEW: u64 = 1024;

/// What became of it, with its attributes if there was content to change them.
type Told = Result<Option<Attr>, Failed>;

struct Made {
    file: File,
    session: SessionId,
    at: Instant,
    stage: Stage,
    /// It has no handles any more.
    left: bool,
}

/// Of which session a file is. Those of an earlier one are told apart: without a lease on their directory they
/// wait for whoever changes it, who may wait for others to be told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    This,
    Earlier,
}

impl Made {
    /// Whose turn it is, or was when it was sent, to tell of it.
    fn of(&self, session: SessionId) -> Of {
        match self.stage {
            Stage::Leaving(Some(of)) => of,
            _ if self.session == session => Of::This,
            _ => Of::Earlier,
        }
    }
}

enum Stage {
    /// Nobody else knows of it.
    Here,
    /// In the queue, or, in this turn, on its way.
    Leaving(Option<Of>),
    /// It could not be made, which its handles have to be told.
    Failed(Error),
}

/// A file that somebody wants to be told.
struct Wanted {
    ino: InodeId,
    content: Option<Content>,
    told: oneshot::Sender<Told>,
}

/// The first content of a file, and the session that its segments are of.
struct Content(v1::CommitExtentsOp, SessionId);

#[derive(Default)]
struct Table {
    files: BTreeMap<InodeId, Made>,
    queue: VecDeque<Wanted>,
    numbers: VecDeque<Range<u64>>,
    reserving: bool,
    lost: Lost,
    /// Sessions that have ended.
    ended: u64,
}

/// Files that could not be made, after they were closed.
#[derive(Default)]
struct Lost {
    /// The last in each directory, which was not synced since.
    dirs: HashMap<InodeId, Error>,
    /// The last anywhere since the filesystem was synced.
    last: Option<Error>,
}

impl Table {
    /// Nobody can be told of this file's failure any more but who syncs.
    fn lose(&mut self, ino: InodeId) {
        let Some(Made { file, stage: Stage::Failed(error), .. }) = self.files.remove(&ino) else {
            return;
        };
        warn!(%ino, %error, "a new file that was closed already is lost");
        self.lost.last = Some(error.clone());
        self.lost.dirs.insert(InodeId(file.parent), error);
    }

    fn next(&self) -> Option<InodeId> {
        self.numbers.front().map(|range| InodeId(range.start))
    }

    fn take(&mut self) {
        if let Some(range) = self.numbers.front_mut() {
            range.start += 1;
            if range.is_empty() {
                self.numbers.pop_front();
            }
        }
    }

    /// Has a file told, if that is not under way.
    fn want(&mut self, ino: InodeId, content: Option<Content>) -> Option<Answer> {
        let made = self.files.get_mut(&ino)?;
        if !matches!(made.stage, Stage::Here) {
            return None;
        }
        made.stage = Stage::Leaving(None);
        let (told, answer) = oneshot::channel();
        self.queue.push_back(Wanted { ino, content, told });
        Some(answer)
    }

    /// Files that the group has not heard of: these, and those in these directories, or all. Answers the
    /// failure of one of these themselves.
    fn concerned(&self, inos: Option<&[InodeId]>) -> Result<Vec<InodeId>> {
        let mut concerned = Vec::new();
        for (ino, made) in &self.files {
            let parent = InodeId(made.file.parent);
            let named = inos.is_some_and(|inos| inos.contains(ino));
            match &made.stage {
                Stage::Failed(error) if named => return Err(error.clone()),
                Stage::Failed(_) => {}
                _ if named || inos.is_none_or(|inos| inos.contains(&parent)) => {
                    concerned.push(*ino);
                }
                _ => {}
            }
        }
        Ok(concerned)
    }

    /// Whose turn it is when these are to be told: those of this session wait for nobody else.
    fn turn_for(&self, inos: &[InodeId], session: SessionId) -> Of {
        let of = |ino| self.files.get(ino).map(|made| made.of(session));
        if inos.iter().any(|ino| of(ino) == Some(Of::This)) { Of::This } else { Of::Earlier }
    }

    /// What goes in the next request of these.
    fn batch(&mut self, session: SessionId, of: Of) -> (Vec<Wanted>, Vec<File>) {
        let (mut batch, mut files, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut others = VecDeque::new();
        while batch.len() < TOGETHER && bytes < TOGETHER_BYTES {
            let Some(wanted) = self.queue.pop_front() else { break };
            let Some(made) = self.files.get_mut(&wanted.ino) else { continue };
            if made.of(session) != of {
                others.push_back(wanted);
                continue;
            }
            let content = match &wanted.content {
                // It has to be written again.
                Some(Content(_, of)) if *of != session => {
                    made.stage = Stage::Here;
                    let error = ErrorKind::SessionExpired.into();
                    let _ = wanted.told.send(Err(Failed { error, ambiguous: false }));
                    continue;
                }
                content => content.as_ref().map(|Content(op, _)| op.clone()),
            };
            made.stage = Stage::Leaving(Some(of));
            let session = if of == Of::This { 0 } else { made.session.0 };
            bytes += content.as_ref().map_or(0, prost::Message::encoded_len);
            files.push(File { content, session, ..made.file.clone() });
            batch.push(wanted);
        }
        others.append(&mut self.queue);
        self.queue = others;
        (batch, files)
    }
}

type Answer = oneshot::Receiver<Told>;

#[derive(Default)]
pub(crate) struct Creates {
    /// Files in the table.
    count: AtomicUsize,
    table: Mutex<Table>,
    /// Held by who tells: of this session, and of earlier ones.
    turns: [Arc<tokio::sync::Mutex<()>>; 2],
    /// Something is in the queue that nobody waits for; the same.
    behind: [Notify; 2],
}

impl Creates {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether the group has not heard of this file, or its handles of its failure.
    pub fn has(&self, ino: InodeId) -> bool {
        !self.is_empty() && self.table.lock().files.contains_key(&ino)
    }

    /// Whether there is something that the group has not heard of in what [`Meta::settle`] of this inode is
    /// about.
    pub fn untold(&self, ino: InodeId) -> bool {
        !self.is_empty()
            && self.table.lock().concerned(Some(&[ino])).is_ok_and(|inos| !inos.is_empty())
    }

    /// When the file was made, if the group has not heard of it.
    pub fn made_at(&self, ino: InodeId) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        self.table.lock().files.get(&ino).map(|made| made.at)
    }

    /// The handles were told if the file could not be made.
    pub fn forget_failed(&self, ino: InodeId) {
        let mut table = self.table.lock();
        if table.files.get(&ino).is_some_and(|made| matches!(made.stage, Stage::Failed(_))) {
            table.files.remove(&ino);
            self.counted(&table);
        }
    }

    /// A file was closed with nothing written to it: it is told soon, if it was not. Answers whether there is
    /// nothing to tell its handles.
    pub fn closed(&self, ino: InodeId) -> bool {
        if self.is_empty() {
            return true;
        }
        let table = &mut *self.table.lock();
        self.want_behind(table, ino);
        !table.files.get(&ino).is_some_and(|made| matches!(made.stage, Stage::Failed(_)))
    }

    /// The last handle of a file is gone.
    pub fn left(&self, ino: InodeId) {
        if self.is_empty() {
            return;
        }
        let table = &mut *self.table.lock();
        let Some(made) = table.files.get_mut(&ino) else { return };
        made.left = true;
        match made.stage {
            Stage::Failed(_) => {
                table.lose(ino);
                self.counted(table);
            }
            Stage::Here => self.want_behind(table, ino),
            Stage::Leaving(_) => {}
        }
    }

    /// Has files without handles told that could not be; answers whether there are any.
    fn again(&self, session: SessionId, of: Of) -> bool {
        let table = &mut *self.table.lock();
        let late = |(ino, made): (&InodeId, &Made)| {
            let late = made.left && matches!(made.stage, Stage::Here) && made.of(session) == of;
            late.then_some(*ino)
        };
        let late: Vec<_> = table.files.iter().filter_map(late).collect();
        late.iter().for_each(|ino| self.want_behind(table, *ino));
        !late.is_empty()
    }

    /// Whether such files are in the queue.
    fn wants(&self, session: SessionId, of: Of) -> bool {
        let table = self.table.lock();
        let of_wanted = |wanted: &Wanted| table.files.get(&wanted.ino).map(|made| made.of(session));
        table.queue.iter().any(|wanted| of_wanted(wanted) == Some(of))
    }

    /// Nobody waits for the answer.
    fn want_behind(&self, table: &mut Table, ino: InodeId) {
        if table.want(ino, None).is_some() {
            self.tell_behind();
        }
    }

    fn tell_behind(&self) {
        self.behind.iter().for_each(Notify::notify_one);
    }

    async fn turn(&self, of: Of) -> OwnedMutexGuard<()> {
        self.turns[of as usize].clone().lock_owned().await
    }

    /// The failure of files in a directory, or anywhere, that were closed before it was known; told once.
    pub fn take_lost(&self, dir: Option<InodeId>) -> Result<()> {
        let lost = &mut self.table.lock().lost;
        let error = match dir {
            Some(dir) => lost.dirs.remove(&dir),
            None => lost.last.take(),
        };
        error.map_or(Ok(()), Err)
    }

    fn counted(&self, table: &Table) {
        self.count.store(table.files.len(), Ordering::Release);
    }

    /// It is not known whether the group has heard of this file.
    fn back(&self, table: &mut Table, ino: InodeId) {
        if let Some(made) = table.files.get_mut(&ino)
            && matches!(made.stage, Stage::Leaving(_))
        {
            made.stage = Stage::Here;
            if made.left {
                self.tell_behind();
            }
        }
    }

    /// The session has ended, and with it what was set aside for it.
    pub fn lost(&self) {
        let mut table = self.table.lock();
        table.numbers.clear();
        table.ended += 1;
    }
}

fn lost() -> Error {
    let what = "the cluster declared this mount dead while it was told of a new file; whether it was made is \
                not known: check and repeat it";
    Error::new(ErrorKind::Io, what)
}

/// Puts files back that were on their way when whoever told them gave up.
struct OnTheWay<'a> {
    creates: &'a Creates,
    batch: Vec<Wanted>,
}

impl Drop for OnTheWay<'_> {
    fn drop(&mut self) {
        if !self.batch.is_empty() {
            let table = &mut *self.creates.table.lock();
            self.batch.iter().for_each(|wanted| self.creates.back(table, wanted.ino));
            self.creates.counted(table);
        }
    }
}

impl Meta {
    /// Makes a file here, if a lease allows that: `file` but for its number. `open` is called with that
    /// before anybody else can see the file. Answers what an open would.
    pub fn make(
        self: &Arc<Self>,
        mut file: File,
        open: impl FnOnce(InodeId),
    ) -> Option<v1::OpenReply> {
        let mut table = self.creates.table.lock();
        let left: u64 = table.numbers.iter().map(|range| range.end - range.start).sum();
        if left < FEW && !table.reserving && self.leases.may_buffer(InodeId(file.parent)) {
            table.reserving = true;
            tokio::spawn(self.clone().reserve(table.ended));
        }
        let ino = table.next().filter(|_| table.files.len() < MOST)?;
        file.ino = ino.0;
        // Counted before the lease is looked at: whoever takes that away looks here next.
        self.creates.count.store(table.files.len() + 1, Ordering::Release);
        let Some(reply) = self.leases.make(&mut file) else {
            self.creates.counted(&table);
            return None;
        };
        table.take();
        open(ino);
        let (session, at) = (self.sessions.current().id, Instant::now());
        table.files.insert(ino, Made { file, session, at, stage: Stage::Here, left: false });
        self.creates.counted(&table);
        Some(reply)
    }

    async fn reserve(self: Arc<Self>, ended: u64) {
        let op = Op::ReserveInodes(v1::ReserveInodesOp { count: NUMBERS });
        let answer = self.change(op).await;
        let mut table = self.creates.table.lock();
        table.reserving = false;
        match answer {
            Ok(Reply::ReserveInodes(v1::ReserveInodesReply { first })) if table.ended == ended => {
                table.numbers.push_back(first..first.saturating_add(NUMBERS.into()));
            }
            Ok(_) => {}
            Err(error) => debug!(%error, "no numbers for new files; the group makes them"),
        }
    }

    /// Commits the first content of a file, which was written in this session, with the file itself; `None`
    /// if the group knows of the file or is being told.
    pub async fn make_with(
        self: &Arc<Self>,
        op: v1::CommitExtentsOp,
        session: SessionId,
    ) -> Option<Told> {
        let ino = InodeId(op.ino);
        let content = Some(Content(op, session));
        let answer = self.creates.table.lock().want(ino, content)?;
        Some(self.told(ino, answer).await)
    }

    /// Returns when the group knows of everything that a request is about, or why it does not.
    pub async fn settle_for(self: &Arc<Self>, op: &Op) -> Result<()> {
        match op {
            _ if self.creates.is_empty() => Ok(()),
            // Nothing may be in a directory that goes, which is named by its name.
            Op::RmDir(_) | Op::Rename(_) => self.settle_all().await,
            op => self.settle(&op.concerns()).await,
        }
    }

    /// Returns when the group knows of these inodes and of what was made in them, or why it does not.
    pub async fn settle(self: &Arc<Self>, inos: &[InodeId]) -> Result<()> {
        match inos.is_empty() || self.creates.is_empty() {
            true => Ok(()),
            false => self.settle_those(Some(inos)).await,
        }
    }

    /// [`Self::settle`] for all that was made.
    pub async fn settle_all(self: &Arc<Self>) -> Result<()> {
        match self.creates.is_empty() {
            true => Ok(()),
            false => self.settle_those(None).await,
        }
    }

    /// Everything, if `inos` is `None`.
    async fn settle_those(self: &Arc<Self>, inos: Option<&[InodeId]>) -> Result<()> {
        let deadline = self.deadline();
        // More may be made meanwhile.
        let mut concerned = self.creates.table.lock().concerned(inos)?;
        while !concerned.is_empty() {
            let of = {
                let table = &mut *self.creates.table.lock();
                concerned.iter().for_each(|ino| drop(table.want(*ino, None)));
                table.turn_for(&concerned, self.sessions.current().id)
            };
            // When it is this one's turn, they were told, or are in the queue.
            let Ok(turn) = timeout_at(deadline, self.creates.turn(of)).await else {
                let what = "the metadata group has not answered yet what was made here";
                return Err(Error::new(ErrorKind::TimedOut, what));
            };
            if let Err(error) = self.tell_queue(turn, of).await {
                // In the next session, if there is one and time for it. A file that is refused is no error
                // here: it is its own handles' failure.
                let again = error.kind == ErrorKind::SessionExpired && !self.sessions.have_ended();
                if !again || Instant::now() >= deadline {
                    return Err(error);
                }
            }
            let still = self.creates.table.lock().concerned(inos)?;
            concerned.retain(|ino| still.contains(ino));
        }
        Ok(())
    }

    /// Waits until what was wanted is told; tells what is in the queue when it is nobody else's turn.
    async fn told(self: &Arc<Self>, ino: InodeId, mut answer: Answer) -> Told {
        loop {
            let session = self.sessions.current().id;
            let of = self.creates.table.lock().turn_for(&[ino], session);
            let turn = tokio::select! {
                biased;
                told = &mut answer => return told.unwrap_or_else(|_| Err(given_up())),
                turn = self.creates.turn(of) => turn,
            };
            match answer.try_recv() {
                Ok(told) => return told,
                Err(oneshot::error::TryRecvError::Closed) => return Err(given_up()),
                Err(oneshot::error::TryRecvError::Empty) => drop(self.tell_queue(turn, of).await),
            }
        }
    }

    /// One request for what is in the queue, by whoever has the turn. Answers why the group was not told.
    /// Others wait for what it is told: it is not the caller's to give up.
    async fn tell_queue(self: &Arc<Self>, turn: OwnedMutexGuard<()>, of: Of) -> Result<()> {
        let meta = self.clone();
        to_the_end(async move {
            let _turn = turn;
            meta.tell_some(of).await
        })
        .await
    }

    async fn tell_some(self: &Arc<Self>, of: Of) -> Result<()> {
        let session = self.sessions.current();
        let (mut leaving, files) = {
            let (batch, files) = self.creates.table.lock().batch(session.id, of);
            if batch.is_empty() {
                return Ok(());
            }
            (OnTheWay { creates: &self.creates, batch }, files)
        };
        let (op, deadline) = (Op::MakeFiles(v1::MakeFilesOp { files }), self.deadline());
        let answer = match self.change_at_once(&session, op, deadline).await {
            Ok(Reply::MakeFiles(reply)) if reply.files.len() == leaving.batch.len() => {
                Ok(reply.files)
            }
            Ok(_) => {
                let error = Error::new(ErrorKind::Protocol, "the reply to new files is another's");
                Err(Failed { error, ambiguous: true })
            }
            Err(failed) => {
                if failed.error.kind == ErrorKind::SessionExpired {
                    // They are told in the next one.
                    let _ = self.sessions.replacement(session.id, deadline).await;
                }
                Err(failed)
            }
        };
        let mut table = self.creates.table.lock();
        let batch = std::mem::take(&mut leaving.batch);
        let outcome = match answer {
            Ok(files) => {
                for (wanted, made) in batch.into_iter().zip(files) {
                    self.was_told(&mut table, wanted, made);
                }
                Ok(())
            }
            Err(Failed { mut error, ambiguous }) => {
                // They may have been made, and be gone again.
                let over = ambiguous && error.kind == ErrorKind::SessionExpired;
                let failure = error.clone();
                if over {
                    error = lost();
                }
                for Wanted { ino, told, .. } in batch {
                    match over {
                        true => self.failed(&mut table, ino, &error),
                        false => self.creates.back(&mut table, ino),
                    }
                    let _ = told.send(Err(Failed { error: error.clone(), ambiguous }));
                }
                Err(failure)
            }
        };
        self.creates.counted(&table);
        outcome
    }

    fn was_told(&self, table: &mut Table, wanted: Wanted, made: v1::make_files_reply::Made) {
        let Wanted { ino, content, told } = wanted;
        let answer = match made.error {
            0 => made.attr.map(Attr::try_from).transpose(),
            code => Err(Error::new(ErrorKind::from_code(code), made.message)),
        };
        match &answer {
            Ok(_) => drop(table.files.remove(&ino)),
            // It may be the content that is refused.
            Err(_) if content.is_some() => self.creates.back(table, ino),
            Err(error) => self.failed(table, ino, error),
        }
        let _ = told.send(answer.map_err(|error| Failed { error, ambiguous: false }));
    }

    fn failed(&self, table: &mut Table, ino: InodeId, error: &Error) {
        if let Some(made) = table.files.get_mut(&ino) {
            made.stage = Stage::Failed(error.clone());
            self.leases.not_made(&made.file);
            if made.left {
                table.lose(ino);
            }
        }
    }
}

/// Tells what nobody waits for, for ever.
pub(crate) async fn tell_behind(mount: Arc<Mount>) {
    join!(tell_behind_of(&mount.meta, Of::This), tell_behind_of(&mount.meta, Of::Earlier));
}

async fn tell_behind_of(meta: &Arc<Meta>, of: Of) {
    let creates = &meta.creates;
    loop {
        creates.behind[of as usize].notified().await;
        sleep(GATHER).await;
        {
            let turn = creates.turn(of).await;
            if let Err(error) = meta.tell_queue(turn, of).await {
                debug!(%error, "new files are not told; trying on");
            }
        }
        let session = meta.sessions.current().id;
        // What was in the queue when the session ended is of an earlier one now.
        for of in [Of::This, Of::Earlier].into_iter().filter(|of| creates.wants(session, *of)) {
            creates.behind[of as usize].notify_one();
        }
        // What did not get through.
        if creates.again(session, of) {
            sleep(AGAIN).await;
        }
    }
}

fn given_up() -> Failed {
    let what = "whoever told the metadata group of this file has given up";
    Failed { error: Error::new(ErrorKind::TimedOut, what), ambiguous: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use weft_net::{Identity, Peers, tcp};
    use weft_segments::{MapWatch, Rng};

    /// A mount that may make files in the root, and has numbers for them.
    fn alone() -> Arc<Meta> {
        let options = Options::new(Vec::new(), tcp());
        let peers = Peers::new(tcp(), Identity { name: String::new(), cluster: None });
        let rng = Arc::new(Rng::new(Some(1)));
        let meta = Arc::new(Meta::new(&options, peers, MapWatch::new(), rng));
        meta.leases.renewed(Instant::now(), Duration::from_secs(600));
        meta.creates.table.lock().numbers.push_back(100..100 + 2 * FEW);
        let root = InodeId::ROOT.0;
        let attr = v1::Attr {
            ino: root,
            kind: v1::FileKind::Directory.into(),
            nlink: 2,
            ..Default::default()
        };
        let layout = Some(v1::LayoutInfo::default());
        let grant = v1::Grant { ino: root, seq: 1, write: true, layout, ..Default::default() };
        let learn = |op, result| {
            let reply =
                v1::MetaReply { result: Some(result), grants: vec![grant], ..Default::default() };
            meta.leases.learn(meta.leases.start(), &op, &reply);
        };
        learn(Op::GetAttr(v1::GetAttrOp { ino: root }), Reply::Attr(attr));
        let missing = v1::LookupOp { parent: root, name: "f".into() };
        learn(Op::Lookup(missing), Reply::Missing(v1::Empty {}));
        meta
    }

    /// Two mounts that tell of files of earlier sessions, each in a directory that the other has by now, would wait
    /// for each other: either gives its directory back only when it has told what it made there.
    #[tokio::test]
    async fn files_of_an_earlier_session_hold_up_no_others() {
        let meta = alone();
        let this = meta.sessions.current().id;
        let before = SessionId(this.0 + 7);
        let make = |name: &'static str| {
            let free = Op::Lookup(v1::LookupOp { parent: InodeId::ROOT.0, name: name.into() });
            let result = Some(Reply::Missing(v1::Empty {}));
            let reply = v1::MetaReply { result, ..Default::default() };
            meta.leases.learn(meta.leases.start(), &free, &reply);
            let file = File { parent: InodeId::ROOT.0, name: name.into(), ..Default::default() };
            meta.make(file, |_| ()).expect("the right to make files");
            meta.creates.table.lock().next().map(|next| InodeId(next.0 - 1)).unwrap()
        };
        let (earlier, later) = (["a", "b", "c"].map(make), ["d", "e"].map(make));
        let table = &mut *meta.creates.table.lock();
        for ino in earlier {
            table.files.get_mut(&ino).unwrap().session = before;
        }
        for ino in [earlier[0], later[0], earlier[1], later[1], earlier[2]] {
            assert!(table.want(ino, None).is_some());
        }
        assert!(table.turn_for(&[earlier[0], later[1]], this) == Of::This);
        let told = |(wanted, files): (Vec<Wanted>, Vec<File>)| {
            let sessions: Vec<_> = files.iter().map(|file| file.session).collect();
            (wanted.iter().map(|wanted| wanted.ino).collect::<Vec<_>>(), sessions)
        };
        assert_eq!(told(table.batch(this, Of::This)), (later.to_vec(), vec![0; 2]));
        assert!(table.turn_for(&earlier, this) == Of::Earlier);
        // The next session begins while they are on their way.
        assert!(table.turn_for(&later, before) == Of::This);
        assert_eq!(told(table.batch(this, Of::Earlier)), (earlier.to_vec(), vec![before.0; 3]));
        assert!(table.queue.is_empty());
    }

    /// The lease was good when it was looked at, and the recall does not see the file in the table yet.
    #[tokio::test]
    async fn a_recall_waits_for_a_file_that_is_being_made() {
        let meta = alone();
        let file = File { parent: InodeId::ROOT.0, name: "f".into(), ..Default::default() };
        let made = meta.make(file.clone(), |_| {
            assert!(meta.leases.stop_buffering(InodeId::ROOT, true).unwrap());
            assert!(!meta.creates.is_empty(), "there is nothing to tell");
        });
        assert!(made.is_some() && meta.creates.untold(InodeId::ROOT));
        // After the recall nothing is made, nor counted.
        let meta = alone();
        assert!(meta.leases.stop_buffering(InodeId::ROOT, true).unwrap());
        assert!(meta.make(file, |_| ()).is_none() && meta.creates.is_empty());
    }
}
