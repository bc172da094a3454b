//! What this mount sees of the filesystem, and what it may do: as the cluster says when a session
//! begins, and within that as the mount was told.
//!
//! Invariant: the root is found once and is the same inode from then on, whatever its name is,
//! through later sessions and other processes that go on with the mount.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tracing::error;
use weft_proto::{InodeId, v1};

/// Who root is where it is nobody in particular: user and group.
const NOBODY: u32 = 65_534;

/// Bounds of one mount.
#[derive(Debug, Default)]
pub(crate) struct Confinement {
    /// The root of the session; 0: there was none yet.
    session_root: AtomicU64,
    /// That of the mount, which is the same or lies below it.
    root: AtomicU64,
    /// The mount was told to change nothing.
    asked_read_only: bool,
    read_only: AtomicBool,
    squash_root: AtomicBool,
}

impl Confinement {
    pub fn new(read_only: bool) -> Self {
        let asked_read_only = read_only;
        Self { asked_read_only, read_only: AtomicBool::new(read_only), ..Self::default() }
    }

    /// A session was opened, with this answer.
    pub fn opened(&self, reply: &v1::OpenSessionReply) {
        let root = or_root(reply.root).0;
        let first =
            self.session_root.compare_exchange(0, root, Ordering::AcqRel, Ordering::Acquire);
        match first {
            Ok(_) => self.root.store(root, Ordering::Release),
            Err(before) if before != root => error!(
                "the directory that this client's certificate is for is another now (inode {}, \
                 and not {}): what is mounted here answers ESTALE; mount it anew",
                InodeId(root),
                InodeId(before)
            ),
            Err(_) => {}
        }
        self.read_only.store(self.asked_read_only || reply.read_only, Ordering::Relaxed);
        self.squash_root.store(reply.squash_root, Ordering::Relaxed);
    }

    /// Where all paths begin, and which is above none of them.
    pub fn root(&self) -> InodeId {
        or_root(self.root.load(Ordering::Acquire))
    }

    /// The mount begins at a directory below the root of the session.
    pub fn enter(&self, dir: InodeId) {
        self.root.store(dir.0, Ordering::Release);
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    pub fn squashes_root(&self) -> bool {
        self.squash_root.load(Ordering::Relaxed)
    }

    /// Who a user or group counts as.
    pub fn squashed(&self, id: u32) -> u32 {
        if id == 0 && self.squashes_root() { NOBODY } else { id }
    }

    /// For another process that goes on with the mount.
    pub fn hand_over(&self, state: &mut v1::ClientState) {
        state.root = self.root().0;
        state.session_root = self.session_root.load(Ordering::Acquire);
        state.read_only = self.is_read_only();
        state.squash_root = self.squashes_root();
    }

    /// Goes on with what another process had; 0: that knew of nothing but the root.
    pub fn adopt(&self, state: &v1::ClientState) {
        self.root.store(or_root(state.root).0, Ordering::Release);
        self.session_root.store(or_root(state.session_root).0, Ordering::Release);
        self.read_only.store(self.asked_read_only || state.read_only, Ordering::Relaxed);
        self.squash_root.store(state.squash_root, Ordering::Relaxed);
    }
}

fn or_root(ino: u64) -> InodeId {
    if ino == 0 { InodeId::ROOT } else { InodeId(ino) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_found_once_and_stays() {
        let bounds = Confinement::new(false);
        assert_eq!(bounds.root(), InodeId::ROOT);
        let opened = |root| v1::OpenSessionReply { root, ..Default::default() };
        bounds.opened(&opened(7));
        assert_eq!(bounds.root(), InodeId(7));
        bounds.enter(InodeId(9));
        bounds.opened(&opened(7));
        bounds.opened(&opened(8));
        assert_eq!(
            bounds.root(),
            InodeId(9),
            "another session, and the certificate's folder moved"
        );
        let mut state = v1::ClientState::default();
        bounds.hand_over(&mut state);
        let next = Confinement::new(false);
        next.adopt(&state);
        next.opened(&opened(7));
        assert_eq!(next.root(), InodeId(9));
        next.adopt(&v1::ClientState::default());
        assert_eq!(next.root(), InodeId::ROOT, "from a version that knows of no other root");
    }

    #[test]
    fn what_may_be_done_is_less_of_what_was_asked_and_what_is_granted() {
        for (asked, granted) in [(false, false), (false, true), (true, false), (true, true)] {
            let bounds = Confinement::new(asked);
            let (read_only, squash_root) = (granted, granted);
            let reply = v1::OpenSessionReply { read_only, squash_root, ..Default::default() };
            bounds.opened(&reply);
            assert_eq!(bounds.is_read_only(), asked || granted);
            assert_eq!(bounds.squashed(0), if granted { NOBODY } else { 0 });
            assert_eq!(bounds.squashed(1000), 1000);
        }
    }
}
