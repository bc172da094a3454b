//! A client that is confined to a directory and what is below it.
//!
//! Where an inode is, its record says: the directory that it was last named in. A file that has
//! several names, or had them, may be elsewhere by its record: what the client was shown by a name
//! below its directory it may use as well, for as long as that name leads to it there, and on if it
//! takes the name away itself. That is soft state of the leader; after another has come the client
//! looks the name up once more.

use super::below::Below;
use super::limits::{check_owners, check_read_only, refuse};
use crate::node::Node;
use crate::ops::MAX_STEPS;
use crate::soft::sessions::Sight;
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_net::Confinement;
use weft_proto::mode::SETGID;
use weft_proto::{Error, ErrorKind, InodeId, Result, SegmentId, SessionId, rename, v1};

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
    below: RefCell<Below>,
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
        let (owner, below) = (owner.to_owned(), RefCell::new(Below::new(root)));
        Ok(Self { node, session, owner, limits, root, below, ranges: RefCell::default() })
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
            Op::GetQuota(op) if op.ino == 0 || op.key.is_some() => {
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
        // What could not be looked at has stayed among them.
        self.below.borrow().may_look()?;
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
        Ok(self.is_below(parent)? || self.is_shown(ino)?)
    }

    /// Whether a file that is elsewhere by its record was shown by a name that lies below.
    fn is_shown(&self, ino: InodeId) -> Result<bool> {
        match self.node.soft.with(|s| s.sight(self.session, ino)) {
            Some(Sight::By(dir, name)) => {
                Ok(self.is_below(dir)? && self.node.state.child(dir, &name)? == Some(ino))
            }
            Some(Sight::Before) => Ok(true),
            Some(Sight::Within(dir)) => {
                let state = &self.node.state;
                Ok(state.placed(ino)? == Some((false, dir)) && state.placed(dir)?.is_none())
            }
            None => Ok(false),
        }
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

    /// Whether a directory is the client's or below that.
    fn is_below(&self, dir: InodeId) -> Result<bool> {
        self.below.borrow_mut().has(dir, |ino| self.node.state.placed(ino))
    }

    /// What loses a name below by this may be open, or keep another: it stays the client's. Where
    /// its record says that it is below, that goes on to say so, until the directory is removed,
    /// too.
    fn remember_named(&self, op: &Op) -> Result<()> {
        use v1::batch_op::step::Op as Do;
        if self.limits.subtree.is_empty() {
            return Ok(());
        }
        let child = |dir: u64, name: &Bytes| self.node.state.child(InodeId(dir), name);
        let loses: Vec<InodeId> = match op {
            Op::Batch(batch) => {
                let steps = batch.steps.iter().map(|step| match &step.op {
                    Some(Do::Unlink(_)) => step.ino,
                    Some(Do::Rename(op)) if replaces(op.flags) => step.replaced,
                    _ => 0,
                });
                steps.filter(|ino| *ino != 0).map(InodeId).collect()
            }
            Op::Unlink(op) => child(op.parent, &op.name)?.into_iter().collect(),
            Op::Rename(op) if replaces(op.flags) => {
                child(op.new_parent, &op.new_name)?.into_iter().collect()
            }
            _ => Vec::new(),
        };
        for ino in loses {
            let sight = match self.node.state.placed(ino)? {
                Some((false, dir)) if self.is_below(dir)? => Sight::Within(dir),
                Some((false, _)) => Sight::Before,
                _ => continue,
            };
            self.node.soft.with(|s| s.see(self.session, ino, sight));
        }
        Ok(())
    }

    /// Whether the record of a file says that it is not below.
    fn is_elsewhere(&self, ino: InodeId) -> Result<bool> {
        match self.node.state.placed(ino)? {
            Some((false, parent)) => Ok(!self.is_below(parent)?),
            _ => Ok(false),
        }
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
        use v1::quota_key::Kind;
        // A project is told behind a directory that counts for it.
        let mut inside = false;
        reply.quotas.retain(|quota| match quota.key.as_ref().map(|key| (key.kind(), key.id)) {
            Some((Kind::Tree, dir)) => {
                inside = matches!(self.is_inside(InodeId(dir)), Ok(true));
                inside
            }
            Some((Kind::Project, _)) => inside,
            Some(_) => true,
            None => false,
        });
    }

    /// Remembers files that were shown by a name below, and that their records say are elsewhere.
    pub fn note(&self, asked: &Asked, reply: &v1::MetaReply) {
        if self.limits.subtree.is_empty() {
            return;
        }
        // Others may have moved things while this was carried out.
        self.below.borrow_mut().forget();
        for (ino, dir, name) in asked.shown_by(reply) {
            if matches!(self.is_elsewhere(ino), Ok(true)) {
                let shown = Sight::By(dir, name[..].into());
                self.node.soft.with(|s| s.see(self.session, ino, shown));
            }
        }
    }

    /// The segments that an answer names of files that lie below still.
    pub fn segments(&self, reply: &v1::MetaReply) -> Vec<SegmentId> {
        let extents: Vec<&v1::ExtentsReply> = match &reply.result {
            Some(Reply::Extents(extents)) => vec![extents],
            Some(Reply::Open(open)) => open.extents.iter().collect(),
            Some(Reply::LookupMany(many)) => {
                many.items.iter().filter_map(|item| item.found.as_ref()?.extents.as_ref()).collect()
            }
            _ => Vec::new(),
        };
        let is_inside = |extents: &&v1::ExtentsReply| {
            let ino = extents.attr.map(|attr| InodeId(attr.ino));
            ino.is_some_and(|ino| matches!(self.is_inside(ino), Ok(true)))
        };
        let segments = extents.into_iter().filter(is_inside).flat_map(|extents| &extents.segments);
        segments.filter_map(|segment| segment.id.map(SegmentId::from)).collect()
    }
}

