//! A client that is confined to a directory and what is below it.
//!
//! Where an inode is, its record says: the directory that it was last named in. A file that has
//! several names, or had them, may be elsewhere by its record: what the client was shown by a name
//! below its directory it may use as well. That is soft state of the leader; after another has come
//! the client looks the name up once more.

use crate::node::Node;
use crate::ops::MAX_STEPS;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_net::Confinement;
use weft_proto::mode::{SET_IDS, SETGID, SETUID};
use weft_proto::{Error, ErrorKind, InodeId, Kind, Result, SegmentId, SessionId, v1};

/// Directories are looked up so many levels deep.
const MAX_DEPTH: usize = 4096 + 2;
/// Numbers of inodes that are not there are looked for so often in one request.
const MAX_RANGES: usize = 64;
/// Most inodes that one request may name.
const MAX_INODES: usize = 1 << 14;

/// What a request of such a client is checked by.
pub(super) struct Confined<'a> {
    node: &'a Node,
    session: SessionId,
    /// Role and name of its certificate.
    owner: String,
    limits: &'a Confinement,
    root: InodeId,
    /// Directories of which it is known whether they lie below.
    below: RefCell<HashMap<InodeId, bool>>,
    /// Numbers that are set aside, first to last, and whether for this client.
    ranges: RefCell<Vec<(u64, u64, bool)>>,
}

impl<'a> Confined<'a> {
    /// Error: `NotFound`, the directory is not there.
    pub fn new(
        node: &'a Node,
        session: SessionId,
        owner: &str,
        limits: &'a Confinement,
    ) -> Result<Self> {
        let mut root = InodeId::ROOT;
        for name in &limits.subtree {
            root = node.state.child(root, name.as_bytes())?.ok_or_else(|| {
                let what = format!(
                    "{} is not there, and this client's certificate is for it alone: make it",
                    limits.path()
                );
                Error::new(ErrorKind::NotFound, what)
            })?;
        }
        let (owner, below, ranges) = (owner.to_owned(), RefCell::default(), RefCell::default());
        Ok(Self { node, session, owner, limits, root, below, ranges })
    }

    pub fn root(&self) -> InodeId {
        self.root
    }

    pub fn limits(&self) -> &Confinement {
        self.limits
    }

