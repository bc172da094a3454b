//! What the kernel may use of names and attributes without asking, and how that is taken back from
//! it.
//!
//! It may while a lease says so ([`NameCache`]). What it is given is in the [`Table`] before the
//! lease is looked at, so a recall that comes meanwhile finds it there.
//!
//! **Attributes** are given with the answers to GETATTR and STATX alone, and taken by an inode
//! notice with a negative offset, which needs no lock. The kernel has the inode then, and counts up
//! its version: an answer that is on its way still is not taken in, so notices wait for those
//! ([`told`]). They have no more time to live than the lease has for certain, since a mount whose
//! process stands still, or has died, takes nothing back.
//!
//! **Names** are used only with attributes of their directory, by which the kernel checks who may.
//! So a directory is *closed* first: its attributes are taken, and who asks for them waits. That
//! needs no lock, and the lease can be given back. Then the time to live of its names is ended by
//! entry notices, each of which needs the lock of the directory, and it is open again. Nothing that
//! is cached or mounted below a name is lost with its time to live. Why no answer that is on its
//! way to the kernel is left:
//! - The kernel holds the lock until it is through with the answer that it makes a dentry from: a
//!   lookup, or what made the name. That a lookup is of this kind follows from the inode: the
//!   kernel has no dentry of one that it does not know.
//! - It does not when it asks again for a dentry that it has. It is through with that answer when
//!   the same thread asks for something else, which is waited for while the directory is closed; or
//!   a second later.
//!
//! Who asks for the attributes of a closed directory may hold its lock, to see whether its caller
//! may change it. It has no path to walk any more, so it is answered ([`walks`](crate::proc)).

mod back;
mod closed;
mod content;
mod entries;
mod moves;
mod names;
mod recent;
mod table;
mod told;

use self::closed::Closed;
pub use self::content::Content;
pub use self::entries::Elsewhere;
use self::table::Table;
use self::told::Told;
use crate::abi::{Answer, Header, InitReply, Reply, opcode};
use crate::notifier::Notifier;
use crate::reply;
use crate::root::Root;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use weft_client::{Attr, FileKind, Filesystem, NameCache};
use weft_proto::{ErrorKind, InodeId, Result, v1};

/// Of names: until it is ended.
const NAME_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// What may be sent for a thread later than it was begun: it says nothing of where that is. All
/// else a thread asks for and waits for itself.
const BEHIND: [u32; 4] = [opcode::READ, opcode::WRITE, opcode::RELEASE, opcode::RELEASEDIR];
/// Attributes are asked for so often at most while a directory is closed again and again.
const MAX_TRIES: usize = 16;

/// What the kernel has of one mount; clones share it.
#[derive(Clone, Default)]
pub struct Dcache(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Nothing is asked of the client under it: that tells of changes under a lock of its own.
    table: Mutex<Table>,
    told: Mutex<Told>,
    closed: Closed,
    kernel: OnceLock<Kernel>,
    root: Root,
}

/// The way to the kernel, once it is known what that can do.
struct Kernel {
    notifier: Notifier,
    names: AtomicBool,
    /// For now the kernel is given nothing.
    gives: AtomicBool,
}

impl Dcache {
    /// Of a mount with this root.
    pub fn new(root: Root) -> Self {
        Self(Arc::new(Inner { root, ..Inner::default() }))
    }

    /// From now on things may be given to the kernel, which has agreed on this.
    pub fn begin(&self, notifier: Notifier, agreed: &InitReply) {
        let names = AtomicBool::new(names::may_be_kept(agreed.minor));
        let gives = AtomicBool::new(true);
        let _ = self.0.kernel.set(Kernel { notifier, names, gives });
    }

    /// A request has come.
    pub fn heard(&self, header: &Header) {
        match BEHIND.contains(&header.opcode) {
            true => self.0.told.lock().taken(header.pid),
            false => {
                self.0.told.lock().forget(header.pid);
                self.0.table.lock().is_through(header.pid);
            }
        }
        // It cannot be seen what such threads do.
        if header.pid == 0 && header.opcode == opcode::LOOKUP {
            self.give_no_names();
        }
    }

    /// What a lookup by this thread has found; 0 if it is not known.
    pub fn looked_up(
        &self,
        fs: &Filesystem,
        dir: InodeId,
        name: Bytes,
        thread: u32,
        found: Result<Attr>,
    ) -> Answer {
        match found {
            Ok(attr) => {
                let known = self.0.table.lock().tell(attr.ino.0);
                let name_ttl = match (known, thread) {
                    (true, 0) => Duration::ZERO,
                    (true, thread) => self.give_name(fs, dir, name, Some(attr.ino), Some(thread)),
                    (false, _) => self.give_name(fs, dir, name, Some(attr.ino), None),
                };
                Ok(Reply::Entry(self.entry(thread, &attr, name_ttl)))
            }
            Err(error) if error.kind == ErrorKind::NotFound => {
                match self.give_name(fs, dir, name, None, None) {
                    Duration::ZERO => Err(reply::errno(error)),
                    ttl => Ok(Reply::NoEntry(ttl)),
                }
            }
            Err(error) => Err(reply::errno(error)),
        }
    }

