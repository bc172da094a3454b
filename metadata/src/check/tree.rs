//! The tree that directories make.

use super::Check;
use super::names::{Names, forget};
use super::plan::Stage;
use crate::schema::{self, Dentry, HEAD, Tag};
use crate::store::StoreResult;
use std::collections::{HashMap, HashSet};
use weft_proto::InodeId;

impl Check<'_> {
    /// A directory has one name: where it says itself, or else the first that there is.
    pub(super) fn only_name(
        &mut self,
        parents: &mut HashMap<u64, u64>,
        dir: InodeId,
        name: &[u8],
        d: &Dentry,
    ) -> StoreResult<()> {
        let Some(first) = parents.insert(d.ino, dir.0) else { return Ok(()) };
        let ino = InodeId(d.ino);
        let parent = self.state.inode(ino)?.map(|inode| inode.parent);
        let here = parent == Some(dir.0) && first != dir.0;
        if !here {
            parents.insert(d.ino, first);
        }
        let what = format!(
            "name {:?} in directory {dir}: the directory has another name",
            String::from_utf8_lossy(name)
        );
        let state = self.state;
        self.mend(Stage::Tree, what, |draft| {
            draft.keep(schema::inode(ino))?;
            if !here {
                return forget(draft, dir, name, d);
            }
            let mut other = None;
            state.records(
                schema::all_of(Tag::Dentry, InodeId(first)),
                |key, other_d: Dentry| {
                    let same = other_d.ino == d.ino;
                    other = same.then(|| (key[HEAD + 8..].to_vec(), other_d));
                    Ok(!same)
                },
            )?;
            match other {
                Some((name, d)) => forget(draft, InodeId(first), &name, &d),
                None => Ok(()),
            }
        })
    }

    /// Every named directory leads up to the root, by the parents that it and its dentry agree on.
    pub(super) fn tree(&mut self, names: &Names) -> StoreResult<()> {
        let state = self.state;
        for (&dir, &parent) in &names.parent {
            let Some(inode) = state.inode(InodeId(dir))? else { continue };
            if inode.parent != parent {
                let what = format!(
                    "directory {}: named by {}, but its parent is {:x}",
                    InodeId(dir),
                    InodeId(parent),
                    inode.parent
                );
                self.mend(Stage::Tree, what, |draft| {
                    let right = schema::Inode { parent, ..inode };
                    draft.put(schema::inode(InodeId(dir)), &right)
                })?;
            }
        }
        let mut reached: HashSet<u64> = HashSet::from([InodeId::root_of(self.shard).0]);
        for &dir in names.parent.keys() {
            let mut path = Vec::new();
            let mut at = dir;
            let mut on_path = HashSet::new();
            while !reached.contains(&at) && on_path.insert(at) {
                path.push(at);
                match names.parent.get(&at) {
                    Some(&parent) => at = parent,
                    None => break,
                }
            }
            if !reached.contains(&at) {
                self.cut_off(&path, at, names)?;
            }
            reached.extend(path);
        }
        Ok(())
    }

    /// Directories that lead up to `top`, and not to the root: to something without a name, which
    /// will get one; or around, and one of them loses its name, and will get another.
    fn cut_off(&mut self, path: &[u64], top: u64, names: &Names) -> StoreResult<()> {
        let what = format!("directory {} does not lead to the root", InodeId(path[0]));
        let Some(at) = path.iter().position(|&dir| dir == top) else {
            self.problem(what);
            return Ok(());
        };
        let around = path[at..].iter().min().copied().unwrap_or(top);
        let Some(&parent) = names.parent.get(&around) else {
            self.problem(what);
            return Ok(());
        };
        let (state, parent) = (self.state, InodeId(parent));
        self.mend(Stage::Tree, what, |draft| {
            let mut name = None;
            state.records(schema::all_of(Tag::Dentry, parent), |key, d: Dentry| {
                let same = d.ino == around;
                name = same.then(|| (key[HEAD + 8..].to_vec(), d));
                Ok(!same)
            })?;
            match name {
                Some((name, d)) => forget(draft, parent, &name, &d),
                None => Ok(()),
            }
        })
    }
}