    /// Checks what a request is about; of what a session declares or gives back, what is not its to
    /// hold is taken out. A batch is cut before the first step that is refused, of which the reason
    /// is answered: the others are of programs that have nothing to do with that one.
    pub fn check(&self, request: &mut v1::MetaRequest) -> Result<Option<Error>> {
        let Some(op) = &mut request.op else { return Ok(None) };
        match (self.check_op(op), op) {
            (Ok(()), _) => Ok(None),
            (Err(error), Op::Batch(batch))
                if is_refusal(&error) && batch.steps.len() <= MAX_STEPS =>
            {
                self.cut(batch).map(Some)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Leaves the steps before the first that is refused, and answers why that is.
    fn cut(&self, batch: &mut v1::BatchOp) -> Result<Error> {
        let check = |count: usize| {
            let steps = batch.steps[..count].to_vec();
            self.check_op(&mut Op::Batch(v1::BatchOp { steps, ..v1::BatchOp::default() }))
        };
        // What is refused with some steps is refused with more.
        let (mut passes, mut refused) = (0, batch.steps.len());
        while refused - passes > 1 {
            let half = passes + (refused - passes) / 2;
            match check(half) {
                Ok(()) => passes = half,
                Err(_) => refused = half,
            }
        }
        let Err(error) = check(refused) else {
            // It may be again.
            let what = "what a batch is about was changed while it was looked at";
            return Err(Error::new(ErrorKind::Unavailable, what));
        };
        if !is_refusal(&error) {
            return Err(error);
        }
        batch.steps.truncate(passes);
        Ok(error)
    }

    fn check_op(&self, op: &mut Op) -> Result<()> {
        match op {
            Op::Check(_) | Op::Mend(_) | Op::ListSegments(_) | Op::ListQuotas(_) => {
                return refuse(
                    "is about the whole filesystem, and this client is confined to a part",
                );
            }
            Op::SetQuota(_) => return refuse("who is confined does not decide about quotas"),
            Op::GetQuota(op) if op.ino == 0 => {
                return refuse("this client sees the quotas of its own files only");
            }
            Op::Renew(renew) => self.check_declared(renew)?,
            Op::ReturnLeases(returned) => self.check_returned(returned)?,
            _ => {}
        }
        if let Op::Batch(batch) = op {
            self.check_batch(batch)?;
        } else if !unlocks(op) {
            let footprint = op.footprint();
            bounded(footprint.concerns().count())?;
            self.all_inside(footprint.concerns())?;
        }
        if let Op::MakeFiles(made) = op {
            made.files.iter().try_for_each(|file| self.may_make(file.ino))?;
        }
        if self.limits.read_only {
            check_read_only(op)?;
        }
        if self.limits.squash_root {
            check_owners(op)?;
            self.check_inherited(op)?;
        }
        self.check_segments(op)?;
        self.remember_named(op)
    }

    /// What is made in some directories belongs to their group, whatever is asked for.
    fn check_inherited(&self, op: &Op) -> Result<()> {
        use v1::batch_op::step::Op as Step;
        let parents = match op {
            Op::Create(op) => vec![op.parent],
            Op::TmpFile(op) => vec![op.parent],
            Op::MkNod(op) => vec![op.parent],
            Op::MkDir(op) => vec![op.parent],
            Op::SymLink(op) => vec![op.parent],
            Op::MakeFiles(op) => op.files.iter().map(|file| file.parent).collect(),
            Op::Batch(op) => {
                let parents = op.steps.iter().filter_map(|step| match step.op.as_ref()? {
                    Step::Make(op) => Some(op.parent),
                    _ => None,
                });
                parents.collect()
            }
            _ => Vec::new(),
        };
        for parent in parents.into_iter().collect::<BTreeSet<_>>() {
            let dir = self.node.state.attr(InodeId(parent))?;
            if dir.is_some_and(|dir| dir.gid == 0 && dir.mode & SETGID != 0) {
                return refuse("who is squashed makes nothing that belongs to the group of root");
            }
        }
        Ok(())
    }

    /// What a session holds by its own account, when it tells a new leader. A file that has several
    /// names may have been its to use, although that cannot be seen any more: it stays held, since
    /// others are to be kept from it, and is not used before it was looked up once more.
    fn check_declared(&self, renew: &mut v1::RenewOp) -> Result<()> {
        let leases = renew.write_leases.len() + renew.ranges.len();
        bounded(renew.opens.len() + leases + renew.maps.len())?;
        let held = |ino: &u64| {
            let ino = InodeId(*ino);
            let several = self.node.state.has_names_elsewhere(ino).unwrap_or(true);
            several || !matches!(self.is_inside(ino), Ok(false))
        };
        renew.opens.retain(|open| held(&open.ino));
        renew.write_leases.retain(held);
        renew.maps.retain(held);
        let files: BTreeSet<_> = renew.ranges.iter().map(|range| range.ino).collect();
        let files: BTreeSet<_> = files.into_iter().filter(held).collect();
        renew.ranges.retain(|range| files.contains(&range.ino));
        if self.limits.read_only {
            renew.write_leases.clear();
            renew.ranges.clear();
            renew.maps.clear();
        }
        Ok(())
    }

    /// Leases are always given back; what comes along counts for what is inside.
    fn check_returned(&self, returned: &mut v1::ReturnLeasesOp) -> Result<()> {
        bounded(returned.items.len())?;
        for item in returned.items.iter_mut().filter(|item| item.open_seq != 0 || item.maps) {
            if self.limits.read_only || !self.is_inside(InodeId(item.ino))? {
                item.maps = false;
            }
            if !self.is_inside(InodeId(item.ino))? {
                item.open_seq = 0;
            }
        }
        Ok(())
    }

    /// Step by step: what is made by one may be used by those behind it, and nothing that is there
    /// is made.
    fn check_batch(&self, batch: &v1::BatchOp) -> Result<()> {
        use v1::batch_op::step::Op as Do;
        bounded(batch.steps.len())?;
        let mut made = HashSet::new();
        for step in &batch.steps {
            let (mut uses, mut makes) = (vec![step.ino, step.replaced], None);
            match &step.op {
                Some(Do::Make(op)) => {
                    uses.push(op.parent);
                    makes = Some(op.ino);
                }
                Some(Do::Commit(op)) => uses.push(op.ino),
                Some(Do::SetAttr(op)) => uses.push(op.ino),
                Some(Do::SetXattr(op)) => uses.push(op.ino),
                Some(Do::RemoveXattr(op)) => uses.push(op.ino),
                Some(Do::Unlink(op)) => uses.push(op.parent),
                Some(Do::RmDir(op)) => uses.push(op.parent),
                Some(Do::Rename(op)) => uses.extend([op.parent, op.new_parent]),
                None => {}
            }
            let used = uses.into_iter().filter(|ino| *ino != 0 && !made.contains(ino));
            self.all_inside(used.map(InodeId))?;
            if let Some(ino) = makes {
                self.may_make(ino)?;
                made.insert(ino);
            }
        }
        Ok(())
    }

    /// Whether an inode that is said to be made is there already, as after a retry, and the
    /// client's to use, or has a number that was set aside for it.
    fn may_make(&self, ino: u64) -> Result<()> {
        self.all_inside([InodeId(ino)].into_iter())
    }

    fn all_inside(&self, mut inos: impl Iterator<Item = InodeId>) -> Result<()> {
        inos.try_for_each(|ino| match self.is_inside(ino)? {
            true => Ok(()),
            // As if it were not there: which numbers there are is nobody's business.
            false => Err(Error::new(ErrorKind::Stale, format!("inode {ino} is gone"))),
        })
    }

    /// Whether an inode lies below the client's directory, or is its own to make.
    fn is_inside(&self, ino: InodeId) -> Result<bool> {
        if self.limits.subtree.is_empty() || ino == self.root {
            return Ok(true);
        }
        let state = &self.node.state;
        let Some((_, parent)) = state.placed(ino)? else {
            return self.is_set_aside(ino);
        };
        if self.is_below(parent)? {
            return Ok(true);
        }
        Ok(self.node.soft.with(|s| s.has_seen(self.session, ino)))
    }

    /// Whether the number of an inode that is not there was set aside for this client, in this
    /// session or in one that has died.
    fn is_set_aside(&self, ino: InodeId) -> Result<bool> {
        let mut ranges = self.ranges.borrow_mut();
        let holds = |range: &&(u64, u64, bool)| (range.0..=range.1).contains(&ino.0);
        if let Some((_, _, own)) = ranges.iter().find(holds) {
            return Ok(*own);
        }
        // Each is looked for among all.
        if ranges.len() >= MAX_RANGES {
            return Ok(false);
        }
        let found = self.node.state.range_of(ino)?;
        let range = found.map_or((ino.0, ino.0, false), |(first, last, session, owner)| {
            (first, last, session == self.session || owner == self.owner)
        });
        ranges.push(range);
        Ok(range.2)
    }

    /// Whether a directory is the client's or below that. Each is looked at once in a request.
    fn is_below(&self, dir: InodeId) -> Result<bool> {
        let (mut at, mut passed) = (dir, Vec::new());
        let mut known = self.below.borrow_mut();
        let below = loop {
            if at == self.root {
                break true;
            }
            if let Some(below) = known.get(&at) {
                break *below;
            }
            if at.is_root() || at.0 == 0 || passed.len() > MAX_DEPTH {
                break false;
            }
            passed.push(at);
            match self.node.state.placed(at)? {
                Some((true, parent)) => at = parent,
                _ => break false,
            }
        };
        known.extend(passed.into_iter().map(|dir| (dir, below)));
        Ok(below)
    }

    /// What loses a name by this may keep another: it stays the client's.
    fn remember_named(&self, op: &Op) -> Result<()> {
        if self.limits.subtree.is_empty() {
            return Ok(());
        }
        let mut named = Vec::new();
        match op {
            Op::Batch(batch) => {
                named.extend(batch.steps.iter().flat_map(|step| [step.ino, step.replaced]));
            }
            Op::Unlink(_) | Op::Rename(_) => {
                for (dir, name) in op.footprint().names {
                    named.extend(self.node.state.child(dir, &name)?.map(|child| child.0));
                }
            }
            Op::Link(op) => named.push(op.ino),
            _ => {}
        }
        for ino in named.into_iter().filter(|ino| *ino != 0).map(InodeId) {
            if let Some((false, _)) = self.node.state.placed(ino)? {
                self.node.soft.with(|s| s.see(self.session, ino));
            }
        }
        Ok(())
    }

    /// Content that is made visible in a file is what this session has stored: by any other name it
    /// would be somebody else's.
    fn check_segments(&self, op: &Op) -> Result<()> {
        if self.limits.subtree.is_empty() {
            return Ok(());
        }
        let commits: Vec<&v1::CommitExtentsOp> = match op {
            Op::CommitExtents(commit) => vec![commit],
            Op::MakeFiles(made) => made.files.iter().filter_map(|f| f.content.as_ref()).collect(),
            Op::Batch(batch) => batch.steps.iter().filter_map(committed).collect(),
            _ => return Ok(()),
        };
        let extents = commits.iter().flat_map(|commit| &commit.extents);
        let segments = extents.filter_map(|extent| match &extent.source {
            Some(v1::extent::Source::Segment(part)) => part.id.map(SegmentId::from),
            _ => None,
        });
        match segments.into_iter().find(|id| id.session != self.session) {
            None => Ok(()),
            Some(id) => refuse(&format!("segment {id} is not this session's to show")),
        }
    }

    /// Which quotas stand above its root is nobody's business.
    pub fn hide_quotas(&self, reply: &mut v1::GetQuotaReply) {
        let is_inside = |key: &v1::QuotaKey| match key.kind() {
            v1::quota_key::Kind::Tree => matches!(self.is_inside(InodeId(key.id)), Ok(true)),
            _ => true,
        };
        reply.quotas.retain(|quota| quota.key.as_ref().is_some_and(is_inside));
    }

    /// Remembers files that were shown by a name below, and that their records say are elsewhere.
    pub fn note(&self, session: SessionId, reply: &v1::MetaReply) {
        if self.limits.subtree.is_empty() {
            return;
        }
        let mut shown: Vec<u64> = Vec::new();
        match &reply.result {
            Some(Reply::Attr(attr)) => shown.push(attr.ino),
            Some(Reply::Open(open)) => shown.extend(open.attr.map(|attr| attr.ino)),
            Some(Reply::ReadDir(page)) => shown.extend(page.entries.iter().map(|e| e.ino)),
            Some(Reply::LookupMany(many)) => {
                let found = many.items.iter().filter_map(|item| item.found.as_ref()?.attr);
                shown.extend(found.map(|attr| attr.ino));
            }
            _ => {}
        }
        for ino in shown.into_iter().map(InodeId) {
            let elsewhere = match self.node.state.placed(ino) {
                Ok(Some((false, parent))) => !matches!(self.is_below(parent), Ok(true)),
                _ => false,
            };
            if elsewhere {
                self.node.soft.with(|s| s.see(session, ino));
            }
        }
    }
}

/// The segments that an answer names.
pub(super) fn segments(reply: &v1::MetaReply) -> Vec<SegmentId> {
    let extents: Vec<&v1::ExtentsReply> = match &reply.result {
        Some(Reply::Extents(extents)) => vec![extents],
        Some(Reply::Open(open)) => open.extents.iter().collect(),
        Some(Reply::LookupMany(many)) => {
            many.items.iter().filter_map(|item| item.found.as_ref()?.extents.as_ref()).collect()
        }
        _ => Vec::new(),
    };
    let segments = extents.into_iter().flat_map(|extents| &extents.segments);
    segments.filter_map(|segment| segment.id.map(SegmentId::from)).collect()
}

fn committed(step: &v1::batch_op::Step) -> Option<&v1::CommitExtentsOp> {
    match &step.op {
        Some(v1::batch_op::step::Op::Commit(commit)) => Some(commit),
        _ => None,
    }
}

/// One request holds up all others while it is looked at.
fn bounded(inos: usize) -> Result<()> {
    match inos <= MAX_INODES {
        true => Ok(()),
        false => {
            let what = format!("a request about {inos} inodes, and {MAX_INODES} are the most");
            Err(Error::new(ErrorKind::Invalid, what))
        }
    }
}

/// Whether an error says what may not be, and not that it could not be looked at.
fn is_refusal(error: &Error) -> bool {
    use ErrorKind::*;
    matches!(error.kind, NotPermitted | ReadOnly | Stale | Invalid)
}

/// Whether a request gives up a lock. That touches what the session itself holds, and tells nothing
/// of the file, which may have been moved away meanwhile: others would wait for the lock for ever.
fn unlocks(op: &Op) -> bool {
    matches!(op, Op::SetLock(v1::SetLockOp { lock: Some(lock), .. })
        if lock.kind() == v1::lock::Kind::None)
}

fn refuse<T>(what: &str) -> Result<T> {
    Err(Error::new(ErrorKind::NotPermitted, what))
}

/// Who may only read locks, and looks.
fn check_read_only(op: &Op) -> Result<()> {
    let changes = match op {
        Op::SetLock(_) => false,
        Op::Open(open) => open.write,
        Op::Lease(lease) => lease.write,
        Op::LeaseMany(_) | Op::Map(_) => true,
        op => op.kind() == Kind::Change,
    };
    match changes {
        true => Err(Error::new(ErrorKind::ReadOnly, "this client's certificate lets it only read")),
        false => Ok(()),
    }
}

/// Nothing comes to belong to root.
fn check_owners(op: &Op) -> Result<()> {
    use v1::batch_op::step::Op as Step;
    let owners = match op {
        Op::Create(op) => vec![(op.uid, op.gid)],
        Op::TmpFile(op) => vec![(op.uid, op.gid)],
        Op::MkNod(op) => vec![(op.uid, op.gid)],
        Op::MkDir(op) => vec![(op.uid, op.gid)],
        Op::SymLink(op) => vec![(op.uid, op.gid)],
        Op::SetAttr(op) => vec![given(op)],
        Op::CommitExtents(op) => op.attr.iter().map(given).collect(),
        Op::MakeFiles(op) => {
            let given =
                op.files.iter().filter_map(|f| f.content.as_ref()?.attr.as_ref()).map(given);
            op.files.iter().map(|f| (f.uid, f.gid)).chain(given).collect()
        }
        Op::Batch(op) => {
            let owners = op.steps.iter().filter_map(|step| match step.op.as_ref()? {
                Step::Make(op) => Some((op.uid, op.gid)),
                Step::SetAttr(op) => Some(given(op)),
                Step::Commit(op) => op.attr.as_ref().map(given),
                _ => None,
            });
            owners.collect()
        }
        _ => Vec::new(),
    };
    let mode = |attr: &v1::SetAttrOp| attr.mode.unwrap_or(0) & SET_IDS != 0;
    let device =
        |kind: v1::FileKind| matches!(kind, v1::FileKind::CharDevice | v1::FileKind::BlockDevice);
    // A directory hands its group on, and no more.
    let made = |kind: v1::FileKind, mode: u32| match kind {
        v1::FileKind::Directory => mode & SETUID != 0,
        kind => mode & SET_IDS != 0 || device(kind),
    };
    let file = v1::FileKind::Regular;
    let labels = |op: &v1::SetXattrOp| op.name.starts_with(b"security.");
    let plants = match op {
        Op::SetAttr(op) => mode(op),
        Op::CommitExtents(op) => op.attr.as_ref().is_some_and(mode),
        Op::SetXattr(op) => labels(op),
        Op::Create(op) => made(file, op.mode),
        Op::TmpFile(op) => made(file, op.mode),
        Op::MkNod(op) => made(op.kind(), op.mode),
        Op::MkDir(op) => made(v1::FileKind::Directory, op.mode),
        Op::MakeFiles(op) => op.files.iter().any(|of| made(file, of.mode)),
        Op::Batch(op) => op.steps.iter().any(|step| match &step.op {
            Some(Step::Make(op)) => made(op.kind(), op.mode),
            Some(Step::SetAttr(op)) => mode(op),
            Some(Step::SetXattr(op)) => labels(op),
            Some(Step::Commit(op)) => op.attr.as_ref().is_some_and(mode),
            _ => false,
        }),
        _ => false,
    };
    if plants {
        return refuse("who is squashed makes no devices, and no programs that run as their owner");
    }
    match owners.iter().any(|(uid, gid)| *uid == 0 || *gid == 0) {
        true => refuse("this client's root owns nothing here: its certificate says squash=root"),
        false => Ok(()),
    }
}

/// Owners that attributes name, or nobody in particular.
fn given(attr: &v1::SetAttrOp) -> (u32, u32) {
    (attr.uid.unwrap_or(u32::MAX), attr.gid.unwrap_or(u32::MAX))
}