    /// Attributes, and for how long the kernel may use them without asking.
    pub async fn attr(
        &self,
        fs: &Filesystem,
        ino: InodeId,
        thread: u32,
    ) -> Result<(Attr, Duration)> {
        const SET_IDS: u32 = libc::S_ISUID | libc::S_ISGID;
        let mut tries = 0;
        let found = loop {
            let opened = self.0.closed.opened(ino.0, thread).await;
            let found =
                fs.get_attr(ino).await.inspect_err(|_| self.0.told.lock().forget(thread))?;
            tries += 1;
            // It may have been closed meanwhile.
            if !opened || !self.0.closed.has(ino.0) || tries == MAX_TRIES {
                break found;
            }
        };
        self.told(thread, ino);
        if !self.gives(|_| true) || fs.attr_to_cache(ino).is_none() {
            return Ok((found, Duration::ZERO));
        }
        if !self.0.table.lock().give_attr(ino.0) {
            return Ok((found, Duration::ZERO));
        }
        // A write takes the bits from a program that the kernel would go on to see them of.
        let is_safe = |attr: &Attr| attr.mode & SET_IDS == 0 || attr.kind == FileKind::Directory;
        let known = fs.attr_to_cache(ino).filter(|(attr, _)| is_safe(attr));
        Ok(match known.filter(|_| !self.0.closed.has(ino.0) && self.gives(|_| true)) {
            Some(known) => known,
            None => (found, Duration::ZERO),
        })
    }

    /// A thread asks for attributes.
    pub fn asks(&self, thread: u32, ino: InodeId) {
        self.0.told.lock().ask(thread, ino.0);
    }

    /// A thread is about to be told attributes, or has opened something and may ask for them.
    pub fn told(&self, thread: u32, ino: InodeId) {
        self.0.told.lock().tell(thread, ino.0);
    }

    /// An extended attribute is asked for.
    pub fn asked_xattr(&self, ino: InodeId, name: &[u8]) {
        const ACLS: &[u8] = b"system.posix_acl_";
        if name.starts_with(ACLS) {
            self.0.table.lock().tell_acl(ino.0);
        }
    }

    /// The kernel has dropped an inode that it was told of in so many answers. Answers whether it
    /// does not know it any more.
    pub fn forgotten(&self, ino: u64, answers: u64) -> bool {
        self.0.table.lock().forgotten(ino, answers)
    }

    /// What the kernel has, for another process to go on with; once nothing is closed.
    pub fn hand_over(&self) -> v1::KernelCache {
        self.0.table.lock().hand_over()
    }

    /// The same from another process; `None` if that did not know. To be called before
    /// [`Self::begin`].
    pub fn adopt(&self, known: Option<v1::KernelCache>) {
        *self.0.table.lock() = known.map_or_else(Table::unknown, Table::adopt);
    }

    /// Whether nothing is on its way back.
    pub fn rests(&self) -> bool {
        self.0.closed.is_empty()
    }

    /// Has all be taken back, and gives nothing until [`Self::give_again`]. Returns when the kernel
    /// has nothing any more, or at `deadline`.
    pub async fn give_nothing(&self, deadline: Instant) {
        if let Some(kernel) = self.0.kernel.get() {
            kernel.gives.store(false, Ordering::SeqCst);
        }
        // It is on its way.
        drop(self.forget_all());
        self.settle(deadline).await;
    }

    /// Returns when nothing is on its way back, or at `deadline`.
    pub async fn settle(&self, deadline: Instant) {
        let _ = timeout_at(deadline, self.0.closed.emptied()).await;
    }

    pub fn give_again(&self) {
        if let Some(kernel) = self.0.kernel.get() {
            kernel.gives.store(true, Ordering::SeqCst);
        }
    }

    /// Has all names be taken back, and gives none any more.
    fn give_no_names(&self) {
        let gave = |kernel: &Kernel| kernel.names.swap(false, Ordering::SeqCst);
        if self.0.kernel.get().is_some_and(gave) {
            names::warn_of_strangers();
            // It is on its way.
            drop(self.forget_all());
        }
    }

    fn gives(&self, what: impl FnOnce(&Kernel) -> bool) -> bool {
        let kernel = self.0.kernel.get();
        kernel.is_some_and(|kernel| kernel.gives.load(Ordering::SeqCst) && what(kernel))
    }

    fn may_give(&self, fs: &Filesystem, dir: InodeId, name: &[u8], ino: Option<InodeId>) -> bool {
        let gives = self.gives(|kernel| kernel.names.load(Ordering::SeqCst))
            && !matches!(name, b"." | b"..");
        gives && fs.may_cache_name(dir, name, ino)
    }

    /// For how long the kernel may use a name without asking. `late`: it may take the answer in
    /// without the lock of the directory, for this thread.
    fn give_name(
        &self,
        fs: &Filesystem,
        dir: InodeId,
        name: Bytes,
        ino: Option<InodeId>,
        late: Option<u32>,
    ) -> Duration {
        if !self.may_give(fs, dir, &name, ino) {
            return Duration::ZERO;
        }
        let given = {
            let mut table = self.0.table.lock();
            late.into_iter().for_each(|thread| table.is_late(thread, dir.0));
            table.give(dir.0, name.clone(), ino.map_or(0, |ino| ino.0))
        };
        // It may have been recalled meanwhile.
        match given && self.may_give(fs, dir, &name, ino) {
            true => NAME_TTL,
            false => Duration::ZERO,
        }
    }
}
