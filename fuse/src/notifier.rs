//! Tells the kernel what it must not use any more of its caches.

use crate::abi::Notice;
use crate::channel::Device;
use crate::lanes::Lanes;
use crate::root::Root;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How often is looked whether all notices were sent.
const SENT_INTERVAL: Duration = Duration::from_millis(10);

/// A handle from which any thread may invalidate what the kernel has cached of one mount.
///
/// Notices are sent by threads of their own ([`Lanes`]): the kernel may wait in one, for an inode
/// that a request is working on, and that must hold up no request and no other notice. Those that
/// need a directory have other threads than the rest: a program may hold as many directories as it
/// likes, for as long. They come in no order. A notice is on its way when the method returns; the
/// future ends when the kernel has done it. To wait for that future inside a request deadlocks if
/// the notice needs a lock that the kernel holds for the request:
/// - an entry or a delete needs the directory, held while a name in it is made, removed or renamed;
/// - an inode with content needs its cached pages, held while they are read or written;
/// - an inode's attributes alone (`offset` -1) need nothing.
#[derive(Clone, Debug)]
pub struct Notifier {
    device: Arc<Device>,
    /// For what needs an inode at the most, and for what needs a directory.
    inodes: Arc<Lanes>,
    directories: Arc<Lanes>,
    root: Root,
}

impl Notifier {
    /// Its effect ends with the connection.
    pub(crate) fn new(device: Arc<Device>, runtime: Handle, root: Root) -> Self {
        let (inodes, directories) = (Lanes::new(runtime.clone()), Lanes::new(runtime));
        Self { device, inodes, directories, root }
    }

    /// Attributes of an inode; and, unless `offset` is negative, its cached content from there,
    /// `len` bytes or all if `len` is 0. What the kernel does not know is no error.
    pub fn inval_inode(
        &self,
        ino: u64,
        offset: i64,
        len: i64,
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        self.inval_inode_after(ino, offset, len, || ())
    }

    /// The same, behind what may block.
    pub(crate) fn inval_inode_after<F: FnOnce() + Send + 'static>(
        &self,
        ino: u64,
        offset: i64,
        len: i64,
        before: F,
    ) -> impl Future<Output = io::Result<()>> + Send + use<F> {
        let notice = Notice::Inode { ino: self.root.swap(ino), offset, len };
        self.send(&self.inodes, notice, before)
    }

    /// A name in a directory, also one that is known not to be there.
    pub fn inval_entry(
        &self,
        parent: u64,
        name: &[u8],
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        let notice = Notice::Entry { parent: self.root.swap(parent), name: name.to_vec() };
        self.send(&self.directories, notice, || ())
    }

    /// Ends the time to live of names in a directory, one after the other. What they lead to, and
    /// what is mounted there, the kernel keeps.
    pub(crate) fn expire(
        &self,
        parent: u64,
        names: Vec<Bytes>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (device, parent) = (self.device.clone(), self.root.swap(parent));
        let expired = run(&self.directories, move || {
            for name in names {
                // What the kernel does not take is a mount that is no more.
                let _ = tell(&device, &Notice::Expire { parent, name: name.to_vec() });
            }
        });
        async move { drop(expired.await) }
    }

    /// As [`Self::inval_entry`], for the name of inode `child` that was removed elsewhere: programs
    /// that watch the directory are told.
    pub fn delete(
        &self,
        parent: u64,
        child: u64,
        name: &[u8],
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        let (parent, child) = (self.root.swap(parent), self.root.swap(child));
        let notice = Notice::Delete { parent, child, name: name.to_vec() };
        self.send(&self.directories, notice, || ())
    }

    /// Returns when no notice is on its way.
    pub(crate) async fn sent(&self) {
        while !(self.inodes.are_idle() && self.directories.are_idle()) {
            tokio::time::sleep(SENT_INTERVAL).await;
        }
    }

    fn send<F: FnOnce() + Send + 'static>(
        &self,
        lanes: &Arc<Lanes>,
        notice: Notice,
        before: F,
    ) -> impl Future<Output = io::Result<()>> + Send + use<F> {
        let device = self.device.clone();
        let told = run(lanes, move || {
            before();
            tell(&device, &notice)
        });
        async move { told.await.unwrap_or_else(|_| Err(io::ErrorKind::NotConnected.into())) }
    }
}

/// Does what may wait in the kernel, whether or not anybody waits for that. `Err` from a runtime
/// that ends.
fn run<T: Send + 'static>(
    lanes: &Arc<Lanes>,
    work: impl FnOnce() -> T + Send + 'static,
) -> oneshot::Receiver<T> {
    let (done, ended) = oneshot::channel();
    lanes.run(move || drop(done.send(work())));
    ended
}

fn tell(device: &Device, notice: &Notice) -> io::Result<()> {
    let told = match device.notify(notice) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    if let Err(error) = &told {
        tracing::debug!("the kernel did not take {notice:?}: {error}");
    }
    told
}

/// The kernel's pages, bytes.
pub(crate) fn page_size() -> u64 {
    // SAFETY: takes no pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}
