//! What a request does to the leases of others: it waits until whatever stands against it was given
//! back.
//!
//! Invariants: a change holds its names and claims its inodes from before it is proposed until it
//! was applied, or can be no more ([`Claim`]), whether or not somebody still waits for the answer,
//! so that the inodes behind its names stay the same and nobody is granted what the change would
//! have had to recall; reads claim nothing. See [`crate::soft::leases`].

use crate::node::Node;
use crate::sharing;
use crate::soft::leases::{Leases, Mode, Name, Use};
use crate::soft::sessions::Sessions;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use weft_proto::planted::{self, Bug};
use weft_proto::v1::meta_request::Op;
use weft_proto::{ByteRanges, Error, ErrorKind, Footprint, InodeId, Result, SessionId, v1};

/// Who waits for his turn sees so soon that others wait for him.
const AWAITED_INTERVAL: Duration = Duration::from_millis(50);

/// Ranges in a commit that are looked for one by one in what others hold, at each change there.
const MOST_OTHERS: usize = 256;

/// Names and inodes that a change takes, until this is dropped.
pub struct Claim {
    node: Arc<Node>,
    term: u64,
    by: SessionId,
    names: Vec<Name>,
    pub inos: Vec<InodeId>,
    /// A file of which it takes only what is written, and the number of that.
    in_ranges: Option<(InodeId, u64)>,
}

impl Claim {
    fn nothing(node: &Arc<Node>, term: u64, by: SessionId) -> Self {
        let (names, inos, in_ranges) = (Vec::new(), Vec::new(), None);
        Self { node: node.clone(), term, by, names, inos, in_ranges }
    }

    /// The directories whose names it takes.
    pub fn dirs(&self) -> BTreeSet<InodeId> {
        self.names.iter().map(|(dir, _)| *dir).collect()
    }

    /// Takes these inodes, too: recalls the leases that others hold on them, and waits until they
    /// are back.
    async fn take(&mut self, inos: Vec<InodeId>, deadline: Instant) -> Result<()> {
        let claimed = self.node.soft.with(|s| {
            let same = s.term() == self.term;
            if same {
                s.leases.claim(self.by, &inos);
            }
            same
        });
        if !claimed {
            return Err(self.node.not_leader());
        }
        self.inos.extend(inos);
        let what = "another session has not given up its lease yet";
        when(&self.node, Some(self.term), deadline, what, |s| {
            let now = Instant::now();
            // Every one is asked, also after one that is held.
            let held =
                self.inos.iter().filter(|ino| !s.leases.recall(now, self.by, **ino, Use::Change));
            (held.count() == 0 || planted::is(Bug::RecallNotAwaited)).then_some(())
        })
        .await
    }

    /// Those that others still hold leases on, as a claim of their own.
    fn split_held(&mut self) -> Self {
        let (now, term, by) = (Instant::now(), self.term, self.by);
        let held: Vec<_> = self.node.soft.with(|s| {
            let mut is_held = |ino| s.term() != term || !s.leases.recall(now, by, ino, Use::Change);
            self.inos.iter().copied().filter(|ino| is_held(*ino)).collect()
        });
        self.inos.retain(|ino| !held.contains(ino));
        let mut split = Self::nothing(&self.node, term, by);
        split.inos = held;
        split
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.node.soft.with(|s| {
            if s.term() == self.term {
                s.leases.free_names(&self.names);
                s.leases.unclaim(self.by, &self.inos);
                let in_ranges = self.in_ranges.iter();
                in_ranges.for_each(|(ino, number)| s.leases.written(*ino, *number));
            }
        });
    }
}

/// A place in line of who has to wait for a lease, until this is dropped.
struct Place<'a> {
    node: &'a Node,
    ino: InodeId,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // A later term does not know it.
        self.node.soft.with(|s| s.leases.wait_no_more(self.ino, self.number));
    }
}

/// Repeats `attempt` under the lock of the soft state, after every change there, until it answers;
/// with a term, only in that.
async fn when<T>(
    node: &Node,
    term: Option<u64>,
    deadline: Instant,
    what: &str,
    mut attempt: impl FnMut(&mut Sessions) -> Option<T>,
) -> Result<T> {
    loop {
        let tried = node.soft.with(|s| match s.term() {
            // What nobody holds here others may hold.
            0 => None,
            now if term.is_some_and(|term| term != now) => None,
            _ => Some(attempt(s).ok_or_else(|| s.leases.changes())),
        });
        let mut changes = match tried {
            Some(Ok(done)) => return Ok(done),
            Some(Err(changes)) => changes,
            None => return Err(node.not_leader()),
        };
        sharing::give_place_back();
        match timeout_at(deadline, changes.changed()).await {
            Ok(Ok(())) => {}
            // The term is over.
            Ok(Err(_)) => return Err(node.not_leader()),
            Err(_) => return Err(Error::new(ErrorKind::TimedOut, what)),
        }
    }
}

