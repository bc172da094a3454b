//! Inodes, against their names, their extents and what else belongs to them.

use super::Check;
use super::accounts::{Facts, Seen, links, room, sizes};
use super::extents::Extents;
use super::names::Names;
use super::plan::Stage;
use crate::schema::{self, Inode, Tag};
use crate::store::StoreResult;
use crate::tables::content;
use crate::tables::numbers;
use crate::tables::xattrs::Room;
use std::collections::HashMap;
use v1::FileKind;
use weft_proto::{InodeId, v1};

/// No number was so far behind the last that is known: it is damaged.
const MAX_INODE_STEP: u64 = 1 << 40;
/// Most gaps in a file that one fix fills.
const MAX_GAPS: usize = 1000;

impl Check<'_> {
    /// Every inode against its names, its extents and its orphan record.
    pub(super) fn inodes(
        &mut self,
        names: &Names,
        extents: &Extents,
        xattrs: &HashMap<u64, Room>,
    ) -> StoreResult<()> {
        let facts = Facts { names, extents, xattrs };
        let state = self.state;
        let layout = state.inode(InodeId::root_of(self.shard))?.and_then(|root| root.layout);
        let mut seen = Seen::default();
        state.records(schema::all_in(self.shard, Tag::Inode), |key, inode: Inode| {
            let ino = schema::ino_of(key)?;
            seen.known.insert(ino.0);
            seen.last = seen.last.max(ino.number());
            self.report.inodes += 1;
            self.counted.iter_mut().for_each(|counted| counted.count(&inode));
            let named = names.of.get(&ino.0).copied().unwrap_or_default();
            if inode.kind() == FileKind::Regular && !seen.contents.insert(inode.content_id().0) {
                self.problem(format!("inode {ino}: shares its content with another"));
            }
            let entries = names.within.get(&ino.0).map_or(0, |within| within.entries);
            if entries > 0 && !inode.is_dir() {
                self.problem(format!("inode {ino}: has {entries} names, and is no directory"));
            }
            if inode.ino() != ino {
                seen.misnamed.push((ino, inode));
                return Ok(true);
            }
            let says_other = named.kind != inode.kind() || names.odd.contains(&ino.0);
            if named.count > 0 && says_other && (entries == 0 || inode.is_dir()) {
                seen.odd.insert(ino.0);
            }
            let orphan = state.get(&schema::orphan(ino))?.is_some();
            self.report.orphans += u64::from(orphan);
            let alive = inode.attr.nlink > 0 || inode.is_dir() && entries > 0;
            if named.count == 0 && ino != InodeId::root_of(self.shard) && alive {
                return self.find(&inode, orphan).map(|()| true);
            }
            self.accounts(inode, orphan, layout, facts)?;
            Ok(true)
        })?;
        for (ino, inode) in std::mem::take(&mut seen.misnamed) {
            self.misnamed(ino, inode, &seen, facts)?;
        }
        self.kinds(&seen.odd)?;
        self.missing(&seen, facts)?;
        self.counts(seen.last)
    }

    /// What an inode says of itself.
    fn accounts(
        &mut self,
        inode: Inode,
        orphan: bool,
        layout: Option<v1::LayoutInfo>,
        facts: Facts<'_>,
    ) -> StoreResult<()> {
        let (state, ino) = (self.state, inode.ino());
        let mut right = inode.clone();
        let mut wrong = Vec::new();
        links(&mut right, facts.names, &mut wrong);
        let dead = right.attr.nlink == 0;
        if orphan != dead {
            wrong.push(format!("{} links, orphan: {orphan}", right.attr.nlink));
        }
        if holds_data(&inode) && !matches!(inode.checked_layout(), Ok(Some(_))) {
            wrong.push("no valid layout".into());
            right.layout = layout;
        }
        room(&mut right, facts.xattrs, &mut wrong);
        if !self.is_short(&inode, facts.extents)? {
            sizes(&mut right, facts.extents, &mut wrong);
        }
        let trims = state.get(&schema::trim(ino))?.is_some();
        if trims == inode.cut.is_empty() {
            wrong.push(format!("{} ranges cut, to trim: {trims}", inode.cut.len()));
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let what = format!("inode {ino}: {}", wrong.join("; "));
        self.mend(Stage::Inodes, what, |draft| {
            draft.put(schema::inode(ino), &right)?;
            let none = v1::Empty {};
            match dead {
                true if !orphan => draft.put(schema::orphan(ino), &none)?,
                false if orphan => draft.delete(schema::orphan(ino))?,
                _ => {}
            }
            match inode.cut.is_empty() {
                true if trims => draft.delete(schema::trim(ino)),
                false if !trims => draft.put(schema::trim(ino), &none),
                _ => Ok(()),
            }
        })
    }

    /// Whether extents of a file are missing: it accounts for more than there is, and so does some
    /// segment, or it does for inline bytes. Where that says which bytes they were, reading those
    /// is an error from now on, and not zeros.
    fn is_short(&mut self, file: &Inode, extents: &Extents) -> StoreResult<bool> {
        let sums = extents.of.get(&file.content_id().0).copied().unwrap_or_default();
        let (bytes, inline, end) = sums;
        if file.kind() != FileKind::Regular || file.attr.nlink == 0 {
            return Ok(false);
        }
        // Its own content is there, under its own number.
        let others = file.content != 0 && extents.of.contains_key(&file.attr.ino);
        if bytes == 0 && file.allocated > 0 && others {
            self.unsure += 1;
            self.problem(format!("inode {}: its content is that of none", file.ino()));
            return Ok(true);
        }
        let missing = file.allocated.saturating_sub(bytes);
        let of_inline = file.attr.inline_bytes.saturating_sub(inline);
        let may_be = extents.missing.saturating_add(of_inline) >= missing;
        // A file without anything cut out takes no more than it is long.
        let too_much = file.cut.is_empty() && file.allocated > file.attr.size;
        if missing == 0 || !may_be || too_much {
            return Ok(false);
        }
        self.unsure += 1;
        let what = format!(
            "inode {}: {bytes} bytes in extents, accounts for {}: content is missing",
            file.ino(),
            file.allocated
        );
        // It had no holes: what is not covered is what is missing.
        if file.allocated != file.attr.size || end > file.attr.size || !file.cut.is_empty() {
            self.problem(what);
            return Ok(true);
        }
        let state = self.state;
        self.mend(Stage::Extents, what, |draft| {
            let (mut at, mut gaps) = (0, Vec::new());
            let all = schema::all_of(Tag::Extent, file.content_id());
            state.records(all, |_, e: v1::Extent| {
                gaps.extend((e.file_off > at).then_some((at, e.file_off)));
                at = at.max(content::end(&e));
                Ok(gaps.len() < MAX_GAPS)
            })?;
            if gaps.len() < MAX_GAPS && at < file.attr.size {
                gaps.push((at, file.attr.size));
            }
            for (from, to) in gaps {
                let lost = v1::Extent { file_off: from, len: to - from, source: None };
                draft.put(schema::extent(file.content_id(), to), &lost)?;
            }
            let mut newer = file.clone();
            newer.attr.data_version = newer.attr.data_version.saturating_add(1);
            draft.put(schema::inode(file.ino()), &newer)
        })?;
        Ok(true)
    }

    /// What is not deleted and has no name gets one.
    fn find(&mut self, inode: &Inode, orphan: bool) -> StoreResult<()> {
        let ino = inode.ino();
        let what = match orphan {
            true => format!("inode {ino}: {} links, no name, orphan: true", inode.attr.nlink),
            false => format!("inode {ino}: link count {}, but no name", inode.attr.nlink),
        };
        self.mend(Stage::Found, what, |draft| {
            draft.keep(schema::inode(ino))?;
            draft.find(ino);
            Ok(())
        })
    }

    /// How many inodes there are, and which numbers are free.
    fn counts(&mut self, last: u64) -> StoreResult<()> {
        let counters = self.state.counters()?;
        let inodes = self.report.inodes;
        if counters.inodes != inodes {
            let what = format!("{inodes} inodes, counted {}", counters.inodes);
            let change = i128::from(inodes) - i128::from(counters.inodes);
            self.mend(Stage::Inodes, what, |draft| {
                if let Ok(change) = i64::try_from(change) {
                    draft.count_inodes(change);
                }
                Ok(())
            })?;
        }
        let last = last.max(numbers::last_reserved(self.state)?);
        if last >= counters.next_inode {
            let what = format!("inode number {last}: the next would be {}", counters.next_inode);
            self.mend(Stage::Names, what, |draft| {
                if last < counters.next_inode.saturating_add(MAX_INODE_STEP) {
                    draft.last_inode(last);
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

fn holds_data(inode: &Inode) -> bool {
    inode.is_dir() || inode.kind() == FileKind::Regular
}
