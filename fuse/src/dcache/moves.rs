//! Names that are moved: the kernel moves their dentries, with the time to live that they have.

use super::Dcache;
use super::table::ANY;
use bytes::Bytes;
use futures_util::future::join_all;
use std::collections::HashSet;
use weft_client::{Filesystem, NameCache};
use weft_proto::InodeId;

/// What was being taken back when a name began to be moved.
pub struct Moving((u64, bool));

impl Dcache {
    /// A name is about to be moved by a request of this mount; to be told to [`Self::moved`].
    pub fn moves(&self) -> Moving {
        Moving(self.0.closed.rounds())
    }

    /// A name was moved, to where the kernel will have it with the time to live that it has; or two
    /// names were `exchanged`.
    pub async fn moved(
        &self,
        fs: &Filesystem,
        from: (InodeId, Bytes),
        to: (InodeId, Bytes),
        exchanged: bool,
        Moving((rounds, closed)): Moving,
    ) {
        let (mut moved, mut back) = (Vec::new(), HashSet::new());
        {
            let mut table = self.0.table.lock();
            // Names that were taken back meanwhile, which is under this lock, have it still: the
            // notice waits for this request.
            let surely = !closed && self.0.closed.rounds().0 == rounds;
            let old = table.leads_to(from.0.0, &from.1);
            let new = table.leads_to(to.0.0, &to.1);
            let both = [(old, to, true), (new, from, exchanged)];
            for (ino, (dir, name), _) in both.into_iter().filter(|(.., moves)| *moves) {
                match ino {
                    Some(ino) => {
                        table.give(dir.0, name.clone(), ino);
                        back.extend(table.too_many(ino));
                        moved.push((dir, name, ino));
                    }
                    None if surely => {}
                    None => {
                        table.give(dir.0, name, ANY);
                        back.insert(dir.0);
                    }
                }
            }
            back.extend(table.too_vague());
        }
        // No recall comes for what no lease is on.
        let mine = |(dir, name, ino): &(InodeId, Bytes, u64)| {
            fs.may_cache_name(*dir, name, Some(InodeId(*ino)))
        };
        back.extend(moved.iter().filter(|name| !mine(name)).map(|(dir, ..)| dir.0));
        join_all(back.into_iter().map(|dir| self.forget(InodeId(dir)))).await;
    }
}