/// Waits until all sessions but `me` have told this leader what they hold.
pub async fn all_declared(node: &Node, me: SessionId, deadline: Instant) -> Result<()> {
    let what = "another session has not told the new metadata leader yet what it holds";
    when(node, None, deadline, what, |s| s.others_declared(me).then_some(())).await
}

/// Returns soon after others have come to wait for what a session holds; never if it is not known
/// here. All that wait for their turn look for this: not at every change, of which there are many.
pub async fn awaited(node: &Node, session: SessionId) {
    loop {
        match node.soft.with(|s| s.awaited(session)) {
            None => return std::future::pending().await,
            Some(true) => return,
            Some(false) => sleep(AWAITED_INTERVAL).await,
        }
    }
}

/// [`when`], in line for a lease of this mode from the first attempt on that does not answer.
async fn in_line<T>(
    node: &Node,
    (by, ino, mode): (SessionId, InodeId, Mode),
    deadline: Instant,
    what: &str,
    mut attempt: impl FnMut(&mut Leases) -> Option<T>,
) -> Result<T> {
    let mut place = None;
    when(node, None, deadline, what, |s| {
        let answer = attempt(&mut s.leases);
        if answer.is_none() && place.is_none() {
            place = Some(Place { node, ino, number: s.leases.wait(by, ino, mode) });
        }
        answer
    })
    .await
}

/// Who may have made an inode that this server has not heard of, holds that to write.
pub fn enter_unheard(node: &Node, by: SessionId, ino: InodeId) -> Result<()> {
    if let Some(owner) = node.state.unheard_of(ino)?.filter(|owner| *owner != by) {
        node.soft.with(|s| s.leases.enter_made(owner, ino));
    }
    Ok(())
}

/// Waits until nobody else has buffered what `by` is about to read.
pub async fn readable(node: &Node, by: SessionId, ino: InodeId, deadline: Instant) -> Result<()> {
    enter_unheard(node, by, ino)?;
    let what = "another session has not given up its lease yet";
    in_line(node, (by, ino, Mode::Read), deadline, what, |leases| {
        leases.recall(Instant::now(), by, ino, Use::Read).then_some(())
    })
    .await
}

/// Grants a lease that the asker cannot do without: its kernel is going to cache what it is
/// told. Waits for changes that are under way, and for whoever came earlier; but not if the asker
/// has to give back an earlier lease first, which it cannot before this is answered. What it caches
/// then, it forgets with that one.
pub async fn must_grant(
    node: &Node,
    to: SessionId,
    ino: InodeId,
    mode: Mode,
    deadline: Instant,
) -> Result<Option<v1::Grant>> {
    let what = "a change by another session has not ended yet";
    let serve = |leases: &mut Leases| leases.serve(Instant::now(), to, ino, mode);
    in_line(node, (to, ino, mode), deadline, what, serve).await
}

/// Grants ranges of a file, as [`must_grant`] does. Answers as well whether something has to be
/// given back first.
pub async fn must_grant_ranges(
    node: &Node,
    to: SessionId,
    ino: InodeId,
    records: &[Range<u64>],
    deadline: Instant,
) -> Result<(Option<v1::Grant>, bool)> {
    let what = "another session has not given up what it may write of the file yet";
    let serve = |leases: &mut Leases| {
        let granted = leases.serve_ranges(Instant::now(), to, ino, records)?;
        let owes = granted.is_none() && leases.owes(to, ino);
        Some((granted, owes))
    };
    in_line(node, (to, ino, Mode::Ranges), deadline, what, serve).await
}

/// Waits for those who came earlier for the right to write, which nobody is granted while another
/// locks.
pub async fn may_begin_lock(
    node: &Node,
    by: SessionId,
    ino: InodeId,
    deadline: Instant,
) -> Result<()> {
    let what = "another session has not been granted the right to write yet";
    in_line(node, (by, ino, Mode::Read), deadline, what, |leases| {
        (!leases.has_earlier(by, ino, Mode::Read)).then_some(())
    })
    .await
}

/// Gives a session the right to map an inode to write, unless another needs it. Answers whether it
/// did. Who writes ranges of the file goes on with that: opening it so would else wait for all who
/// do, again and again.
pub async fn may_map(node: &Node, by: SessionId, ino: InodeId, deadline: Instant) -> Result<bool> {
    enter_unheard(node, by, ino)?;
    let what = "another session has not said yet whether it maps the file";
    let mut asked = 0;
    let map = |s: &mut Sessions| s.leases.map(Instant::now(), by, ino, &mut asked);
    when(node, None, deadline, what, map).await
}

