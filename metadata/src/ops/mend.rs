//! Changes records that contradict each other, as a look of the leader's found them
//! ([`crate::check`]). A fix is carried out as a whole, if every record that it stands on is as the
//! look found it; else it is passed over, and the next look sees what is wrong still.

use crate::operation::{Change, Context, Fault, Reply, attempt};
use crate::schema::{self, Group, Inode, Tag};
use crate::store::{StoreResult, Txn};
use crate::tables::inodes::{self, Wanted};
use crate::tables::names;
use bytes::Bytes;
use v1::FileKind;
use v1::mend_entry::{Fix, Record};
use weft_proto::{InodeId, v1};

/// Where what has lost its name gets one: the first of these that is root's alone, or is free.
pub(crate) const LOST_FOUND: [&str; 4] =
    ["lost+found", "lost+found.1", "lost+found.2", "lost+found.3"];
/// Names that are tried there.
const MAX_NAMES: u32 = 16;

/// What a fix may change beside the records of inodes.
const OTHERS: [Tag; 5] = [Tag::Segment, Tag::Garbage, Tag::Member, Tag::LockOf, Tag::Quota];

/// What a fix may stand on only.
const KEPT: [Tag; 2] = [Tag::Session, Tag::Ended];

impl Change for v1::MendEntry {
    fn run(&self, tx: &mut Txn<'_>, cx: &Context) -> Result<Reply, Fault> {
        let mut done = Vec::with_capacity(self.fixes.len());
        for fix in &self.fixes {
            let fits = fits(tx, fix)?;
            // One that meets what makes no sense is undone, and keeps back no other.
            let carried = fits.then(|| attempt(tx, |tx| Ok(carry_out(tx, fix, cx)?)));
            done.push(match carried.transpose() {
                Ok(carried) => carried.unwrap_or(false),
                Err(fault) => fault.refusal().map(|_| false)?,
            });
        }
        Ok(Reply::Mended(v1::MendedReply { done }))
    }
}

fn fits(tx: &Txn<'_>, fix: &Fix) -> StoreResult<bool> {
    for Record { key, was, is } in &fix.records {
        let may_change =
            schema::is_of_inode(key) || OTHERS.iter().any(|t| schema::has_tag(key, *t));
        let may_stand = was == is && KEPT.iter().any(|t| schema::has_tag(key, *t));
        if !(may_change || may_stand) || tx.state().get(key)? != *was {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Answers false, and has changed nothing, if it cannot be carried out.
fn carry_out(tx: &mut Txn<'_>, fix: &Fix, cx: &Context) -> StoreResult<bool> {
    let mut groups = Vec::new();
    for count in &fix.groups {
        let key = schema::group(count.pg);
        let Some(mut group) = tx.state().load::<Group>(&key)? else { continue };
        let Some(segments) = group.segments.checked_add_signed(count.change) else {
            return Ok(false);
        };
        group.segments = segments;
        groups.push((key, group));
    }
    let counted = tx.state().counters()?.inodes;
    if counted.checked_add_signed(fix.inodes).is_none() {
        return Ok(false);
    }
    if let Some(ino) = fix.found
        && !name_again(tx, InodeId(ino), cx)?
    {
        return Ok(false);
    }
    for Record { key, was, is } in &fix.records {
        match is {
            _ if was == is => {}
            _ if schema::has_tag(key, Tag::Inode) => {
                // One that makes no sense counts for nobody.
                let before = was.clone().and_then(|was| schema::decode(key, was).ok());
                tx.replace_inode(key.to_vec(), before, is.clone())?;
            }
            Some(is) => tx.put_bytes(key.to_vec(), is.clone()),
            None => tx.delete(key.to_vec()),
        }
    }
    if (fix.inodes, fix.last_inode, fix.last_pg) != (0, 0, 0) {
        tx.edit_counters(|c| {
            c.inodes = c.inodes.saturating_add_signed(fix.inodes);
            c.next_inode = c.next_inode.max(fix.last_inode.saturating_add(1));
            c.next_pg = c.next_pg.max(fix.last_pg.saturating_add(1));
        })?;
    }
    groups.into_iter().for_each(|(key, group)| tx.put(key, &group));
    Ok(true)
}

/// Gives an inode a name in a directory for what was found. Answers whether it has one now.
fn name_again(tx: &mut Txn<'_>, ino: InodeId, cx: &Context) -> StoreResult<bool> {
    let root = InodeId::root_of(tx.state().shard()?);
    if ino == root || tx.state().inode(ino)?.is_none() || tx.state().inode(root)?.is_none() {
        return Ok(false);
    }
    let Some(dir) = lost_found(tx, root, ino, cx)? else { return Ok(false) };
    let names = (0..MAX_NAMES).map(|n| match n {
        0 => format!("ino-{ino}"),
        n => format!("ino-{ino}.{n}"),
    });
    let mut free = None;
    for name in names {
        if free.is_none() && tx.state().dentry(dir, name.as_bytes())?.is_none() {
            free = Some(Bytes::from(name));
        }
    }
    let (Some(name), Some(dir)) = (free, tx.state().inode(dir)?) else { return Ok(false) };
    let mut inode = tx.state().inode_that_exists(ino)?;
    // Of a directory it counts those below, too: the next look does.
    inode.attr.nlink = inode.attr.nlink.max(if inode.is_dir() { 2 } else { 1 });
    inode.nameless = false;
    if inode.is_dir() {
        inode.parent = dir.ino().0;
    }
    tx.put_inode(&inode)?;
    tx.delete(schema::orphan(ino));
    names::add(tx, dir, &name, ino, inode.kind(), cx.now)?;
    Ok(true)
}

/// The directory that it gets its name in. Nobody but root is to see what is put there.
fn lost_found(
    tx: &mut Txn<'_>,
    root: InodeId,
    ino: InodeId,
    cx: &Context,
) -> StoreResult<Option<InodeId>> {
    for name in LOST_FOUND {
        let Some(dentry) = tx.state().dentry(root, name.as_bytes())? else {
            let top = tx.state().inode_that_exists(root)?;
            return make_lost_found(tx, top, name, cx).map(Some);
        };
        let dir = tx.state().inode(InodeId(dentry.ino))?;
        let is_roots = |dir: &Inode| {
            let attr = &dir.attr;
            dir.is_dir() && attr.nlink > 0 && attr.uid == 0 && attr.mode & 0o077 == 0 && !attr.acls
        };
        if dentry.ino != ino.0 && dir.as_ref().is_some_and(is_roots) {
            return Ok(Some(InodeId(dentry.ino)));
        }
    }
    Ok(None)
}

fn make_lost_found(
    tx: &mut Txn<'_>,
    root: Inode,
    name: &'static str,
    cx: &Context,
) -> StoreResult<InodeId> {
    let kind = FileKind::Directory;
    let wanted = Wanted { kind, mode: 0o700, umask: 0, uid: 0, gid: 0, rdev: 0 };
    // Nothing is inherited but the layout.
    let attr = v1::Attr { ino: root.attr.ino, ..Default::default() };
    let (layout, quota) = (root.layout, root.zone());
    let plain = Inode { attr, layout, quota, ..Default::default() };
    let dir = inodes::make(tx, &plain, &wanted, cx.now)?;
    tx.put_inode(&dir)?;
    names::add(tx, root, &Bytes::from_static(name.as_bytes()), dir.ino(), kind, cx.now)?;
    Ok(dir.ino())
}
