//! Which directories lie below one, as their records say. Each is looked at once for a request,
//! which holds up all others meanwhile.

use std::collections::HashMap;
use weft_proto::{Error, ErrorKind, InodeId, Result};

/// Directories are looked up so many levels deep.
const MAX_DEPTH: usize = 4096 + 2;
/// Most directories that are looked at for one request: those of the inodes that it may name, and
/// above them.
const MAX_LOOKS: usize = 1 << 16;

pub(super) struct Below {
    root: InodeId,
    known: HashMap<InodeId, bool>,
    looks: usize,
}

impl Below {
    pub fn new(root: InodeId) -> Self {
        Self { root, known: HashMap::new(), looks: 0 }
    }

    /// Whether a directory is the root or below that. `placed` answers whether an inode is a
    /// directory, and the one that it is in. Error: `Invalid`, too many were looked at.
    pub fn has(
        &mut self,
        dir: InodeId,
        mut placed: impl FnMut(InodeId) -> Result<Option<(bool, InodeId)>>,
    ) -> Result<bool> {
        let (mut at, mut passed) = (dir, Vec::new());
        let below = loop {
            if at == self.root {
                break true;
            }
            if let Some(below) = self.known.get(&at) {
                break *below;
            }
            if at.is_root() || at.0 == 0 || passed.len() > MAX_DEPTH {
                break false;
            }
            self.may_look()?;
            self.looks += 1;
            passed.push(at);
            match placed(at)? {
                Some((true, parent)) => at = parent,
                _ => break false,
            }
        };
        self.known.extend(passed.into_iter().map(|dir| (dir, below)));
        Ok(below)
    }

    /// Error: `Invalid`, too many were looked at.
    pub fn may_look(&self) -> Result<()> {
        if self.looks < MAX_LOOKS {
            return Ok(());
        }
        let what = format!("a request about inodes in over {MAX_LOOKS} directories");
        Err(Error::new(ErrorKind::Invalid, what))
    }

    /// Directories may have been moved.
    pub fn forget(&mut self) {
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: InodeId = InodeId(7);

    /// Chains of directories below the root, each of so many, in which numbers grow downwards.
    fn chain(ino: InodeId, deep: u64) -> (bool, InodeId) {
        let n = ino.0 - 1000;
        (true, if n.is_multiple_of(deep) { ROOT } else { InodeId(ino.0 - 1) })
    }

    #[test]
    fn one_request_looks_at_a_bounded_number_of_directories() {
        const DEEP: u64 = 4096;
        let (mut below, mut looks) = (Below::new(ROOT), 0);
        let last = |chain: u64| InodeId(1000 + (chain + 1) * DEEP - 1);
        let mut has = |below: &mut Below, dir| {
            below.has(dir, |ino| {
                looks += 1;
                Ok(Some(chain(ino, DEEP)))
            })
        };
        for n in 0..MAX_LOOKS as u64 / DEEP {
            assert!(has(&mut below, last(n)).unwrap());
        }
        let error = has(&mut below, last(300)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(below.may_look().is_err());
        assert!(has(&mut below, last(3)).unwrap(), "that is known");
        assert_eq!(looks, MAX_LOOKS);
    }

    #[test]
    fn what_is_beside_the_root_or_goes_round_is_not_below() {
        let mut below = Below::new(ROOT);
        let parents = [(8, 7), (9, 8), (10, 1), (11, 12), (12, 11)];
        let placed = |ino: InodeId| {
            let parent = parents.iter().find(|(of, _)| *of == ino.0);
            Ok(parent.map(|(_, parent)| (true, InodeId(*parent))))
        };
        for (dir, is) in [(7, true), (9, true), (8, true), (10, false), (11, false), (99, false)] {
            assert_eq!(below.has(InodeId(dir), placed).unwrap(), is, "{dir}");
        }
        let moved = |_| Ok(Some((true, InodeId::ROOT)));
        assert!(below.has(InodeId(9), moved).unwrap());
        below.forget();
        assert!(!below.has(InodeId(9), moved).unwrap());
    }
}
