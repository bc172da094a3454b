//! Tells the kernel what it must not use any more of its caches.

use crate::abi::Notice;
use crate::channel::Device;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

/// A handle from which any thread may invalidate what the kernel has cached of one mount.
///
/// Notices are sent by a thread of their own, in order: the kernel may wait in one, for an inode that
/// a request is working on, so the threads that answer requests must never send them. A notice
/// is on its way when the method returns; the future ends when the kernel has done it. To wait for
/// that future inside a request deadlocks if the notice needs a lock that the kernel holds for the
/// request:
/// - an entry or a delete needs the directory, held while a name in it is made, removed or renamed;
/// - an inode with content needs its cached pages, held while they are read or written;
/// - an inode's attributes alone (`offset` -1) need nothing.
#[derive(Clone, Debug)]
pub struct Notifier(Sender<(Notice, oneshot::Sender<io::Result<()>>)>);

impl Notifier {
    /// Ends with the mount: its thread when the last clone is dropped, its effect with the
    /// connection.
    pub(crate) fn start(device: Arc<Device>) -> io::Result<Self> {
        let (sender, notices) = channel();
        std::thread::Builder::new()
            .name("fuse-notify".into())
            .spawn(move || serve(&device, &notices))?;
        Ok(Self(sender))
    }

    /// Attributes of an inode; and, unless `offset` is negative, its cached content from there,
    /// `len` bytes or all if `len` is 0. What the kernel does not know is no error.
    pub fn inval_inode(
        &self,
        ino: u64,
        offset: i64,
        len: i64,
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        self.send(Notice::Inode { ino, offset, len })
    }

    /// A name in a directory, also one that is known not to be there.
    pub fn inval_entry(
        &self,
        parent: u64,
        name: &[u8],
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        self.send(Notice::Entry { parent, name: name.to_vec() })
    }

    /// As [`Self::inval_entry`], for the name of inode `child` that was removed elsewhere: programs
    /// that watch the directory are told.
    pub fn delete(
        &self,
        parent: u64,
        child: u64,
        name: &[u8],
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        self.send(Notice::Delete { parent, child, name: name.to_vec() })
    }

    fn send(&self, notice: Notice) -> impl Future<Output = io::Result<()>> + Send + use<> {
        let (done, ended) = oneshot::channel();
        // A thread that is gone leaves the future to say so.
        let _ = self.0.send((notice, done));
        async move { ended.await.unwrap_or_else(|_| Err(io::ErrorKind::NotConnected.into())) }
    }
}

fn serve(device: &Device, notices: &Receiver<(Notice, oneshot::Sender<io::Result<()>>)>) {
    for (notice, done) in notices {
        let told = match device.notify(&notice) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        if let Err(error) = &told {
            tracing::debug!("the kernel did not take {notice:?}: {error}");
        }
        // Whoever sent it need not wait.
        let _ = done.send(told);
    }
}