/// The names that a request asks about: by them its answer shows files.
pub(super) enum Asked {
    /// Those in this directory.
    List(InodeId),
    These(Vec<(InodeId, Bytes)>),
}

impl Asked {
    pub fn of(op: Option<&Op>) -> Self {
        let one = |dir: u64, name: &Bytes| Self::These(vec![(InodeId(dir), name.clone())]);
        match op {
            Some(Op::ReadDir(op)) => Self::List(InodeId(op.ino)),
            Some(Op::Lookup(op)) => one(op.parent, &op.name),
            Some(Op::Create(op)) => one(op.parent, &op.name),
            Some(Op::Link(op)) => one(op.parent, &op.name),
            Some(Op::LookupMany(op)) => {
                let items = op.items.iter();
                Self::These(items.map(|item| (InodeId(item.parent), item.name.clone())).collect())
            }
            _ => Self::These(Vec::new()),
        }
    }

    /// Whether it is a list of the names in this directory.
    pub fn lists(&self, dir: InodeId) -> bool {
        matches!(self, Self::List(listed) if *listed == dir)
    }

    /// The inodes that an answer shows, each with its name.
    fn shown_by<'a>(&'a self, reply: &'a v1::MetaReply) -> Vec<(InodeId, InodeId, &'a Bytes)> {
        let named = |at: usize, ino: u64| match self {
            Self::These(names) => names.get(at).map(|(dir, name)| (InodeId(ino), *dir, name)),
            Self::List(_) => None,
        };
        match (self, &reply.result) {
            (Self::List(dir), Some(Reply::ReadDir(page))) => {
                page.entries.iter().map(|e| (InodeId(e.ino), *dir, &e.name)).collect()
            }
            (_, Some(Reply::Attr(attr))) => named(0, attr.ino).into_iter().collect(),
            (_, Some(Reply::Open(open))) => {
                open.attr.and_then(|attr| named(0, attr.ino)).into_iter().collect()
            }
            (_, Some(Reply::LookupMany(many))) => {
                let found = many
                    .items
                    .iter()
                    .filter_map(|item| named(item.at as usize, item.found.as_ref()?.attr?.ino));
                found.collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Whether a rename with these flags takes a name from what the new name leads to.
fn replaces(flags: u32) -> bool {
    flags & (rename::EXCHANGE | rename::NOREPLACE) == 0
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