/// Takes inodes for a change of the leader's own. Leases of an earlier leader's term may be held
/// that this one is yet to be told of.
pub async fn claim_own(
    node: &Arc<Node>,
    term: u64,
    inos: Vec<InodeId>,
    deadline: Instant,
) -> Result<Claim> {
    all_declared(node, SessionId(0), deadline).await?;
    let mut claim = Claim::nothing(node, term, SessionId(0));
    claim.take(inos, deadline).await?;
    Ok(claim)
}

/// The same; those that others hold leases on, and do not give back in time, are in the second.
/// While it is kept nobody is granted leases on them, either.
pub async fn claim_free(
    node: &Arc<Node>,
    term: u64,
    inos: Vec<InodeId>,
    patience: Instant,
) -> Result<(Claim, Claim)> {
    all_declared(node, SessionId(0), patience).await?;
    let mut claim = Claim::nothing(node, term, SessionId(0));
    match claim.take(inos, patience).await {
        Err(error) if error.kind != ErrorKind::TimedOut => Err(error),
        _ => {
            let held = claim.split_held();
            Ok((claim, held))
        }
    }
}

/// Takes what a commit writes of a file that several sessions write: what others hold of the rest
/// stays where it is. `None` if that is not all that it takes.
pub async fn claim_ranges(
    node: &Arc<Node>,
    term: u64,
    by: SessionId,
    op: &Op,
    deadline: Instant,
) -> Result<Option<Claim>> {
    let Op::CommitExtents(op) = op else { return Ok(None) };
    let ino = InodeId(op.ino);
    // Who changes attributes has all recalled that may be known of them.
    if op.append || op.min_size > 0 || op.extents.is_empty() || op.attr.is_some() {
        return Ok(None);
    }
    let mut ranges = ByteRanges::default();
    for extent in &op.extents {
        ranges.insert(extent.file_off..extent.file_off.saturating_add(extent.len));
    }
    // What was written in doubt is for the content that it was written to, and so is all of that.
    let only_own = op.expect_version.is_some() || ranges.len() > MOST_OTHERS;
    let begun = node.soft.with(|s| match s.term() == term {
        true => s.leases.begin_write(by, ino, &ranges, only_own),
        false => None,
    });
    let Some((number, is_own)) = begun else { return Ok(None) };
    let mut claim = Claim::nothing(node, term, by);
    claim.in_ranges = Some((ino, number));
    if !is_own {
        let what = "another session has not given up what it may write of the file yet";
        when(node, Some(term), deadline, what, |s| {
            s.leases.recall_ranges(Instant::now(), by, ino, &ranges).then_some(())
        })
        .await?;
    }
    Ok(Some(claim))
}

/// Takes what a client's change touches. `unasked`: it was made under leases to write, if the
/// client holds them still, and makes these itself.
pub async fn claim(
    node: &Arc<Node>,
    term: u64,
    by: SessionId,
    Footprint { mut names, changes, .. }: Footprint,
    unasked: Option<&BTreeSet<InodeId>>,
    deadline: Instant,
) -> Result<Claim> {
    // A name that is moved to itself, or changed several times.
    names.sort_unstable();
    names.dedup();
    let mut claim = Claim::nothing(node, term, by);
    if let Some(made) = unasked {
        let writes = |ino| made.contains(&ino) || node.soft.with(|s| s.leases.writes(by, ino));
        // Whoever has taken one of these names waits for the lease, and so for this.
        if names.iter().all(|(dir, _)| writes(*dir)) && changes.iter().all(|ino| writes(*ino)) {
            return Ok(claim);
        }
    }
    let busy = "another change of the same name has not ended yet";
    let take = |s: &mut Sessions| s.leases.take_names(&names).then_some(());
    when(node, Some(term), deadline, busy, take).await?;
    claim.names = names;
    changes.iter().try_for_each(|ino| enter_unheard(node, by, *ino))?;
    // Whoever held the lease to make files in a directory tells them before it is back: a name may
    // lead to another inode then. It leads nowhere else once that is taken, too.
    loop {
        let touched = touched(node, &changes, &claim.names)?;
        let more: Vec<_> = touched.into_iter().filter(|ino| !claim.inos.contains(ino)).collect();
        if more.is_empty() {
            return Ok(claim);
        }
        claim.take(more, deadline).await?;
    }
}

/// The inodes that a change touches now: what it names, the directories of its names, and what is
/// there.
fn touched(node: &Node, changes: &[InodeId], names: &[Name]) -> Result<BTreeSet<InodeId>> {
    let mut inos = BTreeSet::from_iter(changes.iter().copied());
    for (parent, name) in names {
        inos.insert(*parent);
        inos.extend(node.state.child(*parent, name)?);
    }
    Ok(inos)
}
